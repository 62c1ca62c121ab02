"""Handlers with hooks that write their calls and arguments to a file. Some misbehave on purpose."""

from __future__ import annotations

import os
import time

from jobherd import Job, Nack, after_job, before_job, handler, middleware, on_child_exit, on_child_start, on_failure


def note(*words: object) -> None:
    with open(os.environ["HOOKED"], "a") as file:
        file.write(" ".join(map(str, words)) + "\n")


@on_child_start
def model(child):
    note("start", child.slot)
    yield {"model": "loaded"}
    note("cleans up")


@on_child_start
def fails():
    if os.environ.get("HOOKED_FAILS"):
        raise ConnectionError("the model is away")
    if (once := os.environ.get("HOOKED_FAILS_ONCE")) and not os.path.exists(once):
        open(once, "w").close()
        raise ConnectionError("the model is away")
    return {"second": 2}


@on_child_exit
def leaves(child):
    note("exit", child.resources["model"])


@middleware
def outer(job, call_next):
    note("outer")
    return call_next()


@middleware("hook:returns")
def inner(job: Job, call_next):
    note("inner", job.payload)
    result = call_next()
    note("inner is back with", result)
    return [result]


@before_job
def begins(job):
    note("before", job.kind)


@after_job
def ends(job, outcome):
    note("after", outcome.label)


@on_failure
def failed(job, outcome, exception):
    note("failure", outcome.label, type(exception).__name__)


@handler("hook:returns")
async def returns(job: Job, value: str) -> str:
    note("handler", sorted(job.resources), job.resources["model"])
    return value


@handler("hook:raises", backoff="1h")
def raises(what: str) -> None:
    raise ValueError(what)


@handler("hook:busy")
def busy() -> None:
    note("never")


@before_job("hook:busy")
def is_busy():
    raise Nack("1h", "busy")


@handler("hook:spoiled")
def spoiled() -> str:
    return "done"


@after_job("hook:spoiled")
def spoils(job, outcome):
    raise RuntimeError(f"spoiled {outcome.result}")


class Lies(Exception):
    """Raises SystemExit in code that reads its class."""

    @property
    def __class__(self) -> type:
        raise SystemExit(0)


@handler("hook:lied_to")
def lied_to() -> str:
    return "done"


@after_job("hook:lied_to")
def lies(job, outcome):
    raise Lies


@handler("hook:hangs")
def hangs() -> str:
    return "done"


@after_job("hook:hangs")
def hangs_after():
    note("hangs")
    time.sleep(3600)


@handler("hook:slow", timeout=0.1, backoff="1h")
def slow() -> None:
    time.sleep(3600)


@after_job("hook:slow")
def takes_its_time(job, outcome):
    end = time.monotonic() + 1.2  # Longer than the second after which the timer repeats an interruption.
    while time.monotonic() < end:
        pass
    note("was not disturbed")


@handler("hook:exits")
def exits(job: Job) -> int:
    return job.attempt


@before_job("hook:exits")
def ends_the_process(job):
    if job.attempt == 1:
        os._exit(0)
