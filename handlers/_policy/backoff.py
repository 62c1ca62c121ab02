"""Computes the delay after a failed attempt.

A Backoff is a value that returns seconds. It must not depend on jobs, exceptions or the clock: the
caller passes the number of attempts.
"""

from __future__ import annotations

import math
import random as _random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from jobherd.handlers._policy.durations import LONGEST, Duration, at_least_zero, seconds


class Dice(Protocol):
    """Source of randomness: `random.Random`, the module `random`, or a test's own."""

    def random(self) -> float:
        """Return a number from 0 up to, but not including, 1."""
        ...


@dataclass(frozen=True, slots=True, init=False)
class Backoff:
    """Delay before a retry: `base * factor ** (attempts - 1)`, spread by `jitter`, at most `cap`.

    Args:
        base: delay after the first failed attempt, a duration, default 30 s.
        factor: factor by which each further delay grows, 1 to 1,000,000, default 2.
        jitter: share by which a delay is spread in both directions, 0 to 1, default 0.2.
        cap: longest delay, a duration, default 1 h. It is applied before the jitter, so that many
            jobs that failed together stay spread when they reach it, and again after it, so that no
            delay is longer.

    Raises:
        TypeError, ValueError: a value is invalid. The message names the field.

    Example:
        >>> Backoff(base="10s", jitter=0).delay(3)
        40.0
    """

    base: float
    factor: float
    jitter: float
    cap: float

    def __init__(self, base: Duration = 30.0, factor: float = 2.0, jitter: float = 0.2, cap: Duration = 3600.0) -> None:
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= 1e6:
            message = f"Backoff factor must be a number from 1 to 1,000,000, not {factor!r}"
            raise ValueError(message)
        if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not 0 <= jitter <= 1:
            message = f"Backoff jitter must be a share from 0 to 1, not {jitter!r}"
            raise ValueError(message)
        object.__setattr__(self, "base", at_least_zero(base, field="Backoff base"))
        object.__setattr__(self, "factor", float(factor))
        object.__setattr__(self, "jitter", float(jitter))
        object.__setattr__(self, "cap", at_least_zero(cap, field="Backoff cap"))

    def delay(self, attempts: int, random: Dice = _random) -> float:
        """Return the seconds to wait after `attempts` attempts. A number below 1 counts as 1.

        Args:
            attempts: attempts so far.
            random: source of the jitter. Default: the module `random`.
        """
        swing = 2 * random.random() - 1 if self.jitter else 0.0
        return delay_after(attempts, (self.base, self.factor, self.jitter, self.cap), swing)


def delay_after(attempts: int, fields: tuple[float, float, float, float], swing: float) -> float:
    """Return the delay of a `Backoff` with these fields, in their order.

    swing: which part of the jitter is added, -1 to 1.
    """
    base, factor, jitter, cap = fields
    try:
        plain = base * factor ** max(attempts - 1, 0)
    except OverflowError:  # a float cannot hold factor ** 2000; the cap is smaller anyway
        plain = math.inf if base else 0.0
    return min(cap, min(cap, plain) * (1 + jitter * swing))


BackoffLike: TypeAlias = Backoff | Duration | Sequence[Duration] | Callable[[int], Duration]
"""What options for a backoff accept: a Backoff, one duration for every delay, a list of durations
(the last one applies to all later delays), or a function from the number of attempts to a
duration."""

DEFAULT: Final = Backoff()


def check_backoff(value: object, *, field: str) -> Backoff | tuple[float, ...] | Callable[[int], Duration]:
    """Return `value` in the form that `wait` takes. Raises ValueError or TypeError naming `field`.

    >>> check_backoff(["10s", "1m"], field="backoff")
    (10.0, 60.0)
    """
    if isinstance(value, Backoff):
        return value
    if isinstance(value, list | tuple):
        if not value:
            message = f"{field} is an empty list: give at least one duration"
            raise ValueError(message)
        return tuple(at_least_zero(part, field=f"{field}[{place}]") for place, part in enumerate(value))
    if callable(value):
        return value
    return (at_least_zero(value, field=field),)


def wait(
    backoff: Backoff | tuple[float, ...] | Callable[[int], Duration],
    attempts: int,
    random: Dice = _random,
) -> float:
    """Return the seconds to wait after `attempts` attempts.

    Never raises: if the user's function fails, use the default.
    The job has already failed at this point. An exception would leave its failure unrecorded.
    """
    attempts = max(1, attempts)
    if isinstance(backoff, tuple):
        return backoff[min(attempts, len(backoff)) - 1]
    if isinstance(backoff, Backoff):
        return backoff.delay(attempts, random)
    try:
        return min(LONGEST, max(0.0, seconds(backoff(attempts), field="backoff")))
    except BaseException:  # user code: even sys.exit() in it must not lose the outcome
        return DEFAULT.delay(attempts, random)
