"""A job that a handler enqueues keeps its parent job and trace; a job of any other producer has neither."""

from __future__ import annotations

from pathlib import Path

from tests.support.lending import Lending
from tests.support.seats import Bench
from tests.workers.ancestry import OTHER_TRACE

ANCESTRY = str(Path(__file__).parents[1] / "ancestry.py")
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def origins(bench: Bench, ids: list[int]) -> set[tuple[int | None, str | None]]:
    rows = bench.ask("SELECT parent_id, traceparent FROM jobherd.jobs WHERE id = ANY (%(ids)s)", ids=ids)
    assert len(rows) == len(ids)
    return {(row["parent_id"], row["traceparent"]) for row in rows}


def test_job_enqueued_inside_a_handler_has_the_running_job_as_its_parent_job(bench: Bench):
    child = bench.start(handlers=(ANCESTRY,), served=("default",))
    job = bench.enqueue("line:root", options={"traceparent": TRACE}, dsn=bench.dsn)
    child.nudge()
    found = bench.wait(job, "completed")["result"]
    assert {name: origins(bench, ids) for name, ids in found.items()} == {
        "one": {(job, TRACE)},
        "many": {(job, TRACE)},
        "large": {(job, TRACE)},
        "client": {(job, TRACE)},
        "named": {(7, OTHER_TRACE)},
        "connection": {(job, TRACE)},
        "asyncio": {(job, TRACE)},
        "thread": {(None, None)},
        "copied": {(job, TRACE)},
    }
    assert len(found["large"]) == 2500
    # These 2500 jobs must stay in a queue that is not served: a slow machine needs longer for them than a test waits.
    leaves = bench.ask("SELECT DISTINCT queue, state FROM jobherd.jobs WHERE kind = 'line:leaf'")
    assert leaves == [{"queue": "aside", "state": "ready"}]
    assert origins(bench, [bench.enqueue("line:leaf")]) == {(None, None)}

    # A job that runs after another job is not its child job. A handler gets the parent job and trace of its job.
    first, second = (bench.enqueue("line:lasting") for _ in range(2))
    child.nudge()
    for each in (first, second):
        bench.wait(each, "completed")
    assert origins(bench, [first, second]) == {(None, None)}
    assert {
        row["parent_id"]
        for row in bench.ask("SELECT parent_id FROM jobherd.jobs WHERE id > %(id)s AND kind = 'line:leaf'", id=second)
    } == {
        first,
        second,
    }
    told = bench.enqueue("line:sees", options={"parent_id": first, "traceparent": f"{TRACE} vendor=1"})
    child.nudge()
    assert bench.wait(told, "completed")["result"] == [first, TRACE]
    with_bytes = bench.ask(
        "SELECT jobherd.enqueue_bytes('line:bytes', 'abc', %(options)s::jsonb) AS id",
        options=f'{{"parent_id": {first}}}',
    )[0]["id"]
    child.nudge()
    assert bench.wait(with_bytes, "completed")["result"] == [first, None, 3]


def test_job_enqueued_in_another_database_has_no_parent_job(bench: Bench, watched: Lending):
    child = bench.start(handlers=(ANCESTRY,), served=("default",))
    with watched.database() as other, Bench(other, watched=True) as elsewhere:
        job = bench.enqueue("line:elsewhere", dsn=other)
        child.nudge()
        number = bench.wait(job, "completed")["result"]
        assert origins(elsewhere, [number]) == {(None, None)}
