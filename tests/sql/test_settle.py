"""Settling, releasing, reclaiming.

Every job ends up where its outcome says, and nobody writes without the claim.
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
def test_where_an_outcome_leads(queue, outcome, delay, state, attempts):
    queue.enqueue("a:b")
    child = queue.child()
    (job,) = child.claim(1)
    assert child.settle(job.token, [job.id], outcome, delay=delay, error="why", ran=1.0) == [job.id]
    row = queue.job(job.id)
    assert (row["state"], row["attempts"]) == (state, attempts)
    assert queue.count("running") == 0
    assert len(row["history"]) == 1


@pytest.mark.parametrize("outcome", ["expired", "cancelled", "failed", "abandoned", "snoozed"])
def test_what_never_started_gives_its_attempt_back(queue, outcome):
    queue.enqueue("a:b")
    child = queue.child()
    (job,) = child.claim(1)
    child.settle(job.token, [job.id], outcome, error="why", ran=None, delay=1.0)
    row = queue.job(job.id)
    assert row["attempts"] == 0
    assert row["started_at"] is None


@pytest.mark.promise("E12", "E21")
def test_a_part_of_a_batch_is_settled_and_the_rest_stays_claimed(queue):
    queue.enqueue_many("a:b", 3)
    child = queue.child()
    one, two, three = child.claim(3)
    assert child.settle(one.token, [one.id], "ok") == [one.id]
    assert queue.states([one.id, two.id, three.id]) == ["completed", "running", "running"]
    assert child.settle(one.token, [one.id], "failed", error="late") == []
    assert child.settle(one.token, [two.id, three.id], "ok") == [two.id, three.id]
    assert queue.states([one.id, two.id, three.id]) == ["completed"] * 3


def test_jobs_of_no_time_at_all_never_end_before_they_start(queue):
    queue.enqueue_many("a:b", 500)
    child = queue.child()
    jobs = child.claim(500)
    assert len(child.settle(jobs[0].token, [job.id for job in jobs], "ok", ran=1e-7, ago=0.0)) == 500
    assert queue.run("SELECT count(*) FROM jobherd.history WHERE started_at <= finished_at") == [(500,)]


@pytest.mark.promise("A34", "A36")
def test_nothing_is_written_without_the_claim(queue):
    queue.enqueue("a:b")
    child, other = queue.child(), queue.child()
    (job,) = child.claim(1)
    assert other.settle(job.token, [job.id], "ok") == []
    assert child.settle(job.token + 1, [job.id], "ok") == []
    child.release()
    assert child.settle(job.token, [job.id], "ok") == []
    assert queue.state(job.id) == "ready"


@pytest.mark.promise("A34", "D24")
def test_the_late_completion_of_a_reclaimed_job_is_refused(queue):
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


def test_a_supervisor_that_beats_is_not_reclaimed(queue):
    queue.enqueue("a:b")
    child = queue.child()
    child.claim(1)
    assert queue.supervisor().reclaim(lease=0.0) == (0, 0)


def test_after_the_server_was_away_nobody_is_reclaimed_before_a_whole_lease(queue):
    child = queue.child()
    queue.enqueue("a:b")
    child.claim(1)
    queue.run(
        "UPDATE jobherd.supervisors SET lease_until = now() - interval '1 minute' WHERE id = %s", child.supervisor
    )
    assert queue.supervisor().reclaim(lease=1e9) == (0, 0)  # the server has started less than a lease ago


def test_a_reclaimed_job_without_attempts_left_fails(queue):
    number = queue.enqueue("a:b", max_attempts=1)
    child = queue.child()
    child.claim(1)
    assert queue.supervisor().reclaim(dead=[child.supervisor]) == (1, 1)
    assert queue.job(number)["error_code"] == "WORKER_LOST"
    assert queue.state(number) == "failed"


@pytest.mark.parametrize("by", ["reclaim", "orphans"])
def test_what_was_claimed_before_the_clock_was_set_back_is_given_back(queue, by):
    """A row of the past must not end before it has begun.

    One job that was over refused the whole statement, until the clock had caught up.
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


def test_release_gives_back_what_was_not_started_and_no_attempt_is_lost(queue):
    queue.enqueue_many("a:b", 3)
    child = queue.child()
    jobs = child.claim(3)
    child.settle(jobs[0].token, [jobs[0].id], "retry", error="crash", crashed=1, delay=0)
    assert sorted(child.release()) == [jobs[1].id, jobs[2].id]
    assert [queue.job(job.id)["attempts"] for job in jobs] == [1, 0, 0]
    assert [queue.job(job.id)["crashes"] for job in jobs] == [1, 0, 0]


def test_orphans_are_found_and_come_back(queue):
    queue.enqueue("a:b")
    child = queue.child()
    (job,) = child.claim(1)
    assert queue.orphans() == []
    queue.run("DELETE FROM jobherd.children")
    assert queue.orphans() == [job.id]
    assert queue.state(job.id) == "retrying"
    (attempt,) = queue.job(job.id)["history"]
    assert (attempt["attempt"], attempt["outcome"]) == (1, "lost"), "it was counted, and so it is explained"
    assert "its child was lost" in attempt["error"]


def test_what_children_of_a_deleted_supervisor_run_comes_back(queue):
    queue.enqueue("a:b")
    child = queue.child()
    (job,) = child.claim(1)
    queue.run("DELETE FROM jobherd.supervisors")  # nobody can reclaim it now
    assert queue.orphans() == [job.id]
    assert queue.count("children") == 0
    assert child.settle(job.token, [job.id], "ok") == [], "its late word is refused"
    assert queue.state(job.id) == "retrying"


@pytest.mark.promise("B51", "B52")
def test_cancelling(queue):
    waiting, later = queue.enqueue("a:b"), queue.enqueue("a:b", delay=60)
    assert queue.cancel(waiting) == queue.cancel(later) == "cancelled"
    assert queue.cancel(waiting) == "cancelled"
    assert queue.cancel(999999) is None
    running = queue.enqueue("a:b")
    child = queue.child()
    (job,) = child.claim(1)
    assert queue.cancel(running) == queue.cancel(running) == "cancelling"
    assert child.settle(job.token, [job.id], "ok") == [job.id]  # it had won the race
    assert queue.cancel(running) == "completed"


@pytest.mark.parametrize("outcome", ["retry", "snoozed", "abandoned"])
def test_a_job_that_was_cancelled_does_not_come_back(queue, outcome):
    number = queue.enqueue("a:b")
    child = queue.child()
    (job,) = child.claim(1)
    queue.cancel(number)
    child.settle(job.token, [number], outcome, delay=1.0)
    assert queue.state(number) == "cancelled"


def test_a_cancelled_job_of_a_dead_child_does_not_come_back(queue):
    number = queue.enqueue("a:b")
    child = queue.child()
    child.claim(1)
    queue.cancel(number)
    child.release()
    assert queue.state(number) == "cancelled"


def test_retrying_a_job_that_is_over_keeps_its_past(queue):
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


def test_a_settlement_lands_in_the_partition_of_its_last_day_and_the_day_is_dropped(queue):
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


def test_what_ended_today_is_not_dropped_by_who_has_tomorrow(queue):
    number = queue.enqueue("a:b")
    child = queue.child()
    child.connection.execute("SET timezone TO 'Etc/GMT+12'")
    (job,) = child.claim(1)
    child.settle(job.token, [number], "ok", keep=1, log='{"output": "said"}')
    queue.run("SET timezone TO 'Etc/GMT-14'")
    queue.run("SELECT jobherd.keep_partitions(3)")
    assert queue.connection.execute(queue.text("maintenance/delete_logs"), {"most": 10}).rowcount == 0
    assert queue.state(number) == "completed"


def test_what_ended_last_night_and_has_a_day_to_be_kept_is_there_until_tonight(queue):
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


def test_partitions_are_made_a_few_at_a_time_and_nobody_waits_for_all_of_them(queue):
    made = [queue.run("SELECT made FROM jobherd.keep_partitions(4, 3)")[0][0] for _ in range(4)]
    assert made == [3, 3, 2, 0]
    assert queue.run("SELECT made FROM jobherd.keep_partitions(5)") == [(2,)]


def test_partitions_wait_for_a_reader_only_as_long_as_their_haste_is_worth(queue):
    """Each settlement waits meanwhile.

    While a day is in hand they wait briefly, and are tried again.
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

    assert wait_of(4) == "2s", "there is none at all"
    assert wait_of(4) == "50ms"
    assert wait_of(5) == "50ms", "the last day is not needed before tomorrow"
    assert wait_of(7) == "2s"
    expire(1)
    assert wait_of(7) == "50ms", "to be dropped since this midnight"
    expire(2)
    assert wait_of(7) == "2s"


def test_only_what_a_partition_should_be_there_for_lies_where_it_should_not(queue):
    child = queue.child()
    for keep, stray in ((90, False), (0, False), (7, True)):
        number = queue.enqueue("a:b")
        (job,) = child.claim(1)
        child.settle(job.token, [number], "failed", error="bad", ran=1.0, keep=keep)
        assert queue.run("SELECT stray FROM (" + queue.text("doctor/find_stray_rows").rstrip() + "\n) AS fleet") == [
            (stray,)
        ], keep


def test_due_jobs_move_and_the_others_stay(queue):
    due, later = queue.enqueue("a:b", delay=60), queue.enqueue("a:b", delay=60)
    queue.run("UPDATE jobherd.scheduled SET run_at = now() - interval '1 second' WHERE id = %s", due)
    assert queue.promote() == 1
    assert queue.states([due, later]) == ["ready", "scheduled"]


def test_a_supervisor_that_leaves_gives_back_what_runs_but_not_what_was_cancelled(queue):
    queue.enqueue_many("a:b", 2)
    child = queue.child()
    one, two = child.claim(2)
    assert queue.cancel(two.id) == "cancelling"
    queue.connection.execute(queue.text("recover/unregister_supervisor"), {"supervisor": child.supervisor})
    assert queue.states([one.id, two.id]) == ["ready", "cancelled"]
    assert [queue.job(job.id)["attempts"] for job in (one, two)] == [0, 0]


def test_what_was_cancelled_before_its_child_died_unstarted_has_no_attempt(queue):
    queue.enqueue("a:b")
    child = queue.child()
    (job,) = child.claim(1)
    queue.cancel(job.id)
    child.release()
    assert (queue.state(job.id), queue.job(job.id)["attempts"]) == ("cancelled", 0)


@pytest.mark.parametrize(("looked_at", "outcome"), [("history", "retry"), ("running", "ok")])
def test_a_job_that_moves_while_it_is_retried_is_found(queue, looked_at, outcome):
    """It moves to a place that has been looked at already, while the next one is waited for."""
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
def test_the_statement_gives_each_label_the_state_and_the_count_of_the_table(queue, label, started):
    """handlers/_values/outcome.py has the same in LABELS: both have to name every label."""
    child = queue.child()
    number = queue.enqueue("a:b")
    [job] = child.claim(1)
    delay = 60.0 if LABELS[label].state == "scheduled" else None
    child.settle(job.token, [number], label, delay=delay, error="why", ran=1.0 if started else None)
    row = queue.job(number)
    outcome = Outcome(label, started=started)
    state = "retrying" if outcome.state == "scheduled" and outcome.counted else outcome.state
    assert (row["state"], row["attempts"]) == (state, int(outcome.counted))
