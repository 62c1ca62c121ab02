"""The outcome of an attempt as a value: label, state, error codes.

`jobherd.handlers._run.classify` decides it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Label: TypeAlias = Literal["ok", "retry", "failed", "poison", "snoozed", "abandoned", "cancelled", "expired"]
State: TypeAlias = Literal["completed", "scheduled", "ready", "failed", "cancelled", "expired"]

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
BATCH_ANSWER_MISSING: Final = "BATCH_ANSWER_MISSING"
BATCH_ANSWER_INVALID: Final = "BATCH_ANSWER_INVALID"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one attempt. Every text in it is safe to store."""

    label: Label
    """Name of the outcome in metrics."""
    state: State
    """State of the job after the attempt."""
    delay: float = 0.0
    """Seconds until the job is due again, if it is."""
    counted: bool = True
    """Whether the attempt counts towards max_attempts."""
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


@dataclass(frozen=True, slots=True)
class Raised:
    """Marks an ending as an exception that the handler raised.

    `outcome_of` takes any other value as the handler's return value.
    """

    exception: BaseException


OK: Final = Outcome("ok", "completed")
EXPIRED: Final = Outcome(
    "expired", "expired", counted=False, code=JOB_EXPIRED, error="its expires_at passed before it was started"
)
