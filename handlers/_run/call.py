"""Call a handler, and end it from outside.

A plain function is called as it is. What a coroutine function returns is run in an event loop of its own, made for the call and
closed after it. An interruption reaches both through `interrupt`, which the worker's alarm calls in the main thread:

* plain code: the exception is raised where the code stands.
* a coroutine that computes: raised where it stands, as in plain code.
* a coroutine that waits: its task is cancelled, so its `finally` blocks may still await. If it has not ended at the next ring, the
  exception is raised wherever the process stands, and what is left of the coroutine gets two seconds and is closed.
* while the loop is being taken down: nothing is raised, so that no half-closed loop is left. The parent's signals end what hangs there.

Raising through a loop that is not inside a task would lose the step it was about to make; that is why the loop is never interrupted
while it can still be asked politely. An alarm that raises by itself instead of calling `interrupt` also ends the call, with that risk.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import time
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from types import FrameType

    from jobherd.handlers._run.dispositions import JobInterrupted
    from jobherd.handlers._run.job import Job

CLEANUP: Final = 2.0
"""Seconds that tasks get to end after their job was interrupted."""

_MACHINERY: Final = frozenset({"_weakrefset", "weakref", "selectors", "contextvars"})

_running: _Loop | None = None


class _Shape(Protocol):
    """What a call must know of a handler's signature."""

    @property
    def is_async(self) -> bool:
        """Whether it is a coroutine function."""

    @property
    def takes_job(self) -> bool:
        """Whether its first parameter is the job."""


class Callee(Protocol):
    """What `call` needs of a handler."""

    @property
    def function(self) -> Callable[..., Any]:
        """What is called."""

    @property
    def signature(self) -> _Shape:
        """How it is called."""


def call(handler: Callee, job: Job | list[Job], arguments: Mapping[str, Any]) -> object:
    """Call the handler and return what it returns, a coroutine's value included. Raises what it raises.

    job: handed over if the handler takes one; to a batch handler the list of them. arguments: from `handler.binding.bind(payload)`.
    """
    if handler.signature.is_async:
        return _in_loop(lambda: _plain_call(handler, job, arguments))
    result = _plain_call(handler, job, arguments)
    if result is None:
        return None
    if type(result) is CoroutineType or inspect.iscoroutine(result):
        coroutine = result
        return _in_loop(lambda: coroutine)
    return result


def interrupt(interruption: JobInterrupted, frame: FrameType | None = None) -> None:
    """End the handler that runs. Raises `interruption` unless an event loop is told instead.

    Only to be called by a signal handler, in the main thread.
    frame: what the signal has interrupted, as the signal handler was handed it; default: the first frame outside the module that calls.
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
    """Run the coroutine that `make` returns in an event loop of its own and return its value."""
    global _running  # where a signal handler finds it
    loop = _Loop()
    # Before the coroutine is made: an interruption between its making and its first step would leave it never awaited.
    outer, _running = _running, loop
    try:
        return loop.run(make)
    finally:
        _running = outer


class _Loop:
    """An event loop for one call."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[object] | None = None  # what a first interruption cancels
        self._told: JobInterrupted | None = None
        self._unheard = False
        self._closing = False

    def interrupt(self, interruption: JobInterrupted, frame: FrameType | None) -> None:
        """Run by a signal handler, between any two instructions of the methods below."""
        if self._closing:
            return
        loop, task, again = self._loop, self._task, self._told is not None
        self._told = interruption
        if loop is None or not loop.is_running():
            self._unheard = True  # a half-made loop would leak its sockets: `run` looks before it goes on
            return
        # A task that is in the middle of asyncio's own code may just be putting itself into the queue: torn out there, it would never
        # be run again, and could not even be cancelled.
        in_user_code = asyncio.current_task(loop) is not None and not _is_machinery(frame)
        if task is None or again or in_user_code:
            raise interruption
        loop.call_soon_threadsafe(task.cancel)

    def run(self, make: Callable[[], Coroutine[Any, Any, object]]) -> object:
        """Return what the coroutine returns; leave no loop behind however it ends."""
        coroutine = None
        at_rest = False
        try:
            coroutine = make()
            self._loop = asyncio.new_event_loop()
            self._loop.set_exception_handler(self._hear)
            self._task = self._loop.create_task(coroutine)
            self._raise_if_unheard()
            result = self._loop.run_until_complete(self._task)
            self._task = self._loop.create_task(_come_to_rest(self._loop))
            self._raise_if_unheard()
            self._loop.run_until_complete(self._task)
            at_rest = True
        except asyncio.CancelledError as cancelled:
            if self._told is not None:
                raise self._told from cancelled
            raise
        else:
            return result
        finally:
            self._closing = True
            self._close(self._loop, coroutine, at_rest=at_rest)

    def _raise_if_unheard(self) -> None:
        if self._unheard and self._told is not None:
            raise self._told

    def _close(self, loop: asyncio.AbstractEventLoop | None, coroutine: Coroutine[Any, Any, object] | None, *, at_rest: bool) -> None:
        if loop is not None and not at_rest:
            until = time.monotonic() + CLEANUP
            self._end_tasks(loop, until)
            _quiet(lambda: loop.run_until_complete(asyncio.wait_for(loop.shutdown_asyncgens(), max(0.1, until - time.monotonic()))))
            self._end_tasks(loop, until)
        if coroutine is not None:
            _quiet(coroutine.close)  # raises if a `finally` in it wants to await
        if loop is not None:
            loop.close()

    @staticmethod
    def _end_tasks(loop: asyncio.AbstractEventLoop, until: float) -> None:
        # Round by round: a torn task raises through the loop, and what waited for the others is then a task to end itself.
        while (pending := asyncio.all_tasks(loop)) and (left := until - time.monotonic()) > 0:
            _cancel(pending)
            _quiet(functools.partial(_wait_for, loop, pending, left))

    @staticmethod
    def _hear(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Drop the complaint that nobody looked at the exception of a torn task: it was raised through the loop."""
        if not isinstance(context.get("exception"), KeyboardInterrupt | SystemExit):
            loop.default_exception_handler(context)


def _is_machinery(frame: FrameType | None) -> bool:
    name = str(frame.f_globals.get("__name__")) if frame is not None else ""
    return name in _MACHINERY or name.startswith("asyncio.")


async def _come_to_rest(loop: asyncio.AbstractEventLoop) -> None:
    """End what a coroutine that returned has left running. The deadline still holds, and an interruption cancels this."""
    if pending := asyncio.all_tasks(loop) - {asyncio.current_task()}:
        _cancel(pending)
        await asyncio.gather(*pending, return_exceptions=True)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


def _wait_for(loop: asyncio.AbstractEventLoop, tasks: set[asyncio.Task[Any]], seconds: float) -> None:
    loop.run_until_complete(asyncio.wait(tasks, timeout=seconds))


def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  # one that does not end is known to us
        task.cancel()


def _quiet(step: Callable[[], object]) -> None:
    """Do one step of closing. The call is over whatever user code raises here."""
    try:
        step()
    except BaseException:  # noqa: S110
        pass
