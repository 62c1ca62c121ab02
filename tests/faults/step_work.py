"""Handlers with durable steps, run by the campaigns `steps`, `signals` and `children`."""

from __future__ import annotations

import secrets
import time

from jobherd import Job, handler


def _number(seconds: float) -> str:
    time.sleep(seconds)
    return secrets.token_hex(8)


@handler("fault:steps", max_attempts=1000, max_crashes=1000, backoff=0, timeout="10m")
def steps(job: Job, seconds: float) -> list[str]:
    """Run five steps: two effects in the database, two outside, and a sleep."""
    for name in ("reserve", "book"):
        with job.step_transaction(name) as connection:
            if connection:
                connection.execute("INSERT INTO public.effects (job, step) VALUES (%s, %s)", [job.id, name])
        if name == "reserve":
            first = job.step("charge", _number, seconds)
            job.sleep("50ms", name="night")
    return [first, job.step("mail", _number, seconds)]


@handler("fault:waits", max_attempts=1000, max_crashes=1000, backoff=0, timeout="10m")
def waits(job: Job, times: int) -> list[int]:
    """Receive `times` signals."""
    topic = f"job/{job.id}/number"
    return [job.wait_for(f"number {place}", topic=topic) for place in range(times)]


@handler("fault:child", max_attempts=1000, max_crashes=1000, backoff=0)
def child(number: int) -> int:
    """Return ten times the number after 5 ms, as a child job."""
    time.sleep(0.005)
    return 10 * number


@handler("fault:parent", max_attempts=1000, max_crashes=1000, backoff=0, timeout="10m")
def parent(job: Job) -> list[int]:
    """Spawn five child jobs in two steps, and gather their results."""
    first = job.spawn(child.call(0))
    others = job.spawn_many("others", [child.call(number) for number in range(1, 5)])
    return [job.gather(first), *job.gather(others)]
