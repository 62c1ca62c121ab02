"""The options of a handler: type, default, check and description, each declared once.

`HandlerOptions` and `BatchOptions` are what users write: type checkers and editors read them, and
`options_table` makes the table in `docs/reference/handler-options.md` from their texts. `Policy` is what the
rest of Jobherd reads. To add an option, add a field to both.

A wrong option must fail where it is written, with file and line of the decorator, and not with the
first job at night. So every field is checked here. The error names the field, the value and the
fix.
"""

# ruff: noqa: RUF009  # `_option` returns a field

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence  # noqa: TC003 - `get_type_hints` of the options needs them
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Final, Literal, Required, TypedDict

from jobherd.handlers._policy.backoff import DEFAULT, BackoffLike, check_backoff
from jobherd.handlers._policy.costs import check_names
from jobherd.handlers._policy.durations import Duration, at_least_zero, positive
from jobherd.handlers._policy.names import check_queue, check_whole, did_you_mean
from jobherd.handlers._policy.option_checks import (
    Cost,
    Errors,
    ErrorsLike,
    Wait,
    check_backoffs,
    check_batch,
    check_cost,
    check_encrypt,
    check_errors,
    check_linger,
    check_switch,
    or_none,
)
from jobherd.handlers._policy.rates import Rate, check_burst, check_rate, check_refill
from jobherd.handlers._policy.redact import check_redact
from jobherd.handlers._policy.schedule import OPTIONS as SCHEDULED
from jobherd.handlers._policy.schedule import Schedule, check_cron, check_every, check_schedules, check_tz
from jobherd.handlers._policy.unique import Edge, Unique, UniqueLike, check_edge, check_partition_by, check_unique

_DAY: Final = 86400.0


class CommonOptions(TypedDict, total=False):
    """Options of every handler."""

    queue: str
    """Queue of the jobs."""
    priority: int
    """Lower numbers run first, may be negative."""
    timeout: Duration
    """Longest duration of one attempt."""
    max_attempts: int
    """Attempts before a job fails permanently."""
    max_crashes: int
    """Processes that may die while running the job before it fails permanently."""
    backoff: BackoffLike
    """Delay after a failed attempt: a `Backoff`, one duration, a list of durations, or a function from
    the number of attempts to a duration. The default is 30 s, doubled after each attempt, at most
    1 h, with a jitter of 20 %."""
    retry_on: ErrorsLike | None
    """Exceptions and error codes that are retried; all others fail the job permanently. `None`: all are
    retried."""
    poison_on: ErrorsLike
    """Exceptions and error codes that fail the job permanently, as `Poison` does."""
    backoff_on: Mapping[type[BaseException] | str, BackoffLike] | None
    """Other delays for some exceptions or error codes, as a dict."""
    exclusive: bool
    """Never run an attempt while another one is still running, not even briefly after a lost lease."""
    max_running: int | None
    """Concurrency limit of the kind over all hosts, unless `jobherd limit` has set another one. `None`:
    limited only by the number of workers."""
    rate: str | None
    """Rate limit of the kind over all hosts, such as `"100/min"`, unless `jobherd limit` has set another
    one. Each attempt counts. `None`: no limit."""
    burst: int | None
    """Jobs that `rate` lets start at once after a time without any. `None`: what comes in 50 ms, at
    least 1."""
    partition: str | None
    """What divides the jobs for fair turns and limits of each partition: a field of the payload, such as
    `"customer_id"` or `"$.customer.id"`, or `"tenant"`. `None`: a job has the partition that its enqueue
    names."""
    keep_completed: Duration
    """How long completed jobs are kept, rounded up to days. `0` writes nothing for a completed job,
    which is the fastest: looking it up or waiting for it finds no such job."""
    keep_failed: Duration
    """How long failed, canceled and expired jobs are kept, rounded up to days."""
    cost: Cost | None
    """Resources of the host that a running job uses, amounts by name, such as `{"memory_mb": 900}`, or a
    function from the payload to them, called when the job is enqueued with the handler. For a batch
    handler: the resources of one call."""
    flags: Sequence[str]
    """Labels of the kind, such as `("gpu",)`, that a `before_claim` hook can forbid."""
    redact: Sequence[str]
    """Parts of payload and result that the dashboard never shows, such as
    `["$.card", "$.items[*].code", "$..password"]`."""
    unique: UniqueLike
    """Enqueue no second job while one with the key is live: `True`, fields like `("id",)`, or a `Unique`."""
    unique_for: Duration | None
    """How long a job holds its key in any case, even if it has finished."""
    debounce: Duration | None
    """Delay after the last enqueue with the key. Each one gives the waiting job its payload."""
    max_wait: Duration | None
    """Longest delay of a debounced job. `None`: 10 times `debounce`."""
    throttle: Duration | None
    """Enqueue at most one job with the key in this time."""
    edge: Edge | None
    """Job that a throttle keeps: `"leading"`: the first, the default; `"trailing"`: the newest payload."""
    cron: str | None
    """Enqueue a job without payload at these times: a cron expression of five fields, such as
    `"0 3 * * MON-FRI"`."""
    every: Duration | None
    """Enqueue a job without payload after each such period, at least 1 s."""
    tz: str
    """Time zone of `cron`, such as `"Europe/Berlin"`."""
    schedules: Sequence[Schedule]
    """Further schedules, each with a name, a payload and its policies."""
    version: int
    """Version of the handler's code, at least 1. Each durable step is recorded with it, see
    `Job.began_with`."""
    encrypt: bool | Literal["only"]
    """Encrypt payloads, results, errors and logs with the keys in the environment before they are
    written. `"only"` also rejects payloads that arrive unencrypted."""


class HandlerOptions(CommonOptions, total=False):
    """Options of a handler of single jobs."""

    transactional: bool
    """Run each attempt in a transaction, `job.connection`, that commits together with the job's
    completion. A failed attempt leaves nothing in the database. For a transaction around a part of a
    handler see `Job.transaction`."""
    attempts_per_step: bool
    """Count each attempt that records a durable step as the first one, so that `max_attempts` limits the
    attempts without progress."""


class BatchOptions(CommonOptions, total=False):
    """Options of a batch handler."""

    batch: Required[int]
    """Most jobs in one call, 1 to 500. The function gets a list of jobs, a list of payloads, or both. It
    returns `None` if all succeeded, a list of answers in order, or a dict of answers by job id.
    `None`: one job per call."""
    linger: Duration
    """How long a batch that is not full waits for more jobs when the queue is empty, at most 60 s."""


def _option(default: object, check: Callable[..., Any], *, see: str = "") -> Any:
    """Return a field of `Policy`.

    default: as a user would write it. check: takes the value and `field=`, and returns the checked
    value. see: a Markdown link for the documentation.
    """
    checked = check(default, field="")
    return field(default_factory=lambda: checked, metadata={"default": default, "check": check, "see": see})


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Checked options of a handler. Durations are in seconds.

    Each field has the meaning of the same option. A function as `cost` computes a job's cost from
    its payload when the job is enqueued.
    """

    queue: str = _option("default", check_queue)
    priority: int = _option(0, check_whole)
    timeout: float = _option("5m", positive)
    max_attempts: int = _option(5, partial(check_whole, least=1))
    max_crashes: int = _option(3, partial(check_whole, least=1))
    backoff: Wait = _option(
        DEFAULT, check_backoff, see="[Retries and back-off](../how-to/write/retries-and-backoff.md)"
    )
    retry_on: Errors | None = _option(None, or_none(check_errors), see="[Error codes](outcomes.md#error-codes)")
    poison_on: Errors = _option((), check_errors)
    backoff_on: tuple[tuple[type[BaseException] | str, Wait], ...] = _option(None, check_backoffs)
    exclusive: bool = _option(
        False, check_switch, see="[Exclusive kinds](../how-to/write/define-handlers.md#exclusive-kinds)"
    )
    max_running: int | None = _option(
        None,
        or_none(partial(check_whole, least=1)),
        see="[Concurrency limits](../how-to/operate/queues.md#concurrency-limits)",
    )
    rate: Rate | None = _option(None, or_none(check_rate), see="[Rate limits](../how-to/operate/rate-limits.md)")
    burst: int | None = _option(None, or_none(check_burst), see="[Rate limits](../how-to/operate/rate-limits.md)")
    partition: tuple[str, ...] | None = _option(
        None, or_none(check_partition_by), see="[Partitions](../how-to/operate/fairness.md)"
    )
    transactional: bool = _option(False, check_switch, see="[Transactions](../how-to/write/transactions.md)")
    batch: int | None = _option(None, check_batch, see="[Batch handlers](../how-to/write/batch-handlers.md)")
    linger: float = _option(0, check_linger)
    keep_completed: float = _option("7d", at_least_zero)
    keep_failed: float = _option("30d", at_least_zero)
    cost: Mapping[str, float] | Callable[[Any], Mapping[str, float]] = _option(
        None, check_cost, see="[Host budgets](../how-to/write/resource-budgets.md)"
    )
    flags: tuple[str, ...] = _option((), check_names)
    redact: tuple[str, ...] = _option(
        (),
        check_redact,
        see="[Redact payloads and results](../how-to/operate/dashboard.md#redact-payloads-and-results)",
    )
    unique: Unique | None = _option(None, check_unique, see="[Unique jobs](../how-to/write/unique-jobs.md)")
    unique_for: float | None = _option(None, or_none(positive))
    debounce: float | None = _option(
        None, or_none(positive), see="[Debounced jobs](../how-to/write/unique-jobs.md#debounced-jobs)"
    )
    max_wait: float | None = _option(None, or_none(positive))
    throttle: float | None = _option(
        None, or_none(positive), see="[Throttled jobs](../how-to/write/unique-jobs.md#throttled-jobs)"
    )
    edge: Edge | None = _option(None, or_none(check_edge))
    cron: str | None = _option(None, or_none(check_cron), see="[Periodic jobs](../how-to/write/periodic-jobs.md)")
    every: float | None = _option(None, or_none(check_every))
    tz: str = _option("UTC", check_tz)
    schedules: tuple[Schedule, ...] = _option((), check_schedules)
    attempts_per_step: bool = _option(
        False,
        check_switch,
        see="[Attempts for each step](../how-to/write/retries-and-backoff.md#attempts-for-each-step)",
    )
    version: int = _option(1, partial(check_whole, least=1), see="[Durable steps](../how-to/write/steps.md)")
    encrypt: bool | str = _option(False, check_encrypt, see="[Encryption](../how-to/operate/security.md#encryption)")

    @property
    def keep_completed_days(self) -> int:
        """How long completed jobs are kept, in whole days, rounded up.

        The history is dropped by the day.
        """
        return math.ceil(self.keep_completed / _DAY)

    @property
    def keep_failed_days(self) -> int:
        """How long failed, canceled and expired jobs are kept, in whole days, rounded up."""
        return math.ceil(self.keep_failed / _DAY)


OPTIONS: Final = {one.name: one.metadata for one in fields(Policy)}
"""Of each option the default, the check and a link."""


def check_policy(**options: Any) -> Policy:
    """Return the options as a Policy.

    Raises ValueError or TypeError naming the field, the value and the fix.
    """
    for name in options:
        if name not in OPTIONS:
            if name in SCHEDULED:
                message = f'{name} is an option of a schedule: schedules=[Schedule("a-name", every="15s", {name}=...)]'
                raise TypeError(message)
            message = f"handler() has no option {name!r}{did_you_mean(name, OPTIONS)}"
            raise TypeError(message)
    policy = Policy(**{name: OPTIONS[name]["check"](value, field=name) for name, value in options.items()})
    check_refill(policy.rate, policy.burst)
    if policy.transactional and policy.batch is not None:
        message = (
            "transactional and batch exclude each other: a transaction completes one job, "
            "so declare the handler without batch=N"
        )
        raise ValueError(message)
    if policy.attempts_per_step and (policy.transactional or policy.batch is not None):
        message = "attempts_per_step excludes transactional and batch: such handlers have no durable steps"
        raise ValueError(message)
    if policy.cron is not None and policy.every is not None:
        message = "cron and every exclude each other: give one of them, or several schedules=[...]"
        raise ValueError(message)
    if policy.encrypt == "only" and (policy.cron or policy.every or policy.schedules):
        message = 'encrypt="only" rejects the jobs of schedules: their payloads are stored unencrypted'
        raise ValueError(message)
    if policy.encrypt and policy.partition:
        message = (
            "partition by a field excludes encrypt, since the database cannot read the payload: "
            'declare partition="tenant", or name the partition when you enqueue'
        )
        raise ValueError(message)
    if policy.linger and policy.batch is None:
        message = "linger requires batch=N, the most jobs per call"
        raise ValueError(message)
    return policy
