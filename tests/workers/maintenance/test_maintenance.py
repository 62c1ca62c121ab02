"""The maintenance process's duties, each seen in the database."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from jobherd import sql
from jobherd.workers.ipc.pipes import EXIT_REQUESTED
from jobherd.workers.maintenance.maintenance import MOST, Maintenance
from jobherd.workers.maintenance.partitions import Partitions
from jobherd.workers.maintenance.rollup import LAG, Looks
from jobherd.workers.maintenance.vacuum import DEAD, VACUUMS, Vacuum
from tests.support.gate import Gate
from tests.support.patience import LIMIT
from tests.support.processes import wait_for_exit
from tests.support.seats import Bench, wait_for_line


def test_a_scheduled_job_becomes_ready_at_its_time(bench: Bench):
    bench.ask("CREATE TABLE public.moved (late double precision)")
    bench.ask(
        "CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO public.moved VALUES (extract(epoch FROM clock_timestamp() - NEW.run_at)); RETURN NEW; END $$"
    )
    bench.ask("CREATE TRIGGER note BEFORE INSERT ON jobherd.ready FOR EACH ROW EXECUTE FUNCTION public.note()")
    child = bench.start("maintenance")
    jobs = [bench.enqueue("act:nothing", options={"delay": 0.5 + n / 20}) for n in range(10)]
    child.nudge()  # the parent's, on "@due"
    for job in jobs:
        bench.wait(job, "ready")
    late = sorted(row["late"] for row in bench.ask("SELECT late FROM public.moved"))
    assert len(late) == 10
    assert late[0] >= 0
    assert late[-1] < 300, "at their time, and not at the next poll"


def test_an_earlier_job_that_arrives_later_is_not_slept_through(bench: Bench):
    child = bench.start("maintenance")
    bench.enqueue("act:nothing", options={"delay": 3000})
    child.nudge()
    soon = bench.enqueue("act:nothing", options={"delay": 0.2})
    child.nudge()
    bench.wait(soon, "ready")


def test_more_due_jobs_than_one_statement_moves(bench: Bench):
    bench.ask(
        "INSERT INTO jobherd.scheduled (kind, run_at) SELECT 'act:nothing', now() - interval '1 s' FROM generate_series(1, 2500)"
    )
    bench.start("maintenance")
    bench.wait_until(lambda: bench.ask("SELECT count(*) AS n FROM jobherd.ready")[0]["n"] == 2500, "all of them")


def test_a_lost_nudge_costs_a_poll_and_no_job(bench: Bench):
    bench.start("maintenance", poll=0.2)
    job = bench.enqueue("act:nothing", options={"delay": 0.3})
    bench.wait(job, "ready")


def test_running_jobs_whose_child_is_registered_nowhere_are_given_back(bench: Bench, gate: Gate):
    worker = bench.start()
    job = bench.enqueue("act:gated", name="a")
    worker.nudge()
    gate.wait_arrival("a")
    bench.ask("DELETE FROM jobherd.children")
    maintenance = bench.start("maintenance", sweep=0.05)
    assert bench.wait(job, "retrying")["attempts"] == 1  # nobody knows whether it had started
    wait_for_line(maintenance, f"jobs={job}")


def test_running_jobs_of_living_children_are_left_alone(bench: Bench, gate: Gate):
    worker = bench.start()
    job = bench.enqueue("act:gated", name="a")
    worker.nudge()
    arrival = gate.wait_arrival("a")
    maintenance = bench.start("maintenance", sweep=0.01)
    soon = bench.enqueue("act:nothing", options={"delay": 0.3})
    maintenance.nudge()
    bench.wait(soon, "ready")
    assert bench.job(job)["state"] == "running"
    arrival.open()
    bench.wait(job, "completed")


def days_of(bench: Bench, table: str) -> list[int]:
    """Return for how many days from today that table has partitions."""
    return [
        row["day"]
        for row in bench.ask(
            "SELECT to_date(right(inhrelid::regclass::text, 8), 'YYYYMMDD') - (now() AT TIME ZONE 'UTC')::date AS day"
            f" FROM pg_inherits WHERE inhparent = 'jobherd.{table}'::regclass AND inhrelid::regclass::text !~ '_default$' ORDER BY 1"
        )
    ]


def test_partitions_that_outcomes_need_are_there_when_it_is_ready_and_the_others_once_no_job_runs(
    bench: Bench, gate: Gate, monkeypatch: pytest.MonkeyPatch
):
    """All of them took a second of processor time, in which the first jobs of a new database were slowed down."""
    monkeypatch.setattr("jobherd.workers.maintenance.partitions._BUSY", 0.01)
    bench.ask(
        "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed)"
        " VALUES ('act:other', 'default', 0, 5, 3, 3, 30)"
    )
    worker = bench.start()
    job = bench.enqueue("act:gated", name="a")
    worker.nudge()
    arrival = gate.wait_arrival("a")
    maintenance = bench.start("maintenance")
    for table in ("history", "attempts"):
        assert days_of(bench, table) == [3, 4, 7, 8, 30, 31]
    soon = bench.enqueue("act:nothing", options={"delay": 0.3})
    maintenance.nudge()
    bench.wait(soon, "ready")
    assert len(days_of(bench, "history")) == 6
    arrival.open()
    bench.wait(job, "completed")
    bench.wait_until(lambda: "made" in maintenance.log(), "all partitions")
    for table in ("history", "attempts"):
        assert days_of(bench, table) == list(range(1, 33))


def test_the_charts_of_a_new_database_do_not_wait_until_no_job_runs(bench: Bench, gate: Gate):
    """A fleet that was never idle saw no chart for three minutes."""
    worker, other = bench.start(), bench.start()
    bench.enqueue("act:gated", name="a")
    worker.nudge()
    arrival = gate.wait_arrival("a")
    bench.start("maintenance")  # it is ready once there are the partitions that outcomes need
    job = bench.enqueue("act:nothing")
    for each in (worker, other):  # Either may have the gated job: a worker also looks when it starts.
        each.nudge()
    bench.wait(job, "completed")
    bench.wait_until(lambda: bench.ask("SELECT sum(completed) AS n FROM jobherd.rollup") == [{"n": 1}], "the count")
    assert len(days_of(bench, "history")) < 32, "the other partitions wait for a moment without a running job"
    arrival.open()


def test_finished_jobs_are_not_counted_while_their_rows_may_move(bench: Bench, gate: Gate):
    """A row that moves to a new partition would be counted again."""
    bench.ask(
        "INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, priority, attempts, crashes, state, queue, kind, payload)"
        " VALUES (1, now(), now(), now(), (now() AT TIME ZONE 'UTC')::date + 20, 0, 1, 0, 'completed', 'default', 'act:nothing', '{}')"
    )
    worker = bench.start()
    bench.enqueue("act:gated", name="a")
    worker.nudge()
    arrival = gate.wait_arrival("a")
    days = {"least": 32, "most": 400, "crowded": 64 << 20}
    maintenance = bench.start("maintenance")
    [found] = bench.ask(sql.load("maintenance/count_days_ahead"), **days)
    assert (found["needed"], found["vacant"], found["busy"]) == (0, False, True)
    partitions = Partitions(SimpleNamespace(run=lambda *_, **__: [tuple(found.values())]))
    partitions.keep(128.0)
    assert not partitions.rows_stay
    assert bench.ask("SELECT count(*) AS n FROM jobherd.rollup") == [{"n": 0}]
    arrival.open()
    bench.wait_until(lambda: "made" in maintenance.log(), "all partitions")


def test_partitions_are_made_a_few_at_a_time_beside_a_fleet_that_is_never_idle(monkeypatch: pytest.MonkeyPatch):
    clock = [128.0]
    missing = [6]

    class Busy:
        def run(self, statement, parameters=None, **_how):
            if statement == "maintenance/count_days_ahead":
                return [(32, False, None, missing[0], 0, True, False)]
            made = min(2, missing[0])
            missing[0] -= made
            return [(made, 0)]

        def with_patience(self, _patience):
            return nullcontext()

    monkeypatch.setattr("jobherd.workers.maintenance.partitions.time", SimpleNamespace(monotonic=lambda: clock[0]))
    partitions = Partitions(Busy())
    assert not partitions.keep(clock[0], ready=False)
    seen = []
    while not partitions.complete:
        partitions.keep(clock[0])
        seen.append((clock[0] - 128.0, missing[0]))
        assert partitions.due_at > clock[0], "they leave time for settlements"
        clock[0] = partitions.due_at
    assert [left for at, left in seen if at < 60] == [6] * 12
    assert [left for at, left in seen if at >= 60] == [4, 2, 0, 0]


def test_partitions_reach_as_far_as_jobs_are_kept_once_the_default_one_is_crowded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    """Each day's rows would be looked for in all that is kept for longer than a month, and nobody settled meanwhile."""
    bench.ask(
        "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed)"
        " VALUES ('act:nothing', 'default', 0, 5, 3, 31, 7)"
    )
    bench.ask(
        "INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, priority, attempts, crashes, state, queue, kind, payload)"
        " SELECT n, now(), now(), now(), (now() AT TIME ZONE 'UTC')::date + 33, 0, 1, 0, 'completed', 'default', 'act:nothing', '{}'"
        " FROM generate_series(1, 100) AS n"
    )
    crowd = "SELECT count(*) AS n FROM jobherd.history_default"
    parts = "SELECT count(*) AS n FROM pg_inherits WHERE inhparent = 'jobherd.history'::regclass"
    bench.start("maintenance").dismiss()
    assert bench.ask(crowd) == [{"n": 100}], "a few need no partition for each day"
    # It is to be ready soon, or it is ended, its look with it, and starts again for ever: nothing
    # would become due.
    bench.ask(
        "CREATE FUNCTION public.wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " WHILE NOT pg_try_advisory_xact_lock(4711) LOOP PERFORM pg_sleep(0.01); END LOOP; RETURN NULL; END $$"
    )
    bench.ask(
        "CREATE TRIGGER wait BEFORE DELETE ON jobherd.history_default FOR EACH STATEMENT EXECUTE FUNCTION public.wait()"
    )
    bench.ask("SELECT pg_advisory_lock(4711)")
    monkeypatch.setattr("jobherd.workers.maintenance.partitions.CROWDED", 0)
    maintenance = bench.start("maintenance")
    bench.ask("SELECT pg_advisory_unlock(4711)")
    bench.wait_until(lambda: "made" in maintenance.log(), "all partitions")
    assert bench.ask(crowd) == [{"n": 0}]
    assert bench.ask(parts) == [{"n": 34}]


def test_partitions_are_no_more_than_the_server_has_locks_for(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Who looks at one job locks each of them.

    With a year of days four at once were rejected, and with them every settlement.
    """
    bench.ask(
        "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed)"
        " VALUES ('act:nothing', 'default', 0, 5, 3, 7, 36500)"
    )
    [room] = bench.ask(
        "SELECT current_setting('max_locks_per_transaction')::float * current_setting('max_connections')::float / 70 AS days"
    )
    [found] = bench.ask(sql.load("maintenance/count_days_ahead"), least=3, most=100_000, crowded=0)
    assert found["days"] == int(room["days"])
    assert (
        found["locks"] * room["days"] / int(bench.ask("SHOW max_locks_per_transaction")[0]["max_locks_per_transaction"])
        >= 36502
    )
    assert bench.ask(sql.load("maintenance/count_days_ahead"), least=3, most=5, crowded=0) == [
        {"days": 5, "crowded": True, "locks": None, "missing": 10, "needed": 0, "busy": False, "vacant": True}
    ]
    monkeypatch.setattr("jobherd.workers.maintenance.partitions.CROWDED", 0)
    monkeypatch.setattr("jobherd.workers.maintenance.partitions.FARTHEST", 100_000)
    # another maintenance process is at it: this is about what it says
    bench.ask("SELECT pg_advisory_lock(hashtext('jobherd.keep_partitions'))")
    wait_for_line(bench.start("maintenance"), "set the server's max_locks_per_transaction to")


def test_partitions_that_take_long_to_make_leave_time_to_settle_between_them(monkeypatch: pytest.MonkeyPatch):
    clock = [128.0]

    class Crowded:
        def run(self, statement, parameters=None, **_how):
            if statement == "maintenance/count_days_ahead":
                return [(90, True, None, 180, 0, False, False)]
            clock[0] += took
            return [(2, 0)]

        def with_patience(self, _patience):
            return nullcontext()

    monkeypatch.setattr("jobherd.workers.maintenance.partitions.time", SimpleNamespace(monotonic=lambda: clock[0]))
    partitions = Partitions(Crowded())
    took = 0.5
    assert partitions.keep(clock[0])
    assert partitions.due_at == 0, "at once"
    took = 32.0
    assert partitions.keep(clock[0])
    assert partitions.due_at == clock[0] + 10 * took


def test_it_works_while_another_one_looks_through_the_default_partition(bench: Bench):
    """That may take minutes.

    It would be ended for not being ready, again and again, and of two maintenance processes none would see what
    becomes due.
    """
    import psycopg

    with psycopg.connect(bench.dsn) as other:
        other.execute("SELECT pg_advisory_xact_lock(hashtext('jobherd.keep_partitions'))")
        other.execute("LOCK TABLE ONLY jobherd.history_default IN ACCESS EXCLUSIVE MODE")
        maintenance = bench.start("maintenance")
        job = bench.enqueue("act:nothing", options={"delay": 0.1})
        maintenance.nudge()
        bench.wait_until(lambda: bench.ask("SELECT id FROM jobherd.ready") == [{"id": job}], "the job due")


def test_a_reader_of_the_past_does_not_keep_it_from_its_work(bench: Bench):
    import psycopg

    with psycopg.connect(bench.dsn) as reader:
        reader.execute("SELECT * FROM jobherd.history")
        maintenance = bench.start("maintenance")
        assert "partitions are not kept yet" in maintenance.log()
        job = bench.enqueue("act:nothing", options={"delay": 0.1})
        maintenance.nudge()
        bench.wait(job, "ready")


def test_a_day_of_logs_that_falls_due_makes_no_due_job_wait(bench: Bench):
    bench.ask("CREATE TABLE public.moved (left_over bigint)")
    bench.ask(
        "CREATE FUNCTION public.come_due() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO jobherd.scheduled (kind, run_at) SELECT 'act:nothing', now() WHERE NOT EXISTS (SELECT FROM public.moved); RETURN NULL; END $$"
    )
    bench.ask(
        "CREATE TRIGGER come_due AFTER DELETE ON jobherd.logs FOR EACH STATEMENT EXECUTE FUNCTION public.come_due()"
    )
    bench.ask(
        "CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO public.moved SELECT count(*) FROM jobherd.logs; RETURN NULL; END $$"
    )
    bench.ask("CREATE TRIGGER note AFTER INSERT ON jobherd.ready FOR EACH ROW EXECUTE FUNCTION public.note()")
    bench.ask(
        "INSERT INTO jobherd.logs (job, token, attempt, at, drop_on, output)"
        f" SELECT n, n, 1, now(), '2020-02-29', 'said' FROM generate_series(1, {20 * MOST}) AS n"
    )
    bench.start("maintenance", poll=0.001)  # it looks for due jobs in each turn
    bench.wait_until(lambda: not bench.ask("SELECT FROM jobherd.logs LIMIT 1"), "all logs gone")
    assert bench.ask("SELECT max(left_over) AS n FROM public.moved")[0]["n"] > 0


def test_the_progress_of_a_running_job_is_copied_once_a_second(bench: Bench, gate: Gate):
    worker = bench.start()
    bench.start("maintenance", boards=(worker.board,))
    job = bench.enqueue("act:gated_job", name="a")
    worker.nudge()
    arrival = gate.wait_arrival("a")
    row = bench.wait_until(lambda: (bench.job(job) or {}).get("progress"), "its progress")
    assert row == {"fraction": 0.5, "note": "a", "data": {"half": True}}
    at = bench.ask("SELECT at FROM jobherd.progress")
    assert bench.ask("SELECT at FROM jobherd.progress") == at
    arrival.open()
    bench.wait(job, "completed")


def test_what_has_ended_is_counted_into_the_rollup(bench: Bench):
    bench.ask("CREATE TRIGGER seen AFTER INSERT ON jobherd.rollup FOR EACH STATEMENT EXECUTE FUNCTION public.seen()")
    bench.ask(
        "INSERT INTO jobherd.history (id, created_at, run_at, finished_at, drop_on, priority, attempts, crashes, state, queue, kind, payload)"
        " SELECT n, now(), now(), now() - n * interval '10 min', current_date + 3, 0, 1, 0, 'completed', 'default', 'act:nothing', '{}'"
        " FROM generate_series(1, 100) AS n"
    )
    bench.start("maintenance")
    bench.wait_until(
        lambda: bench.ask("SELECT coalesce(sum(completed), 0) AS n FROM jobherd.rollup")[0]["n"] == 100, "all of them"
    )
    assert bench.ask("SELECT count(*) AS n FROM jobherd.rollup_mark") == [{"n": 1}]


def test_a_look_that_takes_long_is_followed_by_a_rest_and_a_shorter_one():
    looks = Looks()
    looks.done(took=0.01, behind=False)
    assert looks.pause == 10
    span = looks.span
    looks.done(took=0.5, behind=False)
    assert looks.pause == 50
    assert looks.span < span
    for _ in range(10):
        looks.done(took=5.0, behind=False)
    assert looks.pause == 60
    assert looks.span >= looks.pause + 2 * LAG  # or each look would leave something over
    for _ in range(10):
        looks.done(took=0.01, behind=True)
    assert looks.span == 8 * 86400
    assert looks.pause < 1


def test_it_leaves_when_it_is_dismissed_and_on_sigterm(bench: Bench):
    assert bench.start("maintenance").dismiss() == EXIT_REQUESTED
    child = bench.start("maintenance")
    os.kill(child.pid, signal.SIGTERM)
    assert child.wait() == EXIT_REQUESTED


@pytest.mark.parametrize("word", ["dismissal", "SIGTERM"])
def test_it_leaves_when_it_is_told_to_while_it_has_partitions_to_make_before_it_is_ready(
    bench: Bench, monkeypatch, word
):
    """There can be many to make, each may wait for readers of a table, and a drain waits for it."""
    monkeypatch.setattr("jobherd.workers.maintenance.maintenance._AT_FIRST", float("inf"))
    begun = mmap.mmap(-1, 1)

    def endless(_slot, _now, *, ready=True):
        begun[0] = 1
        return not ready

    monkeypatch.setattr(Maintenance, "_keep_partitions", endless)
    child = bench.fork("maintenance")
    bench.wait_until(lambda: begun[0], "the first of them")
    if word == "SIGTERM":
        os.kill(child.pid, signal.SIGTERM)
        assert child.wait() == EXIT_REQUESTED
    else:
        assert child.dismiss() == EXIT_REQUESTED


def test_two_maintenance_processes_on_one_database_do_no_harm(bench: Bench):
    processes = [bench.start("maintenance", sweep=0.01) for _ in range(2)]
    bench.ask(
        "INSERT INTO jobherd.scheduled (kind, run_at) SELECT 'act:nothing', now() + n * interval '1 ms' FROM generate_series(1, 500) AS n"
    )
    for maintenance in processes:
        maintenance.nudge()
    bench.wait_until(
        lambda: (
            bench.ask("SELECT count(DISTINCT id) AS n, count(*) AS m FROM jobherd.ready")[0] == {"n": 500, "m": 500}
        ),
        "all",
    )


def test_its_database_goes_away_and_comes_back(bench: Bench):
    maintenance = bench.start("maintenance")
    bench.ask("SELECT pg_terminate_backend(backend_pid, 10000) FROM jobherd.children")
    job = bench.enqueue("act:nothing", options={"delay": 0.2})
    maintenance.nudge()
    bench.wait(job, "ready")


def test_a_maintenance_process_whose_parent_is_dead_ends_what_is_left_of_the_others(bench: Bench):
    stubborn = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], process_group=0)
    bench.control.publish({"children": [{"slot": 0, "pid": stubborn.pid}, {"slot": 1, "pid": None}]})
    parent, pid = bench.start_orphan_to_be("maintenance")
    before = time.monotonic()
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert stubborn.wait(LIMIT) == -signal.SIGKILL
    assert time.monotonic() - before > 1.4, "they had time to leave by themselves"
    wait_for_exit(pid)


def test_every_table_that_turns_over_is_measured_and_has_its_vacuum(bench: Bench):
    assert {row["relname"] for row in bench.ask(sql.load("maintenance/count_dead_rows"))} == set(VACUUMS)
    for table, statement in VACUUMS.items():
        assert f" jobherd.{table}\n" in sql.load(statement)
        bench.ask(sql.load(statement))


def test_what_died_is_cleared_out_of_the_claims_way(bench: Bench):
    bench.ask("ALTER TABLE jobherd.ready SET (autovacuum_enabled = false)")  # or the server may be there first
    bench.ask(f"INSERT INTO jobherd.ready (kind) SELECT 'act:nothing' FROM generate_series(1, {DEAD + 1000})")
    bench.ask("DELETE FROM jobherd.ready")
    bench.ask("SELECT pg_stat_force_next_flush()")
    vacuums = "SELECT pg_stat_get_vacuum_count('jobherd.ready'::regclass) AS n"  # not those of the server's own accord
    bench.start("maintenance")
    bench.wait_until(lambda: bench.ask(vacuums)[0]["n"] >= 1, "a vacuum")


@pytest.mark.parametrize(
    ("dead", "live", "now", "pays"),
    [
        (DEAD - 1, 0, 1.0, False),
        (DEAD, 0, 1.0, True),
        (DEAD, 1_000_000, 1.0, False),  # it would read the indexes of a million rows for that
        (DEAD + 50_000, 1_000_000, 1.0, True),
    ],
)
def test_a_vacuum_must_pay(dead, live, now, pays):
    assert Vacuum().pays("ready", dead=dead, live=live, now=now) is pays


def test_a_vacuum_in_vain_is_not_repeated_until_twice_as_much_died_or_a_minute_passed():
    clearing = Vacuum()
    clearing.done("ready", left=100_000, begun=10.0, ended=10.5)
    assert clearing.took == 0.5
    assert not clearing.pays("ready", dead=150_000, live=0, now=20.0)
    assert clearing.pays("ready", dead=200_000, live=0, now=20.0)
    assert clearing.pays("ready", dead=150_000, live=0, now=70.5)
    assert clearing.pays("scheduled", dead=150_000, live=0, now=20.0)
