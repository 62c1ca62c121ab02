"""Calls that real signals interrupt, as the worker's alarm does."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import signal
import time

import pytest

from jobherd import Job, JobTimeout, handler
from jobherd.handlers._run.call import call, interrupt
from jobherd.handlers._values.sanitize import describe_exception
from tests.handlers import ringer

JOB = Job(id=7, kind="demo:x")


inside = []


def call_handler(handler, arguments):
    """Call as a worker does: the alarm acts only while the handler runs."""
    try:
        inside.append(True)
        return call(handler, JOB, arguments)
    finally:
        inside.clear()


due = []


def begun():
    """Start the timer. A handler calls this function first.

    An earlier timer could expire before the handler runs, or while the call is prepared.
    """
    signal.setitimer(signal.ITIMER_REAL, *due)


def begun_to_wait():
    """Start the timer once the event loop waits. A handler calls this function right before it waits."""
    asyncio.get_running_loop().call_soon(begun)


@contextlib.contextmanager
def interrupts(after, *, every=0.0, by_hook=True):
    """Interrupt as the worker's timer does.

    The first signal comes `after` seconds after the handler has called `begun`; further ones follow `every` seconds.
    """

    def ring(number, frame):
        if not inside:
            return
        rings.append(time.monotonic())
        problem = JobTimeout("time is up")
        if by_hook:
            interrupt(problem, frame)
        else:
            raise problem

    rings = []
    before = signal.signal(signal.SIGALRM, ring)
    due[:] = after, every
    try:
        yield rings
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def nothing_is_left_open():
    gc.collect()  # a file that an earlier test left to the collector must not count
    before = len(os.listdir("/proc/self/fd"))
    yield
    gc.collect()  # an unclosed loop or a coroutine that was not awaited warns here, and warnings are errors
    assert len(os.listdir("/proc/self/fd")) == before


def test_call_passes_the_arguments_to_the_function():
    assert call(handler("a:b")(lambda x, y=2: (x, y)), JOB, {"x": 1}) == (1, 2)


def test_call_passes_the_job_to_a_function_that_takes_it():
    assert call(handler("a:b")(lambda job, x: (job, x)), JOB, {"x": 1}) == (JOB, 1)


def test_call_runs_a_coroutine_to_completion():
    @handler("a:b")
    async def work(job: Job, x: int) -> int:
        await asyncio.sleep(0)
        return x + job.id

    assert call_handler(work, {"x": 1}) == 8


def test_call_awaits_a_coroutine_that_a_plain_function_returns():
    async def inner():
        return 5

    assert call(handler("a:b")(lambda: inner()), JOB, {}) == 5


@pytest.mark.parametrize("problem", [ValueError, SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
def test_call_raises_what_the_coroutine_raises(problem):
    @handler("a:b")
    async def work() -> None:
        await asyncio.sleep(0)
        raise problem

    with pytest.raises(problem):
        call_handler(work, {})


def test_call_ends_tasks_generators_and_threads_that_a_coroutine_leaves_running():
    ended = []

    async def background():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("background")

    async def numbers():
        try:
            yield 1
        finally:
            ended.append("generator")

    @handler("a:b")
    async def work() -> str:
        task = asyncio.create_task(background())
        work_numbers.append(numbers())
        async for _ in work_numbers[0]:
            break
        await asyncio.sleep(0)
        assert not task.done()
        await asyncio.to_thread(ended.append, "thread")
        return "done"

    work_numbers = []
    assert call_handler(work, {}) == "done"
    assert sorted(ended) == ["background", "generator", "thread"]


@pytest.mark.parametrize("by_hook", [True, False])
def test_alarm_interrupts_a_function_in_an_endless_loop(by_hook):
    def endless():
        begun()
        while True:
            pass

    with interrupts(0.05, by_hook=by_hook), pytest.raises(JobTimeout, match="time is up"):
        call_handler(handler("a:b")(endless), {})


@pytest.mark.parametrize("by_hook", [True, False])
def test_alarm_interrupts_a_coroutine_in_an_endless_loop_once_and_runs_its_cleanup(by_hook):
    cleaned = []

    @handler("a:b")
    async def endless() -> None:
        try:
            begun()
            while True:
                pass
        finally:
            cleaned.append(True)

    with interrupts(0.05, by_hook=by_hook) as rings, pytest.raises(JobTimeout, match="time is up"):
        call_handler(endless, {})
    assert cleaned == [True]
    assert len(rings) == 1


@pytest.mark.parametrize("by_hook", [True, False])
def test_alarm_interrupts_a_waiting_coroutine_once_and_lets_it_await_in_its_cleanup(by_hook):
    cleaned = []

    @handler("a:b")
    async def endless() -> None:
        try:
            begun_to_wait()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(True)

    with interrupts(0.05, by_hook=by_hook) as rings, pytest.raises(JobTimeout, match="time is up"):
        call_handler(endless, {})
    assert cleaned == [True]
    assert len(rings) == 1


def test_traceback_of_an_interrupted_wait_leads_to_the_coroutines_line():
    @handler("a:b")
    async def endless() -> None:
        begun_to_wait()
        await asyncio.Event().wait()

    with interrupts(0.05), pytest.raises(JobTimeout) as caught:
        call_handler(endless, {})
    trace = describe_exception(caught.value)[1]
    assert trace.rindex(f'"{__file__}"') > trace.rindex("in run_until_complete")
    assert "CancelledError" not in trace


def test_alarm_interrupts_an_endless_loop_in_another_task():
    @handler("a:b")
    async def work() -> None:
        async def endless():
            begun()
            while True:
                pass

        async with asyncio.TaskGroup() as group:
            group.create_task(endless())

    with interrupts(0.05), pytest.raises(JobTimeout):
        call_handler(work, {})


def test_further_alarm_interrupts_a_coroutine_that_suppresses_its_cancellation():
    swallowed = []

    @handler("a:b")
    async def stubborn() -> None:
        begun_to_wait()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed.append(True)
                if len(swallowed) > 3:
                    raise

    with interrupts(0.05, every=0.1) as rings, pytest.raises(JobTimeout):
        call_handler(stubborn, {})
    assert swallowed
    assert len(rings) >= 2


def test_second_alarm_interrupts_a_coroutine_whose_cleanup_never_ends():
    @handler("a:b")
    async def slow() -> None:
        try:
            begun_to_wait()
            await asyncio.Event().wait()
        finally:
            await asyncio.Event().wait()

    with interrupts(0.05, every=0.1), pytest.raises(JobTimeout):
        call_handler(slow, {})


def test_value_that_a_coroutine_returns_on_cancellation_is_the_result():
    @handler("a:b")
    async def calm() -> str:
        try:
            begun_to_wait()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "partial"

    with interrupts(0.05):
        assert call_handler(calm, {}) == "partial"


def test_exception_that_a_coroutine_raises_during_cancellation_is_raised_by_the_call():
    @handler("a:b")
    async def angry() -> None:
        try:
            begun_to_wait()
            await asyncio.Event().wait()
        finally:
            raise ValueError("clean-up failed")

    with interrupts(0.05), pytest.raises(ValueError, match="clean-up failed"):
        call_handler(angry, {})


def test_call_does_not_wait_for_a_thread_that_never_ends():
    import threading

    release = threading.Event()

    @handler("a:b")
    async def work() -> None:
        begun_to_wait()
        await asyncio.to_thread(release.wait)

    try:
        with interrupts(0.05, every=0.2), pytest.raises(JobTimeout):
            call_handler(work, {})
    finally:
        release.set()
        for thread in threading.enumerate():
            if thread is not threading.current_thread():
                thread.join()


# Python drops an exception raised in the callback of a weak reference. That alarm has no effect; the next one does.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_alarm_at_any_time_interrupts_the_call_and_leaves_no_open_files():
    """Send 200 alarms at times spread over a call: set-up, work, idle time and clean-up."""

    @handler("a:b")
    async def work() -> str:
        task = asyncio.create_task(asyncio.sleep(0.0001))
        for _ in range(3):
            await asyncio.sleep(0)
        await task
        return "done"

    ends = []
    for number in range(200):
        with interrupts(0.000_005 + number * 0.000_005, every=1):
            begun()
            try:
                ends.append(call_handler(work, {}))
            except JobTimeout:
                ends.append("timeout")
            signal.setitimer(signal.ITIMER_REAL, 0)
    assert set(ends) <= {"done", "timeout"}
    assert "timeout" in ends


@pytest.mark.parametrize("waits", [True, False])
def test_alarm_without_the_interrupted_frame_interrupts_the_call(waits):
    cleaned = []

    @handler("a:b")
    async def endless() -> None:
        try:
            (begun_to_wait if waits else begun)()
            if not waits:
                # Not `while cond:`. CPython 3.12 and 3.13 leave its back edge out of the exception table, so
                # `finally` would be skipped.
                for _ in itertools.count():
                    pass
            await asyncio.Event().wait()
        finally:
            if waits:
                await asyncio.sleep(0)
            cleaned.append(True)

    before = signal.signal(signal.SIGALRM, ringer.ring)
    due[:] = 0.05, 0.0
    try:
        with pytest.raises(JobTimeout):
            call(endless, JOB, {})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert cleaned == [True]
