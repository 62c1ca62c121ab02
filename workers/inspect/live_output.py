"""Reads what this host's jobs print and log while they run, from the status boards, without a query.

While a user watches, the supervisor publishes a job's output four times a second. Otherwise it
publishes only what would fill the pipe. So new output shows with the next read. For a job on
another host, that host's supervisor writes the output to the database (`fleet_report.py`), for as
long as a dashboard requests it.
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
"""Most lines shown."""
WATCHED: Final = 3.0
"""Seconds after a read in which the supervisor publishes the job's output."""


def tail_of(boards: Sequence[StatusBoard], job: int, token: int | None) -> str | None:
    """Return the latest lines that a running job has printed or logged.

    The result is "" if there are none, and None if the job does not run on this host.
    boards: the status boards of all slots. token: of the claim under which it runs; None: any.
    """
    for board in boards:
        now = board.now()
        if now is None or not now.runs or token not in (None, now.token):
            continue
        if now.job != job and job not in {each.job for each in board.company(now)}:
            continue  # It is in the same claim as the running job, and has not begun.
        board.watch(time.monotonic() + WATCHED)
        total, said = board.drained()
        new = total - board.output_taken
        return "\n".join(_lines_of(said[-new:])[-LINES:]) if new > 0 else ""
    return None


def _lines_of(said: bytes) -> list[str]:
    """Return the output as lines, entries of `job.log(key, ...)` last."""
    document = json.loads(digest(said) or "{}")
    entries = [
        f"[{entry.get('key', '?')}] {entry.get('out', '')}".rstrip()
        for entry in document.get("entries", ())
        if isinstance(entry, dict)
    ]
    lines: list[str] = document.get("output", "").rstrip("\n").splitlines()
    return lines + entries
