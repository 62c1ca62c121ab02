"""Decides the outcome of a job whose process died, from values only: no clock, no database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobherd.handlers._policy.backoff import delay_after
from jobherd.workers.job.crashes import after_crash

if TYPE_CHECKING:
    from jobherd.handlers._values.outcome import Label
    from jobherd.supervisor.policy.child_exit import Death
    from jobherd.workers.ipc.counters import Policy
    from jobherd.workers.ipc.current_work import CurrentWork


@dataclass(frozen=True, slots=True)
class CrashOutcome:
    """The outcome of the job that a child died with."""

    outcome: Label
    code: str | None
    delay: float = 0.0
    crash: int = 0


def crash_outcome(now: CurrentWork, policy: Policy, death: Death, jitter: float) -> CrashOutcome | None:
    """Return the outcome of the job in `now`, or None if the claim was lost.

    `jitter` is in -1..1.
    """
    stop_sequence = death.stop_sequence
    why = stop_sequence.why.value if stop_sequence is not None and stop_sequence.signaled else death.cause
    last = now.attempts >= now.max_attempts
    match why:
        case "claim_lost":
            return None
        case "cancel":
            return CrashOutcome("cancelled", "JOB_CANCELLED")
        case "drain" | "quit" | "recycled" | "requested" | "stopped":
            return CrashOutcome("abandoned", None)
        case "timeout" if not now.unstarted:
            return (
                CrashOutcome("failed", "JOB_TIMEOUT")
                if last
                else CrashOutcome("retry", "JOB_TIMEOUT", delay(policy, now.attempts, jitter))
            )
    if now.unstarted:
        return _unstarted_outcome(now, policy, jitter)
    label, wait = after_crash(
        last=last,
        crashes=now.crashes,
        max_crashes=policy.max_crashes,
        backoff=delay(policy, now.attempts, jitter),
    )
    return CrashOutcome(label, "WORKER_CRASHED", wait, crash=1)


def _unstarted_outcome(now: CurrentWork, policy: Policy, jitter: float) -> CrashOutcome:
    """Return the outcome of a job that was announced but had not started.

    It counts a crash, so that the job cannot kill workers endlessly. The job keeps its attempts,
    since its handler was not called.
    """
    if now.crashes + 1 >= policy.max_crashes:
        return CrashOutcome("failed", "WORKER_CRASHED", crash=1)
    return CrashOutcome(
        "abandoned", "WORKER_CRASHED", 0.0 if now.crashes == 0 else delay(policy, max(now.attempts, 1), jitter), crash=1
    )


def delay(policy: Policy, attempts: int, jitter: float) -> float:
    """Return the back-off after that many attempts, in seconds."""
    return delay_after(attempts, policy.backoff, jitter)
