"""Reports why a worker process is replaced."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jobherd.workers.ipc.status_board import StatusBoard

_log = logging.getLogger("jobherd.worker")

WORTH_A_WARNING: Final = frozenset({3, 10, 100, 1000, 10_000, 100_000})
"""Replacements of a slot's worker caused by one kind. These counts are logged as warnings, so that
a kind that causes each one is visible without a flood.
"""


def report_recycling(board: StatusBoard, reason: str) -> None:
    """Log why this process is replaced.

    If a job caused it, count it for the job's kind. A kind that keeps causing it is logged as a
    warning.
    """
    record = board.now()
    if record is None or not record.job or not reason.startswith("a job "):
        _log.info("worker is replaced: %s", reason)
        return
    count = board.tally.count_recycled(record.kind)
    log = _log.warning if count in WORTH_A_WARNING else _log.info
    kind = board.tally.policy(record.kind).name
    log("worker is replaced: %s", reason, extra={"job": record.job, "kind": kind, "replaced_for_kind": count})
