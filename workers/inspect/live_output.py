"""What the jobs of this host print and log while they run, read from the boards: no statement, and nobody waits for it.

While somebody watches, the parent hands on what a job has said four times a second, and else only what would fill the pipe; so what is shown
comes with the next look. Of a job on another host its own parent writes it down (`facts.py`), for as long as a page asks for it.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

from jobherd.workers.inspect.captured import digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.workers.ipc.status_board import StatusBoard

LINES: Final = 40
"""The most that is shown of it."""
WATCHED: Final = 3.0
"""Seconds after a look for which the parent hands on what the job says."""


def tail_of(boards: Sequence[StatusBoard], job: int, token: int | None) -> str | None:
    """Return the latest lines that a running job has printed or logged, "" if there are none; None if it does not run on this host.

    boards: every slot's. token: of the claim under which it runs; None: whichever.
    """
    for board in boards:
        now = board.now()
        if now is None or not now.runs or token not in (None, now.token):
            continue
        if now.job != job and job not in {each.job for each in board.company(now)}:
            continue  # it is claimed together with the one that runs, and has not begun
        board.watch(time.monotonic() + WATCHED)
        total, said = board.drained()
        new = total - board.output_taken
        return "\n".join(_lines_of(said[-new:])[-LINES:]) if new > 0 else ""
    return None


def _lines_of(said: bytes) -> list[str]:
    """Return it in lines, entries of `job.log(key, ...)` last."""
    document = json.loads(digest(said) or "{}")
    entries = [
        f"[{entry.get('key', '?')}] {entry.get('out', '')}".rstrip() for entry in document.get("entries", ()) if isinstance(entry, dict)
    ]
    lines: list[str] = document.get("output", "").rstrip("\n").splitlines()
    return lines + entries
