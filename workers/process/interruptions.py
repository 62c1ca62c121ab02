"""The exception that is raised in a job for each reason that the supervisor gives.

Raising it is the task of `interrupt.py`.
"""

from __future__ import annotations

from jobherd.handlers._run.dispositions import JobCancelled, JobDrained, JobInterrupted
from jobherd.workers.ipc.current_work import Reason


class JobLost(JobCancelled):
    """The claim is lost: another worker has the job. Nothing is recorded for this attempt.

    Handlers see a JobCancelled.
    """


def interruption_for(reason: Reason) -> JobInterrupted:
    """Return a new exception for this reason."""
    if reason is Reason.CANCEL:
        return JobCancelled("the job was cancelled")
    if reason is Reason.DRAIN:
        return JobDrained("the supervisor exits and cannot wait any longer")
    return JobLost("the claim is lost")
