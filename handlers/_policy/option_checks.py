"""The checks of handler options that no other module needs, and the types that they return.

Each takes the value and `field=`, and returns the checked value. It raises ValueError or TypeError
naming the field, the value and the fix.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from jobherd.handlers._policy.backoff import Backoff, check_backoff
from jobherd.handlers._policy.costs import check_amounts
from jobherd.handlers._policy.durations import Duration, at_least_zero
from jobherd.handlers._policy.names import shown

CODE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,99}")

Errors: TypeAlias = tuple[type[BaseException] | str, ...]
"""Exception classes and error codes."""
ErrorsLike: TypeAlias = Errors | type[BaseException] | str
Wait: TypeAlias = Backoff | tuple[float, ...] | Callable[[int], Duration]
Cost: TypeAlias = Mapping[str, float] | Callable[[Any], Mapping[str, float]]

_MOST_BATCH: Final = 500
_LONGEST_LINGER: Final = 60.0
"""Seconds. The jobs of a waiting call are claimed, and no other worker can run them."""


def or_none(check: Callable[..., Any]) -> Callable[..., Any]:
    """Return the check of an option that may also be None."""
    return lambda value, *, field: None if value is None else check(value, field=field)


def check_switch(value: object, *, field: str) -> bool:
    """Return True or False."""
    if not isinstance(value, bool):
        message = f"{field} must be True or False, not {shown(value)}"
        raise TypeError(message)
    return value


def check_errors(value: object, *, field: str) -> Errors:
    """Return exception classes and error codes as a tuple."""
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


def check_backoffs(value: object, *, field: str) -> tuple[tuple[type[BaseException] | str, Wait], ...]:
    """Return the delays of some exceptions or error codes."""
    given = {} if value is None else value
    if not isinstance(given, Mapping):
        message = (
            f"{field} must be a dict from exception classes or codes to waits, like {{TimeoutError: '10s'}}, "
            f"not {shown(given)}"
        )
        raise TypeError(message)
    for error in given:
        check_errors(error, field=field)
    return tuple(
        (error, check_backoff(wait, field=f"{field}[{error if isinstance(error, str) else error.__name__}]"))
        for error, wait in given.items()
    )


def check_batch(value: object, *, field: str) -> int | None:
    """Return the most jobs of one call."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_BATCH:
        message = (
            f"{field} must be a whole number from 1 to {_MOST_BATCH}, the most jobs of one call, not {shown(value)}"
        )
        raise ValueError(message)
    return value


def check_linger(value: object, *, field: str) -> float:
    """Return how long a batch waits, in seconds."""
    linger = at_least_zero(value, field=field)
    if linger > _LONGEST_LINGER:
        message = (
            f"{field} must be at most {_LONGEST_LINGER:g} s, not {shown(value)}: "
            "the waiting jobs are claimed, so no other worker can run them"
        )
        raise ValueError(message)
    return linger


def check_cost(value: object, *, field: str) -> Mapping[str, float] | Callable[[Any], Mapping[str, float]]:
    """Return amounts by name, or the function that computes them."""
    return value if callable(value) else check_amounts({} if value is None else value, field=field)


def check_encrypt(value: object, *, field: str) -> bool | str:
    """Return True, False or 'only'."""
    if not isinstance(value, bool) and value != "only":
        message = f"{field} must be True, False or 'only', not {shown(value)}"
        raise TypeError(message)
    return value if isinstance(value, bool) else "only"
