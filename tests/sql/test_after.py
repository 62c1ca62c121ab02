"""Jobs that wait for upstream jobs: ready after the last end, canceled if the wanted end did not happen."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from jobherd import Client, enqueue_on
from tests.support.queue import Queue


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


@pytest.fixture
def client(queue):
    return Client(connection=queue.connection)


def mark(queue, most=1000):
    past = None
    while True:
        [(past,)] = queue.connection.execute(
            queue.text("maintenance/mark_upstreams"), {"past": past, "most": most}
        ).fetchall()
        if past is None:
            return


def resolve(queue, most=1000):
    """Run the maintenance process's statements until no ends are left."""
    while True:
        mark(queue)
        [row] = queue.connection.execute(queue.text("maintenance/resolve_ends"), {"most": most}).fetchall()
        if not row[0]:
            return row


def end(queue, outcome="ok", **options):
    """Claim one job and settle it."""
    child = queue.child()
    [job] = child.claim(1)
    options = {"error": "why", "code": "NO", **options} if outcome != "ok" else options
    assert child.settle(job.token, [job.id], outcome, **options) == [job.id]
    return job.id


@pytest.mark.parametrize("outcome", ["ok", "failed", "poison", "expired", "cancelled"])
@pytest.mark.parametrize("when", ["completed", "failed", "ended", None])
@pytest.mark.parametrize("marked", [True, False])
def test_job_becomes_ready_only_after_the_wanted_end_of_its_upstream_job(client, queue, outcome, when, marked):
    first = client.enqueue("a:b")
    later = client.enqueue("a:b", after=first, when=when)
    if marked:
        resolve(queue)
    assert queue.states([first, later]) == ["ready", "blocked"]
    assert end(queue, outcome) == first
    resolve(queue)
    good = {"completed": ["ok"], "failed": ["failed", "poison", "expired"], "ended": None}[when or "completed"]
    if good is None or outcome in good:
        assert queue.state(later) == "ready"
        assert end(queue) == later
    else:
        job = queue.job(later)
        assert (job["state"], job["error_code"]) == (
            "cancelled",
            "UPSTREAM_COMPLETED" if when == "failed" else "UPSTREAM_FAILED",
        )
        assert f"job {first} " in job["error"]
    assert [queue.count(table) for table in ("blocked", "edges", "ends")] == [0, 0, 0]


@pytest.mark.parametrize("place", ["ready", "scheduled", "parked", "running", "history", "gone", "blocked"])
def test_upstream_job_is_found_in_every_table_and_after_its_deletion(client, queue, place):
    root = client.enqueue("a:root", delay="1h") if place == "blocked" else None
    first = client.enqueue("a:b", delay="1h" if place == "scheduled" else None, after=root)
    if place == "parked":
        queue.run("WITH job AS (DELETE FROM jobherd.ready RETURNING *) INSERT INTO jobherd.parked SELECT * FROM job")
    child, claimed = queue.child(), None
    if place == "running":
        [claimed] = child.claim(1)
    if place in ("history", "gone"):
        assert end(queue, keep=0 if place == "gone" else 30) == first
    later = client.enqueue("a:b", {"n": 2}, after=[first, first])
    resolve(queue)
    expected = {"history": "ready", "gone": "ready"}.get(place, "blocked")
    assert queue.state(later) == expected
    if place in ("scheduled", "blocked"):
        client.retry(root or first)
        resolve(queue)
    if place == "parked":
        queue.run("WITH job AS (DELETE FROM jobherd.parked RETURNING *) INSERT INTO jobherd.ready SELECT * FROM job")
    if expected == "blocked":
        if claimed is None:
            while end(queue, keep=0) != first:
                resolve(queue)
        else:
            child.settle(claimed.token, [first], "ok", keep=0)
        resolve(queue)
    assert queue.state(later) == "ready"


def test_job_becomes_ready_after_the_last_of_several_upstream_jobs(client, queue):
    first = [client.enqueue("a:b"), client.enqueue("a:b")]
    later = client.enqueue("a:b", after=first)
    resolve(queue)
    end(queue)
    resolve(queue)
    assert queue.state(later) == "blocked"
    end(queue)
    resolve(queue)
    assert queue.state(later) == "ready"


def test_failure_cancels_direct_and_indirect_downstream_jobs_except_those_for_any_end(client, queue):
    first = client.enqueue("a:b")
    second = client.enqueue("a:b", after=first)
    third = client.enqueue("a:b", after=second)
    tidy = client.enqueue("a:b", after=third, when="ended")
    resolve(queue)
    end(queue, "failed")
    resolve(queue)
    assert queue.states([second, third, tidy]) == ["cancelled", "cancelled", "ready"]


def test_retry_of_an_upstream_job_does_not_count_as_its_end(client, queue):
    first = client.enqueue("a:b", max_attempts=3)
    later = client.enqueue("a:b", after=first)
    resolve(queue)
    end(queue, "retry", delay=0.0)
    resolve(queue)
    assert queue.state(later) == "blocked"
    end(queue)
    resolve(queue)
    assert queue.state(later) == "ready"


def test_blocked_job_keeps_its_options_when_it_becomes_ready(client, queue):
    queue.run("SELECT jobherd.enable_webhooks()")
    first = client.enqueue("a:b")
    options = {
        "queue": "q",
        "priority": -3,
        "max_attempts": 2,
        "timeout": 7.0,
        "tenant": "acme",
        "webhook": "https://x.test/",
    }
    later = client.enqueue("c:d", {"n": 1}, after=first, partition="p", **options)
    before = queue.job(later)
    assert {name: before[name] for name in options} == options
    resolve(queue)
    end(queue)
    resolve(queue)
    after = queue.job(later)
    changed = {name for name in after if after[name] != before[name]}
    assert changed <= {"state", "run_at", "history"}
    assert after["run_at"] > after["created_at"]
    assert queue.run("SELECT lane = jobherd.lane_of('p') FROM jobherd.ready WHERE id = %s", later) == [(True,)]


def test_blocked_job_with_a_delay_is_scheduled_after_its_upstream_job(client, queue):
    first = client.enqueue("a:b")
    later = client.enqueue("a:b", after=first, delay="1h")
    resolve(queue)
    end(queue)
    resolve(queue)
    assert queue.state(later) == "scheduled"


def test_job_whose_enqueue_commits_after_the_end_of_its_upstream_job_becomes_ready(client, queue):
    first = client.enqueue("a:b")
    with psycopg.connect(queue.dsn) as other:
        later = enqueue_on(other, "a:b", {}, after=first)
        end(queue)  # no claim and no settlement waits for the open transaction
        resolve(queue)
        assert queue.state(later) is None
    resolve(queue)
    assert queue.state(later) == "ready"


def test_an_upstream_job_whose_row_is_locked_is_marked_later(client, queue):
    first = client.enqueue("a:b")
    later = client.enqueue("a:b", after=first)
    with psycopg.connect(queue.dsn) as other:
        other.execute("SELECT FROM jobherd.ready WHERE id = %s FOR UPDATE", [first])
        resolve(queue)
    resolve(queue)
    assert end(queue, keep=0) == first
    resolve(queue)
    assert queue.state(later) == "ready"


def test_locked_blocked_job_does_not_delay_other_downstream_jobs(client, queue):
    first = client.enqueue("a:b")
    held, free = client.enqueue("a:b", after=first), client.enqueue("a:b", after=first)
    resolve(queue)
    end(queue)
    with psycopg.connect(queue.dsn) as other:
        other.execute("SELECT FROM jobherd.blocked WHERE id = %s FOR UPDATE", [held])
        resolve(queue)
        assert queue.states([held, free]) == ["blocked", "ready"]
    resolve(queue)
    assert queue.state(held) == "ready"


@pytest.mark.parametrize("most", [1, 2, 1000])
def test_jobs_that_wait_for_one_upstream_job_become_ready_in_pages(client, queue, most):
    first = client.enqueue("a:b")
    later = client.enqueue_many("a:b", [{"n": n} for n in range(7)], after=first)
    mark(queue)
    end(queue)
    assert queue.run("SELECT released FROM jobherd.resolve_ends(%s)", most) == [(min(most, 7),)]
    while queue.run("SELECT released FROM jobherd.resolve_ends(%s)", most) != [(None,)]:
        pass
    assert queue.states(later) == ["ready"] * 7


def test_resolve_ends_counts_downstream_jobs_that_still_wait_for_another_job(client, queue):
    both = [client.enqueue("a:b"), client.enqueue("a:b")]
    client.enqueue_many("a:b", [{"n": n} for n in range(5)], after=both)
    mark(queue)
    end(queue)
    told = [queue.run("SELECT ended, released FROM jobherd.resolve_ends(2)")[0] for _ in range(4)]
    assert told == [(2, 0), (2, 0), (2, 0), (0, None)], "the last page deletes the end"


def test_blocked_job_can_be_changed_and_canceled_but_not_run(client, queue):
    first = client.enqueue("a:b")
    later = client.enqueue("a:b", after=first)
    assert client.retry(later) == "blocked"
    assert queue.run(
        "SELECT jobherd.reprioritize(%s, 7), jobherd.reschedule(%s, now() + interval '1 day')", later, later
    ) == [("blocked", "blocked")]
    assert client.cancel(later) == "cancelled"
    resolve(queue)
    end(queue)
    resolve(queue)
    assert (queue.state(later), queue.job(later)["error_code"]) == ("cancelled", "JOB_CANCELLED")
    assert [queue.count(table) for table in ("blocked", "edges", "ends")] == [0, 0, 0]


def test_canceled_upstream_job_cancels_jobs_that_need_its_completion(client, queue):
    first = client.enqueue("a:b")
    later, tidy = client.enqueue("a:b", after=first), client.enqueue("a:b", after=first, when="ended")
    resolve(queue)
    client.cancel(first)
    resolve(queue)
    assert queue.states([later, tidy]) == ["cancelled", "ready"]


def test_sql_enqueue_accepts_after_and_when(queue):
    first = queue.run("SELECT jobherd.enqueue('a:b')")[0][0]
    [(one, many)] = queue.run(
        """SELECT jobherd.enqueue('a:b', '{"n": 1}', jsonb_build_object('after', %s)),"""
        """       jobherd.enqueue('a:b', '{}', jsonb_build_object('after', jsonb_build_array(%s), 'when', 'failed', 'queue', 'q'))""",
        first, first,
    )  # fmt: skip
    resolve(queue)
    end(queue)
    resolve(queue)
    assert queue.states([one, many]) == ["ready", "cancelled"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ('{"when": "failed"}', "requires"),
        ('{"after": []}', "1 to 1000"),
        ('{"after": [999999]}', "job 999999, which does not exist"),
        ('{"after": [0]}', "job 0, which does not exist"),
        ('{"after": 1, "when": "sometimes"}', "completed, failed or ended"),
        ('{"after": 1, "unique": true}', "excludes"),
        ('{"after": "soon"}', "after"),
    ],
)
def test_sql_enqueue_rejects_invalid_values_of_after_and_when(queue, options, words):
    queue.run("SELECT jobherd.enqueue('a:b')")
    with pytest.raises(psycopg.Error, match=words) as caught:
        queue.run("SELECT jobherd.enqueue('a:b', '{}', %s::jsonb)", options)
    assert caught.value.sqlstate == "22023"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"when": "failed"}, "requires after"),
        ({"after": []}, "1 to 1,000"),
        ({"after": "7"}, "after"),
        ({"after": True}, "after"),
        ({"after": 1, "when": "sometimes"}, "when"),
        ({"after": 1, "unique": True}, "excludes"),
    ],
)
def test_client_rejects_invalid_values_of_after_and_when_before_it_connects(options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        Client("host=nowhere.invalid").enqueue("a:b", {}, **options)


def test_tenant_cannot_wait_for_the_job_of_another_tenant(queue, client):
    theirs, ours = client.enqueue("a:b", tenant="them"), client.enqueue("a:b", tenant="us")
    queue.run("DROP ROLE IF EXISTS after_tenant")
    queue.run("CREATE ROLE after_tenant")
    try:
        queue.run("SELECT jobherd.grant_tenant('after_tenant', 'us')")
        queue.run("SET ROLE after_tenant")
        with pytest.raises(errors.InvalidParameterValue, match="does not exist"):
            client.enqueue("a:b", after=theirs)
        later = client.enqueue("a:b", after=ours)
        queue.run("RESET ROLE")
        assert queue.run("SELECT (extras).partition FROM jobherd.blocked WHERE id = %s", later) == [("us",)]
    finally:
        queue.run("RESET ROLE")
        queue.run("SELECT jobherd.revoke_tenant('after_tenant', 'us')")
        queue.run("DROP OWNED BY after_tenant")
        queue.run("DROP ROLE after_tenant")
