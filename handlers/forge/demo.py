"""Jobs of `jobherd forge demo --keep`: short simulated work of several kinds.

So the dashboard shows a busy fleet. They change nothing outside their process.
"""

from __future__ import annotations

import time
from typing import Final

from jobherd import Backoff, Job, handler

STEPS: Final = 10
SOON: Final = Backoff(base="4s", factor=2, cap="20s")


@handler("demo:resize", queue="media", timeout="30s")
def resize(job: Job, width: int = 320) -> dict[str, int]:
    """Compute for some tenths of a second, like resizing an image.

    Return the width and a checksum.
    """
    checksum = 0
    for step in range(1, STEPS + 1):
        for pixel in range(width * 100):
            checksum = (checksum * 31 + pixel) % 65521
        job.progress(step / STEPS, f"row {step} of {STEPS}")
    return {"width": width, "checksum": checksum}


@handler("demo:mail", queue="mail", timeout="30s", max_attempts=3, backoff=SOON)
def mail(job: Job, to: str, failures: int = 0) -> None:
    """Wait as for a mail server that rejects the first `failures` attempts.

    Raises ConnectionError if this attempt is one of those.
    """
    time.sleep(0.1)
    if job.attempt <= failures:
        message = f"the mail server refused the connection for {to}"
        raise ConnectionError(message)


@handler("demo:report", timeout="1m")
def report(job: Job, seconds: float = 4.0) -> dict[str, float]:
    """Run for `seconds`, like a report, and report progress."""
    for step in range(1, STEPS + 1):
        time.sleep(seconds / STEPS)
        job.progress(step / STEPS, f"month {step}")
    return {"seconds": seconds}


def enqueue_one(number: int) -> int:
    """Enqueue the demonstration's job with that number and return its id.

    Every sixth is retried, every thirtieth fails.

    number: counted from 0.
    """
    match number % 6:
        case 0 | 3:
            return resize.enqueue(width=320 + 160 * (number % 4))
        case 1 | 4:
            return mail.enqueue(to=f"reader{number}@example.com")
        case 2:
            return report.enqueue(seconds=2.0 + number % 5)
    return mail.enqueue(to=f"reader{number}@example.com", failures=9 if number % 30 == 29 else 1)
