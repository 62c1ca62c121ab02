"""The options of an enqueued job, checked where they are written."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._policy.costs import check_amounts
from jobherd.handlers._policy.durations import Duration, at_least_zero, positive
from jobherd.handlers._policy.names import check_queue, check_tenant, check_traceparent, check_webhook, check_whole
from jobherd.handlers._values.json_form import type_name
from jobherd.handlers._values.payload import check_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

FIRST: Final = datetime(1900, 1, 1, tzinfo=UTC)
LAST: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""Range of timestamps that the tables accept. Their own error message for others would show the
job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Checked options of an enqueue. None: the kind's value."""

    queue: str | None = None
    priority: int | None = None
    delay: float | None = None
    run_at: datetime | None = None
    max_attempts: int | None = None
    timeout: float | None = None
    expires_at: datetime | None = None
    cost: dict[str, float] | None = None
    tenant: str | None = None
    webhook: str | None = None
    payload_bytes: bytes | None = None
    parent_id: int | None = None
    traceparent: str | None = None

    @property
    def has_extras(self) -> bool:
        """Whether an option that few jobs have is set: COPY does not support these."""
        return any(
            value is not None
            for value in (self.tenant, self.webhook, self.payload_bytes, self.parent_id, self.traceparent)
        )

    def parameters(self) -> dict[str, Any]:
        """Return the options by name, as the statements take them."""
        return {name: getattr(self, name) for name in self.__slots__}


def check_options(  # one parameter for each option
    *,
    queue: str | None = None,
    priority: int | None = None,
    delay: Duration | None = None,
    run_at: datetime | None = None,
    max_attempts: int | None = None,
    timeout: Duration | None = None,
    expires_at: datetime | None = None,
    cost: Mapping[str, float] | None = None,
    tenant: str | None = None,
    webhook: str | None = None,
    payload_bytes: bytes | None = None,
    parent_id: int | None = None,
    traceparent: str | None = None,
) -> Options:
    """Return the checked options, durations in seconds.

    Raises ValueError or TypeError naming the field and the fix.
    """
    if delay is not None and run_at is not None:
        message = "delay and run_at exclude each other: give one of them"
        raise ValueError(message)
    return Options(
        queue=None if queue is None else check_queue(queue),
        priority=None if priority is None else check_whole(priority, field="priority"),
        delay=None if delay is None else at_least_zero(delay, field="delay"),
        run_at=None if run_at is None else _moment(run_at, field="run_at"),
        max_attempts=None if max_attempts is None else check_whole(max_attempts, field="max_attempts", least=1),
        timeout=None if timeout is None else positive(timeout, field="timeout"),
        expires_at=None if expires_at is None else _moment(expires_at, field="expires_at"),
        cost=None if cost is None else check_amounts(cost, field="cost"),
        tenant=None if tenant is None else check_tenant(tenant),
        webhook=None if webhook is None else check_webhook(webhook),
        payload_bytes=None if payload_bytes is None else check_bytes(payload_bytes),
        parent_id=None if parent_id is None else check_id(parent_id),
        traceparent=None if traceparent is None else check_traceparent(traceparent),
    )


def _moment(value: object, *, field: str) -> datetime:
    if not isinstance(value, datetime):
        message = f"{field} must be a datetime with a time zone, not a {type(value).__name__}"
        raise TypeError(message)
    if value.tzinfo is None or value.utcoffset() is None:
        message = f"{field} has no time zone: use datetime.now(UTC) + ..., or value.astimezone() for local time"
        raise ValueError(message)
    if not FIRST < value < LAST:
        message = f"{field} must lie between the years 1900 and 9000 in UTC, not at {value.isoformat()}"
        raise ValueError(message)
    return value


def check_id(value: object) -> int:
    """Return a valid job id. Raises TypeError or ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int):
        message = f"a job's id is a whole number, not a {type(value).__name__}"
        raise TypeError(message)
    if not -(2**63) <= value < 2**63:
        message = "a job's id fits into 64 bits; this one does not"
        raise ValueError(message)
    return value


def check_target(value: object, field: str, wanted: str, *kinds: type) -> None:
    """Raise TypeError for an invalid connection or client, which would fail later, or be ignored and the job enqueued elsewhere."""
    if value is not None and not isinstance(value, kinds):
        message = f"{field} must be {wanted}, not a {type_name(value)}"
        raise TypeError(message)
