"""Fair turns between the partitions of a queue: in each round, a partition starts as many jobs as its weight."""

from __future__ import annotations

import random
from collections import Counter

import psycopg
import pytest

from tests.sql.test_gates import gated, ids, settle
from tests.support.queue import Queue


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def put(queue, **partitions):
    """Enqueue that many jobs for each partition, one partition after the other. Return the ids by partition."""
    return {name: queue.enqueue_many("a:b", count, queue="crm", partition=name) for name, count in partitions.items()}


def names(queue, rows):
    """Return the partitions of claimed jobs, in the order of ids."""
    return [queue.run("SELECT partition FROM jobherd.jobs WHERE id = %s", row["id"])[0][0] for row in rows]


def claim_and_settle(child, wanted=1):
    rows = gated(child, wanted)
    if rows:
        settle(child, rows)
    return rows


def test_flood_in_one_partition_does_not_delay_the_others(queue):
    jobs = put(queue, flood=500, acme=3, globex=3)
    queue.run("SELECT jobherd.fair('crm')")
    child = queue.child()
    assert child.claim_raw(10)[0]["id"] is None, "claim_jobs leaves the queue to claim_gated"
    taken = Counter()
    for _ in range(9):
        taken.update(names(queue, gated(child, 1)))
    assert taken == {"flood": 3, "acme": 3, "globex": 3}
    assert ids(gated(child, 1)) == jobs["flood"][3:4], "the order within a partition is kept"


def test_large_claim_is_shared_equally_between_partitions(queue):
    jobs = put(queue, flood=500, acme=30, globex=1)
    queue.run("SELECT jobherd.fair('crm')")
    child = queue.child()
    rows = gated(child, 21)
    assert Counter(names(queue, rows)) == {"flood": 10, "acme": 10, "globex": 1}
    assert set(ids(rows)) == {*jobs["flood"][:10], *jobs["acme"][:10], *jobs["globex"]}
    assert len(gated(child, 500)) > 400, "a single partition can fill a claim"


def test_partition_with_a_weight_starts_that_many_jobs_in_its_turn(queue):
    put(queue, acme=60, globex=60, initech=60)
    queue.run("""SELECT jobherd.fair('crm', '{"acme": 3}')""")
    one = queue.child()
    taken = Counter()
    for _ in range(50):
        taken.update(names(queue, claim_and_settle(one)))
    assert taken == {"acme": 30, "globex": 10, "initech": 10}
    batch = Counter(names(queue, gated(one, 5)))
    assert batch == {"acme": 3, "globex": 1, "initech": 1}


def test_claim_that_continues_a_turn_has_no_job_twice(queue):
    """The turn of the claim's first partition continues, and the claim reaches that partition again."""
    jobs = put(queue, acme=9, globex=2)
    queue.run("""SELECT jobherd.fair('crm', '{"acme": 5}')""")
    child = queue.child()
    first = [*ids(gated(child, 1)), *ids(gated(child, 1))]
    while not {*first} & {*jobs["acme"]}:
        first += ids(gated(child, 1))
    found = ids(gated(child, 20))
    assert sorted(first + found) == sorted(jobs["acme"] + jobs["globex"])


def test_jobs_without_a_partition_have_a_turn(queue):
    put(queue, acme=40)
    plain = queue.enqueue_many("a:b", 3, queue="crm")
    put(queue, globex=40)
    queue.run("SELECT jobherd.fair('crm')")
    child = queue.child()
    found = [ids(gated(child, 1))[0] for _ in range(9)]
    assert [job for job in found if job in plain] == plain
    only = queue.enqueue_many("a:b", 30, queue="crm")
    queue.run("DELETE FROM jobherd.ready WHERE lane IS NOT NULL")
    assert ids(gated(child, 20)) == only[:20]


def test_new_session_starts_at_a_random_partition(queue):
    """Workers that are restarted after each job would otherwise serve the first partitions only."""
    put(queue, acme=50, a=50, b=50)  # their lanes begin with 8, c and 3
    queue.run("SELECT jobherd.fair('crm')")
    child = queue.child()
    taken = Counter()
    for _ in range(100):
        child.connection.execute("RESET ALL")
        taken.update(names(queue, claim_and_settle(child)))
    assert len(taken) == 3


def test_paused_or_limited_kind_blocks_no_partition(queue):
    jobs = put(queue, acme=3, globex=3)
    other = queue.enqueue_many("b:c", 2, queue="crm", partition="acme", priority=-1)
    queue.run("SELECT jobherd.fair('crm'), jobherd.pause(kind => 'b:c')")
    child = queue.child()
    found = [*ids(gated(child, 10)), *ids(gated(child, 10))]
    assert sorted(found) == sorted(jobs["acme"] + jobs["globex"])
    assert gated(child, 10) == []
    assert queue.count("parked") == 2
    queue.run("SELECT jobherd.resume(kind => 'b:c'), jobherd.set_limit(kind => 'b:c', max_running => 1)")
    rows = gated(child, 10)
    assert ids(rows) == other[:1]
    assert gated(queue.child(), 10) == []
    settle(child, rows)
    assert ids(gated(child, 10)) == other[1:]


def test_queue_without_fair_turns_is_served_in_plain_order(queue):
    jobs = put(queue, flood=50, acme=3)
    queue.run("SELECT jobherd.fair('other')")
    child = queue.child()
    assert [row.id for row in child.claim(5)] == jobs["flood"][:5]
    queue.run("SELECT jobherd.fair('crm'), jobherd.fair('crm', off => true)")
    assert [row.id for row in child.claim(5)] == jobs["flood"][5:10]


def test_weights_are_merged_shown_and_written_to_the_audit_log(queue):
    assert queue.run("""SELECT jobherd.fair('crm', '{"acme": 3, "globex": 2}', actor => 'ada')""") == [(None,)]
    assert queue.run("""SELECT jobherd.fair('crm', '{"acme": 1, "initech": 5}')""") == [({"acme": 3, "globex": 2},)]
    assert queue.run("SELECT weights, each_running FROM jobherd.limits") == [({"globex": 2, "initech": 5}, None)]
    assert queue.run("SELECT actor, action, target FROM jobherd.audit ORDER BY id LIMIT 1") == [
        ("ada", "fair", {"queue": "crm", "weights": {"acme": 3, "globex": 2}, "before": None})
    ]
    queue.run("SELECT jobherd.pause('crm')")
    assert queue.run("SELECT jobherd.resume('crm')") == [(True,)]
    queue.run("SELECT jobherd.set_limit('crm', 5), jobherd.limit('crm', '5/s'), jobherd.limit_each('crm', 2)")
    queue.run("SELECT jobherd.set_limit('crm', NULL), jobherd.limit('crm')")
    assert queue.run("SELECT weights, each_running, rate, max_running FROM jobherd.limits") == [
        ({"globex": 2, "initech": 5}, 2, None, None)
    ]
    queue.run("SELECT jobherd.fair('crm', off => true)")
    assert queue.run("SELECT weights, each_running FROM jobherd.limits") == [(None, 2)]
    assert queue.run("SELECT jobherd.limit_each('crm', NULL)") == [(2,)]
    assert queue.count("gates") == 0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("fair('*')", "everything together has no partitions"),
        ("fair(NULL)", "give a queue"),
        ("""fair('crm', '{"a": 0}')""", "are not numbers from 1 to 999"),
        ("""fair('crm', '{"a": null}')""", "are not numbers from 1 to 999"),
        ("fair('crm', '[]')", "are not numbers from 1 to 999"),
        ("limit_each('crm', 0)", "is not a number from 1"),
        ("limit_each('crm', 2, strict => true)", "strict order requires max_running 1"),
    ],
)
def test_invalid_rule_is_rejected(queue, call, says):
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=says):
        queue.run(f"SELECT jobherd.{call}")


def test_claim_in_turn_stores_its_jobs_in_the_order_in_which_its_worker_settles_them(queue):
    put(queue, flood=5, acme=3, globex=2)
    queue.run("SELECT jobherd.fair('crm')")
    rows = gated(queue.child(), 8)
    assert len(rows) == 8
    stored = queue.run("SELECT j.id FROM jobherd.running r CROSS JOIN LATERAL unnest(r.jobs) AS j")
    assert [job for (job,) in stored] == ids(rows) == sorted(ids(rows))


def test_null_weights_are_rejected(queue):
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="weights null are not numbers"):
        queue.run("SELECT jobherd.fair('crm', NULL)")


def test_kind_with_a_limit_starts_in_turn_during_a_flood_of_another_kind(queue):
    """Its parked jobs return to their lanes one of each, and do not wait for the end of the flood."""
    queue.enqueue_many("a:b", 200, queue="crm", partition="flood")
    many = queue.enqueue_many("slow:one", 50, queue="crm", partition="many")
    acme = queue.enqueue_many("slow:one", 2, queue="crm", partition="acme")
    queue.run("SELECT jobherd.fair('crm'), jobherd.set_limit(kind => 'slow:one', max_running => 1)")
    one, other = queue.child(), queue.child()

    def next_of(child):
        while not (rows := [row for row in gated(child, 1) if row["id"] is not None]):
            pass  # the claim has only parked jobs: claim again
        return rows

    held = next_of(one)
    while held[0]["kind"] != "slow:one":
        settle(one, held)
        held = next_of(one)
    while queue.count("parked") < len(many) + len(acme) - 1:  # the limit allows no more of them
        settle(other, next_of(other))
    settle(one, held)
    taken = ids(held)
    for _ in range(12):
        rows = next_of(other)
        taken += ids(rows)
        settle(other, rows)
    assert {*acme} < {*taken}, "both jobs of acme, although many jobs came before them"
    assert 3 <= len({*taken} & {*many}) <= 6
    assert len({*taken} - {*many, *acme}) >= 3, "the flood has its turns too"


def test_parked_jobs_stay_parked_while_their_kind_is_at_its_limit(queue):
    """Otherwise each claim would move them to `ready` and back, and wake an idle worker that does the same."""
    queue.enqueue_many("slow:one", 20, queue="crm", partition="acme")
    one, other = queue.child(), queue.child()
    batch = one.claim(5)
    queue.run("SELECT jobherd.fair('crm'), jobherd.set_limit(kind => 'slow:one', max_running => 1)")
    assert gated(other) == []
    before = queue.run("SELECT id, xmin::text FROM jobherd.parked ORDER BY id")
    assert len(before) > 0
    parked = len(before)
    for _ in range(3):
        assert gated(other) == []
    after = queue.run("SELECT id, xmin::text FROM jobherd.parked ORDER BY id")
    assert after[:parked] == before
    one.settle(batch[0].token, [row.id for row in batch], "ok")
    assert len(gated(other)) == 1


WEIGHTS = {f"p{n}": weight for n, weight in enumerate((1, 1, 1, 2, 2, 3, 4, 5, 7, 9, 13, 21))}


def shares(queue, sizes, starts, seed):
    """Let four workers claim in random order and sizes. Return the starts of each partition. All have a backlog."""
    queue.run(
        "INSERT INTO jobherd.ready (kind, queue, extras, lane)"
        " SELECT 'a:b', 'crm', jobherd.with_partition(NULL, name), jobherd.lane_of(name)"
        " FROM unnest(%s::text[], %s::integer[]) AS p (name, weight), generate_series(1, 100 * weight) ORDER BY random()",
        list(WEIGHTS),
        list(WEIGHTS.values()),
    )
    queue.run("SELECT jobherd.fair('crm', %s::jsonb)", psycopg.types.json.Jsonb(WEIGHTS))
    dice, children = random.Random(seed), [queue.child() for _ in range(4)]
    for child in children:
        child.connection.execute("SELECT setseed(%s)", (dice.random(),))
    taken = Counter()
    while taken.total() < starts:
        rows = gated(child := dice.choice(children), dice.choice(sizes))
        taken.update(name for (name,) in queue.run(
            "SELECT (j.extras).partition FROM jobherd.running r, unnest(r.jobs) AS j WHERE r.token = %s", rows[0]["token"]
        ))  # fmt: skip
        settle(child, rows)
    return taken


def test_starts_in_claims_of_one_job_follow_the_weights(queue):
    """A worker is at most one turn ahead or behind in each partition."""
    taken = shares(queue, [1], 1000, seed=27)
    rounds = taken.total() / sum(WEIGHTS.values())
    for name, weight in WEIGHTS.items():
        assert abs(taken[name] - rounds * weight) <= 4 * weight, (name, taken)


def test_starts_in_claims_of_any_size_follow_the_weights(queue):
    """With random draws by weight, chi-square with 11 degrees of freedom exceeds 31.3 once in 1,000 times."""
    taken = shares(queue, [1, 2, 5, 16, 50], 2000, seed=27)
    expected = {name: taken.total() * weight / sum(WEIGHTS.values()) for name, weight in WEIGHTS.items()}
    assert sum((taken[name] - many) ** 2 / many for name, many in expected.items()) < 31.3, taken
