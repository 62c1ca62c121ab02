"""Schedules in the database: instants, jobs, overlap, races with edits, declarations of two releases."""

from __future__ import annotations

import json

import psycopg
import pytest

from jobherd import Schedule, handler
from jobherd.workers.maintenance import schedules
from jobherd.workers.maintenance.schedules import Schedules
from jobherd.workers.run.declaration import declare as declare_all
from tests.support.queue import Queue

RARELY = 2.9e9
"""92 years in seconds.

An hourly schedule has an instant at each full hour. A test that runs just after one would see an instant too many.
"""


class Session:
    """The part of a child process's database session that `Schedules` uses."""

    def __init__(self, queue: Queue, connection: psycopg.Connection | None = None) -> None:
        self.queue, self.connection = queue, connection or queue.connection

    def run(self, name, parameters=None):
        cursor = self.connection.execute(self.queue.text(name), parameters)
        return cursor.fetchall() if cursor.description is not None else []


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        queue.child()
        yield queue


def make(queue, name="feed", *, every=RARELY, due=True, **columns):
    """Store a planned schedule that is due now, or in 1 h if `due` is false."""
    given = {"kind": "a:b", "every": every, "options": "{}"} | columns
    queue.run(
        f"INSERT INTO jobherd.schedules (name, plan_from, next_at, {', '.join(given)})"
        f" VALUES (%s, NULL, date_trunc('second', now()) {'' if due else '+ interval' + repr(' 1 h')}, {', '.join(['%s'] * len(given))})",
        name, *given.values(),
    )  # fmt: skip


def again(queue, name="feed"):
    """Make the next instant due, 1 s after the previous one."""
    queue.run(
        "UPDATE jobherd.schedules SET next_at = coalesce(last_at, now()) + interval '1 s', revision = revision + 1 WHERE name = %s",
        name,
    )
    queue.run(
        "UPDATE jobherd.schedules SET last_at = last_at - interval '2 s', next_at = next_at - interval '2 s',"
        " held = jsonb_set(held, '{at}', to_jsonb((held ->> 'at')::timestamptz - interval '2 s'))"
    )
    queue.run("UPDATE jobherd.ticks SET at = at - interval '2 s'")


def decided(queue, name="feed"):
    return [one[0] for one in queue.run("SELECT decided FROM jobherd.ticks WHERE schedule = %s ORDER BY at", name)]


@pytest.fixture
def maintenance(queue):
    return Schedules(Session(queue), "test/1")


def test_instant_its_job_and_the_next_instant_are_written_together(queue, maintenance):
    make(queue, payload='{"at": "{schedule}"}', options='{"queue": "mail", "priority": -3}')
    maintenance.run()
    [(job, missed, at, by)] = queue.run("SELECT job, missed, at, by FROM jobherd.ticks")
    assert (missed, by) == (0, "test/1")
    row = queue.run(
        "SELECT id, kind, queue, priority, payload, (extras).schedule ->> 'name', run_at FROM jobherd.ready"
    )
    assert row == [(job, "a:b", "mail", -3, {"at": "feed"}, "feed", at)]
    assert queue.run("SELECT next_at - %s::timestamptz, last_at = %s, last_job FROM jobherd.schedules", at, at)[0][
        1:
    ] == (True, job)
    maintenance.run()
    assert queue.count("ticks") == 1


def test_job_with_jitter_is_scheduled_after_its_instant(queue, maintenance):
    make(queue, options='{"jitter": 3600}')
    maintenance.run()
    assert queue.run("SELECT s.run_at > t.at FROM jobherd.scheduled s JOIN jobherd.ticks t ON t.job = s.id") == [
        (True,)
    ]


def test_edit_between_query_and_decision_wins(queue, maintenance, monkeypatch):
    make(queue)
    real = Session.run

    def edited(self, name, parameters=None):
        if name == "schedule/tick_schedules":
            monkeypatch.setattr(Session, "run", real)
            queue.run("UPDATE jobherd.schedules SET revision = revision + 1, payload = '{\"new\": 1}'")
        return real(self, name, parameters)

    monkeypatch.setattr(Session, "run", edited)
    maintenance.run()
    assert queue.count("ticks") == 0, "the instant was decided with an old definition"
    maintenance.run()
    assert queue.run("SELECT payload FROM jobherd.ready") == [({"new": 1},)]


def test_schedule_locked_by_another_process_is_skipped(queue, maintenance):
    make(queue, "one")
    make(queue, "two")
    with psycopg.connect(queue.dsn) as other:
        other.execute("SELECT FROM jobherd.schedules WHERE name = 'one' FOR UPDATE")
        maintenance.run()
        assert (decided(queue, "one"), decided(queue, "two")) == ([], ["ran"])
    maintenance.run()
    assert decided(queue, "one") == ["ran"]


def test_instant_has_one_job_even_after_a_restored_backup(queue, maintenance):
    make(queue)
    before = queue.run("SELECT next_at FROM jobherd.schedules")[0][0]
    maintenance.run()
    queue.run("UPDATE jobherd.schedules SET next_at = %s, last_at = NULL", before)
    maintenance.run()
    assert queue.count("ready") == 1
    assert queue.run("SELECT next_at > %s FROM jobherd.schedules", before) == [(True,)]


def test_instants_of_an_outage_are_decided_in_parts(queue, maintenance, monkeypatch):
    monkeypatch.setattr(schedules, "_INSTANTS", 70)
    for name in "abc":
        make(queue, name, every=1.0)
    queue.run("UPDATE jobherd.schedules SET next_at = next_at - interval '50 s'")
    sent = []
    run = maintenance._session.run
    monkeypatch.setattr(maintenance._session, "run", lambda name, wanted=None: sent.append(name) or run(name, wanted))
    maintenance.run()
    assert sent.count("schedule/tick_schedules") == 3
    assert queue.run("SELECT count(*) >= 150, count(*) = count(job) FROM jobherd.ticks") == [(True, True)]


def test_skip_omits_an_instant_that_would_overlap(queue, maintenance):
    make(queue, options='{"overlap": "skip"}')
    maintenance.run()
    again(queue)
    maintenance.run()
    assert decided(queue) == ["ran", "overlapped"]
    [job] = queue.run("SELECT id FROM jobherd.ready")
    assert queue.run("SELECT because FROM jobherd.ticks WHERE decided = 'overlapped'") == [job]
    finish(queue)
    again(queue)
    maintenance.run()
    assert decided(queue) == ["ran", "overlapped", "ran"]


def finish(queue):
    child = queue.child()
    [job] = child.claim(1)
    child.settle(job.token, [job.id], "ok")


def test_queue_merges_later_instants_into_the_held_one(queue, maintenance):
    make(queue, options='{"overlap": "queue"}')
    maintenance.run()
    for _ in range(3):
        again(queue)
        maintenance.run()
    assert decided(queue) == ["ran", "held", "merged", "merged"]
    assert queue.count("ready") == 1
    finish(queue)
    maintenance.run()
    assert queue.run("SELECT (extras).schedule -> 'missed' FROM jobherd.ready") == [(2,)]


def test_replace_cancels_the_earlier_job_and_runs_when_it_has_ended(queue, maintenance):
    make(queue, options='{"overlap": "replace"}')
    maintenance.run()
    [first] = queue.run("SELECT id FROM jobherd.ready")
    child = queue.child()
    [claimed] = child.claim(1)
    again(queue)
    maintenance.run()
    assert queue.run("SELECT job FROM jobherd.cancels") == [first]
    again(queue)
    maintenance.run()
    assert decided(queue) == ["ran", "merged", "held"]
    child.settle(claimed.token, [claimed.id], "cancelled")
    maintenance.run()
    assert decided(queue) == ["ran", "merged", "ran"]
    assert queue.count("ready") == 1


def test_replace_cancels_a_ready_job_at_once(queue, maintenance):
    make(queue, options='{"overlap": "replace"}')
    maintenance.run()
    again(queue)
    maintenance.run()
    assert decided(queue) == ["ran", "ran"]
    assert queue.run("SELECT state FROM jobherd.history") == [("cancelled",)]
    assert queue.count("ready") == 1


def test_manual_run_does_not_hide_an_unfinished_job(queue, maintenance):
    make(queue, options='{"overlap": "skip"}')
    maintenance.run()
    queue.run("SELECT jobherd.run_schedule('feed')")
    maintenance.run()
    child = queue.child()
    first, second = child.claim(2)
    child.settle(second.token, [second.id], "ok")
    again(queue)
    maintenance.run()
    assert queue.run("SELECT because FROM jobherd.ticks WHERE decided = 'overlapped'") == [(first.id,)]


def test_manual_run_counts_as_the_earlier_job_if_no_other_job_is_unfinished(queue, maintenance):
    make(queue, options='{"overlap": "skip"}')
    queue.run("SELECT jobherd.run_schedule('feed')")
    maintenance.run()
    [(job,)] = queue.run("SELECT id FROM jobherd.ready")
    assert queue.run("SELECT because FROM jobherd.ticks WHERE decided = 'overlapped'") == [(job,)]


def test_schedule_that_cannot_be_planned_stores_its_error(queue, maintenance):
    queue.run("INSERT INTO jobherd.schedules (name, kind, cron) VALUES ('bad', 'a:b', '99 * * * *')")
    make(queue)
    maintenance.run()
    assert decided(queue) == ["ran"]
    assert "minute must be" in queue.run("SELECT error FROM jobherd.schedules WHERE name = 'bad'")[0][0]
    assert maintenance.due_at > 0


def test_schedule_whose_time_zone_this_host_lacks_is_left_to_another_host(queue, maintenance):
    make(queue, cron="* * * * *", every=None, tz="Mars/Base")
    maintenance.run()
    assert queue.run("SELECT error, next_at IS NOT NULL FROM jobherd.schedules") == [(None, True)]


def supervisor(queue, began="now()", lease="1 h"):
    return queue.run(
        "INSERT INTO jobherd.supervisors (host, machine, pid, pid_started, version, started_at, lease_until)"
        f" VALUES ('h', 'm', 1, 1, '0', {began}, now() + %s::interval) RETURNING id",
        lease,
    )[0][0]


def declare(queue, number, *schedules):
    text = json.dumps([one.definition("a:b") for one in schedules])
    return queue.connection.execute(
        queue.text("schedule/declare_schedules"), {"supervisor": number, "schedules": text}
    ).fetchall()


def test_declaration_of_the_supervisor_that_started_last_wins(queue, maintenance):
    old, new = supervisor(queue, "now() - interval '1 h'"), supervisor(queue)
    declare(queue, old, Schedule("feed", every="1h"))
    maintenance.run()
    declare(queue, new, Schedule("feed", every="2h"))
    declare(queue, old, Schedule("feed", every="1h"))  # by a restarted worker of the old supervisor
    assert queue.run("SELECT every FROM jobherd.schedules") == [(7200,)]
    rolled_back = supervisor(queue, "now() + interval '1 s'")
    declare(queue, rolled_back, Schedule("feed", every="1h"))
    assert queue.run("SELECT every, plan_from IS NOT NULL FROM jobherd.schedules") == [(3600, True)]


def test_repeated_declaration_writes_nothing(queue, maintenance):
    number = supervisor(queue)
    declare(queue, number, Schedule("feed", cron="@daily", payload={"a": [1]}))
    before = queue.run("SELECT ctid, revision FROM jobherd.schedules")
    declare(queue, number, Schedule("feed", cron="@daily", payload={"a": [1]}))
    assert queue.run("SELECT ctid, revision FROM jobherd.schedules") == before


def test_declaration_waits_for_no_open_transaction(queue):
    number = supervisor(queue)
    declare(queue, number, Schedule("feed", every="1h"))
    with psycopg.connect(queue.dsn) as other:
        other.execute("UPDATE jobherd.schedules SET revision = revision + 1")
        assert declare(queue, number, Schedule("feed", every="2h")) == [("feed",)]
    assert declare(queue, number, Schedule("feed", every="2h")) == []


def postpone(queue, number, *schedules):
    """Declare as a worker does, while an open transaction has locked the schedule `feed`."""
    with psycopg.connect(queue.dsn) as other:
        other.execute("UPDATE jobherd.schedules SET revision = revision + 1 WHERE name = 'feed'")
        assert declare(queue, number, *schedules) == [("feed",)]
    text = json.dumps([one.definition("a:b") for one in schedules])
    queue.connection.execute(queue.text("schedule/postpone_declarations"), {"supervisor": number, "schedules": text})


def test_maintenance_process_stores_postponed_declarations(queue, maintenance):
    number = supervisor(queue)
    declare(queue, number, Schedule("feed", every="1h"))
    postpone(queue, number, Schedule("feed", every="2h"), Schedule("later", every="3h"))
    maintenance.retire()
    assert queue.run("SELECT name, every FROM jobherd.schedules ORDER BY name") == [("feed", 7200), ("later", 10800)]
    assert queue.run("SELECT count(*) FROM jobherd.declarations WHERE pending IS NOT NULL") == [(0,)]
    assert queue.count("declarations") == 2


def test_later_worker_of_the_supervisor_withdraws_a_postponed_declaration(queue, maintenance):
    """After a reload, a declaration that an earlier worker postponed is outdated."""
    number = supervisor(queue)
    declare(queue, number, Schedule("feed", every="1h"))
    postpone(queue, number, Schedule("feed", every="2h"))

    @handler("a:b", schedules=[Schedule("feed", every="1h")])
    def reloaded() -> None: ...

    declare_all(Session(queue), number, {"a:b": reloaded})
    maintenance.retire()
    assert queue.run("SELECT every FROM jobherd.schedules") == [(3600,)]


def test_worker_postpones_a_declaration_whose_schedule_is_locked(queue, maintenance):
    number = supervisor(queue)
    declare(queue, number, Schedule("feed", every="1h"))

    @handler("a:b", schedules=[Schedule("feed", every="2h")])
    def changed() -> None: ...

    with psycopg.connect(queue.dsn) as other:
        other.execute("SELECT FROM jobherd.schedules FOR UPDATE")
        declare_all(Session(queue), number, {"a:b": changed})
    maintenance.retire()
    assert queue.run("SELECT every FROM jobherd.schedules") == [(7200,)]


def test_postponed_declaration_that_the_table_rejects_does_not_block_the_others(queue, maintenance):
    number = supervisor(queue)
    declare(queue, number, Schedule("feed", every="1h"), Schedule("large", every="1h"))
    postpone(queue, number, Schedule("feed", every="2h"), Schedule("large", every="2h"), Schedule("rare", every="3h"))
    queue.run(
        "UPDATE jobherd.declarations SET pending = pending || CASE schedule"
        " WHEN 'large' THEN jsonb_build_object('payload', jsonb_build_object('a', repeat('x', 100000)))"
        " WHEN 'rare' THEN '{\"every\": 1e10}' ELSE '{}' END"
    )
    notices = []
    queue.connection.add_notice_handler(lambda notice: notices.append((notice.severity, notice.message_primary)))
    maintenance.retire()
    assert queue.run("SELECT name, every FROM jobherd.schedules ORDER BY name") == [("feed", 7200), ("large", 3600)]
    assert [(level, text.partition(": new row")[0]) for level, text in notices] == [
        ("WARNING", "jobherd: schedule large is not stored"),
        ("WARNING", "jobherd: schedule rare is not stored"),
    ]
    assert queue.run("SELECT schedule, pending FROM jobherd.declarations ORDER BY 1") == [
        ("feed", None), ("large", None), ("rare", None)
    ]  # fmt: skip


def test_postponed_declaration_waits_for_the_lock_and_loses_to_a_later_supervisor(queue, maintenance):
    number = supervisor(queue)
    declare(queue, number, Schedule("feed", every="1h"))
    postpone(queue, number, Schedule("feed", every="2h"))
    with psycopg.connect(queue.dsn) as other:
        other.execute("SELECT FROM jobherd.schedules FOR UPDATE")
        maintenance.retire()
    assert queue.run("SELECT every FROM jobherd.schedules") == [(3600,)]
    declare(queue, supervisor(queue, "now() + interval '1 s'"), Schedule("feed", every="5h"))
    maintenance.retire()
    assert queue.run("SELECT every FROM jobherd.schedules") == [(18000,)]


def test_edit_by_a_user_overrides_the_handlers_declaration(queue):
    number = supervisor(queue)
    declare(queue, number, Schedule("feed", every="1h"))
    queue.run("UPDATE jobherd.schedules SET every = 60, edited_by = 'ann'")
    declare(queue, number, Schedule("feed", every="2h"))
    assert queue.run("SELECT every, declared ->> 'every' FROM jobherd.schedules") == [(60, "7200.0")]


def test_instant_due_before_an_edit_is_recorded_as_edited(queue, maintenance):
    number = supervisor(queue)
    declare(queue, number, Schedule("feed", every="1h"))
    queue.run("UPDATE jobherd.schedules SET plan_from = NULL, next_at = now() - interval '1 s'")
    declare(queue, number, Schedule("feed", every="2h"))
    assert decided(queue) == ["edited"]


def test_undeclared_schedule_is_retired_and_later_returns_without_its_missed_runs(queue, maintenance):
    number = supervisor(queue)
    declare(queue, number, Schedule("feed", every="1h"))
    maintenance.run()
    declare(queue, number)  # a reload removed the handler
    maintenance.retire()
    maintenance.retire()
    assert queue.run("SELECT retired_at FROM jobherd.schedules") == [(None,)], (
        "not at once: another supervisor may declare it"
    )
    queue.run("UPDATE jobherd.schedules SET undeclared_at = now() - interval '11 min'")
    maintenance.retire()
    assert queue.run("SELECT retired_at IS NOT NULL FROM jobherd.schedules") == [(True,)]
    queue.run("UPDATE jobherd.schedules SET next_at = now() - interval '5 h'")
    maintenance.run()
    assert queue.count("ticks") == 0
    declare(queue, number, Schedule("feed", every="1h"))
    maintenance.run()
    assert queue.run("SELECT decided, missed FROM jobherd.ticks") == [("retired", 5)]
    assert queue.count("ready") == 0


def test_schedule_created_by_a_user_is_never_retired(queue, maintenance):
    make(queue, due=False)
    maintenance.retire()
    queue.run("UPDATE jobherd.schedules SET undeclared_at = now() - interval '11 min'")
    maintenance.retire()
    assert queue.run("SELECT count(*) FROM jobherd.schedules WHERE retired_at IS NULL") == [(1,)]


def test_schedule_is_planned_again_with_other_time_zone_data(queue):
    make(queue, due=False, cron="0 0 1 1 *", every=None, planned_with="1999z")
    before = queue.run("SELECT next_at FROM jobherd.schedules")
    Schedules(Session(queue), "test/1").note(5.0)
    Schedules(Session(queue), "test/1").run()
    assert queue.run("SELECT next_at FROM jobherd.schedules") != before


def test_instants_older_than_30_days_are_deleted(queue):
    queue.run(
        "INSERT INTO jobherd.ticks (schedule, at, decided, noted_at) SELECT 'feed', now() - d * interval '1 day', 'missed',"
        " now() - d * interval '1 day' FROM generate_series(25, 40) AS d"
    )
    queue.connection.execute(queue.text("schedule/delete_ticks"), {"most": 100})
    assert queue.count("ticks") == 5


def test_nothing_is_due_without_schedules_or_if_all_are_paused(queue):
    assert queue.run("SELECT jobherd.schedules_due_in()") == [(None,)]
    make(queue, due=False)
    queue.run("UPDATE jobherd.schedules SET paused_at = now()")
    assert queue.run("SELECT jobherd.schedules_due_in()") == [(float("inf"),)]


def test_user_creates_edits_pauses_runs_and_deletes_a_schedule(queue, maintenance):
    assert queue.run(
        "SELECT jobherd.schedule('mine', 'a:b', every => '1 hour', options => '{\"jitter\": \"1 min\"}', actor => 'ann')"
    ) == [("created",)]
    assert queue.run("SELECT every, options, edited_by FROM jobherd.schedules") == [(3600, {"jitter": 60}, "ann")]
    maintenance.run()
    assert queue.run("SELECT jobherd.schedule('mine', every => '1 hour')") == [("unchanged",)]
    [(planned,)] = queue.run("SELECT next_at FROM jobherd.schedules")
    assert queue.run("SELECT jobherd.schedule('mine', payload => '{\"a\": 1}', options => '{\"jitter\": null}')") == [
        ("changed",)
    ]
    maintenance.run()
    assert queue.run("SELECT next_at, options FROM jobherd.schedules") == [(planned, {})], (
        "an edit of the payload keeps the timing"
    )
    queue.run("SELECT jobherd.pause_schedule('mine', 'too many', actor => 'ann')")
    [(at,)] = queue.run("SELECT jobherd.run_schedule('mine')")
    maintenance.run()
    assert queue.run("SELECT decided, at, job IS NULL FROM jobherd.ticks") == [("manual", at, False)]
    queue.run("UPDATE jobherd.schedules SET next_at = now() - interval '90 min'")
    assert queue.run("SELECT jobherd.resume_schedule('mine'), jobherd.resume_schedule('mine')") == [(True, False)]
    maintenance.run()
    assert queue.run("SELECT missed FROM jobherd.ticks WHERE decided = 'paused'") == [(1,)]
    assert queue.run("SELECT jobherd.unschedule('mine'), jobherd.unschedule('mine')") == [(True, False)]
    actions = [one[0] for one in queue.run("SELECT action FROM jobherd.audit ORDER BY id")]
    assert actions == ["schedule", "schedule", "pause schedule", "run schedule", "resume schedule", "unschedule"]


def test_pause_ends_at_its_given_time(queue, maintenance):
    make(queue, due=False)
    queue.run("SELECT jobherd.pause_schedule('feed', until => now() - interval '1 s')")
    maintenance.run()
    assert queue.run("SELECT paused_at FROM jobherd.schedules") == [(None,)]


def test_backfill_runs_the_instants_without_a_job(queue, maintenance):
    make(queue, every=3600.0, due=False)
    with queue.connection.transaction():  # one value of now(): no full hour passes between the statements
        queue.run(
            "INSERT INTO jobherd.ticks (schedule, at, decided) VALUES ('feed', date_trunc('hour', now(), 'UTC'), 'missed')"
        )
        queue.run(
            "INSERT INTO jobherd.ticks (schedule, at, decided, job) VALUES ('feed', date_trunc('hour', now(), 'UTC') - interval '1 h', 'ran', 7)"
        )
        queue.run(
            "SELECT jobherd.backfill_schedule('feed', date_trunc('hour', now(), 'UTC') - interval '2 h', now(), 10)"
        )
    maintenance.run()
    assert decided(queue) == ["backfilled", "ran", "backfilled"]
    assert queue.count("ready") == 2
    assert queue.run("SELECT backfill FROM jobherd.schedules") == [(None,)]


def test_reset_restores_the_handlers_declaration(queue):
    declare(queue, supervisor(queue), Schedule("feed", every="1h", payload={"a": 1}))
    queue.run("SELECT jobherd.schedule('feed', cron => '@daily', payload => '{}')")
    queue.run("SELECT jobherd.reset_schedule('feed')")
    assert queue.run("SELECT cron, every, payload, edited_by FROM jobherd.schedules") == [(None, 3600, {"a": 1}, None)]


def run_and_end(queue, maintenance, outcome):
    """Run the next instant and end its job with the outcome."""
    if queue.count("ticks"):
        again(queue)
    maintenance.run()
    child = queue.child()
    [job] = child.claim(1)
    child.settle(job.token, [job.id], outcome, code="ValueError", error="no file")
    return job.id


def is_paused(queue):
    return queue.run("SELECT paused_at IS NOT NULL FROM jobherd.schedules")[0][0]


def test_consecutive_failed_runs_pause_a_schedule_before_its_next_instant(queue, maintenance):
    make(queue, options='{"pause_after": 2}')
    for outcome in ("failed", "ok", "failed", "cancelled", "failed"):
        last = run_and_end(queue, maintenance, outcome)
    again(queue)
    maintenance.run()
    reason = f"2 failed runs in a row, the last one is job {last} (ValueError)"
    assert queue.run("SELECT paused_by, pause_reason FROM jobherd.schedules") == [("maintenance", reason)]
    assert queue.count("ready") == 0, "no further run"
    assert queue.run("SELECT actor, action, target, reason FROM jobherd.audit") == [
        ("maintenance", "pause schedule", {"schedule": "feed"}, reason)
    ]
    queue.run("SELECT jobherd.resume_schedule('feed')")
    maintenance.run()
    run_and_end(queue, maintenance, "failed")
    assert maintenance.pause_failing() == 0, "failures from before the pause do not count again"
    run_and_end(queue, maintenance, "failed")
    assert maintenance.pause_failing() == 1, "even if no instant is due"


def test_failed_runs_reads_about_1000_of_many_old_runs(queue):
    queue.run(
        "INSERT INTO jobherd.ticks (schedule, at, decided, job, noted_at)"
        " SELECT 'feed', now() - n * interval '1 s', 'ran', n, now() - n * interval '1 s' FROM generate_series(1, 5000) AS n"
    )
    queue.run("ANALYZE jobherd.ticks")
    read = "SELECT pg_stat_get_xact_tuples_returned('jobherd.ticks_pkey'::regclass)"
    with queue.connection.transaction():
        before = queue.run(read)[0][0]
        assert queue.run("SELECT jobherd.failed_runs('feed', now(), 3)") == [([],)]
        assert queue.run(read)[0][0] - before == 1003


def test_unfinished_or_retried_run_does_not_count_as_failed(queue, maintenance):
    make(queue, options='{"pause_after": 1}')
    maintenance.run()
    assert maintenance.pause_failing() == 0
    child = queue.child()
    [job] = child.claim(1)
    child.settle(job.token, [job.id], "failed", code="ValueError", error="no file")
    queue.run("SELECT jobherd.retry(%s)", job.id)
    assert maintenance.pause_failing() == 0
    queue.run("DELETE FROM jobherd.ready")
    assert maintenance.pause_failing() == 0, "the job is not in the history"


def test_schedule_without_pause_after_is_never_paused(queue, maintenance):
    make(queue)
    for _ in range(3):
        run_and_end(queue, maintenance, "failed")
    assert maintenance.pause_failing() == 0


def test_user_can_run_a_schedule_that_failures_have_paused(queue, maintenance):
    make(queue, options='{"pause_after": 1}')
    run_and_end(queue, maintenance, "failed")
    queue.run("SELECT jobherd.run_schedule('feed')")
    maintenance.run()
    assert (is_paused(queue), queue.count("ready")) == (True, 0)
    maintenance.run()
    assert (is_paused(queue), queue.count("ready")) == (True, 1)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("jobherd.schedule('Feed', 'a:b', '@daily')", "is not a name"),
        ("jobherd.schedule('feed', 'a:b')", "needs a kind, and cron or every"),
        ("jobherd.schedule('feed', cron => '@daily')", "needs a kind, and cron or every"),
        ("jobherd.schedule('feed', 'a:b', '* * * *')", "does not have 5 fields"),
        ("jobherd.schedule('feed', 'a:b', '@daily', '1 h')", "exclude each other"),
        ("jobherd.schedule('feed', 'a:b', every => 'soon')", "is not a period"),
        ("jobherd.schedule('feed', 'a:b', every => '0.5')", "at least 1 second"),
        ("jobherd.schedule('feed', 'a:b', '@daily', payload => '[]')", "must be a JSON object"),
        ("jobherd.schedule('feed', 'a:b', '@daily', options => '{\"x\": 1}')", 'unknown option "x"'),
        (
            "jobherd.schedule('feed', 'a:b', '@daily', options => '{\"overlap\": \"no\"}')",
            'option "overlap" has a bad value',
        ),
        (
            "jobherd.schedule('feed', 'a:b', '@daily', options => '{\"priority\": 99999}')",
            'option "priority" has a bad value',
        ),
        (
            "jobherd.schedule('feed', 'a:b', '@daily', options => '{\"pause_after\": 0}')",
            'option "pause_after" has a bad value',
        ),
        ("jobherd.pause_schedule('none')", "there is no schedule 'none'"),
        ("jobherd.run_schedule(NULL)", "there is no schedule null"),
        ("jobherd.backfill_schedule('there', now() - interval '40 days', now())", "is not possible"),
        ("jobherd.reset_schedule('there')", "no handler declares"),
    ],
)
def test_invalid_schedule_call_is_rejected_with_a_reason(queue, call, says):
    make(queue, "there", due=False)
    with pytest.raises(psycopg.Error) as caught:
        queue.run(f"SELECT {call}")
    assert says in str(caught.value)
