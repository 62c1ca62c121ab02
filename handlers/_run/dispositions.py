"""What a handler may say about its job beside a plain return or any exception.

Each disposition is a value and an exception at once: `return Nack("5m")` from the top of a handler, `raise Nack("5m")` from the
depth of it. They are equal when they say the same. They are not frozen dataclasses, because `contextlib` writes `__traceback__`
and `add_note` writes `__notes__` from Python, which a frozen exception refuses in the middle of an unwinding; only what they say is
closed for writing. Nothing here decides what becomes of the job: see `_outcome`.

The interruptions below `JobInterrupted` are what the ladder of timeout, cancel and drain raises in a handler. They derive from
KeyboardInterrupt: `except Exception` does not swallow them, and psycopg cancels the statement on the server when it meets one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeAlias

from jobherd.handlers._policy.durations import Duration, at_least_zero

if TYPE_CHECKING:
    from collections.abc import Callable


class SignalledOutcome(Exception):  # noqa: N818  # not an error: what the handler says
    """The common base of the dispositions: value semantics on an exception. Not for handlers."""

    _fields: ClassVar[tuple[str, ...]] = ()

    def _say(self, **values: object) -> None:
        self.__dict__.update(values)
        self.args = tuple(values.values())

    def _values(self) -> tuple[object, ...]:
        return tuple(self.__dict__.get(name) for name in self._fields)

    def __setattr__(self, name: str, value: object) -> None:
        if name in self._fields:
            message = f"{type(self).__name__}.{name} cannot be changed; make a new {type(self).__name__}"
            raise AttributeError(message)
        super().__setattr__(name, value)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, SignalledOutcome) and self._values() == other._values()

    def __hash__(self) -> int:
        # By type alone: a result may hold lists, and an exception that cannot be hashed breaks tools that keep them in sets.
        return hash(type(self))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self._values(), strict=True))
        return f"{type(self).__name__}({shown})"

    def __str__(self) -> str:
        return repr(self)

    def __reduce__(self) -> tuple[Callable[..., SignalledOutcome], tuple[object, ...]]:
        return type(self), self._values()


class Completed(SignalledOutcome):
    """The job is done: the same as returning `result`.

    result: any JSON value, default None.

    >>> Completed({"pages": 3})
    Completed(result={'pages': 3})
    """

    _fields = ("result",)
    result: object

    def __init__(self, result: object = None) -> None:
        self._say(result=result)


class Failed(SignalledOutcome):
    """This attempt failed: the job is tried again with back-off, or fails for good past `max_attempts`.

    error: what went wrong, for people.
    code: a short name for programs, default "UNHANDLED_ERROR".

    >>> Failed("the mail server said 550", code="MAIL_REFUSED")
    Failed(error='the mail server said 550', code='MAIL_REFUSED')
    """

    _fields = ("error", "code")
    error: str
    code: str | None

    def __init__(self, error: str, code: str | None = None) -> None:
        self._say(error=error, code=code)


class Nack(SignalledOutcome):
    """Not now: try again after `delay`. The attempt counts, so past `max_attempts` the job fails with `reason`.

    delay: a span of time; negative counts as 0; None, the default, means the kind's own back-off.
    reason: why, for people; kept with the attempt.

    >>> Nack("5m", "rate limit")
    Nack(delay=300.0, reason='rate limit')
    """

    _fields = ("delay", "reason")
    delay: float | None
    reason: str

    def __init__(self, delay: Duration | None = None, reason: str = "") -> None:
        name = self._fields[0]
        self._say(**{name: None if delay is None else at_least_zero(delay, field=f"{type(self).__name__} {name}"), "reason": reason})


class Retry(Nack):
    """`Nack` by the name that some like better: try again after `after`.

    after: a span of time; negative counts as 0; None, the default, means the kind's own back-off.
    reason: why, for people; kept with the attempt.

    >>> Retry(after=30)
    Retry(after=30.0, reason='')
    """

    _fields = ("after", "reason")
    after: float | None

    def __init__(self, after: Duration | None = None, reason: str = "") -> None:
        super().__init__(after, reason)

    @property
    def delay(self) -> float | None:  # type: ignore[override]  # one meaning, two names
        """The same as `after`."""
        return self.after


class Snooze(SignalledOutcome):
    """Nothing to do yet: look again after `delay`. The attempt does not count.

    delay: a span of time; negative counts as 0.

    >>> Snooze("1h")
    Snooze(delay=3600.0)
    """

    _fields = ("delay",)
    delay: float

    def __init__(self, delay: Duration) -> None:
        self._say(delay=at_least_zero(delay, field="Snooze delay"))


class Abandon(SignalledOutcome):
    """Give the job back as if it had never been claimed: ready at once for anybody, the attempt does not count.

    >>> Abandon()
    Abandon()
    """

    def __init__(self) -> None:
        self._say()


class Poison(SignalledOutcome):
    """This job can never succeed (a malformed payload, a vanished row): it fails at once, without further attempts.

    message: why, for people.
    code: a short name for programs, default "POISON".

    >>> raise Poison("order 7 does not exist")
    Traceback (most recent call last):
    jobherd.Poison: order 7 does not exist
    """

    _fields = ("message", "code")
    message: str
    code: str

    def __init__(self, message: str = "", code: str = "POISON") -> None:
        self._say(message=message, code=code)

    def __str__(self) -> str:
        return str(self.message)


Disposition: TypeAlias = Completed | Failed | Nack | Snooze | Abandon | Poison
"""Whatever a handler may return or raise to steer its job. `Retry` is a `Nack`."""


class JobInterrupted(KeyboardInterrupt):  # named by the design
    """Jobherd ends the handler that runs. Clean up and let it pass; swallowing it ends the process a few seconds later."""


def is_interruption(raised: object) -> bool:
    """Return whether this is an interruption. `isinstance` would ask the object too, whose `__class__` may be a handler's own code."""
    return issubclass(type(raised), JobInterrupted)


class JobTimeout(JobInterrupted):
    """The job ran past its timeout."""


class JobCancelled(JobInterrupted):
    """Somebody cancelled the job."""


class JobDrained(JobInterrupted):
    """The supervisor leaves and can wait no longer; the job goes back to the queue, its attempt given back."""
