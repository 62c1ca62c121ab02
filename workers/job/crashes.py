"""Decides whether a job whose process died is run again.

A supervisor and a gateway use the same rule, so a crash counts the same on every machine. No clock
and no database.
"""

from __future__ import annotations

from typing import Literal


def after_crash(
    *, last: bool, crashes: int, max_crashes: int, backoff: float
) -> tuple[Literal["failed", "retry"], float]:
    """Return the label of the outcome, and the seconds until the job is due again.

    The machine may have caused the first crash, so the job runs again at once. From the second on,
    the job is the likely cause.

    Args:
        last: whether the job has no further attempt.
        crashes: how many processes have died before while they ran the job.
        max_crashes: how many may die before the job fails.
        backoff: delay of the job's kind after this attempt, in seconds.
    """
    if last or crashes + 1 >= max_crashes:
        return "failed", 0.0
    return "retry", 0.0 if crashes == 0 else backoff
