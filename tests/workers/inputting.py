"""Handlers that read the results of earlier nodes, loaded by the workers under test."""

from __future__ import annotations

import threading
from typing import Any

from jobherd import InputError, Job, handler


@handler("input:index")
def index(items: list[Any], fails: bool = False) -> list[Any]:
    if fails:
        raise ValueError("no")
    return items


@handler("input:nothing")
def nothing() -> None: ...


@handler("input:page")
def page(job: Job, item: int) -> list[Any]:
    return [item, len(job.input("index", returns=list[int]))]


@handler("input:total")
def total(job: Job, nodes: list[str], how: str = "") -> object:
    """Return the result of each node, or the error. A star before a name: the results of a node with many jobs."""
    found: list[Any] = []

    def ask() -> None:
        for name in nodes:
            try:
                found.append(list(job.inputs(name[1:], list[int])) if name[0] == "*" else job.input(name))
            except InputError as problem:
                found.append(str(problem))

    if how == "transaction":
        with (transaction := job.transaction()):
            ask()
            transaction.result = found
    elif how == "thread":
        (thread := threading.Thread(target=ask)).start()
        thread.join()
    elif how == "typed":
        job.input(nodes[0], returns=dict[str, int])
    else:
        ask()
    return found


@handler("input:coroutine")
async def coroutine(job: Job) -> object:
    return job.input("index")


@handler("input:batch", batch=4)
def batch(jobs: list[Job]) -> list[str]:
    found = []
    for job in jobs:
        try:
            job.input("index")
        except InputError as problem:
            found.append(str(problem))
    return found


@handler("input:sealed", encrypt=True)
def sealed() -> str:
    return "secret"
