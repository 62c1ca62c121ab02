"""Checks what a handler declares about its jobs, when it is declared.

A wrong option must fail where it is written, with file and line of the decorator, and not with the
first job at night. So every field is checked here. The error names the field, the value and the
fix.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from jobherd.handlers._policy.backoff import DEFAULT, Backoff, BackoffLike, check_backoff
from jobherd.handlers._policy.costs import check_amounts, check_names
from jobherd.handlers._policy.durations import Duration, at_least_zero, positive
from jobherd.handlers._policy.redact import check_redact

KIND: Final = re.compile(r"[a-z0-9_][a-z0-9_.:-]{0,99}")
QUEUE: Final = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,62}")

TENANT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,99}")
WEBHOOK: Final = re.compile(r"(?i:https?)://[^/?#@\s\x00-\x1f]+([/?][^\s\x00-\x1f]*)?")
TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
CODE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,99}")

Errors: TypeAlias = tuple[type[BaseException] | str, ...]
"""Exception classes and error codes."""
ErrorsLike: TypeAlias = Errors | type[BaseException] | str
Wait: TypeAlias = Backoff | tuple[float, ...] | Callable[[int], Duration]

_SMALLEST, _LARGEST = -32768, 32767  # the columns are smallint
_DAY = 86400.0
_MOST_BATCH: Final = 500
_LONGEST_LINGER: Final = 60.0
"""Seconds. The jobs of a waiting call are claimed, and no other worker can run them."""


def check_kind(value: object) -> str:
    """Return `value` if it is a valid kind, or raise ValueError with the rule.

    >>> check_kind("mail:receipt")
    'mail:receipt'
    """
    if not isinstance(value, str) or not KIND.fullmatch(value):
        message = (
            f"kind {_shown(value)} is not a name like 'mail:receipt': use lower-case letters, digits and _ . : - , "
            "at most 100 characters, the first a letter, digit or _"
        )
        raise ValueError(message)
    return value


def check_queue(value: object) -> str:
    """Return `value` if it is a valid name of a queue, or raise ValueError with the rule.

    >>> check_queue("media")
    'media'
    """
    if not isinstance(value, str) or not QUEUE.fullmatch(value):
        message = (
            f"queue {_shown(value)} is not a name like 'media': use lower-case letters, digits and _ . - , "
            "at most 63 characters, the first a letter, digit or _"
        )
        raise ValueError(message)
    return value


def check_tenant(value: object) -> str:
    """Return `value` if it is a valid name of a tenant, or raise ValueError with the rule.

    >>> check_tenant("acme")
    'acme'
    """
    if not isinstance(value, str) or not TENANT.fullmatch(value):
        message = f"tenant {_shown(value)} is not a name like 'acme': use letters, digits and _ . : @ - , at most 100 characters"
        raise ValueError(message)
    return value


def check_webhook(value: object) -> str:
    """Return `value` if it can be the URL of a webhook, or raise ValueError with the rule.

    Whether the URL may be called is checked when it is called.

    >>> check_webhook("https://example.com/done?by=jobherd")
    'https://example.com/done?by=jobherd'
    """
    if not isinstance(value, str) or not WEBHOOK.fullmatch(value) or len(value) > 2000:
        message = f"webhook must be a URL like 'https://example.com/done', without a user, at most 2000 characters, not {_shown(value)}"
        raise ValueError(message)
    return value


def check_traceparent(value: object) -> str:
    """Return `value` if it is a traceparent (W3C Trace Context), or raise ValueError.

    >>> check_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")[3:7]
    '4bf9'
    """
    if not isinstance(value, str) or not TRACEPARENT.fullmatch(value):
        message = (
            f"traceparent {_shown(value)} is not like '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01': "
            "version, trace, parent and flags in lower-case hexadecimal digits, trace and parent not all zeros"
        )
        raise ValueError(message)
    return value


def check_whole(value: object, *, field: str, least: int = _SMALLEST) -> int:
    """Return `value` if it is a whole number from `least` to 32767.

    Raises ValueError naming `field`.

    >>> check_whole(5, field="max_attempts", least=1)
    5
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST:
        message = f"{field} must be a whole number from {least} to {_LARGEST}, not {_shown(value)}"
        raise ValueError(message)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Checked options of a handler. Durations are in seconds.

    Each field has the meaning of the same option of `handler`.
    """

    queue: str = "default"
    priority: int = 0
    timeout: float = 300.0
    max_attempts: int = 5
    max_crashes: int = 3
    backoff: Wait = DEFAULT
    retry_on: Errors | None = None
    poison_on: Errors = ()
    backoff_on: tuple[tuple[type[BaseException] | str, Wait], ...] = field(default=())
    exclusive: bool = False
    max_running: int | None = None
    """None: limited only by the number of workers."""
    transactional: bool = False
    keep_completed: float = 7 * _DAY
    keep_failed: float = 30 * _DAY
    batch: int | None = None
    """None: one job per call."""
    linger: float = 0.0
    cost: Mapping[str, float] | Callable[[Any], Mapping[str, float]] = field(default_factory=dict)
    """A function: computes a job's cost from its payload when the job is enqueued."""
    flags: tuple[str, ...] = ()
    redact: tuple[str, ...] = ()
    encrypt: bool | str = False
    """True, or "only": reject unencrypted payloads."""

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


def check_policy(
    *,
    queue: str,
    priority: int,
    timeout: Duration,
    max_attempts: int,
    max_crashes: int,
    backoff: BackoffLike,
    retry_on: ErrorsLike | None,
    poison_on: ErrorsLike,
    backoff_on: object,
    exclusive: object,
    keep_completed: Duration,
    keep_failed: Duration,
    transactional: object = False,
    max_running: int | None = None,
    batch: int | None = None,
    linger: Duration = 0.0,
    cost: object = MappingProxyType({}),
    flags: object = (),
    redact: object = (),
    encrypt: object = False,
) -> Policy:
    """Return the options as a Policy.

    Raises ValueError or TypeError naming the field, the value and the fix.
    """
    for name, switch in (("exclusive", exclusive), ("transactional", transactional)):
        if not isinstance(switch, bool):
            message = f"{name} must be True or False, not {_shown(switch)}"
            raise TypeError(message)
    if not isinstance(encrypt, bool) and encrypt != "only":
        message = f"encrypt must be True, False or 'only', not {_shown(encrypt)}"
        raise TypeError(message)
    if transactional and batch is not None:
        message = "transactional and batch exclude each other: a transaction completes one job, so declare the handler without batch=N"
        raise ValueError(message)
    if not isinstance(backoff_on, Mapping):
        message = f"backoff_on must be a dict from exception classes or codes to waits, like {{TimeoutError: '10s'}}, not {_shown(backoff_on)}"
        raise TypeError(message)
    for error in backoff_on:
        _errors(error, field="backoff_on")
    return Policy(
        queue=check_queue(queue),
        priority=check_whole(priority, field="priority"),
        timeout=positive(timeout, field="timeout"),
        max_attempts=check_whole(max_attempts, field="max_attempts", least=1),
        max_crashes=check_whole(max_crashes, field="max_crashes", least=1),
        backoff=check_backoff(backoff, field="backoff"),
        retry_on=None if retry_on is None else _errors(retry_on, field="retry_on"),
        poison_on=_errors(poison_on, field="poison_on"),
        backoff_on=tuple(
            (error, check_backoff(wait, field=f"backoff_on[{error if isinstance(error, str) else error.__name__}]"))
            for error, wait in backoff_on.items()
        ),
        exclusive=bool(exclusive),
        transactional=bool(transactional),
        max_running=None if max_running is None else check_whole(max_running, field="max_running", least=1),
        keep_completed=at_least_zero(keep_completed, field="keep_completed"),
        keep_failed=at_least_zero(keep_failed, field="keep_failed"),
        batch=_batch(batch),
        linger=_linger(linger, batch),
        cost=cost if callable(cost) else check_amounts(cost, field="cost"),
        flags=check_names(flags, field="flags"),
        redact=check_redact(redact),
        encrypt=encrypt if isinstance(encrypt, bool) else str(encrypt),
    )


def _batch(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_BATCH:
        message = (
            f"batch must be a whole number from 1 to {_MOST_BATCH}, the most jobs of one call, not {_shown(value)}"
        )
        raise ValueError(message)
    return value


def _linger(value: Duration, batch: int | None) -> float:
    linger = at_least_zero(value, field="linger")
    if linger and batch is None:
        message = "linger requires batch=N, the most jobs per call"
        raise ValueError(message)
    if linger > _LONGEST_LINGER:
        message = f"linger must be at most {_LONGEST_LINGER:g} s, not {_shown(value)}: the waiting jobs are claimed, so no other worker can run them"
        raise ValueError(message)
    return linger


def _errors(value: object, *, field: str) -> Errors:
    errors = value if isinstance(value, tuple) else (value,)
    for one in errors:
        if isinstance(one, str) and CODE.fullmatch(one):
            continue
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            message = f"{field} takes exception classes and error codes, like (FileNotFoundError, 'MAIL_REFUSED'), not {_shown(one)}"
            raise TypeError(message)
    return errors


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
