"""The handlers that most tests use. Some misbehave on purpose."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress

from jobherd import Abandon, Completed, Failed, Job, JobInterrupted, JobTimeout, Nack, Poison, Retry, Snooze, handler
from tests.support.gate import at_gate

libc = ctypes.CDLL(None)
_STARTED: list[object] = []


@handler("t:noop")
def noop(n: int = 0) -> None: ...


@handler("t:spin")
def spin(seconds: float = 0.005) -> int:
    until = time.monotonic() + seconds
    turns = 0
    while time.monotonic() < until:
        turns += 1
    return turns


@handler("t:nap")
def nap(seconds: float = 0.05) -> None:
    time.sleep(seconds)


@handler("t:gate", timeout="5m")
def gate(label: str = "") -> str:
    return at_gate(label)


@handler("b:maybe", timeout="5m")
def maybe(label: str = "") -> str:
    """Return at once, unless the job has a label."""
    return at_gate(label) if label else ""


@handler("t:who", timeout="5m")
def who(label: str = "") -> dict[str, object]:
    at_gate(label)
    return {
        "pid": os.getpid(),
        "random": random.random(),
        "uuid": str(uuid.uuid4()),
        "notify": os.environ.get("NOTIFY_SOCKET"),
    }


@handler("t:once", timeout="5m", max_attempts=1)
def once(label: str = "") -> str:
    return at_gate(label)


@handler("t:exclusive", timeout="5m", exclusive=True)
def exclusive(label: str = "") -> str:
    return at_gate(label)


# -- every disposition


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


@handler("d:returns")
def returns() -> dict[str, list[int]]:
    return {"pages": [1, 2]}


@handler("d:completed")
def completed() -> Completed:
    return Completed({"by": "name"})


@handler("d:completed-raised")
def completed_raised() -> None:
    raise Completed("from the depth")


@handler("d:failed", max_attempts=1)
def failed() -> Failed:
    return Failed("the mail server said 550", code="MAIL_REFUSED")


@handler("d:nack")
def nack() -> Nack:
    return Nack("1h", "rate limit")


@handler("d:nack-last", max_attempts=1)
def nack_last() -> Nack:
    return Nack("1h", "rate limit")


@handler("d:retry")
def retry(job: Job) -> str:
    if job.attempt < 3:
        raise Retry(after=0, reason="not yet")
    return f"attempt {job.attempt}"


@handler("d:snooze")
def snooze() -> None:
    raise Snooze("1h")


@handler("d:snooze-short", max_attempts=1)
def snooze_short(label: str) -> Snooze | str:
    return Snooze(0.01) if at_gate(label) == "snooze" else "woke up"


@handler("d:abandon", max_attempts=1)
def abandon(label: str) -> Abandon | str:
    return Abandon() if at_gate(label) == "abandon" else "taken"


@handler("d:poison")
def poison() -> None:
    raise Poison("order 7 does not exist", code="NO_ORDER")


@handler("d:poison-on", poison_on=(FileNotFoundError,))
def poison_on() -> None:
    open("/nowhere/at/all")


@handler("d:raises", max_attempts=2, backoff=(0.0, 0.0))
def raises() -> None:
    raise ValueError("nope")


@handler("d:backoff")
def backoff() -> None:
    raise ValueError("later")


@handler("d:exit", max_attempts=1)
def exits() -> None:
    sys.exit(0)


@handler("d:interrupt", max_attempts=1)
def interrupt() -> None:
    raise KeyboardInterrupt


@handler("d:group", max_attempts=1)
def group() -> None:
    raise ExceptionGroup("two went wrong", [ValueError("one"), KeyError("other")])


@handler("d:unspeakable", max_attempts=1)
def unspeakable() -> None:
    raise Unspeakable


@handler("d:nul", max_attempts=1)
def nul() -> None:
    raise ValueError("a NUL \0 and a lone surrogate \ud800")


@handler("d:no-json")
def no_json() -> object:
    return object()


@handler("d:async")
async def asynchronous(n: int) -> int:
    await asyncio.sleep(0)
    return n + 1


@handler("d:typed")
def typed(n: int) -> int:
    return n


# -- handlers whose process dies


@handler("c:exit", backoff=(0.0, 0.0))
def exit_zero() -> None:
    os._exit(0)


@handler("c:abort", max_attempts=1)
def abort() -> None:
    os.abort()


@handler("c:segfault", max_attempts=1)
def segfault() -> None:
    ctypes.string_at(0)


@handler("c:kill", backoff=(0.0, 0.0))
def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# -- handlers that do not stop


def start_grandchildren(label: str) -> None:
    """Start one process in the worker's group, and one that escapes by setsid and two forks.

    Both ignore SIGTERM, SIGINT and SIGHUP and report to the gate.
    """
    text = (
        "import os, signal, sys; from tests.support.gate import at_gate\n"
        "for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)\n"
        "if sys.argv[2] == 'escape':\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.setsid()\n"
        "    if os.fork(): os._exit(0)\n"
        "at_gate(sys.argv[1])\n"
    )
    for name, mode in (("grandchild", "stay"), ("daemon", "escape")):
        _STARTED.append(subprocess.Popen([sys.executable, "-c", text, f"{label}-{name}", mode]))


def sleep_in_c(label: str) -> None:
    """Block every signal and sleep in C indefinitely, also if a sleep is interrupted."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    at_gate(label)
    while True:
        libc.sleep(3600)


@handler("x:stuck", timeout=0.3, max_attempts=1)
def stuck(label: str) -> None:
    start_grandchildren(label)
    sleep_in_c(label)


@handler("x:stuck-long", timeout="5m", max_attempts=2)
def stuck_long(label: str) -> None:
    start_grandchildren(label)
    sleep_in_c(label)


@handler("x:cleans-up", timeout=0.2, max_attempts=1)
def cleans_up(label: str) -> None:
    try:
        while True:
            time.sleep(60)
    except JobTimeout:
        at_gate(label)
        raise


@handler("x:finishes-late", timeout=0.2, max_attempts=1)
def finishes_late() -> str:
    try:
        while True:
            time.sleep(60)
    except JobInterrupted:
        return "what there was"


@handler("x:swallows", timeout=0.2, max_attempts=1)
def swallows() -> None:
    while True:
        try:
            time.sleep(60)
        except BaseException:  # noqa: BLE001
            pass


@handler("x:patient", timeout=0.5, max_attempts=1)
def patient(label: str) -> None:
    while True:  # the SIGSTOP of the test may come late on a busy machine: the handler must not end before
        with suppress(BaseException):
            at_gate(label)


@handler("b:together", batch=10, max_crashes=2, timeout="5m", backoff="1h")
def together(jobs: list[Job], labels: list[str]) -> list[object]:
    """Handle several jobs in one call; die of the label "deadly" when the test opens the gate."""
    word = at_gate(f"{len(jobs)} together")
    if "deadly" in labels:
        os.kill(os.getpid(), signal.SIGKILL)
    return [f"{word} {label}" for label in labels]
