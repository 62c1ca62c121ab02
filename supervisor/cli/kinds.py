"""Suggests a declared kind if a command names one that no handler declares.

A kind without a handler is not an error: its handler may be deployed later. So nothing is rejected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobherd.supervisor.cli.console import complain
from jobherd.supervisor.cli.usage import did_you_mean

if TYPE_CHECKING:
    from jobherd.supervisor.cli.database import Session


def suggest_kind(at: Session, kind: str | None) -> None:
    """Print a line on standard error if no handler declares this kind, and a declared one is similar."""
    if kind is None:
        return
    known = [row["name"] for row in at.rows("observe/list_kind_names")]
    if kind not in known and (near := did_you_mean(kind, known)):
        complain(f"no handler declares {kind[:100]}{near}")
