"""Handlers with durable steps, loaded by the workers under test."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from jobherd import ChildJobFailed, Job, JobSuspended, handler
from tests.support.gate import at_gate

CALLS: Counter[str] = Counter()
"""Number of calls of each step's function in this process."""
DONE: set[tuple[int, str]] = set()
"""Steps after which a job has failed in this process."""


def _called(name: str, result: object = None) -> Any:
    CALLS[name] += 1
    return result


@dataclass
class Charge:
    """The result of a step."""

    id: str
    cents: int


def _charge(order: int, key: str) -> Charge:
    CALLS["charge"] += 1
    return Charge(f"{order}:{key}", 500)


@handler("step:order", timeout="10m", max_attempts=4, backoff=0, version=3)
def order(job: Job, order: int, fails: int = 0) -> object:
    CALLS.clear() if job.attempt == 1 else None
    charge = job.step("charge", _charge, order, key=job.step_key("charge"))
    assert isinstance(charge, Charge)
    items = [job.step(f"item {item}", _called, f"item {item}", (item, None)) for item in range(3)]
    if job.attempt <= fails:
        raise ValueError("no")
    nothing = job.step("nothing", _called, "nothing")
    return [charge, items, nothing, dict(CALLS), job.attempt, job.began_with]


@handler("step:async", timeout="10m", max_attempts=4, backoff=0)
async def coroutine(job: Job, how: str = "") -> object:
    async def call(name: str) -> str:
        return str(_called(name, name))

    CALLS.clear() if job.attempt == 1 else None
    found = await job.astep("a", call, "a")
    async with (step := job.step_transaction("b")) as connection:
        if connection:
            await connection.execute("INSERT INTO public.ledger (job, note) VALUES (%s, 'b')", [job.id])
            step.result = {"b": 1}
    if how == "sync":
        job.step("c", call, "c")
    if job.attempt == 1:
        raise ValueError("no")
    return [found, step.result, CALLS["a"]]


@handler("step:bank", timeout="10m", max_attempts=4, backoff=0)
def bank(job: Job, how: str = "", fails: int = 0) -> object:  # one branch for each way to end
    with (step := job.step_transaction("reserve")) as connection:
        if connection:
            connection.execute("INSERT INTO public.ledger (job, token, note) VALUES (%s, %s, 'a')", [job.id, job.token])
            step.result = {"attempt": job.attempt}
            if how == "raises" and job.attempt == 1:
                raise ValueError("no")
            if how == "commits":
                connection.execute("COMMIT")
            if how == "unstorable":
                step.result = object()
            if how == "gate":
                at_gate("gate")
            if how == "nested":
                job.step("inner", _called, "inner")
    if how == "catches":
        try:
            with job.step_transaction("again") as connection:
                assert connection
                connection.execute("INSERT INTO public.ledger (job, note) VALUES (%s, 'undone')", [job.id])
                raise ValueError("no")
        except ValueError:
            pass
        with job.step_transaction("again") as connection:
            assert connection
            connection.execute("INSERT INTO public.ledger (job, note) VALUES (%s, 'again')", [job.id])
    if job.attempt <= fails:
        raise ValueError("no")
    return [step.result, step.done]


@handler("step:odd", timeout="10m", max_attempts=1)
def odd(job: Job, how: str) -> object:  # one branch for each way to end
    match how:
        case "twice":
            job.step("a", _called, "a")
            job.step("a", _called, "a")
        case "raises and again":
            try:
                job.step("a", int, "x")
            except ValueError:
                return job.step("a", int, "7")
        case "unstorable":
            job.step("a", object)
        case "inside":
            with job.transaction():
                job.step("a", _called, "a")
        case "thread":
            problems: list[object] = []

            def run() -> None:
                try:
                    job.step("a", _called, "a")
                except Exception as problem:
                    problems.append(str(problem))

            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
            return problems
        case "misfit":
            return job.step("old", _called, "old", {"id": "x"}, returns=Charge)
        case "gate":
            job.step("a", _called, "a")
            at_gate("gate")
            job.step("b", _called, "b")
    return None


@handler("step:declared", transactional=True, max_attempts=1)
def declared(job: Job) -> object:
    return job.step("a", _called, "a")


@handler("step:batch", batch=10, max_attempts=1)
def batch(jobs: list[Job]) -> object:
    return [job.step("a", _called, "a") for job in jobs]


@handler("step:secret", encrypt=True, max_attempts=2, backoff=0)
def secret(job: Job) -> object:
    found = job.step("a", _called, "a", {"card": "4111-2222"})
    if job.attempt == 1:
        raise ValueError("no")
    return found


@handler("step:sleeps", timeout="10m", max_attempts=2, backoff=0)
def sleeps(job: Job, how: str = "") -> object:  # one branch for each way to end
    CALLS[f"began {job.id}"] += 1
    job.step("a", _called, f"a {job.id}")
    match how:
        case "swallowed":
            try:
                job.sleep("1h")
            except BaseException:
                return "not suspended"
        case "cleaned up":
            try:
                job.sleep("1h")
            finally:
                raise ValueError("no")
        case "in a transaction":
            with job.transaction():
                job.sleep("1h")
        case "gate":
            try:
                job.sleep("1h")
            finally:
                at_gate("gate")
        case "made up":
            raise JobSuspended("by hand")
        case "failing":
            if job.attempt == 1:
                raise ValueError("no")
            job.sleep("1h")
        case _:
            job.sleep("1h")
    job.sleep("1h")
    return [CALLS[f"began {job.id}"], CALLS[f"a {job.id}"], job.attempt]


@handler("step:asleeps", timeout="10m")
async def asleeps(job: Job) -> object:
    await job.asleep("1h", name="night")
    return "awake"


@handler("step:waits", timeout="10m")
def waits(job: Job, how: str = "") -> object:
    CALLS[f"began {job.id}"] += 1
    match how:
        case "timeout":
            return [job.wait_for("approved", timeout="1h"), job.wait_for("packed", topic="order/7", timeout="1h")]
        case "topic":
            return [job.wait_for("first", topic="order/7"), job.wait_for("second", topic="order/7")]
        case "typed":
            return job.wait_for("charged", returns=Charge).cents
    return [job.wait_for("approved"), CALLS[f"began {job.id}"]]


@handler("step:awaits", timeout="10m")
async def awaits(job: Job) -> object:
    return await job.await_for("approved")


@handler("step:child", timeout="10m", max_attempts=1)
def child(number: int) -> Charge:
    if number < 0:
        raise ValueError(f"{number} is negative")
    return Charge(f"child {number}", number)


@handler("step:achild", timeout="10m", max_attempts=1)
async def achild(number: int) -> int:
    return number * 2


@handler("step:large", timeout="10m", max_attempts=1)
def large(number: int) -> str:
    return "x" * number


@handler("step:hidden", encrypt=True)
def hidden(number: int) -> int:
    return number


@handler("step:parent", timeout="10m", max_attempts=4, backoff=0)
def parent(job: Job, how: str = "", numbers: list[int] | None = None) -> object:  # one branch for each way to end
    numbers = [1, 2, 3] if numbers is None else numbers
    match how:
        case "one":
            found = job.gather(job.spawn(child.call(7)))
            return [found.id, job.gather(job.spawn(child.call(8)), return_exceptions=True).id]
        case "async":
            return job.gather(job.spawn_many("doubles", [achild.call(n) for n in numbers]))
        case "exceptions":
            every = job.gather(job.spawn_many("all", [child.call(n) for n in numbers]), return_exceptions=True)
            return [[one.state, str(one)] if isinstance(one, ChildJobFailed) else one.cents for one in every]
        case "large":
            return len(job.gather(job.spawn_many("large", [large.call(n) for n in numbers])))
        case "fails after":
            children = job.spawn_many("all", [child.call(n) for n in numbers])
            if job.attempt < 3:
                raise ValueError("no")
            return [children.flow, len(children)]
        case "leave":
            return job.gather(job.spawn_many("all", [child.call(n) for n in numbers], on_parent_cancel="leave"))
        case "hidden":
            return job.gather(job.spawn(hidden.call(1)))
        case "inside":
            with job.transaction():
                job.spawn(child.call(1))
        case "gate":
            children = job.spawn_many("all", [child.call(n) for n in numbers])
            try:
                return len(job.gather(children))
            except JobSuspended:
                at_gate("gate")
                raise
    charges = job.gather(job.spawn_many("all", [child.call(n) for n in numbers]))
    return [[charge.id for charge in charges], job.attempt]


@handler("step:aparent", timeout="10m")
async def aparent(job: Job) -> object:
    one = await job.aspawn(achild.call(1), "one")
    many = await job.aspawn_many("many", [achild.call(2), child.call(3)])
    return [await job.agather(one), [str(each) for each in await job.agather(many)]]


@handler("step:progress", timeout="10m", max_attempts=2, backoff=0, attempts_per_step=True)
def progress(job: Job, how: str) -> object:  # one branch for each way to record
    for number in range(3):
        name = f"{how} {number}"
        match how:
            case "transaction":
                with job.step_transaction(name):
                    pass
            case "broken":
                with job.step_transaction(name) as connection, suppress(psycopg.Error):
                    assert connection
                    connection.execute("SELECT 1 / 0")
            case "wait":
                job.wait_for(name, topic="progress")
            case "spawn":
                job.spawn(child.call(1), name=name)
            case "sleep" if number:
                job.sleep("1h")
            case _:
                job.step(name, _called, name)
        if (job.id, name) not in DONE:
            DONE.add((job.id, name))
            if how == "gate" and number == 1:
                at_gate("gate")
            raise ValueError("no")
    raise ValueError("no step is left")
