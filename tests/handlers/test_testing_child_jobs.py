"""Child jobs of jobs that tests run with `inline` and `recorder`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from jobherd import Job, Json, handler
from jobherd.testing import inline, recorder


@dataclass
class Label:
    file: str


@handler("family:label", max_attempts=2)
def label(parcel: int) -> Label:
    if parcel < 0:
        message = f"no parcel {parcel}"
        raise ValueError(message)
    return Label(f"{parcel}.pdf")


@handler("family:pack", max_attempts=3)
def pack(job: Job, parcels: list[int], keep: bool = False) -> Json:
    labels = job.spawn_many("labels", [label.call(parcel) for parcel in parcels])
    invoice = job.spawn(label.options(priority=5).call(0))
    last = job.gather(invoice)
    found = job.gather(labels, return_exceptions=keep)
    return [*(one.file if isinstance(one, Label) else str(one) for one in found), last]


@pytest.fixture(params=["inline", "recorder"])
def jobs(request, database):
    if request.param == "recorder":
        with recorder() as jobs:
            yield jobs
    else:
        with inline(database) as jobs:
            yield jobs


def labels_of(job):
    return [ran.outcome.label for ran in job.ran]


def test_drain_runs_child_jobs_and_then_the_waiting_parent_job(jobs):
    pack.enqueue(parcels=[1, 2])
    parent, *children = jobs.drain([pack, label])
    assert labels_of(parent) == ["suspended", "ok"]
    assert parent.ran[-1].result == ["1.pdf", "2.pdf", {"file": "0.pdf"}]
    assert parent.attempts == 1
    assert [(one.kind, one.round, labels_of(one)) for one in children] == [("family:label", 2, ["ok"])] * 3
    assert jobs.assert_enqueued(label, parcel=0).options["priority"] == 5
    assert jobs.drain([pack, label]) == []


def test_parent_job_waits_for_child_jobs_that_are_not_drained(jobs):
    pack.enqueue(parcels=[1])
    (parent,) = jobs.drain([pack, label], rounds=1)
    assert jobs.drain([pack], rounds=0) == [], "the parent job does not run while its child jobs are unfinished"
    assert not parent.over
    ran = jobs.drain([pack, label])
    assert ran[-1] is parent
    assert labels_of(parent) == ["suspended", "ok"]


def test_failure_of_a_child_job_is_raised_or_returned_by_gather(jobs):
    pack.enqueue(parcels=[-1, 2])
    pack.enqueue(parcels=[-1, 2], keep=True)
    first, second, *_ = jobs.drain([pack, label])
    assert (labels_of(first), first.over) == (["suspended"] * 2, False), "the child job has another attempt"
    jobs.drain([pack, label], attempts=2)
    child = jobs.assert_enqueued(label, parcel=-1)
    told = f"child job {child.id} (family:label) failed: ValueError: no parcel -1"
    assert (labels_of(first), first.ran[-1].outcome.code) == (["suspended"] * 2 + ["poison"], "CHILD_JOB_FAILED")
    assert first.ran[-1].outcome.error == told
    assert second.ran[-1].result[1:] == ["2.pdf", {"file": "0.pdf"}]
    assert second.ran[-1].result[0].endswith("(family:label) failed: ValueError: no parcel -1")


def test_handler_run_directly_gets_results_of_its_child_jobs_in_the_next_run(jobs):
    assert jobs.run(pack, parcels=[1]).outcome.label == "suspended"
    assert len(jobs.enqueued(label)) == 2
    assert jobs.run(pack, parcels=[1]).outcome.label == "suspended"
    assert len(jobs.enqueued(label)) == 2, "the same payload continues the same job"
    assert jobs.run(pack, parcels=[7]).outcome.label == "suspended"
    assert len(jobs.enqueued(label)) == 4, "another payload is another job"
    jobs.drain([label])
    assert jobs.run(pack, parcels=[1]).result == ["1.pdf", {"file": "0.pdf"}]
    assert jobs.run(pack, parcels=[1]).outcome.label == "suspended", (
        "the previous job is completed, so this run is a new job"
    )


def test_async_parent_job_waits_for_its_child_jobs(jobs):
    @handler("family:apack")
    async def apack(job: Job) -> str:
        child = await job.aspawn(label.call(3))
        return (await job.agather(child)).file

    apack.enqueue()
    parent, _ = asyncio.run(jobs.adrain([apack, label]))
    assert parent.ran[-1].result == "3.pdf"


def test_job_without_child_jobs_does_not_wait(jobs):
    @handler("family:none")
    def none(job: Job) -> Json:
        return job.gather(job.spawn_many("none", []))

    none.enqueue()
    (job,) = jobs.drain([none])
    assert (labels_of(job), job.ran[0].result) == (["ok"], [])


def test_steps_are_kept_between_attempts(jobs):
    done = []

    @handler("family:steps", max_attempts=2)
    def steps(job: Job) -> Json:
        job.step("once", done.append, 1)
        job.spawn(label.call(len(done)))
        if job.attempt == 1:
            raise ValueError
        return len(done)

    steps.enqueue()
    first, *_ = jobs.drain([steps, label], attempts=2)
    assert labels_of(first) == ["retry", "ok"]
    assert done == [1]
    assert len(jobs.enqueued(label)) == 1


def test_inline_keeps_the_steps_of_a_suspended_attempt_and_undoes_those_of_a_failed_one(database):
    with inline(database) as jobs:
        jobs.connection.execute("CREATE TEMP TABLE stock (attempt int)")

        @handler("family:stock", max_attempts=2)
        def stock(job: Job, how: str) -> None:
            with job.step_transaction("take") as connection:
                if connection:
                    connection.execute("INSERT INTO stock VALUES (%s)", [job.attempt])
            if how == "raises" and job.attempt == 1:
                raise ValueError
            job.gather(job.spawn(label.call(1)))

        def found():
            return jobs.connection.execute("SELECT attempt FROM stock").fetchall()

        stock.enqueue(how="waits")
        jobs.drain([stock], rounds=1)
        assert found() == [(1,)]
        jobs.drain([stock, label])
        assert found() == [(1,)]
        stock.enqueue(how="raises")
        jobs.drain([stock, label], attempts=2)
        assert found() == [(1,), (2,)], "the step ran again because it was undone with the failed attempt"


def test_child_jobs_are_enqueued_in_the_test_transaction_with_their_parent(database):
    with inline(database) as jobs:
        parent = pack.enqueue(parcels=[1])
        jobs.drain([pack], rounds=1)
        rows = jobs.connection.execute(
            "SELECT parent_id, priority FROM jobherd.jobs WHERE kind = 'family:label' ORDER BY id"
        )
        assert rows.fetchall() == [(parent, 0), (parent, 5)]


def test_child_job_cannot_be_spawned_in_a_transaction_of_the_job(database):
    with inline(database) as jobs:

        @handler("family:inside", max_attempts=1)
        def inside(job: Job) -> None:
            with job.transaction():
                job.spawn(label.call(1))

        assert "cannot be inside a transaction" in (jobs.run(inside).outcome.error or "")


@handler("family:visit", max_attempts=2, attempts_per_step=True)
def visit(job: Job, families: int) -> int:
    for number in range(families):
        fails = []
        job.step(f"family {number}", fails.append, 0)
        if fails:
            message = f"family {number} was not at home"
            raise ValueError(message)
    return job.attempt


def test_attempt_that_records_a_step_resets_the_attempt_count(jobs):
    visit.enqueue(families=3)
    [job] = jobs.drain([visit], attempts=9)
    assert labels_of(job) == ["retry", "retry", "retry", "ok"]
    assert job.ran[-1].result == 2
