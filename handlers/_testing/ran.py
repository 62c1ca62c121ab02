"""The result of an attempt in a test, and the job that the handler sees."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jobherd.handlers._run.job import Job
from jobherd.handlers._values.payload import decode_payload

if TYPE_CHECKING:
    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.handlers._values.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Ran:
    """Result of one attempt in a test."""

    outcome: Outcome
    """The outcome: label, state, delay, result, error, code, traceback."""
    progress: tuple[tuple[float, str, object], ...] = ()
    """Progress that the handler reported, in order: fraction, note, data."""
    exception: BaseException | None = None
    """Exception that the handler raised, if any."""

    @property
    def result(self) -> object:
        """The result as the database would return it, or None."""
        return None if self.outcome.result is None else decode_payload(self.outcome.result)

    def raise_(self) -> None:
        """Raise the handler's exception, with its traceback, unless the job is completed.

        Raises:
            AssertionError: the job is not completed and the handler raised nothing. The message
                shows the outcome.
        """
        if self.outcome.label == "ok":
            return
        if self.exception is not None:
            raise self.exception
        message = f"the job is not completed, its outcome is {self.outcome.label!r}: {self.outcome.error or 'no error'}"
        raise AssertionError(message)

    def value(self) -> object:
        """Return the result of a completed job. Raises what `raise_` raises for any other.

        So a test fails with the handler's own traceback.
        """
        self.raise_()
        return self.result


def refuse_loop(handler: AnyHandler, name: str) -> None:
    """Raise TypeError if a coroutine cannot run here because an event loop is already running."""
    # documented, and raises nothing
    if handler.signature.is_async and asyncio._get_running_loop() is not None:  # noqa: SLF001
        message = (
            f"{handler.kind!r} is asynchronous, and an event loop runs here: await a{name}(...) instead of {name}(...)"
        )
        raise TypeError(message)


def job_of(handler: AnyHandler, progress: list[tuple[float, str, object]], fields: dict[str, Any]) -> Job:
    """Return the job that the handler sees.

    progress: receives what the handler reports. fields: attributes of the job.
    """
    given: dict[str, Any] = {
        "id": 1,
        "kind": handler.kind,
        "queue": handler.policy.queue,
        "priority": handler.policy.priority,
        "created": time.time(),
        "run": time.time(),
        "deadline": time.monotonic() + handler.policy.timeout,
        "on_progress": lambda fraction, note, data: progress.append((fraction, note, data)),
    }
    return Job(**given | fields)
