"""Calls a handler, and interrupts it from outside.

A plain function is called directly. A coroutine runs in its own event loop, created for the call
and closed after it. The worker's signal handler calls `interrupt` in the main thread to interrupt
either:

* plain code: the exception is raised at the current line.
* a coroutine that computes: raised at the current line, as in plain code.
* a coroutine that waits: its task is canceled, so its `finally` blocks can still await. If it has
  not ended at the next interrupt, the exception is raised wherever the process is; the rest of the
  coroutine gets two seconds and is closed.
* while the loop is being closed: nothing is raised, so that no half-closed loop is left. The
  supervisor's signals end a handler that hangs there.

An exception raised in the loop outside a task would lose the step the loop was about to make. So
the loop is not interrupted while its task can still be canceled. A signal handler that raises by
itself instead of calling `interrupt` also ends the call, with that risk.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import time
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from jobherd.handlers._enqueue import default

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from types import FrameType

    from jobherd.handlers._run.dispositions import JobInterrupted
    from jobherd.handlers._run.job import Job
    from jobherd.handlers._run.transaction import TransactionHost

CLEANUP: Final = 2.0
"""Seconds that tasks get to end after their job was interrupted."""

_MACHINERY: Final = frozenset({"_weakrefset", "weakref", "selectors", "contextvars"})

_running: _Loop | None = None


class _Shape(Protocol):
    """What a call needs from a handler's signature."""

    @property
    def is_async(self) -> bool:
        """Whether the handler is a coroutine function."""

    @property
    def takes_job(self) -> bool:
        """Whether its first parameter is the job."""


class Callee(Protocol):
    """What `call` needs from a handler."""

    @property
    def function(self) -> Callable[..., Any]:
        """The function to call."""

    @property
    def signature(self) -> _Shape:
        """The function's signature."""


Called = TypeVar("Called", bound=Callee)


def call(handler: Callee, job: Job | list[Job], arguments: Mapping[str, Any]) -> object:
    """Call the handler and return its result, awaiting a coroutine. Raises what the handler raises.

    job: passed if the handler takes one; a batch handler gets a list.
    arguments: from `handler.binding.bind(payload)`.
    """
    if handler.signature.is_async:
        return _in_loop(lambda: _plain_call(handler, job, arguments))
    return result_of(_plain_call(handler, job, arguments))


def call_in_transaction(
    host: TransactionHost,
    run: Callable[[Called, Job, Mapping[str, Any]], object],
    handler: Called,
    job: Job,
    arguments: Mapping[str, Any],
) -> object:
    """Call a handler by `run` in a transaction, which is left open, and return its result.

    Raises what the handler raises.
    """
    before = default.enter_transaction(host.abegin() if handler.signature.is_async else host.begin())
    try:
        return run(handler, job, arguments)
    finally:
        default.leave_transaction(before)


def result_of(result: object) -> object:
    """Return what a function returned, or the result of the coroutine that it returned."""
    if result is None:
        return None
    if type(result) is CoroutineType or inspect.iscoroutine(result):
        coroutine = result
        return _in_loop(lambda: coroutine)
    return result


def interrupt(interruption: JobInterrupted, frame: FrameType | None = None) -> None:
    """Interrupt the running handler.

    Raises `interruption`, or cancels the task of an event loop instead.
    Call this only from a signal handler, in the main thread.

    frame: frame that the signal interrupted, as the signal handler got it. Default: the first frame
        outside the calling module.
    """
    if _running is None:
        raise interruption
    if frame is None:
        frame = caller = sys._getframe(1)  # noqa: SLF001  # documented, and the only way
        while frame is not None and frame.f_globals is caller.f_globals:
            frame = frame.f_back
    _running.interrupt(interruption, frame)


def _plain_call(handler: Callee, job: Job | list[Job], arguments: Mapping[str, Any]) -> Any:
    return handler.function(job, **arguments) if handler.signature.takes_job else handler.function(**arguments)


def _in_loop(make: Callable[[], Coroutine[Any, Any, object]]) -> object:
    """Run the coroutine that `make` returns in its own event loop and return its value."""
    global _running  # a signal handler finds it here
    loop = _Loop()
    # Order: set before the coroutine is made. An interruption between its creation and its first
    # step would leave it never awaited.
    outer, _running = _running, loop
    try:
        return loop.run(make)
    finally:
        _running = outer


class _Loop:
    """An event loop for one call."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[object] | None = None  # the task that a first interruption cancels
        self._interruption: JobInterrupted | None = None
        self._pending = False
        self._closing = False

    def interrupt(self, interruption: JobInterrupted, frame: FrameType | None) -> None:
        """Run by a signal handler, between any two instructions of the methods below."""
        if self._closing:
            return
        loop, task, again = self._loop, self._task, self._interruption is not None
        self._interruption = interruption
        if loop is None or not loop.is_running():
            self._pending = True  # a half-made loop would leak its sockets: `run` checks this before it continues
            return
        # A task inside asyncio's own code may just be scheduling itself. Interrupted there, it
        # would never run again and could not even be canceled.
        in_user_code = asyncio.current_task(loop) is not None and not _is_machinery(frame)
        if task is None or again or in_user_code:
            raise interruption
        loop.call_soon_threadsafe(task.cancel)

    def run(self, make: Callable[[], Coroutine[Any, Any, object]]) -> object:
        """Return the coroutine's result. Leaves no loop behind, however it ends."""
        coroutine = None
        at_rest = False
        try:
            coroutine = make()
            self._loop = asyncio.new_event_loop()
            self._loop.set_exception_handler(self._on_exception)
            self._task = self._loop.create_task(coroutine)
            self._raise_if_pending()
            result = self._loop.run_until_complete(self._task)
            self._task = self._loop.create_task(_end_remaining_tasks(self._loop))
            self._raise_if_pending()
            self._loop.run_until_complete(self._task)
            at_rest = True
        except asyncio.CancelledError as cancelled:
            if self._interruption is not None:
                raise self._interruption.with_traceback(cancelled.__traceback__) from None
            raise
        else:
            return result
        finally:
            self._closing = True
            self._close(self._loop, coroutine, at_rest=at_rest)

    def _raise_if_pending(self) -> None:
        if self._pending and self._interruption is not None:
            raise self._interruption

    def _close(
        self, loop: asyncio.AbstractEventLoop | None, coroutine: Coroutine[Any, Any, object] | None, *, at_rest: bool
    ) -> None:
        if loop is not None and not at_rest:
            until = time.monotonic() + CLEANUP
            self._end_tasks(loop, until)
            _quiet(
                lambda: loop.run_until_complete(
                    asyncio.wait_for(loop.shutdown_asyncgens(), max(0.1, until - time.monotonic()))
                )
            )
            self._end_tasks(loop, until)
        if coroutine is not None:
            _quiet(coroutine.close)  # raises if a `finally` block in it awaits
        if loop is not None:
            loop.close()

    @staticmethod
    def _end_tasks(loop: asyncio.AbstractEventLoop, until: float) -> None:
        # In rounds: an interrupted task raises through the loop. A task that waited for the others
        # must then be ended in the next round.
        while (pending := asyncio.all_tasks(loop)) and (left := until - time.monotonic()) > 0:
            _cancel(pending)
            _quiet(functools.partial(_wait_for, loop, pending, left))

    @staticmethod
    def _on_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Drop the report of an interrupted task's exception: it was raised through the loop."""
        if not isinstance(context.get("exception"), KeyboardInterrupt | SystemExit):
            loop.default_exception_handler(context)


def _is_machinery(frame: FrameType | None) -> bool:
    name = str(frame.f_globals.get("__name__")) if frame is not None else ""
    return name in _MACHINERY or name.startswith("asyncio.")


async def _end_remaining_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """End the tasks that a finished coroutine left running.

    The deadline still holds; an interruption cancels this.
    """
    if pending := asyncio.all_tasks(loop) - {asyncio.current_task()}:
        _cancel(pending)
        await asyncio.gather(*pending, return_exceptions=True)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


def _wait_for(loop: asyncio.AbstractEventLoop, tasks: set[asyncio.Task[Any]], seconds: float) -> None:
    loop.run_until_complete(asyncio.wait(tasks, timeout=seconds))


def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        # no log about a task that does not end
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
        task.cancel()


def _quiet(step: Callable[[], object]) -> None:
    """Run one step of closing. Ignores what user code raises: the call has ended."""
    try:
        step()
    except BaseException:  # noqa: S110
        pass
