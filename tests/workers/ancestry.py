"""Handlers that enqueue in every way that Jobherd offers, loaded by the workers under test."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import psycopg

from jobherd import AsyncClient, Client, Job, enqueue_on, handler

OTHER_TRACE = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-00"


@handler("line:leaf", queue="aside")
def leaf() -> None:
    pass


@handler("line:bytes")
def takes_bytes(job: Job, payload_bytes: bytes) -> list[object]:
    return [job.parent_id, job.traceparent, len(payload_bytes)]


@handler("line:sees")
def sees(job: Job) -> list[object]:
    return [job.parent_id, job.traceparent]


@handler("line:root", timeout="10m")
def root(dsn: str) -> dict[str, list[int]]:
    """Enqueue in every way. The function has no job parameter, but the worker knows its job."""
    found: dict[str, list[int]] = {
        "one": [leaf.enqueue()],
        "many": leaf.enqueue_many({} for _ in range(3)),
        "large": leaf.enqueue_many({} for _ in range(2500)),
    }
    with Client(dsn) as client:
        found["client"] = [client.enqueue("line:leaf")]
        found["named"] = [client.enqueue("line:leaf", parent_id=7, traceparent=OTHER_TRACE)]
    with psycopg.connect(dsn) as connection:
        found["connection"] = [enqueue_on(connection, "line:leaf")]

    async def from_asyncio() -> list[int]:
        async with AsyncClient(dsn) as client:
            return [await client.enqueue("line:leaf"), await asyncio.to_thread(leaf.enqueue)]

    found["asyncio"] = asyncio.run(from_asyncio())
    own = contextvars.copy_context()
    for name, enqueue in (("thread", leaf.enqueue), ("copied", lambda: own.run(leaf.enqueue))):
        found[name] = []
        thread = threading.Thread(target=lambda put, to: to.append(put()), args=(enqueue, found[name]))
        thread.start()
        thread.join()
    return found


@handler("line:elsewhere")
def elsewhere(dsn: str) -> int:
    """Enqueue in another database."""
    with Client(dsn) as client:
        return client.enqueue("line:leaf")


@handler("line:lasting", transactional=True)
def lasting(job: Job) -> int:
    return leaf.enqueue()
