"""The options of a handler: type, default, check and description, each declared once.

`HandlerOptions` and `BatchOptions` are what users write: type checkers and editors read them, and
`options_table` makes the table in `docs/writing-handlers.md` from their texts. `Policy` is what the
rest of Jobherd reads. To add an option, add a field to both.

A wrong option must fail where it is written, with file and line of the decorator, and not with the
first job at night. So every field is checked here. The error names the field, the value and the
fix.
"""

# ruff: noqa: RUF009  # `_option` returns a field

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Final, Literal, Required, TypeAlias, TypedDict

from jobherd.handlers._policy.backoff import DEFAULT, Backoff, BackoffLike, check_backoff
from jobherd.handlers._policy.costs import check_amounts, check_names
from jobherd.handlers._policy.durations import Duration, at_least_zero, positive
from jobherd.handlers._policy.names import check_queue, check_whole, shown
from jobherd.handlers._policy.redact import check_redact

CODE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,99}")

Errors: TypeAlias = tuple[type[BaseException] | str, ...]
"""Exception classes and error codes."""
ErrorsLike: TypeAlias = Errors | type[BaseException] | str
Wait: TypeAlias = Backoff | tuple[float, ...] | Callable[[int], Duration]
Cost: TypeAlias = Mapping[str, float] | Callable[[Any], Mapping[str, float]]

_DAY: Final = 86400.0
_MOST_BATCH: Final = 500
_LONGEST_LINGER: Final = 60.0
"""Seconds. The jobs of a waiting call are claimed, and no other worker can run them."""


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
    encrypt: bool | Literal["only"]
    """Encrypt payloads, results, errors and logs with the keys in the environment before they are
    written. `"only"` also rejects payloads that arrive unencrypted."""


class HandlerOptions(CommonOptions, total=False):
    """Options of a handler of single jobs."""

    transactional: bool
    """Run each attempt in a transaction, `job.connection`, that commits together with the job's
    completion. A failed attempt leaves nothing in the database. For a transaction around a part of a
    handler see `Job.transaction`."""


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


def _or_none(check: Callable[..., Any]) -> Callable[..., Any]:
    return lambda value, *, field: None if value is None else check(value, field=field)


def _switch(value: object, *, field: str) -> bool:
    if not isinstance(value, bool):
        message = f"{field} must be True or False, not {shown(value)}"
        raise TypeError(message)
    return value


def _errors(value: object, *, field: str) -> Errors:
    errors = value if isinstance(value, tuple) else (value,)
    for one in errors:
        if isinstance(one, str) and CODE.fullmatch(one):
            continue
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            message = (
                f"{field} takes exception classes and error codes, like (FileNotFoundError, 'MAIL_REFUSED'), "
                f"not {shown(one)}"
            )
            raise TypeError(message)
    return errors


def _backoffs(value: object, *, field: str) -> tuple[tuple[type[BaseException] | str, Wait], ...]:
    given = {} if value is None else value
    if not isinstance(given, Mapping):
        message = (
            f"{field} must be a dict from exception classes or codes to waits, like {{TimeoutError: '10s'}}, "
            f"not {shown(given)}"
        )
        raise TypeError(message)
    for error in given:
        _errors(error, field=field)
    return tuple(
        (error, check_backoff(wait, field=f"{field}[{error if isinstance(error, str) else error.__name__}]"))
        for error, wait in given.items()
    )


def _batch(value: object, *, field: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_BATCH:
        message = (
            f"{field} must be a whole number from 1 to {_MOST_BATCH}, the most jobs of one call, not {shown(value)}"
        )
        raise ValueError(message)
    return value


def _linger(value: object, *, field: str) -> float:
    linger = at_least_zero(value, field=field)
    if linger > _LONGEST_LINGER:
        message = (
            f"{field} must be at most {_LONGEST_LINGER:g} s, not {shown(value)}: "
            "the waiting jobs are claimed, so no other worker can run them"
        )
        raise ValueError(message)
    return linger


def _cost(value: object, *, field: str) -> Mapping[str, float] | Callable[[Any], Mapping[str, float]]:
    return value if callable(value) else check_amounts({} if value is None else value, field=field)


def _encrypt(value: object, *, field: str) -> bool | str:
    if not isinstance(value, bool) and value != "only":
        message = f"{field} must be True, False or 'only', not {shown(value)}"
        raise TypeError(message)
    return value if isinstance(value, bool) else "only"


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
    backoff: Wait = _option(DEFAULT, check_backoff, see="[Retries and back-off](#retries-and-back-off)")
    retry_on: Errors | None = _option(None, _or_none(_errors), see="[Error codes](#error-codes)")
    poison_on: Errors = _option((), _errors)
    backoff_on: tuple[tuple[type[BaseException] | str, Wait], ...] = _option(None, _backoffs)
    exclusive: bool = _option(False, _switch, see="[Exclusive kinds](#exclusive-kinds)")
    max_running: int | None = _option(
        None, _or_none(partial(check_whole, least=1)), see="[Concurrency limits](queues.md#concurrency-limits)"
    )
    transactional: bool = _option(False, _switch, see="[Transactions](transactions.md)")
    batch: int | None = _option(None, _batch, see="[Batch handlers](#batch-handlers)")
    linger: float = _option(0, _linger)
    keep_completed: float = _option("7d", at_least_zero)
    keep_failed: float = _option("30d", at_least_zero)
    cost: Mapping[str, float] | Callable[[Any], Mapping[str, float]] = _option(
        None, _cost, see="[Host budgets](hooks.md#host-budgets)"
    )
    flags: tuple[str, ...] = _option((), check_names)
    redact: tuple[str, ...] = _option(
        (),
        check_redact,
        see="[Redact payloads and results](page.md#redact-payloads-and-results)",
    )
    encrypt: bool | str = _option(False, _encrypt, see="[Encryption](security.md#encryption)")

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
            alike = difflib.get_close_matches(name, OPTIONS, 1)
            message = f"handler() has no option {name!r}" + (f"; did you mean {alike[0]!r}?" if alike else "")
            raise TypeError(message)
    policy = Policy(**{name: OPTIONS[name]["check"](value, field=name) for name, value in options.items()})
    if policy.transactional and policy.batch is not None:
        message = (
            "transactional and batch exclude each other: a transaction completes one job, "
            "so declare the handler without batch=N"
        )
        raise ValueError(message)
    if policy.linger and policy.batch is None:
        message = "linger requires batch=N, the most jobs per call"
        raise ValueError(message)
    return policy
