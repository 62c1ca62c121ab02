"""Records of an application's own table, processed by a real supervisor."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import psycopg
import pytest

from jobherd.handlers._define.table_record import Scanner

if TYPE_CHECKING:
    from tests.support.fleet import Stage
    from tests.support.gate import Gate

TABLE = """
CREATE TABLE repo (id serial PRIMARY KEY, name text NOT NULL);
INSERT INTO repo (name) VALUES ('alpha'), ('beta');
CREATE TABLE example_jobs (
    id SERIAL PRIMARY KEY, status text DEFAULT 'queued', failure_message text, queued_at timestamptz DEFAULT now(), started_at timestamptz,
    finished_at timestamptz, process_after timestamptz, num_resets integer NOT NULL DEFAULT 0, num_failures integer NOT NULL DEFAULT 0,
    last_heartbeat_at timestamptz, execution_logs json[], worker_hostname text NOT NULL DEFAULT '', cancel boolean NOT NULL DEFAULT false,
    repository_id integer NOT NULL, what text NOT NULL DEFAULT 'noop');
CREATE VIEW example_jobs_with_repository_name AS SELECT ej.*, r.name AS repository_name FROM example_jobs ej JOIN repo r ON r.id = ej.repository_id;
CREATE TABLE effects (job integer, what text);
CREATE TRIGGER t_tell AFTER INSERT OR UPDATE OR DELETE ON example_jobs FOR EACH STATEMENT EXECUTE FUNCTION t_tell();
"""

STORE = """
import os, signal, time
from dataclasses import dataclass
import psycopg
from jobherd import Job, Poison, Snooze, TableStore
from jobherd.handlers._enqueue.default import default_client
from tests.support.gate import at_gate

@dataclass
class ExampleJob:
    id: int
    state: str
    num_failures: int
    num_resets: int
    repository_id: int
    what: str
    repository_name: str

example_jobs = TableStore("example_job_worker_store", table="example_jobs",
    view="example_jobs_with_repository_name example_jobs", scan=ExampleJob, order_by="example_jobs.repository_id, example_jobs.id",
    alternate_columns={{"state": "status"}}, {options})

@example_jobs.handler(timeout={timeout!r}, poison_on=KeyError)
def work(job: Job, record: ExampleJob, connection: psycopg.Connection) -> None:
    connection.execute("INSERT INTO effects VALUES (%s, %s)", (record.id, record.repository_name))
    job.log.info("at work on %s", record.repository_name)
    match record.what:
        case "enqueue":
            print("printed")
            job.log("clone", "git clone", exit_code=0, out="done")
            default_client().enqueue("t:following", {{"from": record.id}})
        case "transaction":
            job.transaction().__enter__()
        case "raise":
            default_client().enqueue("t:following", {{"from": record.id}})
            raise ValueError(f"no luck with {{record.repository_name}}")
        case "twice" if record.num_failures < 1:
            raise ValueError("not yet")
        case "steer":
            connection.execute("CREATE TEMP TABLE left_behind (n integer)")
            connection.execute("SET work_mem = '99MB'")
        case "look":
            found = connection.execute("SELECT to_regclass('left_behind')::text, current_setting('work_mem')").fetchone()
            assert found == (None, "4MB"), found
        case "poison":
            raise KeyError("vanished")
        case "gate":
            at_gate(record.id)
        case "sql":
            at_gate(record.id)
            connection.execute("SELECT pg_sleep(60)")
        case "commit":
            connection.execute("COMMIT")
        case "die":
            at_gate(record.id)
            os.kill(os.getpid(), signal.SIGKILL)
        case "loop":
            while True:
                try:
                    time.sleep(60)
                except BaseException:
                    pass
"""


class Jobs:
    """The table under test, and the handlers that process its records."""

    def __init__(self, stage: Stage, *, timeout: str = "5m", **options: object) -> None:
        self.stage = stage
        stage.run(TABLE)
        given = {
            "interval": "1s",
            "cancel_interval": "200ms",
            "heartbeat_interval": "200ms",
            "stalled_max_age": "1s",
            "reset_interval": "1s",
        }
        words = ", ".join(f"{name}={value!r}" for name, value in (given | options).items())
        self.handlers = stage.write("example.py", STORE.format(options=words, timeout=timeout))

    def add(self, what: str = "noop", repository: int = 1) -> int:
        return self.stage.call(
            "INSERT INTO example_jobs (what, repository_id) VALUES (%s, %s) RETURNING id", what, repository
        )

    def start(self, *words: str, **settings: object):
        return self.stage.start(*words, handlers=self.handlers, **{"workers": 2, **settings})

    def row(self, job: int) -> dict:
        found = self.stage.run("SELECT to_jsonb(t) FROM example_jobs t WHERE id = %s", job)
        return found[0][0] if found else {}

    def wait(self, job: int, *states: str) -> dict:
        self.stage.wait(lambda: self.row(job).get("status") in states, lambda: f"{states}; it is {self.row(job)}")
        return self.row(job)

    def effects(self, job: int) -> list[str]:
        return [row[0] for row in self.stage.run("SELECT what FROM effects WHERE job = %s", job)]


@pytest.mark.promise(
    "B1", "B2", "B3", "B10", "B11", "B12", "B17", "B18", "B19", "B20", "B21", "B22", "B23", "B24", "B29", "B31", "B32", "B33", "B34", "B35",
    "B28", "B36", "B37", "B38", "B39", "B42", "B43", "B53", "B54", "B56", "B59", "B60",
)  # fmt: skip
def test_records_are_processed_in_order_within_the_transaction_that_locks_them(stage: Stage):
    """B1 to B3, B10 to B12, B17 to B24, B29, B31 to B39, B42, B43, B53, B54, B56, B60."""
    jobs = Jobs(stage)
    good = [jobs.add(repository=2), jobs.add(repository=1), jobs.add(repository=2)]
    bad, poison, commits = jobs.add("raise"), jobs.add("poison"), jobs.add("commit")
    enqueues, nested = jobs.add("enqueue", 2), jobs.add("transaction", 2)
    steers, looks = jobs.add("steer", 2), jobs.add("look", 2)
    plain = stage.enqueue("t:noop")
    fleet = jobs.start("--until-empty", workers=1)
    assert fleet.wait_exit() == 1, "records failed"
    rows = [jobs.row(job) for job in good]
    assert [row["status"] for row in rows] == ["completed"] * 3
    assert all(
        row["started_at"] and row["finished_at"] and row["worker_hostname"] == os.uname().nodename for row in rows
    )
    order = [row[0] for row in stage.run("SELECT id FROM example_jobs ORDER BY started_at")]
    assert order == [good[1], bad, poison, commits, good[0], good[2], enqueues, nested, steers, looks]
    assert [jobs.effects(job) for job in good] == [["beta"], ["alpha"], ["beta"]]
    assert jobs.row(bad)["failure_message"] == "ValueError: no luck with alpha"
    assert [jobs.row(job)["status"] for job in (bad, poison, commits)] == ["failed"] * 3
    assert [jobs.effects(job) for job in (bad, poison)] == [[], []]
    assert "transaction" in jobs.row(commits)["failure_message"]
    assert "in a transaction already" in jobs.row(nested)["failure_message"]
    assert stage.run("SELECT payload -> 'from' FROM jobherd.jobs WHERE kind = 't:following'") == [(enqueues,)]
    assert jobs.row(bad)["num_failures"] == 1
    assert [jobs.row(job)["status"] for job in (steers, looks)] == ["completed"] * 2, jobs.row(
        steers
    )  # settings of one record do not affect the next
    for job, code in ((good[0], 0), (bad, 1)):
        [entry] = jobs.row(job)["execution_logs"]
        assert (entry["key"], entry["exit_code"], entry["out"].count("at work on")) == (
            "example_job_worker_store",
            code,
            1,
        )
    clone, said = Scanner(None).record(jobs.row(enqueues))["execution_logs"]
    assert (clone.key, clone.command, clone.exit_code, clone.out) == ("clone", "git clone", 0, "done")
    assert "printed" in said.out
    assert stage.state(plain) == "ready"  # no handler here runs jobs of the queue


@pytest.mark.promise("B12", "B26", "B40", "B41")
def test_failed_records_are_retried_up_to_max_retries_and_poison_is_not(stage: Stage):
    """B12, B26, B40, B41."""
    jobs = Jobs(stage, max_retries=1, retry_after="1ms")
    bad, twice, poison = jobs.add("raise"), jobs.add("twice"), jobs.add("poison")
    stage.run("UPDATE example_jobs SET process_after = now() + interval '1 day' WHERE id = %s", later := jobs.add())
    fleet = jobs.start(workers=1)
    rows = [jobs.wait(job, "completed", "failed") for job in (bad, twice, poison)]
    assert [row["status"] for row in rows] == ["failed", "completed", "failed"]
    assert [row["num_failures"] for row in rows] == [2, 1, 1]
    assert jobs.effects(twice) == ["alpha"]
    assert jobs.row(later)["status"] == "queued"
    assert fleet.stop() == 0


@pytest.mark.promise("B25", "B27", "B28", "B44", "B45", "B46", "B47", "B48", "B49", "B55", "B57")
def test_record_whose_process_dies_is_requeued_and_fails_with_the_cause_at_max_resets(stage: Stage, gate: Gate):
    """B25, B27, B44 to B49, B55, B57.

    A record of a dead process is requeued at once; a record that no process works on, after the grace period.
    """
    jobs = Jobs(stage, max_resets=1)
    orphan = jobs.add("noop")
    stage.run(
        "UPDATE example_jobs SET status = 'processing', started_at = now() - interval '1 hour', num_resets = 1 WHERE id = %s",
        orphan,
    )
    locked = jobs.add("noop")
    stage.run(
        "UPDATE example_jobs SET status = 'processing', started_at = now() - interval '1 hour' WHERE id = %s", locked
    )
    dying = jobs.add("die")
    with psycopg.connect(stage.dsn) as holder:
        holder.execute("SELECT FROM example_jobs WHERE id = %s FOR KEY SHARE", (locked,))
        fleet = jobs.start("--until-empty", workers=1, respawn_initial="10ms")
        gate.wait_arrival(dying).open()
        arrival = gate.wait_arrival(dying)
        row = jobs.row(dying)
        assert (row["status"], row["num_resets"]) == ("processing", 1)
        beat = row["last_heartbeat_at"]
        stage.wait(lambda: jobs.row(dying)["last_heartbeat_at"] > beat, "a heartbeat")
        arrival.open()
        row = jobs.wait(dying, "failed")
        assert "max_resets" in row["failure_message"]
        assert "SIGKILL" in row["failure_message"]
        assert jobs.effects(dying) == []
        assert "at work on alpha" in row["execution_logs"][0]["out"]
        assert jobs.wait(orphan, "failed")["failure_message"].startswith("given up")
        later = jobs.add()
        jobs.wait(later, "completed")
        assert jobs.row(locked)["status"] == "processing"
    assert jobs.wait(locked, "completed")["num_resets"] == 1
    # not before, although every worker was idle: that record was still being processed
    assert fleet.wait_exit() == 1, "a record failed"


@pytest.mark.promise("B30", "B50", "B51", "B52")
def test_record_is_cancelled_by_its_flag_and_by_its_deletion(stage: Stage, gate: Gate):
    """B30, B50 to B52; also a handler in the middle of a statement, and one that suppresses every interrupt."""
    jobs = Jobs(stage)
    flagged, deleted, waiting = jobs.add("sql"), jobs.add("gate"), jobs.add("gate", 2)
    stage.run("UPDATE example_jobs SET cancel = true WHERE id = %s", waiting)
    fleet = jobs.start(workers=2, grace="200ms")
    gate.wait_arrival(flagged).open()
    arrival = gate.wait_arrival(deleted)
    stage.run("UPDATE example_jobs SET cancel = true WHERE id = %s", flagged)
    stage.run("DELETE FROM example_jobs WHERE id = %s", deleted)  # returns once the attempt has ended
    arrival.wait_gone()
    assert jobs.wait(flagged, "canceled")["failure_message"]
    assert jobs.wait(waiting, "canceled")["started_at"] is None
    assert jobs.effects(flagged) + jobs.effects(deleted) == []
    deaf = jobs.add("loop")
    jobs.wait(deaf, "processing")
    stage.run("UPDATE example_jobs SET cancel = true WHERE id = %s", deaf)
    assert jobs.wait(deaf, "canceled")["num_resets"] == 0
    assert fleet.stop() == 0


def test_timeout_and_drain_end_a_record_as_they_end_a_job(stage: Stage, gate: Gate):
    jobs = Jobs(stage, timeout="300ms", max_retries=1, retry_after="1h")
    soft = jobs.add("gate")
    fleet = jobs.start(workers=1, grace="60s")  # long enough for the interrupt alone to end it on a busy machine
    assert jobs.wait(soft, "errored")["failure_message"].startswith("JobTimeout")
    assert fleet.stop() == 0
    hard = jobs.add("loop")
    fleet = jobs.start(workers=1, grace="200ms", drain_timeout="100ms")
    assert jobs.wait(hard, "errored")["num_failures"] == 1
    stage.run("UPDATE example_jobs SET status = 'queued' WHERE id = %s", soft)
    assert fleet.stop() == 0
    drained = jobs.add("gate", 2)
    jobs.handlers = stage.write(
        "example.py", (jobs.handlers / "example.py").read_text().replace("timeout='300ms'", "timeout='5m'")
    )
    fleet = jobs.start(workers=1, grace="200ms", drain_timeout="100ms")
    gate.wait_arrival(drained)
    fleet.signal(signal.SIGTERM)
    assert fleet.wait_exit() == 0
    row = jobs.row(drained)
    assert (row["status"], row["num_resets"], row["num_failures"]) == ("queued", 0, 0)


@pytest.mark.promise("B14", "B15", "B16")
def test_new_record_wakes_an_idle_worker_and_two_workers_process_two_records_at_once(stage: Stage, gate: Gate):
    """B14 to B16. The trigger that `check --print-sql` prints wakes a worker; without it, the interval has to pass."""
    jobs = Jobs(stage, interval="1h")
    fleet = jobs.start(workers=2)
    fleet.wait_ready(2)
    fleet.wait_log("resetter is ready")
    stage.run("""
        CREATE FUNCTION example_jobs_notify() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_notify('jobherd_jobs', '@table:example_job_worker_store'); RETURN NULL; END $$;
        CREATE TRIGGER wake AFTER INSERT ON example_jobs FOR EACH STATEMENT EXECUTE FUNCTION example_jobs_notify();
    """)
    one = jobs.add("gate")
    first = gate.wait_arrival(one)
    two = jobs.add("gate")
    second = gate.wait_arrival(two)
    assert (
        stage.run("SELECT id FROM example_jobs FOR UPDATE SKIP LOCKED") == []
    )  # other sessions cannot lock a record that is being processed
    first.open(), second.open()
    jobs.wait(one, "completed"), jobs.wait(two, "completed")
    assert fleet.stop() == 0


def test_start_fails_and_logs_the_fix_when_the_table_lacks_a_column(stage: Stage):
    jobs = Jobs(stage)
    stage.run("ALTER TABLE example_jobs DROP COLUMN num_resets CASCADE")
    fleet = jobs.start(workers=1)
    assert fleet.wait_exit() == 78
    fleet.wait_log('has no column "num_resets": ALTER TABLE "example_jobs" ADD COLUMN')


OUTSIDE = """
from jobherd import TableStore
from tests.support.gate import at_gate

store = TableStore("outside", table="example_jobs", alternate_columns={"state": "status"}, interval="1s", heartbeat_interval="100ms",
    stalled_max_age="5m", reset_interval="200ms")

@store.handler
def work(record) -> None:
    at_gate(record["id"])
"""


def test_record_completes_with_its_effects_once_when_its_session_is_terminated(stage: Stage, gate: Gate):
    """A handler that writes in the record's transaction runs again, and its writes exist once.

    The outcome of a handler that does not use the transaction is written separately.
    """
    jobs = Jobs(stage, stalled_max_age="500ms", reset_interval="200ms", heartbeat_interval="100ms")
    job = jobs.add("gate")
    fleet = jobs.start(workers=1)
    arrival = gate.wait_arrival(job)
    broken = (
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name LIKE 'jobherd:table:%'"
    )
    assert stage.call(broken)
    arrival.open()
    gate.wait_arrival(job).open()
    assert jobs.wait(job, "completed")["num_resets"] == 1
    assert jobs.effects(job) == ["alpha"]
    assert fleet.stop() == 0
    jobs.handlers = stage.write("example.py", OUTSIDE)
    apart = jobs.add("gate")
    fleet = jobs.start(workers=1)
    arrival = gate.wait_arrival(apart)
    assert stage.call(broken)
    beat = jobs.row(apart)["last_heartbeat_at"]
    stage.wait(lambda: jobs.row(apart)["last_heartbeat_at"] > beat, "a heartbeat")
    arrival.open()
    assert jobs.wait(apart, "completed")["num_resets"] == 0
    assert fleet.stop() == 0


def test_records_survive_a_reload_a_dead_resetter_and_a_dead_supervisor(stage: Stage, gate: Gate):
    jobs = Jobs(stage)
    job = jobs.add("gate")
    fleet = jobs.start(workers=1)
    arrival = gate.wait_arrival(job)
    ready = fleet.wait_log("resetter is ready")
    os.kill(int(ready["pid"]), signal.SIGKILL)
    fleet.wait_log("resetter is ready", count=2)
    source = (jobs.handlers / "example.py").read_text()
    stage.write("example.py", source.replace('case "gate":', 'case "new":'))
    arrival.open()
    jobs.wait(job, "completed")
    fleet.signal(signal.SIGHUP)
    fleet.wait_log("every worker runs the new code")
    fleet.wait_log("resetter is ready", count=3)
    new = jobs.add("new")
    gate.wait_arrival(new).open()
    assert jobs.wait(new, "completed")
    held = jobs.add("new")
    gate.wait_arrival(held)
    fleet.signal(signal.SIGKILL)  # its worker returns the record to the queue
    fleet.wait_gone()
    assert (jobs.row(held)["status"], jobs.row(held)["num_resets"]) == ("queued", 0)


ASKED = """
from jobherd import Only, before_claim

@example_jobs.before_claim
def which(child):
    return Only(condition="example_jobs.what LIKE %(what)s", parameters={"what": "no%"})
"""
DECLINED = """
from jobherd import Only, before_claim

@before_claim
def none(child):
    return Only(kinds=["t:noop"])
"""


@pytest.mark.promise("B4", "B5", "B6")
def test_before_claim_hooks_restrict_which_records_are_claimed(stage: Stage):
    """B4 to B6: by a condition of the store's hook, and by a hook that allows only other kinds."""
    jobs = Jobs(stage)
    gated, plain = jobs.add("gate"), jobs.add("noop")
    source = (jobs.handlers / "example.py").read_text()
    stage.write("example.py", source + ASKED)
    fleet = jobs.start(workers=1)
    assert jobs.wait(plain, "completed")
    assert jobs.row(gated)["status"] == "queued"
    assert fleet.stop() == 0
    stage.write("example.py", source + DECLINED)
    stage.write("noop.py", "from jobherd import handler\n\n@handler('t:noop')\ndef noop(): ...\n")
    fleet = jobs.start(workers=1)
    for _ in range(2):  # before the second, the worker was idle and would have claimed the record
        stage.wait_state(stage.enqueue("t:noop"), "completed")
    assert jobs.row(gated)["status"] == "queued"
    assert fleet.stop() == 0


@pytest.mark.promise("E7")
def test_records_wait_while_their_kind_or_everything_is_paused(stage: Stage):
    jobs = Jobs(stage, interval="1h")
    stage.run("SELECT jobherd.pause(kind => 'example_job_worker_store'), jobherd.pause('*')")
    first = jobs.add()
    fleet = jobs.start("--until-empty", workers=1)
    fleet.wait_exit()
    assert jobs.row(first)["status"] == "queued"
    fleet = jobs.start(workers=1)
    fleet.wait_ready(1)
    stage.run("SELECT jobherd.resume('*')")
    assert jobs.row(first)["status"] == "queued"
    stage.run("SELECT jobherd.resume(kind => 'example_job_worker_store')")
    jobs.wait(first, "completed")
    assert fleet.stop() == 0
