"""The outcome of an attempt as a value: label, state, error codes. How an ending becomes one is decided in `_run.classify`."""

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
"""The kind of jobs that tell of the end of others. Every supervisor that has a secret serves it."""
BATCH_ANSWER_MISSING: Final = "BATCH_ANSWER_MISSING"
BATCH_ANSWER_INVALID: Final = "BATCH_ANSWER_INVALID"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one attempt. Every text in it is fit to be stored."""

    label: Label
    """What the metrics count."""
    state: State
    """Where the job goes."""
    delay: float = 0.0
    """Seconds until it may run again, if it does."""
    counted: bool = True
    """Whether the attempt counts towards max_attempts."""
    result: str | None = None
    """The result as JSON text."""
    error: str | None = None
    """What went wrong, for people."""
    code: str | None = None
    """What went wrong, for programs: one of the names in this module, or the handler's own."""
    traceback: str | None = None
    """Where it went wrong."""
    error_class: str | None = None
    """The class of the exception that the handler raised, with its module; None for what it said by a disposition."""


@dataclass(frozen=True, slots=True)
class Raised:
    """The handler ended by this exception; anything else handed to `outcome_of` is what it returned."""

    exception: BaseException


OK: Final = Outcome("ok", "completed")
EXPIRED: Final = Outcome("expired", "expired", counted=False, code=JOB_EXPIRED, error="its good_until passed before it was started")
