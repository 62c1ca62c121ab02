"""Settlement, release and reclaim.

Each job gets the state that its outcome implies, and only the holder of the claim can write it.
"""

from __future__ import annotations

import threading
import time

import pytest

from jobherd.handlers._values.outcome import LABELS, Outcome
from tests.support.queue import Queue


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


@pytest.mark.parametrize(
    ("outcome", "delay", "state", "attempts"),
    [
        ("ok", None, "completed", 1),
        ("retry", 30.0, "retrying", 1),
        ("retry", 0.0, "retrying", 1),
        ("failed", None, "failed", 1),
        ("poison", None, "failed", 1),
        ("snoozed", 30.0, "scheduled", 0),
        ("abandoned", None, "ready", 0),
        ("cancelled", None, "cancelled", 1),
        ("expired", None, "expired", 1),
    ],
)
@pytest.mark.promise("A35", "A36", "C14", "D22")
def test_outcome_decides_state_and_attempts(queue, outcome, delay, state, attempts):
    queue.enqueue("a:b")
    child = queue.child()
    (job,) = child.claim(1)
    assert child.settle(job.token, [job.id], outcome, delay=delay, error="why", ran=1.0) == [job.id]
    row = queue.job(job.id)
    assert (row["state"], row["attempts"]) == (state, attempts)
    assert queue.count("running") == 0
    assert len(row["history"]) == 1


@pytest.mark.parametrize("outcome", ["expired", "cancelled", "failed", "abandoned", "snoozed"])
def test_job_that_never_started_loses_no_attempt(queue, outcome):
    queue.enqueue("a:b")
    child = queue.child()
    (job,) = child.claim(1)
    child.settle(job.token, [job.id], outcome, error="why", ran=None, delay=1.0)
    row = queue.job(job.id)
    assert row["attempts"] == 0
    assert row["started_at"] is None


@pytest.mark.promise("E12", "E21")
def test_part_of_a_claim_is_settled_and_the_rest_stays_claimed(queue):
    queue.enqueue_many("a:b", 3)
    child = queue.child()
    one, two, three = child.claim(3)
    assert child.settle(one.token, [one.id], "ok") == [one.id]
    assert queue.states([one.id, two.id, three.id]) == ["completed", "running", "running"]
    assert child.settle(one.token, [one.id], "failed", error="late") == []
    assert child.settle(one.token, [two.id, three.id], "ok") == [two.id, three.id]
    assert queue.states([one.id, two.id, three.id]) == ["completed"] * 3


def test_very_short_jobs_never_end_before_they_start(queue):
    queue.enqueue_many("a:b", 500)
    child = queue.child()
    jobs = child.claim(500)
    assert len(child.settle(jobs[0].token, [job.id for job in jobs], "ok", ran=1e-7, ago=0.0)) == 500
    assert queue.run("SELECT count(*) FROM jobherd.history WHERE started_at <= finished_at") == [(500,)]


@pytest.mark.promise("A34", "A36")
def test_settlement_without_the_claim_writes_nothing(queue):
    queue.enqueue("a:b")
    child, other = queue.child(), queue.child()
    (job,) = child.claim(1)
    assert other.settle(job.token, [job.id], "ok") == []
    assert child.settle(job.token + 1, [job.id], "ok") == []
    child.release()
    assert child.settle(job.token, [job.id], "ok") == []
    assert queue.state(job.id) == "ready"


@pytest.mark.promise("A34", "D24")
def test_late_completion_of_a_reclaimed_job_is_rejected(queue):
    queue.enqueue("a:b")
    child = queue.child()
    (job,) = child.claim(1)
    rescuer = queue.supervisor()
    queue.run(
        "UPDATE jobherd.supervisors SET lease_until = now() - interval '1 minute' WHERE id = %s", child.supervisor
    )
    assert rescuer.reclaim(lease=0.0) == (1, 1)
    (again,) = rescuer.child().claim(1)
    assert again.id == job.id
    assert again.attempts == 2
    assert child.settle(job.token, [job.id], "ok") == []
    assert queue.state(job.id) == "running"


def test_supervisor_with_a_valid_lease_is_not_reclaimed(queue):
    queue.enqueue("a:b")
    child = queue.child()
    child.claim(1)
    assert queue.supervisor().reclaim(lease=0.0) == (0, 0)


def test_no_supervisor_is_reclaimed_in_the_first_lease_after_postgresql_starts(queue):
    child = queue.child()
    queue.enqueue("a:b")
    child.claim(1)
    queue.run(
        "UPDATE jobherd.supervisors SET lease_until = now() - interval '1 minute' WHERE id = %s", child.supervisor
    )
    assert queue.supervisor().reclaim(lease=1e9) == (0, 0)  # PostgreSQL started less than a lease ago


def test_reclaimed_job_without_attempts_left_fails(queue):
    number = queue.enqueue("a:b", max_attempts=1)
    child = queue.child()
    child.claim(1)
    assert queue.supervisor().reclaim(dead=[child.supervisor]) == (1, 1)
    assert queue.job(number)["error_code"] == "WORKER_LOST"
    assert queue.state(number) == "failed"


@pytest.mark.parametrize("by", ["reclaim", "orphans"])
def test_jobs_claimed_before_the_clock_was_set_back_can_be_reclaimed(queue, by):
    """A history row must not end before it started.

    Regression: one finished job made the whole statement fail until the clock had caught up.
    """
    dead = queue.supervisor()
    child = dead.child()
    over, waits, unwanted = queue.enqueue("a:b", max_attempts=1), queue.enqueue("a:b"), queue.enqueue("a:b")
    child.claim(3)
    queue.cancel(unwanted)
    queue.run("UPDATE jobherd.running SET claimed_at = clock_timestamp() + interval '1 h'")
    if by == "reclaim":
        assert queue.supervisor().reclaim(dead=[dead.id]) == (1, 3)
    else:
        queue.run("DELETE FROM jobherd.children")
        assert sorted(queue.orphans()) == [over, waits, unwanted]
    assert queue.states([over, waits, unwanted]) == ["failed", "retrying", "cancelled"]


def test_reclaimed_jobs_run_alone(queue):
    queue.enqueue_many("a:b", 3)
    child = queue.child()
    assert len(child.claim(3)) == 3
    rescuer = queue.supervisor()
    rescuer.reclaim(dead=[child.supervisor])
    heir = rescuer.child()
    assert [len(heir.claim(10)) for _ in range(4)] == [1, 1, 1, 0]


def test_release_requeues_unstarted_jobs_and_counts_no_attempt(queue):
    queue.enqueue_many("a:b", 3)
    child = queue.child()
    jobs = child.claim(3)
    child.settle(jobs[0].token, [jobs[0].id], "retry", error="crash", crashed=1, delay=0)
    assert sorted(child.release()) == [jobs[1].id, jobs[2].id]
    assert [queue.job(job.id)["attempts"] for job in jobs] == [1, 0, 0]
    assert [queue.job(job.id)["crashes"] for job in jobs] == [1, 0, 0]


def test_orphans_are_found_and_retried(queue):
    queue.enqueue("a:b")
    child = queue.child()
    (job,) = child.claim(1)
    assert queue.orphans() == []
    queue.run("DELETE FROM jobherd.children")
    assert queue.orphans() == [job.id]
    assert queue.state(job.id) == "retrying"
    (attempt,) = queue.job(job.id)["history"]
    assert (attempt["attempt"], attempt["outcome"]) == (1, "lost"), "a counted attempt is listed"
    assert "its child was lost" in attempt["error"]


def test_jobs_of_a_deleted_supervisor_are_retried(queue):
    queue.enqueue("a:b")
    child = queue.child()
    (job,) = child.claim(1)
    queue.run("DELETE FROM jobherd.supervisors")  # no supervisor can reclaim the job now
    assert queue.orphans() == [job.id]
    assert queue.count("children") == 0
    assert child.settle(job.token, [job.id], "ok") == [], "a late outcome is rejected"
    assert queue.state(job.id) == "retrying"


@pytest.mark.promise("B51", "B52")
def test_cancel_returns_the_state_of_the_job(queue):
    waiting, later = queue.enqueue("a:b"), queue.enqueue("a:b", delay=60)
    assert queue.cancel(waiting) == queue.cancel(later) == "cancelled"
    assert queue.cancel(waiting) == "cancelled"
    assert queue.cancel(999999) is None
    running = queue.enqueue("a:b")
    child = queue.child()
    (job,) = child.claim(1)
    assert queue.cancel(running) == queue.cancel(running) == "cancelling"
    assert child.settle(job.token, [job.id], "ok") == [job.id]  # the job completed before the cancellation
    assert queue.cancel(running) == "completed"


@pytest.mark.parametrize("outcome", ["retry", "snoozed", "abandoned"])
def test_canceled_job_is_not_requeued_by_its_outcome(queue, outcome):
    number = queue.enqueue("a:b")
    child = queue.child()
    (job,) = child.claim(1)
    queue.cancel(number)
    child.settle(job.token, [number], outcome, delay=1.0)
    assert queue.state(number) == "cancelled"


def test_canceled_job_of_a_dead_worker_is_not_requeued(queue):
    number = queue.enqueue("a:b")
    child = queue.child()
    child.claim(1)
    queue.cancel(number)
    child.release()
    assert queue.state(number) == "cancelled"


def test_retry_of_a_finished_job_keeps_its_history(queue):
    number = queue.enqueue("a:b", max_attempts=3)
    child = queue.child()
    (job,) = child.claim(1)
    child.settle(job.token, [number], "failed", error="bad", ran=1.0)
    assert queue.retry(number) == "ready"
    row = queue.job(number)
    assert (row["state"], row["attempts"], row["error"], len(row["history"])) == ("ready", 0, "bad", 1)
    assert queue.retry(number) == "ready"
    (again,) = child.claim(1)
    assert again.id == number
    assert queue.retry(number) == "running"


def test_settlement_goes_to_the_partition_of_its_last_day_which_is_then_dropped(queue):
    queue.run("SELECT jobherd.keep_partitions(31)")
    number = queue.enqueue("a:b")
    child = queue.child()
    (job,) = child.claim(1)
    child.settle(job.token, [number], "ok", keep=7)
    place = queue.run(
        "SELECT tableoid::regclass::text, drop_on - (now() AT TIME ZONE 'UTC')::date FROM jobherd.history WHERE id = %s",
        number,
    )
    assert place[0][0].startswith("jobherd.history_2")
    assert place[0][1] == 7
    assert queue.run("SELECT made, dropped FROM jobherd.keep_partitions(31)") == [(0, 0)]
    queue.run("ALTER TABLE jobherd.history DETACH PARTITION " + place[0][0])
    queue.run(f"ALTER TABLE {place[0][0]} RENAME TO history_20200101")
    queue.run("UPDATE jobherd.history_20200101 SET drop_on = '2020-01-01'")
    queue.run(
        "ALTER TABLE jobherd.history ATTACH PARTITION jobherd.history_20200101 FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')"
    )
    assert queue.run("SELECT made, dropped FROM jobherd.keep_partitions(31)") == [(1, 1)]
    assert queue.state(number) is None


def test_job_that_ended_today_is_not_dropped_by_a_session_whose_zone_is_a_day_ahead(queue):
    number = queue.enqueue("a:b")
    child = queue.child()
    child.connection.execute("SET timezone TO 'Etc/GMT+12'")
    (job,) = child.claim(1)
    child.settle(job.token, [number], "ok", keep=1, log='{"output": "said"}')
    queue.run("SET timezone TO 'Etc/GMT-14'")
    queue.run("SELECT jobherd.keep_partitions(3)")
    assert queue.connection.execute(queue.text("maintenance/delete_logs"), {"most": 10}).rowcount == 0
    assert queue.state(number) == "completed"


def test_job_is_kept_until_the_end_of_its_last_day(queue):
    queue.run("SELECT jobherd.keep_partitions(3)")
    numbers = queue.enqueue_many("a:b", 2)
    child = queue.child()
    for keep, job in enumerate(child.claim(2), 1):
        child.settle(job.token, [job.id], "ok", keep=keep, log='{"output": "said"}')
    for gone in (set(), {numbers[0]}, set(numbers)):
        for table in ("history", "logs"):  # a day passes
            queue.run(f"UPDATE jobherd.{table} SET drop_on = drop_on - 1")
        queue.run("SELECT jobherd.keep_partitions(3)")
        queue.connection.execute(queue.text("maintenance/delete_logs"), {"most": 10})
        left = sorted(set(numbers) - gone)
        for table, name in (("history", "id"), ("logs", "job")):
            assert [job for (job,) in queue.run(f"SELECT {name} FROM jobherd.{table} ORDER BY 1")] == left, table


def test_partitions_are_created_a_few_at_a_time(queue):
    made = [queue.run("SELECT made FROM jobherd.keep_partitions(4, 3)")[0][0] for _ in range(4)]
    assert made == [3, 3, 2, 0]
    assert queue.run("SELECT made FROM jobherd.keep_partitions(5)") == [(2,)]


def test_partition_changes_wait_2_s_for_a_lock_if_urgent_and_50_ms_otherwise(queue):
    """Settlements wait behind a partition change that waits for a lock.

    If the change can wait for another day, it times out soon and is retried later.
    """

    def wait_of(ahead):
        with queue.connection.transaction():
            queue.run("SELECT jobherd.keep_partitions(%s)", ahead)
            return queue.run("SHOW lock_timeout")[0][0]

    def expire(days):
        queue.run(
            "CREATE TABLE jobherd.attempts_20200101 (LIKE jobherd.attempts INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"
        )
        queue.run(
            "ALTER TABLE jobherd.attempts ATTACH PARTITION jobherd.attempts_20200101 FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')"
        )
        [(name,)] = queue.run(
            "SELECT 'attempts_' || to_char((now() AT TIME ZONE 'UTC')::date - %s::integer, 'YYYYMMDD')", days
        )
        queue.run(f"ALTER TABLE jobherd.attempts_20200101 RENAME TO {name}")

    assert wait_of(4) == "2s", "there is no partition at all"
    assert wait_of(4) == "50ms"
    assert wait_of(5) == "50ms", "the last day is not needed before tomorrow"
    assert wait_of(7) == "2s"
    expire(1)
    assert wait_of(7) == "50ms", "due to be dropped only since midnight"
    expire(2)
    assert wait_of(7) == "2s"


def test_rows_are_stray_only_if_their_partition_should_exist(queue):
    child = queue.child()
    for keep, stray in ((90, False), (0, False), (7, True)):
        number = queue.enqueue("a:b")
        (job,) = child.claim(1)
        child.settle(job.token, [number], "failed", error="bad", ran=1.0, keep=keep)
        assert queue.run("SELECT stray FROM (" + queue.text("doctor/find_stray_rows").rstrip() + "\n) AS fleet") == [
            (stray,)
        ], keep


def test_due_jobs_are_promoted_and_the_others_stay_scheduled(queue):
    due, later = queue.enqueue("a:b", delay=60), queue.enqueue("a:b", delay=60)
    queue.run("UPDATE jobherd.scheduled SET run_at = now() - interval '1 second' WHERE id = %s", due)
    assert queue.promote() == 1
    assert queue.states([due, later]) == ["ready", "scheduled"]


def test_supervisor_that_exits_releases_its_jobs_except_canceled_ones(queue):
    queue.enqueue_many("a:b", 2)
    child = queue.child()
    one, two = child.claim(2)
    assert queue.cancel(two.id) == "cancelling"
    queue.connection.execute(queue.text("recover/unregister_supervisor"), {"supervisor": child.supervisor})
    assert queue.states([one.id, two.id]) == ["ready", "cancelled"]
    assert [queue.job(job.id)["attempts"] for job in (one, two)] == [0, 0]


def test_unstarted_canceled_job_of_a_dead_worker_has_no_attempt(queue):
    queue.enqueue("a:b")
    child = queue.child()
    (job,) = child.claim(1)
    queue.cancel(job.id)
    child.release()
    assert (queue.state(job.id), queue.job(job.id)["attempts"]) == ("cancelled", 0)


@pytest.mark.parametrize(("looked_at", "outcome"), [("history", "retry"), ("running", "ok")])
def test_retry_finds_a_job_that_moves_between_tables_meanwhile(queue, looked_at, outcome):
    """Race: the job moves to a table that the retry has searched already, while the retry waits for the next table."""
    queue.enqueue("a:b")
    child = queue.child()
    (job,) = child.claim(1)
    answers: list[str | None] = []
    child.connection.execute("BEGIN")
    child.connection.execute(f"LOCK TABLE jobherd.{looked_at} IN ACCESS EXCLUSIVE MODE")
    with Queue(queue.dsn) as other:
        retrier = threading.Thread(target=lambda: answers.append(other.retry(job.id)))
        retrier.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s"
        while not queue.run(waiting, other.connection.info.backend_pid)[0][0]:
            time.sleep(0.01)
        child.settle(job.token, [job.id], outcome, delay=30.0, error="why", ran=1.0)
        child.connection.execute("COMMIT")
        retrier.join()
    assert answers == ["ready"]
    assert queue.run("SELECT id FROM jobherd.ready") == [(job.id,)]


@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize("label", LABELS)
def test_settle_jobs_applies_the_state_and_count_of_each_label(queue, label, started):
    """The statement repeats LABELS of handlers/_values/outcome.py: both must name every label."""
    child = queue.child()
    number = queue.enqueue("a:b")
    [job] = child.claim(1)
    delay = 60.0 if LABELS[label].state == "scheduled" else None
    child.settle(job.token, [number], label, delay=delay, error="why", ran=1.0 if started else None)
    row = queue.job(number)
    outcome = Outcome(label, started=started)
    state = "retrying" if outcome.state == "scheduled" and outcome.counted else outcome.state
    assert (row["state"], row["attempts"]) == (state, int(outcome.counted))
