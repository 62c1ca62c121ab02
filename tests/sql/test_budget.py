"""The budget of a supervisor.

A claim takes jobs that fit, every end of a claim frees its part, and no job waits indefinitely.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from jobherd import Child, handler, sql
from jobherd.handlers._define.hook_calls import Hooks
from jobherd.sql.migrate import migrate
from jobherd.workers.claim.claim_conditions import ClaimConditions
from jobherd.workers.database.wire import Wire
from jobherd.workers.job.row import claimed_jobs
from tests.support.patience import LIMIT
from tests.support.queue import Queue

COSTS = {
    "k:large": {"memory_mb": 900},
    "k:middle": {"memory_mb": 600},
    "k:small": {"memory_mb": 200},
    "k:gpu": {"gpus": 1},
}
BUDGET = {"memory_mb": 1000.0}
PATIENCE = 60.0


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


class Claimer:
    """A worker that claims within a budget, as a selective worker does."""

    def __init__(self, queue, *, budget=None, supervisor=None, by="claim/claim_jobs", **more):
        self.by = by
        self.child = (supervisor or queue).child()
        self.wire = Wire(self.child.connection, "jobherd", prepared=True)
        own = {"only_kinds": None, "not_kinds": None, "room": "{}", "patience": PATIENCE} | more
        self.given = own | {"costs": json.dumps(COSTS), "budget": json.dumps(budget or BUDGET)}
        self.token = 0

    def claim(self, wanted=1, *conditions, avoided=()):
        """Return the jobs of one pass over the queues."""
        avoided = list(avoided)
        while True:
            jobs = claimed_jobs(self.wire.exchange(*self.letters(wanted, conditions, avoided))[1])
            if not jobs or jobs[0].id:
                self.token = jobs[0].token if jobs else 0
                return [job.id for job in jobs]
            avoided.append(jobs[0].queue)

    def letters(self, wanted, conditions, avoided):
        by = sql.narrow(self.by, *conditions, "within_budget")
        claim = self.child.parameters(wanted) | self.given | {"avoided": avoided or None}
        return ("claim/lock_budget", {"supervisor": self.child.supervisor}), (by, claim)

    def settle(self, *jobs, outcome="ok"):
        self.child.settle(self.token, list(jobs), outcome, error=None if outcome == "ok" else "no")


@pytest.mark.promise("B7")
def test_job_that_exceeds_the_free_budget_is_skipped_until_it_fits(queue):
    jobs = {kind: queue.enqueue(f"k:{kind}") for kind in ("large", "middle", "gpu", "none", "small")}
    one, other, third = Claimer(queue), Claimer(queue), Claimer(queue)
    assert one.claim() == [jobs["large"]]
    assert [other.claim(), third.claim()] == [[jobs["gpu"]], [jobs["none"]]], "a job without a memory cost always fits"
    other.settle(jobs["gpu"])
    assert other.claim() == []
    one.settle(jobs["large"])
    assert other.claim() == [jobs["middle"]]
    assert one.claim() == [jobs["small"]]


@pytest.mark.promise("B9")
@pytest.mark.parametrize(
    "end", ["ok", "retry", "failed", "snoozed", "abandoned", "cancelled", "released", "orphaned", "reclaimed"]
)
def test_every_end_of_a_claim_frees_its_part_of_the_budget(queue, end):
    supervisor = queue.supervisor()
    one, other = Claimer(queue, supervisor=supervisor), Claimer(queue, supervisor=supervisor)
    first, second = queue.enqueue("k:large"), queue.enqueue("k:large", priority=5)
    assert one.claim() == [first]
    assert other.claim() == []
    match end:
        case "released":
            one.child.release()
        case "orphaned":
            queue.run("DELETE FROM jobherd.children WHERE id = %s", one.child.id)
            queue.orphans()
        case "reclaimed":
            queue.supervisor().reclaim(dead=[supervisor.id])
            supervisor = queue.supervisor()
            other = Claimer(queue, supervisor=supervisor)
        case _:
            one.settle(first, outcome=end)
    assert len(other.claim()) == 1
    assert second in {row[0] for row in queue.run("SELECT id FROM jobherd.ready")} | {
        row[0] for row in queue.run("SELECT (j).id FROM (SELECT unnest(jobs) AS j FROM jobherd.running) AS held")
    }


@pytest.mark.promise("B9")
def test_concurrent_claims_do_not_exceed_the_budget(queue):
    queue.enqueue("k:middle")
    queue.enqueue("k:middle")
    one, other = Claimer(queue), Claimer(queue)
    letters = one.letters(1, (), [])
    with ThreadPoolExecutor(1) as pool:
        with one.child.connection.transaction():
            for name, parameters in letters:
                one.child.connection.execute(sql.load(name), parameters)
            second = pool.submit(other.claim)  # waits for the lock, then sees the committed claim
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            until = time.monotonic() + LIMIT
            while not queue.run(waiting)[0][0]:
                assert time.monotonic() < until
                assert not second.done(), "the second claim did not wait"
        assert second.result(20) == []
    assert queue.count("running") == 1


def test_claim_uses_only_the_budget_of_one_job_and_supervisors_have_separate_budgets(queue):
    queue.enqueue_many("k:small", 20)
    one, other, elsewhere = Claimer(queue), Claimer(queue), Claimer(queue, supervisor=queue.supervisor())
    assert len(one.claim(10)) == 10
    large = queue.enqueue("k:large", priority=-1)
    assert len(other.claim(1)) == 1
    assert elsewhere.claim() == [large]


def test_supervisors_with_the_same_number_in_two_schemas_do_not_block_each_other(queue):
    """Each schema numbers its supervisors from 1."""
    migrate(queue.connection, schema="jobs_eu")
    number = {"supervisor": queue.child().supervisor}
    with queue.child().connection as here, queue.child().connection as there, here.transaction(), there.transaction():
        here.execute(sql.load("claim/lock_budget"), number)
        there.execute("SET LOCAL lock_timeout = '1ms'")
        there.execute(sql.load("claim/lock_budget", "jobs_eu"), number)
        with pytest.raises(psycopg.errors.LockNotAvailable), there.transaction():
            there.execute(sql.load("claim/lock_budget"), number)


def age(queue, job):
    queue.run(
        "UPDATE jobherd.ready SET created_at = now() - interval '2 min', run_at = now() - interval '2 min' WHERE id = %s",
        job,
    )


@pytest.mark.promise("B7")
def test_budget_is_reserved_for_a_job_that_has_waited_too_long(queue):
    holder, passer = Claimer(queue), Claimer(queue)
    small = queue.enqueue("k:small")
    assert holder.claim() == [small]
    large = queue.enqueue("k:large", queue="slow")
    gpu = queue.enqueue("k:gpu", priority=7)
    first, second = queue.enqueue_many("k:small", 2)
    assert passer.claim() == [first], "a small job overtakes the large one until it has waited too long"
    passer.settle(first)
    age(queue, large)
    assert passer.claim() == [gpu], "a job without a memory cost still overtakes it"
    holder.settle(small)
    assert holder.claim(avoided=["slow"]) == [], "a small job would fit, but the budget is reserved"
    assert holder.claim() == [large]
    passer.settle(gpu)
    assert passer.claim() == []
    holder.settle(large)
    assert passer.claim() == [second]


@pytest.mark.parametrize(
    ("more", "conditions"),
    [
        ({"patience": None}, ()),
        ({"not_kinds": ["k:large"]}, ("not_of_kinds",)),
        ({"only_kinds": ["k:small"]}, ("of_kinds",)),
        ({"room": '{"memory_mb": 500}'}, ("fits",)),
        ({"budget": {"memory_mb": 800}}, ()),
    ],
)
def test_no_budget_is_reserved_without_patience_or_for_a_job_that_cannot_be_claimed_here(queue, more, conditions):
    large = queue.enqueue("k:large")
    first, second = queue.enqueue_many("k:small", 2)
    queue.run("SELECT jobherd.demand(%s, %s)", first, '{"memory_mb": 300}')
    taker, other = Claimer(queue, **more), Claimer(queue, **more)
    queue.run("UPDATE jobherd.ready SET priority = 5 WHERE id = %s", large)
    assert taker.claim(1, *conditions) == [first]
    age(queue, large)
    assert other.claim(1, *conditions) == [second]


def test_concurrency_limits_and_the_budget_apply_together(queue):
    """A claim under concurrency limits also honors the budget. No budget is reserved for a job over its limit."""
    queue.run("SELECT jobherd.set_limit(queue => 'capped', max_running => 1)")
    gated = {"limited": None, "limits": None, "left_queue": None, "left_kind": None, "narrowed": True}
    holder, other = (Claimer(queue, by="claim/claim_gated", **gated) for _ in range(2))
    first, second = queue.enqueue_many("k:small", 2, queue="capped")
    large, middle, small = (
        queue.enqueue("k:large"),
        queue.enqueue("k:middle", priority=3),
        queue.enqueue("k:small", priority=5),
    )
    assert holder.claim() == [first]
    age(queue, second)
    assert other.claim() == [middle], (
        "the large job does not fit; the second is over its limit, so no budget is reserved"
    )
    third = Claimer(queue, by="claim/claim_gated", **gated)
    assert third.claim() == [small]
    third.settle(small)
    other.settle(middle)
    holder.settle(first)
    assert holder.claim() == [second]
    holder.settle(second)
    assert holder.claim() == [large]


@pytest.mark.parametrize(
    "cost",
    ['{"gpus": "many"}', '{"gpus": true}', '{"gpus": [1]}', '{"gpus": null}', '{"gpus": -100}', '{"a": 1, "b": {}}'],
)
def test_raw_sql_cannot_store_an_invalid_cost(queue, cost):
    """Every claim that met an invalid cost would fail."""
    job = queue.enqueue("k:small")
    with pytest.raises(psycopg.errors.CheckViolation, match="demands_are_amounts"):
        queue.run("INSERT INTO jobherd.demands (job, cost) VALUES (%s, %s)", job, cost)
    queue.run("INSERT INTO jobherd.demands (job, cost) VALUES (%s, %s)", job, '{"gpus": 0, "memory_mb": 0.5}')
    assert Claimer(queue).claim() == [job]


def test_cost_of_a_single_job_overrides_its_kind_and_is_kept_as_long_as_the_job(queue):
    cheap = queue.run("SELECT jobherd.demand(jobherd.enqueue('k:large'), %s)", '{"memory_mb": 100.5}')[0][0]
    dear = queue.enqueue("k:none")
    queue.run("SELECT jobherd.demand(%s, %s)", dear, '{"memory_mb": 1}')
    queue.run("SELECT jobherd.demand(%s, %s)", dear, '{"memory_mb": 950}')
    one, other = Claimer(queue), Claimer(queue)
    assert one.claim() == [cheap]
    assert other.claim() == []
    one.settle(cheap, outcome="failed")
    assert other.claim() == [dear]
    queue.retry(cheap)
    queue.run(sql.load("maintenance/delete_costs"))
    assert Claimer(queue).claim() == []
    other.settle(dear)
    assert Claimer(queue).claim() == [cheap]
    queue.run("DELETE FROM jobherd.history")
    queue.run(sql.load("maintenance/delete_costs"))
    assert queue.run("SELECT job FROM jobherd.demands") == [(cheap,)]


def test_maintenance_process_skips_a_cost_that_an_operator_has_locked(queue):
    (job,) = queue.enqueue_many("a:b", 1)
    queue.run("SELECT jobherd.demand(%s, '{\"memory_mb\": 9}')", job)
    queue.run("SELECT jobherd.cancel(%s)", job)
    queue.run("DELETE FROM jobherd.history")
    queue.run("SET lock_timeout = '1ms'")
    with psycopg.connect(queue.dsn) as operator:
        operator.execute("SET ROLE jobherd_admin")
        operator.execute("SELECT FROM jobherd.demands FOR UPDATE")
        queue.run(sql.load("maintenance/delete_costs"))
    queue.run(sql.load("maintenance/delete_costs"))
    assert queue.run("SELECT job FROM jobherd.demands") == []


def test_deletion_of_costs_reads_each_claim_once_for_any_number_of_costs(queue):
    jobs = queue.enqueue_many("a:b", 1000)
    child = queue.child()
    assert len(child.claim(100)) == len(child.claim(100)) == 100
    queue.run(
        "INSERT INTO jobherd.demands SELECT id, '{}' FROM unnest(%s::bigint[]) AS id",
        [*jobs[-200:], *(-job for job in jobs[-200:])],
    )
    queue.run("ANALYZE")
    plan = child.connection.execute(
        f"EXPLAIN (ANALYZE, FORMAT JSON) {sql.load('maintenance/delete_costs')}"
    ).fetchone()[0][0]["Plan"]
    assert [part["Actual Loops"] for part in parts(plan) if part["Node Type"] == "Function Scan"] == [2], (
        "once for each claim"
    )
    assert queue.count("demands") == 200


def parts(plan):
    return [plan] + [one for part in plan.get("Plans", []) for one in parts(part)]


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        ("null", "must be an object of amounts, not null"),
        ("[1]", r"must be an object of amounts, not \[1\]"),
        ('{"Memory": 1}', 'cost "Memory" has a bad name'),
        ('{"memory": -1}', "the bad amount -1"),
        ('{"memory": "1"}', 'the bad amount "1"'),
    ],
)
def test_demand_rejects_an_invalid_cost(queue, cost, words):
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=words):
        queue.run("SELECT jobherd.demand(jobherd.enqueue('a:b'), %s)", cost)


def test_demand_rejects_a_job_that_is_not_waiting(queue):
    with pytest.raises(psycopg.errors.NoDataFound, match="no job 77 is waiting"):
        queue.run("SELECT jobherd.demand(77, '{}')")


@pytest.mark.parametrize("by", ["claim/claim_jobs", "claim/claim_job"])
def test_claim_near_the_head_reads_less_than_half_of_what_a_full_scan_reads(queue, by):
    first = queue.enqueue("k:large")
    queue.enqueue_many("k:large", 3000)
    last = queue.enqueue("k:none")
    queue.run("VACUUM ANALYZE jobherd.ready")
    holder, other = Claimer(queue), Claimer(queue, by=by)
    assert holder.claim() == [first]

    def read():
        # Flush every session that has read this table: otherwise its counts arrive up to 10 s later.
        holder.child.connection.execute("SELECT pg_stat_force_next_flush()")
        other.child.connection.execute("SELECT pg_stat_force_next_flush()")
        queue.run("SELECT pg_stat_force_next_flush()")
        return queue.run(
            "SELECT coalesce(sum(idx_tup_fetch + seq_tup_read), 0) FROM pg_stat_user_tables WHERE relname = 'ready'"
        )[0][0]

    before = read()
    assert other.claim(1, "near_head") == []
    near = read() - before
    assert other.claim(1) == [last]
    assert near < (read() - before - near) / 2
    other.settle(last)
    holder.settle(first)
    assert len(other.claim(1, "near_head")) == 1


def test_claim_calculates_the_free_budget_once(queue):
    """Otherwise a claim among many waiting jobs would calculate the free budget for each of them."""
    queue.enqueue_many("k:large", 300)
    claimer = Claimer(queue)
    claimer.given["budget"] = json.dumps({"memory_mb": 1})
    text, names = sql.numbered(sql.narrow("claim/claim_jobs", "within_budget"))
    parameters = claimer.child.parameters(1) | claimer.given
    connection = claimer.child.connection
    for number, name in reversed(list(enumerate(names, 1))):
        value = parameters[name]
        literal = psycopg.sql.Literal(value).as_string(connection)
        text = text.replace(f"${number}", literal)
    plan = "\n".join(
        row[0]
        for row in connection.execute(f"EXPLAIN (ANALYZE, COSTS off, TIMING off) {text}".replace("%", "%%")).fetchall()
    )
    line = next(line for line in plan.splitlines() if "Function Scan on jsonb_each_text b" in line)
    assert "loops=1)" in line, plan


def test_kind_that_costs_more_than_the_whole_budget_is_reported():
    @handler("k:huge", cost={"memory_mb": 5000, "gpus": 1})
    def huge() -> None: ...

    @handler("k:fits", cost={"memory_mb": 5})
    def fits() -> None: ...

    class Nobody:
        hooks, child = Hooks(), Child()

    conditions = ClaimConditions(Nobody(), {"k:huge": huge, "k:fits": fits}, {"memory_mb": 4000.0}, 60.0)  # type: ignore[arg-type]
    assert conditions.too_large() == [
        "k:huge costs memory_mb 5000, more than this supervisor's budget of 4000: none of its jobs is run here"
    ]
