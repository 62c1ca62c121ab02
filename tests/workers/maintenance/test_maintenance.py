"""Tests the duties of the maintenance process by their effects in the database."""

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
from jobherd.workers.maintenance.rollup import LAG, CountPace
from jobherd.workers.maintenance.vacuum import DEAD, VACUUMS, Vacuum
from tests.support.gate import Gate
from tests.support.patience import LIMIT
from tests.support.processes import wait_for_exit
from tests.support.seats import Bench, wait_for_line


def test_scheduled_job_becomes_ready_at_its_time(bench: Bench):
    bench.ask("CREATE TABLE public.moved (late double precision)")
    bench.ask(
        "CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO public.moved VALUES (extract(epoch FROM clock_timestamp() - NEW.run_at)); RETURN NEW; END $$"
    )
    bench.ask("CREATE TRIGGER note BEFORE INSERT ON jobherd.ready FOR EACH ROW EXECUTE FUNCTION public.note()")
    child = bench.start("maintenance")
    jobs = [bench.enqueue("act:nothing", options={"delay": 0.5 + n / 20}) for n in range(10)]
    child.nudge()  # as the supervisor does on "@due"
    for job in jobs:
        bench.wait(job, "ready")
    late = sorted(row["late"] for row in bench.ask("SELECT late FROM public.moved"))
    assert len(late) == 10
    assert late[0] >= 0
    assert late[-1] < 300, "jobs become ready at their time, not at the next poll"


def test_earlier_job_that_arrives_later_becomes_ready_at_its_time(bench: Bench):
    child = bench.start("maintenance")
    bench.enqueue("act:nothing", options={"delay": 3000})
    child.nudge()
    soon = bench.enqueue("act:nothing", options={"delay": 0.2})
    child.nudge()
    bench.wait(soon, "ready")


def test_more_due_jobs_than_one_statement_moves_all_become_ready(bench: Bench):
    bench.ask(
        "INSERT INTO jobherd.scheduled (kind, run_at) SELECT 'act:nothing', now() - interval '1 s' FROM generate_series(1, 2500)"
    )
    bench.start("maintenance")
    bench.wait_until(lambda: bench.ask("SELECT count(*) AS n FROM jobherd.ready")[0]["n"] == 2500, "all of them")


def test_job_becomes_ready_at_the_next_poll_if_the_wake_is_lost(bench: Bench):
    bench.start("maintenance", poll=0.2)
    job = bench.enqueue("act:nothing", options={"delay": 0.3})
    bench.wait(job, "ready")


def test_running_jobs_of_an_unregistered_worker_return_to_the_queue(bench: Bench, gate: Gate):
    worker = bench.start()
    job = bench.enqueue("act:gated", name="a")
    worker.nudge()
    gate.wait_arrival("a")
    bench.ask("DELETE FROM jobherd.children")
    maintenance = bench.start("maintenance", sweep=0.05)
    assert bench.wait(job, "retrying")["attempts"] == 1  # the attempt counts: the job may have started
    wait_for_line(maintenance, f"jobs={job}")


def test_running_jobs_of_living_workers_are_not_reclaimed(bench: Bench, gate: Gate):
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


def test_process_makes_needed_partitions_before_it_is_ready_and_others_once_no_job_runs(
    bench: Bench, gate: Gate, monkeypatch: pytest.MonkeyPatch
):
    """All partitions take a second of CPU time, which would slow down the first jobs of a new database."""
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


def test_rollup_of_a_new_database_starts_while_jobs_run(bench: Bench, gate: Gate):
    """Otherwise a fleet that is never idle has no charts for three minutes."""
    worker, other = bench.start(), bench.start()
    bench.enqueue("act:gated", name="a")
    worker.nudge()
    arrival = gate.wait_arrival("a")
    bench.start("maintenance")  # it is ready once the partitions that outcomes need exist
    job = bench.enqueue("act:nothing")
    for each in (worker, other):  # Either may have the gated job: a worker also claims when it starts.
        each.nudge()
    bench.wait(job, "completed")
    bench.wait_until(lambda: bench.ask("SELECT sum(completed) AS n FROM jobherd.rollup") == [{"n": 1}], "the count")
    assert len(days_of(bench, "history")) < 32, "the other partitions wait until no job runs"
    arrival.open()


def test_rollup_does_not_count_finished_jobs_while_their_rows_may_move(bench: Bench, gate: Gate):
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


def test_partitions_of_a_never_idle_fleet_are_made_a_few_at_a_time_after_a_minute(monkeypatch: pytest.MonkeyPatch):
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
        assert partitions.due_at > clock[0], "a pause leaves time to record outcomes"
        clock[0] = partitions.due_at
    assert [left for at, left in seen if at < 60] == [6] * 12
    assert [left for at, left in seen if at >= 60] == [4, 2, 0, 0]


def test_partitions_cover_the_whole_retention_once_the_default_partition_is_crowded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise each new day scans all rows kept for over a month, and no worker can record outcomes meanwhile."""
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
    assert bench.ask(crowd) == [{"n": 100}], "a few rows need no partition for each day"
    # The process must be ready soon. Otherwise it is killed during its scan and restarted again and
    # again, and no job becomes due.
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


def test_number_of_partitions_is_limited_by_the_locks_of_the_server(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """A query for one job locks every partition.

    With partitions for a year, PostgreSQL rejected four such queries at once, and with them every settlement.
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
    # another process makes the partitions: this tests only the log message
    bench.ask("SELECT pg_advisory_lock(hashtext('jobherd.keep_partitions'))")
    wait_for_line(bench.start("maintenance"), "set the server's max_locks_per_transaction to")


def test_slow_creation_of_partitions_pauses_so_that_outcomes_can_be_recorded(monkeypatch: pytest.MonkeyPatch):
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
    assert partitions.due_at == 0, "the next partitions are due at once"
    took = 32.0
    assert partitions.keep(clock[0])
    assert partitions.due_at == clock[0] + 10 * took


def test_due_jobs_become_ready_while_another_process_scans_the_default_partition(bench: Bench):
    """The scan may take minutes.

    Otherwise this process would be killed again and again because it is not ready, and neither of the two would
    make due jobs ready.
    """
    import psycopg

    with psycopg.connect(bench.dsn) as other:
        other.execute("SELECT pg_advisory_xact_lock(hashtext('jobherd.keep_partitions'))")
        other.execute("LOCK TABLE ONLY jobherd.history_default IN ACCESS EXCLUSIVE MODE")
        maintenance = bench.start("maintenance")
        job = bench.enqueue("act:nothing", options={"delay": 0.1})
        maintenance.nudge()
        bench.wait_until(lambda: bench.ask("SELECT id FROM jobherd.ready") == [{"id": job}], "the job due")


def test_long_read_of_the_history_does_not_block_the_maintenance_process(bench: Bench):
    import psycopg

    with psycopg.connect(bench.dsn) as reader:
        reader.execute("SELECT * FROM jobherd.history")
        maintenance = bench.start("maintenance")
        assert "partitions cannot be checked yet" in maintenance.log()
        job = bench.enqueue("act:nothing", options={"delay": 0.1})
        maintenance.nudge()
        bench.wait(job, "ready")


def test_deletion_of_a_day_of_logs_does_not_delay_due_jobs(bench: Bench):
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
    bench.start("maintenance", poll=0.001)  # it checks for due jobs in each turn
    bench.wait_until(lambda: not bench.ask("SELECT FROM jobherd.logs LIMIT 1"), "all logs gone")
    assert bench.ask("SELECT max(left_over) AS n FROM public.moved")[0]["n"] > 0


def test_progress_of_a_running_job_is_copied_at_most_once_a_second(bench: Bench, gate: Gate):
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


def test_finished_jobs_are_counted_into_the_rollup(bench: Bench):
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


def test_slow_count_for_the_rollup_is_followed_by_a_pause_and_a_shorter_span():
    pace = CountPace()
    pace.done(took=0.01, behind=False)
    assert pace.pause == 10
    span = pace.span
    pace.done(took=0.5, behind=False)
    assert pace.pause == 50
    assert pace.span < span
    for _ in range(10):
        pace.done(took=5.0, behind=False)
    assert pace.pause == 60
    assert pace.span >= pace.pause + 2 * LAG  # otherwise each count would leave rows uncounted
    for _ in range(10):
        pace.done(took=0.01, behind=True)
    assert pace.span == 8 * 86400
    assert pace.pause < 1


def test_maintenance_process_exits_when_dismissed_and_on_sigterm(bench: Bench):
    assert bench.start("maintenance").dismiss() == EXIT_REQUESTED
    child = bench.start("maintenance")
    os.kill(child.pid, signal.SIGTERM)
    assert child.wait() == EXIT_REQUESTED


@pytest.mark.parametrize("word", ["dismissal", "SIGTERM"])
def test_maintenance_process_exits_on_request_while_it_makes_its_first_partitions(bench: Bench, monkeypatch, word):
    """There can be many partitions, each may wait for readers of a table, and a drain waits for this process."""
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


def test_two_maintenance_processes_move_each_due_job_once(bench: Bench):
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


def test_maintenance_process_continues_after_its_session_was_terminated(bench: Bench):
    maintenance = bench.start("maintenance")
    bench.ask("SELECT pg_terminate_backend(backend_pid, 10000) FROM jobherd.children")
    job = bench.enqueue("act:nothing", options={"delay": 0.2})
    maintenance.nudge()
    bench.wait(job, "ready")


def test_maintenance_process_kills_remaining_child_processes_of_its_dead_supervisor(bench: Bench):
    stubborn = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], process_group=0)
    bench.control.publish({"children": [{"slot": 0, "pid": stubborn.pid}, {"slot": 1, "pid": None}]})
    parent, pid = bench.start_orphan_to_be("maintenance")
    before = time.monotonic()
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert stubborn.wait(LIMIT) == -signal.SIGKILL
    assert time.monotonic() - before > 1.4, "the child processes had time to exit"
    wait_for_exit(pid)


def test_every_table_with_dead_rows_is_measured_and_has_a_vacuum_statement(bench: Bench):
    assert {row["relname"] for row in bench.ask(sql.load("maintenance/count_dead_rows"))} == set(VACUUMS)
    for table, statement in VACUUMS.items():
        assert f" jobherd.{table}\n" in sql.load(statement)
        bench.ask(sql.load(statement))


def test_dead_rows_of_ready_jobs_are_vacuumed(bench: Bench):
    bench.ask("ALTER TABLE jobherd.ready SET (autovacuum_enabled = false)")  # otherwise autovacuum may run first
    bench.ask(f"INSERT INTO jobherd.ready (kind) SELECT 'act:nothing' FROM generate_series(1, {DEAD + 1000})")
    bench.ask("DELETE FROM jobherd.ready")
    bench.ask("SELECT pg_stat_force_next_flush()")
    vacuums = "SELECT pg_stat_get_vacuum_count('jobherd.ready'::regclass) AS n"  # autovacuum runs are not counted
    bench.start("maintenance")
    bench.wait_until(lambda: bench.ask(vacuums)[0]["n"] >= 1, "a vacuum")


@pytest.mark.parametrize(
    ("dead", "live", "now", "pays"),
    [
        (DEAD - 1, 0, 1.0, False),
        (DEAD, 0, 1.0, True),
        (DEAD, 1_000_000, 1.0, False),  # the vacuum would read the indexes of a million rows
        (DEAD + 50_000, 1_000_000, 1.0, True),
    ],
)
def test_vacuum_runs_only_if_there_are_enough_dead_rows(dead, live, now, pays):
    assert Vacuum().pays("ready", dead=dead, live=live, now=now) is pays


def test_useless_vacuum_is_repeated_only_after_twice_as_many_dead_rows_or_a_minute():
    clearing = Vacuum()
    clearing.done("ready", left=100_000, begun=10.0, ended=10.5)
    assert clearing.took == 0.5
    assert not clearing.pays("ready", dead=150_000, live=0, now=20.0)
    assert clearing.pays("ready", dead=200_000, live=0, now=20.0)
    assert clearing.pays("ready", dead=150_000, live=0, now=70.5)
    assert clearing.pays("scheduled", dead=150_000, live=0, now=20.0)
