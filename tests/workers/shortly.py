"""Handlers of jobs that are short except on request, loaded by the workers under test."""

from __future__ import annotations

import signal
import threading
import time
from contextvars import ContextVar

from jobherd import handler
from tests.support.gate import at_gate

left: ContextVar[str] = ContextVar("left", default="nothing")


async def later() -> str:
    return "later"


@handler("short:does", timeout="10m", backoff="1h", max_attempts=3)
def does(what: str = "nothing", name: str = "") -> object:
    match what:
        case "returns":
            return 7
        case "raises":
            raise ValueError("a value")
        case "prints":
            print("some words")
        case "coroutine":
            return later()
        case "leaves":
            left.set("something")
        case "finds":
            return left.get()
        case "gate":
            at_gate(name)
        case "thread":
            threading.Thread(target=threading.Event().wait, args=(60,)).start()
        case "handler":
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
    return None


@handler("short:timed", timeout="2s", backoff="1h")
def timed(seconds: float = 0.0) -> None:
    if seconds:
        time.sleep(seconds)
