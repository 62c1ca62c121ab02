"""Handlers that do what their payload requests, loaded by the workers under test.

Some misbehave on purpose.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from operator import call

import psycopg

from jobherd import Abandon, Completed, Failed, Job, Nack, Poison, Retry, Snooze, handler
from tests.support.gate import at_gate
from tests.support.patience import GLANCE

FOR_EVER = 3600


def sleep() -> None:
    """Sleep indefinitely, in short intervals.

    A signal that arrives right before a sleep begins does not end that sleep, and no supervisor repeats the signal.
    """
    while True:
        time.sleep(GLANCE)


@handler("act:nothing")
def nothing() -> None:
    pass


@handler("act:returns")
def returns(value: object = None) -> object:
    return value


@handler("act:transactional", transactional=True)
def transactional() -> None:
    pass


@handler("act:transactional_late", timeout="10m")
def transactional_late(job: Job, name: str) -> None:
    at_gate(name)
    with job.transaction():
        pass


@handler("act:gated", timeout="10m")
def gated(name: str) -> str:
    return at_gate(name)


@handler("act:gated_job", timeout="10m", backoff="1h")
def gated_job(job: Job, name: str) -> str:
    job.progress(0.5, name, {"half": True})
    return at_gate(name)


@handler("act:says")
def says(what: str, thrown: bool = False) -> object:
    said = {
        "completed": Completed({"n": 1}),
        "failed": Failed("no", code="NO"),
        "nack": Nack("5m", "busy"),
        "retry": Retry(after=60, reason="later"),
        "snooze": Snooze("1h"),
        "abandon": Abandon(),
        "poison": Poison("gone"),
    }[what]
    if thrown:
        raise said
    return said


class Rude(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class Endless(Exception):
    def __str__(self) -> str:  # noqa: PLE0307
        while True:
            pass

    __repr__ = __str__


@dataclass
class EndlessResult:
    value: int = 0

    def __getattribute__(self, name: str) -> object:
        return str(Endless()) if name == "value" else object.__getattribute__(self, name)


@handler("act:raises", max_attempts=3, backoff="1h")
def raises(what: str) -> object:
    match what:
        case "value":
            raise ValueError("a value")
        case "exit":
            sys.exit(0)
        case "keyboard":
            raise KeyboardInterrupt
        case "generator":
            raise GeneratorExit
        case "base":
            raise BaseException("base")
        case "group":
            raise ExceptionGroup("some", [ValueError("a"), KeyError("b")])
        case "memory":
            raise MemoryError
        case "recursion":
            raises.function("recursion")
        case "rude":
            raise Rude
        case "endless":
            raise Endless
        case "endless key":
            raise KeyError(Endless()) from Endless()
        case "endless note":
            noted = ValueError("a value")
            noted.__notes__ = [Endless()]
            raise noted
        case "endless result":
            return EndlessResult()
        case "nul":
            raise ValueError("a\0b\ud800c")
        case "huge":
            raise ValueError("x" * 50_000_000)
        case "deep":
            error: Exception = ValueError("0")
            for n in range(100_000):
                error_ = ValueError(str(n))
                error_.__cause__ = error
                error = error_
            raise error
    return None


class Explained(Exception):
    """Waits at a gate when it is first converted to text."""

    asked = False

    def __str__(self) -> str:
        if self.asked:
            return self.args[0]
        self.asked = True
        self.args = (at_gate(self.args[0]),)
        return self.args[0]


@handler("act:explains", timeout="10m", backoff="1h")
def explains(name: str) -> None:
    try:
        at_gate(name)
    except BaseException:
        raise Explained(f"{name} explains") from None


@handler("act:unstorable")
def unstorable() -> object:
    return object()


@handler("act:large")
def large() -> str:
    return "x" * 2_000_000


@handler("act:slow", timeout=0.3, backoff="1h")
def slow() -> None:
    sleep()


@handler("act:stubborn", timeout=0.2, backoff="1h")
def stubborn() -> str:
    for _ in range(2):
        try:
            sleep()
        except BaseException:
            pass
    return "swallowed"


@handler("act:edge", timeout=0.02, backoff="1h")
def edge(seconds: float) -> str:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return "through"


@handler("act:quick", timeout="10m")
def quick() -> str:
    n = 0
    for k in range(200):
        n += k
    return "through"


@handler("act:waits", timeout="10m", backoff="1h")
async def waits(name: str) -> str:
    try:
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def look() -> None:
            """Let Python check for signals: one that arrives right before the loop waits does not end that wait."""
            loop.call_later(GLANCE, look)

        look()
        loop.call_soon(threading.Thread(target=at_gate, args=(name,), daemon=True).start)
        await done
    finally:
        await asyncio.sleep(0)
    return "never"


@handler("act:exclusive", exclusive=True, timeout="1h")
def exclusive(name: str) -> str:
    return at_gate(name)


@handler("act:queries", timeout=0.5, backoff="1h")
def queries(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("SELECT pg_sleep(3600)")


@handler("act:mess")
def mess(what: str) -> str:
    match what:
        case "thread":
            threading.Thread(target=time.sleep, args=(FOR_EVER,)).start()
        case "daemon":
            threading.Thread(target=time.sleep, args=(FOR_EVER,), daemon=True).start()
        case "handlers":
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        case "mask":
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGALRM})
        case "timer":
            signal.setitimer(signal.ITIMER_REAL, 0)
        case "chdir":
            os.chdir("/tmp")
        case "depth":
            sys.setrecursionlimit(100_000)
        case "fork":
            if os.fork() == 0:
                return "from the copy"
            os.wait()
    return "done"


@handler("act:maybe")
def maybe(name: str) -> str:
    return at_gate(name) if name else ""


@handler("act:where")
def where() -> dict[str, object]:
    return {
        "pid": os.getpid(),
        "cwd": os.getcwd(),
        "depth": sys.getrecursionlimit(),
        "path": sys.path[0],
        "mark": os.environ["JOBHERD_CHILD"],
        "title": open("/proc/self/cmdline", "rb").read().strip(b"\0").decode(),
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "ignored": int(next(line for line in open("/proc/self/status") if line.startswith("SigIgn")).split()[1], 16)
        & ~(0b11 << 31),  # The C library reserves signals 32 and 33: no program can handle them.
        "stdin": os.readlink("/proc/self/fd/0"),
    }


@handler("act:logs")
def logs(text: str) -> None:
    logging.getLogger("mine").warning("here: %s", text, extra={"colour": "red", "payload": {"secret": text}})
    print("printed")


@handler("act:burns")
def burns(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@handler("act:deaf", timeout="10m")
def deaf(name: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    while True:
        try:
            at_gate(f"{name} {child.pid}")
        except BaseException:
            pass


@handler("act:progress")
def progress(job: Job) -> None:
    job.progress(0.1, "a\0b\ud800", {"huge": "x" * 10_000})
    job.progress(0.2, "second", object())
    job.progress(float("nan"))


@handler("act:missed", timeout="10m")
def missed(name: str) -> None:
    """Unblock pending signals right before a blocking call, after Python's last check for signals."""
    read, _write = os.pipe()
    signals = {signal.SIGUSR2, signal.SIGALRM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    at_gate(name)
    hear = ctypes.PyDLL(None).pthread_sigmask
    mask = (ctypes.c_ulong * 16)(sum(1 << number - 1 for number in signals))
    deque(map(call, (partial(hear, signal.SIG_UNBLOCK, mask, None), partial(os.read, read, 1))), maxlen=0)
