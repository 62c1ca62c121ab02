"""Exact concurrency limits, pauses of queues, kinds and everything, and the cost of both for other jobs."""

from __future__ import annotations

import re
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import dict_row

from jobherd import sql
from jobherd.sql.migrate import migrate
from jobherd.workers.database.wire import Wire
from tests.support.patience import LIMIT
from tests.support.queue import Queue


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def gated(child, wanted=10, **parameters):
    """Return the rows of claim_gated.sql."""
    nothing = dict.fromkeys(("limited", "limits", "left_queue", "left_kind")) | {"narrowed": False}
    known = child.parameters(wanted) | nothing | parameters
    return (
        child.connection.cursor(row_factory=dict_row).execute(child.queue.text("claim/claim_gated"), known).fetchall()
    )


def ids(rows):
    return [row["id"] for row in rows]


def settle(child, rows):
    assert child.settle(rows[0]["token"], ids(rows), "ok") == ids(rows)


def test_plain_claim_leaves_jobs_under_a_limit_to_claim_gated(queue):
    queue.enqueue("a:b", queue="free", priority=-1)
    first = queue.enqueue("a:b", queue="media")
    queue.run("SELECT jobherd.set_limit('media', 1)")
    child = queue.child()
    assert [row["queue"] for row in child.claim_raw(10)] == ["free"], "jobs without a limit are not delayed"
    assert [(row["id"], row["queue"]) for row in child.claim_raw(10)] == [(None, None)]
    assert ids(gated(child)) == [first]
    assert queue.run("SELECT scope, name, max_running, running FROM jobherd.limits") == [("queue", "media", 1, 1)]


@pytest.mark.promise("C41")
def test_queue_runs_no_more_jobs_than_its_concurrency_limit(queue):
    jobs = queue.enqueue_many("a:b", 5, queue="media")
    queue.run("SELECT jobherd.set_limit('media', 2)")
    one, other, third = queue.child(), queue.child(), queue.supervisor().child()
    mine, theirs = gated(one), gated(other)
    assert (ids(mine), ids(theirs), ids(gated(third))) == (jobs[:1], jobs[1:2], [])
    settle(other, theirs)
    assert ids(gated(third)) == jobs[2:3], "a settled job no longer counts"
    assert ids(gated(other)) == []


def test_kind_runs_no_more_jobs_than_its_limit_and_does_not_delay_other_kinds(queue):
    jobs = queue.enqueue_many("slow:one", 250)
    others = queue.enqueue_many("a:b", 3)
    queue.run("SELECT jobherd.set_limit(kind => 'slow:one', max_running => 1)")
    one, other = queue.child(), queue.child()
    mine = gated(one)
    assert ids(mine) == jobs[:1]
    assert ids(gated(other)) == others, "other jobs are claimed together as usual"
    assert queue.count("parked") == 249
    assert queue.states(jobs[1:3]) == ["ready", "ready"], "users see parked jobs as ready"
    assert (queue.count("ready"), queue.count("waiting")) == (0, 249)
    assert gated(other) == []
    assert queue.cancel(jobs[1]) == "cancelled"
    settle(one, mine)
    assert ids(gated(other)) == jobs[2:3], "parked jobs keep their order"


def test_parked_job_is_claimed_before_later_jobs_if_the_head_job_is_over_its_limit(queue):
    """Both kinds have a limit of 1.

    The first ready job is over its limit. The parked job and a later job of its kind could run.
    """
    for kind in ("slow:one", "slow:two"):
        queue.run("SELECT jobherd.set_limit(kind => %s, max_running => 1)", kind)
    first, parked, other = (queue.enqueue(kind) for kind in ("slow:one", "slow:one", "slow:two"))
    one, two = queue.child(), queue.child()
    mine = gated(one)
    assert (ids(mine), ids(gated(two))) == ([first], [other])
    queue.enqueue("slow:two", priority=-1)
    later = queue.enqueue("slow:one")
    settle(one, mine)
    mine = gated(one)
    assert ids(mine) == [parked]
    settle(one, mine)
    assert ids(gated(one)) == [later]


@pytest.mark.promise("C11")
def test_parked_job_keeps_its_position_in_the_queue(queue):
    queue.run("SELECT jobherd.set_limit(kind => 'slow:one', max_running => 1)")
    first, second = queue.enqueue_many("slow:one", 2)
    one, other = queue.child(), queue.child()
    mine = gated(one)
    assert (ids(mine), gated(other)) == ([first], [])
    urgent = queue.enqueue("a:b", priority=-1)
    later = queue.enqueue("a:b")
    settle(one, mine)
    assert [ids(gated(child, wanted=1)) for child in (one, other, queue.child())] == [[urgent], [second], [later]]


@pytest.mark.parametrize("how", ["cancel", "release", "reclaim", "orphan"])
def test_every_end_of_a_claim_lets_the_next_job_of_a_limited_queue_run(queue, how):
    jobs = queue.enqueue_many("a:b", 2, queue="media")
    queue.run("SELECT jobherd.set_limit('media', 1)")
    supervisor, other = queue.supervisor(), queue.child()
    dying = supervisor.child()
    rows = gated(dying)
    assert (ids(rows), gated(other)) == (jobs[:1], [])
    if how == "cancel":
        queue.cancel(jobs[0])
        dying.settle(rows[0]["token"], jobs[:1], "cancelled")
    elif how == "release":
        assert dying.release() == jobs[:1]
    elif how == "reclaim":
        assert queue.supervisor().reclaim(dead=[supervisor.id]) == (1, 1)
    else:
        queue.run("DELETE FROM jobherd.children WHERE id = %s", dying.id)
        assert queue.orphans() == jobs[:1]
    assert len(gated(other)) == 1


def test_jobs_claimed_before_the_limit_was_set_count(queue):
    jobs = queue.enqueue_many("a:b", 4, queue="media")
    early, late = queue.child(), queue.child()
    assert [job.id for job in early.claim(3)] == jobs[:3]
    queue.run("SELECT jobherd.set_limit('media', 3), jobherd.set_limit(kind => 'a:b', max_running => 3)")
    assert sorted(queue.run("SELECT scope, running FROM jobherd.limits")) == [("kind", 3), ("queue", 3)]
    assert gated(late) == []
    queue.run("SELECT jobherd.set_limit('media', 9), jobherd.set_limit(kind => 'a:b', max_running => 9)")
    assert ids(gated(late)) == jobs[3:]


def test_jobs_claimed_before_the_commit_of_a_limit_count(queue):
    jobs = queue.enqueue_many("a:b", 4, queue="media")
    early, late = queue.child(), queue.child()
    with psycopg.connect(queue.dsn) as slow:
        slow.execute("SELECT jobherd.pause('media'), jobherd.set_limit('media', 3), jobherd.resume('media')")
        # as if the limit had been set this long before its commit
        slow.execute("UPDATE jobherd.gates SET limited_at = limited_at - interval '1 minute'")
        slow.execute(
            "INSERT INTO jobherd.gates (scope, name, max_running, limited_at) VALUES ('kind', 'a:b', 3, clock_timestamp() - interval '1 minute')"
        )
        assert [job.id for job in early.claim(3)] == jobs[:3]
    assert sorted(queue.run("SELECT scope, running FROM jobherd.limits")) == [("kind", 3), ("queue", 3)]
    assert gated(late) == []


def test_jobs_claimed_during_a_slow_commit_of_a_limit_count(queue):
    """For example, a commit that waits for a synchronous standby is slow."""
    jobs = queue.enqueue_many("a:b", 4, queue="media")
    early, late = queue.child(), queue.child()
    queue.run(
        "CREATE TABLE slow (); CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_lock(7); RETURN NULL; END'"
    )
    queue.run(
        "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()"
    )
    with psycopg.connect(queue.dsn, autocommit=True) as holder, psycopg.connect(queue.dsn) as slow:
        holder.execute("SELECT pg_advisory_lock(7)")
        slow.execute("SELECT jobherd.set_limit('media', 3), jobherd.set_limit(kind => 'a:b', max_running => 3)")
        slow.execute("INSERT INTO slow DEFAULT VALUES")
        committing = threading.Thread(target=slow.commit)
        committing.start()
        until = time.monotonic() + LIMIT
        while not holder.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        ).fetchone()[0]:
            assert time.monotonic() < until, "the commit did not start"
        assert [job.id for job in early.claim(3)] == jobs[:3]
        # as if the jobs had been claimed this long after the limit was written
        queue.run("UPDATE jobherd.running SET claimed_at = clock_timestamp() + interval '1 minute'")
        holder.execute("SELECT pg_advisory_unlock(7)")
        committing.join(LIMIT)
    assert sorted(queue.run("SELECT scope, running FROM jobherd.limits")) == [("kind", 3), ("queue", 3)]
    assert gated(late) == []


def test_plain_claims_made_after_maintenance_has_seen_the_limit_do_not_count(queue):
    queue.enqueue_many("a:b", 4, queue="media")
    queue.run("SELECT jobherd.set_limit('media', 9), jobherd.set_limit(kind => 'a:b', max_running => 9)")
    assert queue.run(queue.text("maintenance/end_pauses"))[0][3]
    with psycopg.connect(queue.dsn) as other:
        other.execute("SELECT FROM jobherd.gates WHERE scope = 'queue' FOR UPDATE")
        queue.run(queue.text("maintenance/mark_limits_seen"))  # does not wait for the lock
    assert queue.run("SELECT scope FROM jobherd.gates WHERE seen_at IS NULL") == [("queue",)]
    queue.run(queue.text("maintenance/mark_limits_seen"))
    assert not queue.run(queue.text("maintenance/end_pauses"))[0][3]
    # Workers do not make such a claim any more. That it does not count shows that a claim under a limit
    # need not read the jobs of all other claims.
    queue.run(
        "INSERT INTO jobherd.running (child, token, claimed_at, queue, jobs) SELECT 1, 1, now() + interval '1 minute', 'media', array_agg(r) FROM jobherd.ready r"
    )
    assert sorted(queue.run("SELECT scope, running FROM jobherd.limits")) == [("kind", 0), ("queue", 0)]
    queue.run("SELECT jobherd.pause('media'), jobherd.set_limit('media'), jobherd.set_limit('media', 9)")
    assert sorted(queue.run("SELECT scope, running FROM jobherd.limits")) == [("kind", 0), ("queue", 4)], (
        "maintenance has not seen the new limit of the queue"
    )


def test_lock_of_a_limit_in_another_schema_does_not_block_claims(queue):
    migrate(queue.connection, schema="other")
    jobs = queue.enqueue_many("a:b", 2, queue="media")
    queue.run("SELECT jobherd.set_limit('media', 1), jobherd.set_limit(kind => 'a:b', max_running => 1)")
    child = queue.child()
    child.connection.execute("SET lock_timeout TO '10ms'")
    with psycopg.connect(queue.dsn) as theirs:
        theirs.execute("SELECT other.lock_limit(2, 'media', 0), other.lock_limit(3, 'a:b', 0)")
        assert ids(gated(child)) == jobs[:1]


OLD_KEYS = """SELECT pg_advisory_lock(1785684586, hashtext('jobherd.' || r || ' ' || n))
                FROM unnest('{1,2,3}'::int[]) AS r CROSS JOIN unnest(%s::text[]) AS n"""


def test_advisory_locks_of_another_session_do_not_block_claims(queue):
    jobs = queue.enqueue_many("a:b", 2, queue="media")
    queue.run("SELECT jobherd.set_limit('media', 2), jobherd.set_limit(kind => 'a:b', max_running => 2)")
    child = queue.child()
    child.connection.execute("SET lock_timeout TO '10ms'")
    with psycopg.connect(queue.dsn) as stranger:
        stranger.execute(OLD_KEYS, [["media", "a:b", f"{child.supervisor} media"]])
        stranger.execute("SELECT pg_advisory_lock(hashtextextended('jobherd.budget', %s))", [child.supervisor])
        assert ids(gated(child, limited=["media"], limits=[2])) == jobs[:1]
        child.connection.execute(queue.text("claim/lock_budget"), {"supervisor": child.supervisor})


def test_two_limits_never_share_a_lock(queue):
    """The two names have the same hash.

    With hashed lock keys, claims of one queue would wait for claims of the other.
    """
    [(one, other)] = queue.run(
        "SELECT min(n), max(n) FROM (SELECT 'q' || g AS n FROM generate_series(1, 300000) AS g) AS names"
        " GROUP BY hashtext('jobherd.2 ' || n) HAVING count(*) > 1 LIMIT 1"
    )
    jobs = [queue.enqueue("a:b", queue=name) for name in (one, other)]
    queue.run("SELECT jobherd.set_limit(n, 1) FROM unnest(%s::text[]) AS n", [one, other])
    first, second = queue.child(), queue.child()
    second.connection.execute("SET lock_timeout TO '10ms'")
    with first.connection.transaction():
        assert ids(gated(first, served=[one])) == jobs[:1]
        assert ids(gated(second, served=[other])) == jobs[1:]


def test_claim_does_not_wait_for_an_uncommitted_change_of_its_limit(queue):
    jobs = queue.enqueue_many("a:b", 2, queue="media")
    queue.run("SELECT jobherd.set_limit('media', 1)")
    child = queue.child()
    child.connection.execute("SET lock_timeout TO '10ms'")
    with psycopg.connect(queue.dsn) as caller:
        caller.execute("SELECT jobherd.set_limit('media', 5), jobherd.pause('media')")
        assert ids(gated(child)) == jobs[:1]


def test_claim_skips_a_locked_limit_instead_of_waiting_out_of_order(queue):
    one, other = queue.child(), queue.child()

    def lock(child, name, held):
        return child.connection.execute("SELECT * FROM jobherd.lock_limit(2, %s, %s)", [name, held]).fetchone()

    with one.connection.transaction():
        assert lock(one, "a", 0) == (2, True)
        assert lock(one, "b", 2) == (2, True), "the first claim creates the lock"
        with other.connection.transaction():
            assert lock(other, "c", 0) == (2, True)
    with one.connection.transaction(), other.connection.transaction():
        assert (lock(one, "a", 0), lock(other, "b", 0)) == ((2, True), (2, True))
        assert (lock(one, "b", 2), lock(other, "a", 2)) == ((2, False), (2, False)), (
            "two claims never wait for each other"
        )
    with other.connection.transaction():
        assert lock(other, "a", 2) == (2, True)


def test_claim_locks_of_unregistered_supervisors_are_deleted(queue):
    queue.enqueue_many("a:b", 2, queue="media")
    queue.run("SELECT jobherd.set_limit('media', 5)")
    here, gone = queue.supervisor(), queue.supervisor()
    for child in (here.child(), gone.child()):
        assert gated(child, limited=["media"], limits=[1])
        child.connection.execute(queue.text("claim/lock_budget"), {"supervisor": child.supervisor})
    queue.run(queue.text("recover/unregister_supervisor").replace("%(supervisor)s", str(gone.id)))
    queue.run(queue.text("maintenance/delete_claim_locks"))
    left = [("budget", str(here.id)), ("queue", "media"), ("supervisor", f"{here.id} media")]
    assert queue.run("SELECT scope, name FROM jobherd.claim_locks WHERE scope <> 'lane' ORDER BY 1, 2") == left


@pytest.mark.parametrize("used", [False, True])
def test_claim_that_waited_for_the_lock_of_a_limit_counts_running_jobs_again(queue, used):
    """The waiting claim began before the other claim was visible.

    used: whether the row of the lock exists. Otherwise the first claim inserts it.
    """
    if used:
        queue.run("INSERT INTO jobherd.claim_locks VALUES ('queue', 'media')")
    queue.enqueue_many("a:b", 2, queue="media")
    queue.run("SELECT jobherd.set_limit('media', 1)")
    one, other = queue.child(), queue.child()
    with psycopg.connect(queue.dsn, autocommit=True) as watcher, one.connection.transaction():
        assert len(gated(one)) == 1
        other.connection.pgconn.send_query_params(
            b"SELECT token FROM jobherd.claim_gated(%d, %d, NULL, NULL, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
            % (other.supervisor, other.id),
            [],
        )
        until = time.monotonic() + LIMIT
        while not watcher.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()[0]:
            assert time.monotonic() < until, "the second claim did not wait for the lock"
    while other.connection.pgconn.is_busy():
        other.connection.pgconn.consume_input()
    assert other.connection.pgconn.get_result().ntuples == 0
    assert queue.run("SELECT running FROM jobherd.limits") == [(1,)]


@pytest.mark.promise("C22")
def test_each_supervisor_enforces_its_own_limit(queue):
    queue.enqueue_many("a:b", 5, queue="media")
    here, there = queue.supervisor(), queue.supervisor()
    own = {"limited": ["media"], "limits": [1]}
    first = here.child()
    assert len(gated(first, **own)) == 1
    assert gated(here.child(), **own) == []
    assert len(gated(there.child(), **own)) == 1
    assert len(gated(here.child(), limited=["med*"], limits=[2])) == 1


@pytest.mark.promise("C17", "E26")
def test_queue_prefixes_are_served_in_the_configured_order(queue):
    last = queue.enqueue("a:b", queue="batch-slow", priority=-9)
    second = queue.enqueue("a:b", queue="batch_two", priority=-5)
    first = queue.enqueue("a:b", queue="high")
    queue.enqueue("a:b", queue="other")
    child = queue.child()
    served = ["high", "batch*", "batch-slow"]
    assert [ids(gated(child, served=served)) for _ in range(4)] == [[first], [second], [last], []], (
        "an exact name takes precedence over a prefix"
    )


def test_claim_under_limits_takes_only_jobs_that_meet_its_conditions(queue):
    queue.run("SELECT jobherd.set_limit(kind => 'a:slow', max_running => 1)")
    queue.enqueue_many("a:other", 3)
    slow = queue.enqueue_many("a:slow", 2)
    wire = Wire(queue.child().connection, "jobherd", prepared=True)
    for taken in ([slow[0]], []):
        child = queue.child()
        known = child.parameters(9) | dict.fromkeys(("limited", "limits", "left_queue", "left_kind"))
        rows = wire.exchange(
            (sql.narrow("claim/claim_gated", "of_kinds"), known | {"narrowed": True, "only_kinds": ["a:slow"]})
        )[0]
        assert [row[1] for row in rows] == taken


@pytest.mark.promise("E7")
def test_pause_of_a_kind_or_of_everything_stops_claims_until_it_is_resumed(queue):
    mail, other = queue.enqueue("mail:send"), queue.enqueue("a:b")
    child = queue.child()
    assert queue.run("SELECT jobherd.pause(kind => 'mail:send', reason => 'down', actor => 'ada')") == [(True,)]
    assert queue.run("SELECT jobherd.pause(kind => 'mail:send')") == [(False,)]
    assert queue.run("SELECT paused_by, reason FROM jobherd.gates WHERE scope = 'kind'")[0][1] == "down"
    assert ids(gated(child)) == [other]
    queue.run("SELECT jobherd.pause('*')")
    assert gated(child) == []
    assert queue.run("SELECT jobherd.resume('*')") == [(True,)]
    assert gated(child) == []
    queue.run("SELECT jobherd.resume(kind => 'mail:send')")
    assert [(row["id"], row["queue"]) for row in gated(child)] == [(None, None)], "no pause is left"
    assert queue.connection.execute(queue.text("maintenance/release_parked"), {"most": 10}).rowcount == 1
    assert [job.id for job in child.claim(10)] == [mail]


def test_limit_set_by_a_user_overrides_the_limit_that_a_handler_declares(queue):
    def declare(**limits):
        queue.connection.execute(
            queue.text("lease/declare_limits"), {"names": list(limits), "max_running": list(limits.values())}
        )
        return sorted(queue.run("SELECT name, max_running, limited_by = '@handler' FROM jobherd.gates"))

    assert declare(a=3, b=None) == [("a", 3, True)]
    assert declare(a=4) == [("a", 4, True)]
    queue.run("SELECT jobherd.set_limit(kind => 'a', max_running => 9)")
    assert declare(a=5) == declare(a=None) == [("a", 9, False)]
    queue.run("SELECT jobherd.set_limit(kind => 'a')")
    assert declare(a=5, c=1) == [("a", 5, True), ("c", 1, True)]
    queue.run("SELECT jobherd.pause(kind => 'a')")
    assert declare(a=None, c=None) == [("a", None, None)], "the kind stays paused"


def test_worker_that_declares_unchanged_kinds_and_limits_does_not_wait_for_their_locks(queue):
    """The declared values are stored already. Even an UPDATE that changes nothing would lock the row."""
    kind = {"names": ["a:b"], "queues": ["default"], "priorities": [0], "max_attempts": [5], "max_crashes": [3], "keep_completed": [7],
            "keep_failed": [30], "redacts": ["[]"], "partitions": [None], "signatures": [None]}  # fmt: skip
    caps = {"names": ["a:b", "c:d", "e:f"], "max_running": [2, None, 3]}

    def declare(**more):
        kinds = queue.connection.execute(queue.text("lease/register_kinds"), kind | more).rowcount
        return kinds, queue.connection.execute(queue.text("lease/declare_limits"), caps).rowcount

    queue.run("SELECT jobherd.set_limit(kind => 'e:f', max_running => 9)")
    assert declare() == (1, 1)
    with psycopg.connect(queue.dsn) as other:
        other.execute("UPDATE jobherd.kinds SET seen_at = clock_timestamp()")
        other.execute("UPDATE jobherd.gates SET reason = 'no'")
        queue.run("SET lock_timeout = '100ms'")
        assert declare() == (0, 0)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            declare(max_attempts=[6])


def behind(queue, first, call):
    """Run `call` while `first` is not committed, and return the rows of `call`."""
    answers = []
    with psycopg.connect(queue.dsn) as one, psycopg.connect(queue.dsn, autocommit=True) as other:
        one.execute(first)

        def go():
            cursor = other.execute(*call)
            answers.extend(cursor.fetchall() if cursor.description else [])

        thread = threading.Thread(target=go)
        thread.start()
        while thread.is_alive() and not queue.run("SELECT 1 FROM pg_locks WHERE NOT granted"):
            pass
        one.commit()
        thread.join(LIMIT)
    return answers


def test_resume_takes_effect_during_a_concurrent_change_of_the_limit(queue):
    queue.run("SELECT jobherd.pause('media')")
    assert behind(queue, "SELECT jobherd.set_limit('media', 2)", ["SELECT jobherd.resume('media')"]) == [(True,)]
    assert queue.run("SELECT name, paused_at, max_running FROM jobherd.gates") == [("media", None, 2)]
    queue.run("SELECT jobherd.pause('media')")
    assert behind(queue, "SELECT jobherd.set_limit('media', NULL)", ["SELECT jobherd.resume('media')"]) == [(True,)]
    assert queue.run("SELECT name FROM jobherd.gates") == []


def test_limit_no_longer_declared_is_removed_during_a_concurrent_pause_or_resume(queue):
    declare = queue.text("lease/declare_limits")
    queue.connection.execute(declare, {"names": ["a:b"], "max_running": [2]})
    behind(queue, "SELECT jobherd.pause(kind => 'a:b')", [declare, {"names": ["a:b"], "max_running": [None]}])
    assert queue.run("SELECT name, paused_at IS NOT NULL, max_running FROM jobherd.gates") == [("a:b", True, None)]
    queue.connection.execute(declare, {"names": ["a:b"], "max_running": [2]})
    behind(queue, "SELECT jobherd.resume(kind => 'a:b')", [declare, {"names": ["a:b"], "max_running": [None]}])
    assert queue.run("SELECT name FROM jobherd.gates") == []


def test_pause_ends_at_its_time_and_the_limit_remains(queue):
    queue.run("SELECT jobherd.set_limit('media', 2)")
    queue.run("SELECT jobherd.pause('media', resume_at => %s)", datetime.now(UTC) + timedelta(hours=1))
    [(opened, next_in, *_)] = queue.run(queue.text("maintenance/end_pauses"))
    assert opened == 0
    assert 3500 < next_in <= 3600
    queue.run("UPDATE jobherd.gates SET resume_at = clock_timestamp()")
    assert queue.run(queue.text("maintenance/end_pauses")) == [(1, None, False, True, False, None, False, False, False)]
    assert queue.run("SELECT name, max_running, paused_at FROM jobherd.gates") == [("media", 2, None)]
    assert queue.run("SELECT jobherd.set_limit('media')") == [(2,)]
    assert queue.count("gates") == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("pause()", "give a queue or a kind"),
        ("pause('a', kind => 'a:b')", "not both"),
        ("pause('A b')", "not a queue name"),
        ("pause(kind => 'A b')", "not a name like"),
        ("pause('a', resume_at => now() - interval '1 s')", "not in the future"),
        ("set_limit('a', 0)", "max_running 0 is not a number from 1"),
        ("set_limit('*', 3)", "everything together has no limit"),
    ],
)
def test_pause_and_set_limit_reject_invalid_arguments(queue, call, words):
    with pytest.raises(psycopg.Error, match=re.escape(words)):
        queue.run(f"SELECT jobherd.{call}")


def test_claim_costs_the_same_with_100_and_5000_more_parked_jobs(queue):
    queue.run("SELECT jobherd.set_limit(kind => 'slow:one', max_running => 1)")
    child = queue.child()

    def touched():
        plan = child.connection.execute(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM jobherd.claim_gated(%s, %s, NULL, NULL, 10, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
            [child.supervisor, child.id],
        ).fetchone()[0][0]["Plan"]
        return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]

    queue.enqueue("slow:one")
    assert len(gated(queue.child())) == 1
    found = []
    for jobs in (100, 5000):
        queue.enqueue_many("slow:one", jobs)
        for _ in range(60):
            gated(child)
        assert queue.run("SELECT count(*) FROM jobherd.ready") == [(0,)]
        queue.run("VACUUM ANALYZE jobherd.ready, jobherd.parked")
        found.append(touched())
    assert found[1] <= found[0] + 20, found


def test_row_position_is_used_only_for_a_single_table(queue):
    """No table inherits from another, and no statement that uses `ctid` reads the view `waiting` of two tables."""
    below = "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE c.relkind = 'r' AND NOT c.relispartition"
    assert queue.run(below) == []
    for file in (Path(sql.__file__).parent / "queries").rglob("*.sql"):
        text = "\n".join(line for line in file.read_text().splitlines() if not line.startswith("--"))
        assert "ctid" not in text or "jobherd.waiting" not in text, file.name
        assert " ONLY " not in text, file.name
