"""Handlers for tests of the dashboard: some succeed, some fail, some crash, one runs until the test ends it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from jobherd import Job, Poison, handler
from tests.support.gate import at_gate


@handler("mail:receipt", queue="mail")
def receipt(order_id: int) -> dict[str, object]:
    return {"sent": True, "order_id": order_id}


@handler("report:build", queue="reports", max_attempts=1)
def build(job: Job, year: int) -> str:
    print(f"building the report of {year}")
    if year < 2000:
        raise ValueError(f"there are no figures of {year}")
    return f"the report of {year}"


@handler("sheet:read", max_attempts=1)
def read(path: str) -> int:
    return len(Path(path).read_text())


@handler("sheet:copy", max_attempts=1)
def copy(size: int) -> int:
    return size


@handler("sheet:sum")
def total(left: int, middle: int, right: int) -> int:
    return left + middle + right


@handler("image:thumbnail", queue="media", backoff="1h")
def thumbnail(path: str) -> None:
    raise FileNotFoundError(path)


@handler("card:charge", queue="billing")
def charge(card: str, amount: int) -> None:
    raise Poison(f"card {card} is not valid")


@handler("video:encode", queue="media", max_crashes=1)
def encode(job: Job) -> None:
    job.progress(0.4, "frame 400")
    os.kill(os.getpid(), signal.SIGSEGV)


@handler("video:wait", queue="media", timeout="10m")
def wait(job: Job, name: str) -> None:
    """Run until the test opens the gate."""
    job.progress(0.25, "frame 250")
    job.log.info("encoding %s", name)
    print("a line that is only printed")
    at_gate(name)
