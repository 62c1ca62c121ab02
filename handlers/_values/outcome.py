"""The outcome of an attempt as a value: label, state, error codes.

`jobherd.handlers._run.classify` decides it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

Label: TypeAlias = Literal[
    "ok", "retry", "failed", "poison", "snoozed", "abandoned", "cancelled", "expired", "suspended"
]
State: TypeAlias = Literal["completed", "scheduled", "ready", "failed", "cancelled", "expired"]
FINAL_STATES: Final = ("completed", "failed", "cancelled", "expired")
"""A job does not leave them on its own."""


class Meaning(NamedTuple):
    """What an outcome's label stands for."""

    state: State
    """State of the job after the attempt."""
    counted: bool
    """Whether an attempt that has started counts towards max_attempts."""
    failed: bool
    """Whether the attempt failed: `on_failure` hooks are called, and the log has a warning or an
    error."""
    words: str
    """Text of the log line."""


LABELS: Final[dict[Label, Meaning]] = {
    "ok": Meaning("completed", counted=True, failed=False, words="job completed"),
    "retry": Meaning("scheduled", counted=True, failed=True, words="attempt failed"),
    "failed": Meaning("failed", counted=True, failed=True, words="job failed"),
    "poison": Meaning("failed", counted=True, failed=True, words="job failed"),
    "snoozed": Meaning("scheduled", counted=False, failed=False, words="job snoozed"),
    "abandoned": Meaning("ready", counted=False, failed=False, words="job released"),
    "cancelled": Meaning("cancelled", counted=True, failed=False, words="job cancelled"),
    "expired": Meaning("expired", counted=True, failed=False, words="job expired"),
    "suspended": Meaning("scheduled", counted=False, failed=False, words="job suspended"),
}
"""Every label. The order is that of the counters in shared memory. `settle_jobs.sql` has its own
copy of `state` and `counted`."""

UNHANDLED_ERROR: Final = "UNHANDLED_ERROR"
WORKER_SERIALIZATION_ERROR: Final = "WORKER_SERIALIZATION_ERROR"
WORKER_RESOLUTION_ERROR: Final = "WORKER_RESOLUTION_ERROR"
WORKER_CRASHED: Final = "WORKER_CRASHED"
JOB_TIMEOUT: Final = "JOB_TIMEOUT"
JOB_CANCELLED: Final = "JOB_CANCELLED"
JOB_EXPIRED: Final = "JOB_EXPIRED"
TRANSACTION_ENDED: Final = "TRANSACTION_ENDED"
PAYLOAD_INVALID: Final = "PAYLOAD_INVALID"
JOB_INVALID: Final = "JOB_INVALID"
KEY_MISSING: Final = "KEY_MISSING"
POISON: Final = "POISON"
NACK: Final = "NACK"
WEBHOOK: Final = "jobs:webhook"
"""Kind of the jobs that send webhooks. Every supervisor with a webhook secret serves it."""
SUSPENSION_SWALLOWED: Final = "SUSPENSION_SWALLOWED"
BATCH_ANSWER_MISSING: Final = "BATCH_ANSWER_MISSING"
BATCH_ANSWER_INVALID: Final = "BATCH_ANSWER_INVALID"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one attempt. Every text in it is safe to store."""

    label: Label
    """Name of the outcome in metrics."""
    delay: float = 0.0
    """Seconds until the job is due again, if it is."""
    started: bool = True
    """Whether the attempt has started. If not, it does not count."""
    result: str | None = None
    """Result as JSON text."""
    error: str | None = None
    """What went wrong, for people."""
    code: str | None = None
    """Error code for programs: one of this module's names, or the handler's own."""
    traceback: str | None = None
    """Traceback of the exception."""
    error_class: str | None = None
    """Class of the exception that the handler raised, with its module; None for a disposition."""

    @property
    def state(self) -> State:
        """State of the job after the attempt."""
        return LABELS[self.label].state

    @property
    def counted(self) -> bool:
        """Whether the attempt counts towards max_attempts."""
        return self.started and LABELS[self.label].counted

    @property
    def failed(self) -> bool:
        """Whether the attempt failed, for good or until the next one."""
        return LABELS[self.label].failed


@dataclass(frozen=True, slots=True)
class Raised:
    """Marks an ending as an exception that the handler raised.

    `outcome_of` takes any other value as the handler's return value.
    """

    exception: BaseException


OK: Final = Outcome("ok")
EXPIRED: Final = Outcome(
    "expired", started=False, code=JOB_EXPIRED, error="its expires_at passed before it was started"
)
