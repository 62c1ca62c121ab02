"""Defines a finding of `jobherd doctor`, and quotes values for its text.

No judge of this folder queries, changes or waits for anything: each gets rows as
`sql/queries/doctor/` returns them, and returns findings. A finding is `wrong` only if it can make
jobs lost, late or stuck. A finding that only deserves attention is a `note`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Row: TypeAlias = "Mapping[str, Any]"
Weight: TypeAlias = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    weight: Weight
    about: str
    """The subject of the check, in one or two words."""
    text: str
    """What was found, as a sentence."""
    remedy: str = ""
    """What to do, or the SQL that fixes it."""


def quoted(text: str) -> str:
    """Return a text as an SQL literal.

    Any user can choose the name of a prepared transaction, and a superuser may run the fix.
    """
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def listed(names: list[str]) -> str:
    return f"the role {names[0]} is" if len(names) == 1 else f"the roles {', '.join(names)} are"
