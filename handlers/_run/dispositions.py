"""What a handler can return or raise, besides plain values and exceptions, to decide the outcome.

Each disposition is both a value and an exception: `return Nack("5m")` from the handler itself,
`raise Nack("5m")` from deep inside it. Two dispositions with the same fields are equal. They are
not frozen dataclasses: `contextlib` writes `__traceback__` and `add_note` writes `__notes__` from
Python, which a frozen exception rejects during unwinding. Only the fields are read-only. This
module does not decide outcomes: see `handlers/_run/classify.py`.

Timeout, cancel and drain raise the subclasses of `JobInterrupted` in a handler, as the first stage
of the stop sequence. They derive from KeyboardInterrupt: `except Exception` does not swallow them,
and psycopg cancels the statement on the server when it meets one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeAlias

from jobherd.handlers._policy.durations import Duration, at_least_zero

if TYPE_CHECKING:
    from collections.abc import Callable


class SignalledOutcome(Exception):  # noqa: N818  # not an error: it is the handler's result
    """Base of the dispositions: an exception that compares by value. Not for use in handlers."""

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
        # By type only: a result may hold lists, and an unhashable exception breaks tools that keep
        # exceptions in sets.
        return hash(type(self))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self._values(), strict=True))
        return f"{type(self).__name__}({shown})"

    def __str__(self) -> str:
        return repr(self)

    def __reduce__(self) -> tuple[Callable[..., SignalledOutcome], tuple[object, ...]]:
        return type(self), self._values()


class Completed(SignalledOutcome):
    """Completes the job. The same as returning `result`.

    Args:
        result: any JSON value, default None.

    Example:
        >>> Completed({"pages": 3})
        Completed(result={'pages': 3})
    """

    _fields = ("result",)
    result: object

    def __init__(self, result: object = None) -> None:
        self._say(result=result)


class Failed(SignalledOutcome):
    """Fails this attempt.

    The job is retried with backoff, or fails permanently after `max_attempts`.

    Args:
        error: what went wrong, for people.
        code: short name for programs, default "UNHANDLED_ERROR".

    Example:
        >>> Failed("the mail server said 550", code="MAIL_REFUSED")
        Failed(error='the mail server said 550', code='MAIL_REFUSED')
    """

    _fields = ("error", "code")
    error: str
    code: str | None

    def __init__(self, error: str, code: str | None = None) -> None:
        self._say(error=error, code=code)


class Nack(SignalledOutcome):
    """Retries the job after `delay`.

    The attempt counts: after `max_attempts` the job fails with `reason`.

    Args:
        delay: duration; a negative one counts as 0. Default None: the kind's backoff.
        reason: why, for people; stored with the attempt. Default "".

    Example:
        >>> Nack("5m", "rate limit")
        Nack(delay=300.0, reason='rate limit')
    """

    _fields = ("delay", "reason")
    delay: float | None
    reason: str

    def __init__(self, delay: Duration | None = None, reason: str = "") -> None:
        name = self._fields[0]
        self._say(
            **{
                name: None if delay is None else at_least_zero(delay, field=f"{type(self).__name__} {name}"),
                "reason": reason,
            }
        )


class Retry(Nack):
    """Retries the job after `after`. Another name for `Nack`.

    Args:
        after: duration; a negative one counts as 0. Default None: the kind's backoff.
        reason: why, for people; stored with the attempt. Default "".

    Example:
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
    """Runs the job again after `delay`, because there is nothing to do yet.

    The attempt does not count.

    Args:
        delay: duration; a negative one counts as 0.

    Example:
        >>> Snooze("1h")
        Snooze(delay=3600.0)
    """

    _fields = ("delay",)
    delay: float

    def __init__(self, delay: Duration) -> None:
        self._say(delay=at_least_zero(delay, field="Snooze delay"))


class Abandon(SignalledOutcome):
    """Releases the job as if it had never been claimed: ready at once for any worker.

    The attempt does not count.

    Example:
        >>> Abandon()
        Abandon()
    """

    def __init__(self) -> None:
        self._say()


class Poison(SignalledOutcome):
    """Fails the job at once, without a retry, because it can never succeed.

    For example because of a malformed payload or a missing row.

    Args:
        message: why, for people. Default "".
        code: short name for programs, default "POISON".

    Example:
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
"""What a handler can return or raise to decide its job's outcome. `Retry` is a `Nack`."""


class JobInterrupted(KeyboardInterrupt):  # named by the design
    """Raised in a running handler to end it.

    Clean up and let it pass. If the handler swallows it, its process is ended a few seconds later.
    """


class JobSuspended(JobInterrupted):
    """Raised in a handler by `job.sleep` and `job.wait_for`, to end the attempt until the job continues.

    Clean up and let it pass. If the handler swallows it, the job fails. Handlers do not raise it.

    Attributes:
        delay: seconds until the job is due again, None if Jobherd did not raise it.
    """

    def __init__(self, message: str = "", delay: float | None = None) -> None:
        super().__init__(message)
        self.delay = delay


def is_interruption(raised: object) -> bool:
    """Return whether an object is an interruption.

    Does not use `isinstance`, which also reads the object's `__class__`: that may be the handler's
    code.
    """
    return issubclass(type(raised), JobInterrupted)


class JobTimeout(JobInterrupted):
    """Raised in a handler when the job exceeds its timeout."""


class JobCancelled(JobInterrupted):
    """Raised in a handler when the job is canceled."""


class JobDrained(JobInterrupted):
    """Raised in a handler when the supervisor drains and can wait no longer.

    The job returns to the queue, and the attempt is not counted.
    """
