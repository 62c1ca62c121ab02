"""The options of an enqueued job, checked where they are written.

`JobOptions` is what callers write, `Options` what the statements get. To add an option, add a field
to both, and its check to `_CHECKS`. `jobherd enqueue` sets each option that has a flag of that name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict, Unpack, cast, get_args

from jobherd.handlers._enqueue.rule import check_rule
from jobherd.handlers._policy.costs import check_amounts
from jobherd.handlers._policy.durations import Duration, at_least_zero, positive
from jobherd.handlers._policy.names import (
    check_partition,
    check_queue,
    check_tenant,
    check_traceparent,
    check_webhook,
    check_whole,
)
from jobherd.handlers._policy.unique import Edge, Unique, UniqueLike, check_edge, check_key, check_unique
from jobherd.handlers._values.json_form import type_name, with_article
from jobherd.handlers._values.payload import check_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FIRST: Final = datetime(1900, 1, 1, tzinfo=UTC)
LAST: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""Range of timestamps that the tables accept. Their own error message for others would show the
job."""


When: TypeAlias = Literal["completed", "failed", "ended"]
"""How a job must end for another one to start."""
UPSTREAMS: Final = 1000
"""Most jobs that a job may wait for by their ids."""


class JobOptions(TypedDict, total=False):
    """Options of an enqueued job. None: the kind's value."""

    queue: str | None
    """Queue of the job."""
    priority: int | None
    """Lower numbers run first, may be negative."""
    delay: Duration | None
    """Duration before the job is due, such as "10m", a number of seconds or a timedelta."""
    run_at: datetime | None
    """Timestamp at which the job is due instead, a datetime with a time zone."""
    max_attempts: int | None
    """Attempts before the job fails permanently."""
    timeout: Duration | None
    """Longest duration of one attempt."""
    expires_at: datetime | None
    """Datetime with a time zone after which the job is not started any more."""
    cost: Mapping[str, float] | None
    """Resources of the host that the running job uses, amounts by name."""
    tenant: str | None
    """Tenant to which the job belongs."""
    partition: str | None
    """Partition of the job in its queue, such as the id of a customer."""
    after: int | Iterable[int] | None
    """Id of a job, or ids of jobs, that must end before this one is due. The id of a job may be given right after its
    enqueue, also in the same transaction."""
    when: When | None
    """How these jobs must end: "completed", the default, "failed" (also expired) or "ended" (in any way). Otherwise
    this job is canceled."""
    webhook: str | None
    """URL that gets a request when the job reaches its final state."""
    parent_id: int | None
    """Id of the parent job. Default: the job whose handler runs this code."""
    traceparent: str | None
    """Trace of the job in W3C Trace Context format: the header `traceparent`; after a space each, the
    headers `tracestate`, which may be empty, and `baggage`. Default: the trace of the job whose
    handler runs this code."""
    unique: UniqueLike | None
    """What makes the job unique: True for the whole payload, names of its fields, or a `Unique`. False:
    the job is not unique."""
    unique_key: str | None
    """Text that makes the job unique instead of its payload, such as "receipt:7"."""
    unique_for: Duration | None
    """Duration for which the job holds its key in any case, even if it has finished."""
    debounce: Duration | None
    """Delay after the last enqueue with the key: each one gives the waiting job its payload and begins
    the delay again."""
    max_wait: Duration | None
    """Longest delay of a debounced job, default 10 times `debounce`."""
    throttle: Duration | None
    """Duration in which at most one job with the key is enqueued."""
    edge: Edge | None
    """Which job a throttle keeps: "leading", the default, the first, at once; "trailing" the newest
    payload, at the end of the duration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Checked options of an enqueue, durations in seconds. None: the kind's value."""

    queue: str | None = None
    priority: int | None = None
    delay: float | None = None
    run_at: datetime | None = None
    max_attempts: int | None = None
    timeout: float | None = None
    expires_at: datetime | None = None
    cost: dict[str, float] | None = None
    tenant: str | None = None
    partition: str | None = None
    webhook: str | None = None
    payload_bytes: bytes | None = None
    after: list[int] | None = None
    when: When | None = None
    parent_id: int | None = None
    traceparent: str | None = None
    unique: Unique | Literal[False] | None = None
    unique_key: str | None = None
    unique_for: float | None = None
    debounce: float | None = None
    max_wait: float | None = None
    throttle: float | None = None
    edge: Edge | None = None

    @property
    def is_unique(self) -> bool:
        """Whether the job has a key."""
        return self.unique is not False and any(
            value is not None for value in (self.unique, self.unique_key, self.unique_for, self.debounce, self.throttle)
        )

    @property
    def has_extras(self) -> bool:
        """Whether an option that few jobs have is set: COPY does not support these."""
        return any(
            value is not None
            for value in (
                self.tenant,
                self.partition,
                self.after,
                self.webhook,
                self.payload_bytes,
                self.parent_id,
                self.traceparent,
            )
        )

    def parameters(self) -> dict[str, Any]:
        """Return the options by name, as the statements take them."""
        return {name: getattr(self, name) for name in self.__slots__}


def _moment(value: object, *, field: str) -> datetime:
    if not isinstance(value, datetime):
        message = f"{field} must be a datetime with a time zone, not {with_article(type_name(value))}"
        raise TypeError(message)
    if value.tzinfo is None or value.utcoffset() is None:
        message = f"{field} has no time zone: use datetime.now(UTC) + ..., or value.astimezone() for local time"
        raise ValueError(message)
    if not FIRST < value < LAST:
        message = f"{field} must lie between the years 1900 and 9000 in UTC, not at {value.isoformat()}"
        raise ValueError(message)
    return value


def check_id(value: object, *, field: str = "a job's id") -> int:
    """Return a valid job id. Raises TypeError or ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int):
        message = f"{field} is a whole number, not {with_article(type_name(value))}"
        raise TypeError(message)
    if not -(2**63) <= value < 2**63:
        message = f"{field} fits into 64 bits; this one does not"
        raise ValueError(message)
    return value


def _after(value: object, *, field: str) -> list[int]:
    if isinstance(value, str | bytes) or not isinstance(value, int | Iterable):
        message = f"{field} is the id of a job, or a list of ids, not {with_article(type_name(value))}"
        raise TypeError(message)
    ids = [check_id(id_, field=f"each id in {field}") for id_ in (value if isinstance(value, Iterable) else [value])]
    if not 1 <= len(ids) <= UPSTREAMS:
        message = f"{field} names {len(ids):,} jobs: give 1 to {UPSTREAMS:,} ids"
        raise ValueError(message)
    return ids


def _when(value: object, *, field: str) -> When:
    if value not in get_args(When):
        message = f"{field} is {', '.join(map(repr, get_args(When)))}, not {value!r}"
        raise ValueError(message)
    return cast("When", value)


def _unique(value: object, *, field: str) -> Unique | Literal[False]:
    return check_unique(value, field=field) or False


_CHECKS: Final[dict[str, Callable[..., Any]]] = {
    "queue": check_queue,
    "priority": check_whole,
    "delay": at_least_zero,
    "run_at": _moment,
    "max_attempts": partial(check_whole, least=1),
    "timeout": positive,
    "expires_at": _moment,
    "cost": check_amounts,
    "tenant": check_tenant,
    "partition": check_partition,
    "after": _after,
    "when": _when,
    "webhook": check_webhook,
    "payload_bytes": check_bytes,
    "parent_id": check_id,
    "traceparent": check_traceparent,
    "unique": _unique,
    "unique_key": check_key,
    "unique_for": positive,
    "debounce": positive,
    "max_wait": positive,
    "throttle": positive,
    "edge": check_edge,
}


def check_options(*, payload_bytes: bytes | None = None, **options: Unpack[JobOptions]) -> Options:
    """Return the checked options.

    Raises ValueError or TypeError naming the field and the fix.
    """
    given: dict[str, Any] = {"payload_bytes": payload_bytes, **options}
    if unknown := given.keys() - _CHECKS.keys():
        message = f"unknown option {min(unknown)!r}; the options are {', '.join(sorted(_CHECKS))}"
        raise TypeError(message)
    if given.get("delay") is not None and given.get("run_at") is not None:
        message = "delay and run_at exclude each other: give one of them"
        raise ValueError(message)
    checked = Options(**{name: _CHECKS[name](value, field=name) for name, value in given.items() if value is not None})
    check_rule(checked)
    return checked


def check_target(value: object, field: str, wanted: str, *kinds: type) -> None:
    """Raise TypeError for an invalid connection or client.

    It would fail later, or be ignored and the job enqueued elsewhere.
    """
    if value is not None and not isinstance(value, kinds):
        message = f"{field} must be {wanted}, not {with_article(type_name(value))}"
        raise TypeError(message)
