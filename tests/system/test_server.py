"""What a server's owner does to sessions.

There are limits and formats for all sessions, occasional errors, and a database that rejects connections for a while.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import psycopg

from tests.support.processes import children_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.fleet import Stage
    from tests.support.gate import Gate
    from tests.support.postgres import Cluster

LIMIT = 60.0
OURS = "application_name LIKE 'jobherd:%%' AND datname = current_database()"

WORK = """
import time
from jobherd import Job, handler
from tests.support.gate import at_gate

@handler("s:holds", transactional=True, timeout="5m")
def holds(job: Job, label: str) -> str:
    job.connection.execute("SELECT 1")
    return at_gate(label)

@handler("s:gate", timeout="5m")
def gate(label: str) -> str:
    return at_gate(label)

@handler("s:short")
def short() -> None: ...

@handler("s:bytes")
def bytes_(payload_bytes: bytes) -> str:
    return payload_bytes.hex()
"""


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition of which no notification is sent."""
    limit = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < limit, f"waited {LIMIT:g} s for {what}"
        time.sleep(0.02)


def database(stage: Stage) -> str:
    return str(stage.connection.info.dbname)


def test_time_limits_set_for_the_database_do_not_apply_to_jobherds_sessions(stage: Stage, gate: Gate):
    """Such a limit would end each slow recording of an outcome, an idle worker's session, and a job's transaction."""
    stage.run(
        "CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1.0); RETURN NULL; END $$;"
        "CREATE TRIGGER slow AFTER INSERT ON jobherd.history FOR EACH ROW WHEN (new.kind <> 's:short') EXECUTE FUNCTION public.slow()"
    )
    for setting in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout"):
        stage.run(f"ALTER DATABASE {database(stage)} SET {setting} = '500ms'")
    stage.run(f"ALTER DATABASE {database(stage)} SET default_transaction_isolation = 'serializable'")
    if stage.connection.info.server_version >= 170000:
        stage.run(f"ALTER DATABASE {database(stage)} SET transaction_timeout = '500ms'")
    fleet = stage.run_fleet(workers=2, handlers=stage.write("work.py", WORK))
    short = stage.enqueue("s:short")
    stage.wait_state(short, "completed", limit=LIMIT)
    patient = f"SELECT count(*) FROM pg_stat_activity WHERE {OURS} AND state = 'idle' AND clock_timestamp() - state_change > '1.2 s'"
    until(lambda: stage.call(patient) >= 1, "a worker's session that is idle for longer than it may")
    plain, holding = stage.enqueue("s:gate", '{"label": "plain"}'), stage.enqueue("s:holds", '{"label": "holds"}')
    arrivals = [gate.wait_arrival("plain"), gate.wait_arrival("holds")]
    idle = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND clock_timestamp() - state_change > '1.2 s'"
    # If a session is ended, its job's claim is released, and the state in its row shows it.
    until(
        lambda: stage.call(idle) or stage.state(holding) != "running",
        "a transaction that is idle for longer than it may",
    )
    arrivals[0].open("written")
    row = stage.wait_state(plain, "completed", "failed", "retrying", limit=LIMIT)
    assert (row["state"], row["result"], row["attempts"]) == ("completed", "written", 1)
    assert stage.state(holding) == "running"
    # the handler's own transaction keeps the role's limit for statements
    stage.run("DROP TRIGGER slow ON jobherd.history")
    arrivals[1].open("held")
    row = stage.wait_state(holding, "completed", "failed", "retrying", limit=LIMIT)
    assert (row["state"], row["result"], row["attempts"]) == ("completed", "held", 1)
    assert fleet.stop() == 0


def test_value_formats_set_for_the_database_do_not_apply_to_jobherds_sessions(stage: Stage, gate: Gate):
    """An old application may need such formats.

    The outcomes of one claim are sent as arrays, in which most values of a job are null.
    """
    name = database(stage)
    for setting, value in (
        ("array_nulls", "off"), ("extra_float_digits", "-15"), ("standard_conforming_strings", "off"), ("bytea_output", "escape"),
        ("DateStyle", "SQL, DMY"), ("IntervalStyle", "sql_standard"), ("TimeZone", "Asia/Kathmandu"), ("transform_null_equals", "on"),
    ):  # fmt: skip
        stage.run(f"ALTER DATABASE {name} SET {setting} = {value if ',' in value else repr(value)}")
    fleet = stage.run_fleet(workers=2, handlers=stage.write("work.py", WORK))
    gated = stage.enqueue("s:gate", '{"label": "dies"}')
    os.kill(gate.wait_arrival("dies").pid, signal.SIGKILL)  # the supervisor records the crash and requeues the job
    arrival = gate.wait_arrival("dies")
    soon = stage.call("""SELECT jobherd.enqueue('s:short', '{}', '{"delay": 1}')""")
    arrival.open("a \\ and a ' and a \"")
    row = stage.wait_state(gated, "completed", "failed", limit=LIMIT)
    assert (row["attempts"], row["crashes"], row["result"]) == (2, 1, "a \\ and a ' and a \"")
    stage.wait_state(soon, "completed", limit=LIMIT)
    with_bytes = stage.call(r"SELECT jobherd.enqueue_bytes('s:bytes', '\x00ff5c')")
    assert stage.wait_state(with_bytes, "completed", "failed", "retrying", limit=LIMIT)["result"] == "00ff5c"
    holding = stage.enqueue("s:holds", '{"label": "holds"}')
    gate.wait_arrival("holds").open("held")
    row = stage.wait_state(holding, "completed", "failed", "retrying", limit=LIMIT)
    assert (row["state"], row["result"], row["attempts"]) == ("completed", "held", 1)
    assert fleet.stop() == 0
    assert not fleet.said(
        lambda event: event.get("level") == "error" or "the database is away" in event.get("message", "")
    )


def test_deadlocks_and_serialization_failures_are_retried_and_cost_no_attempt(stage: Stage, gate: Gate):
    stage.run("""
        CREATE SEQUENCE public.turns;
        CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE
            turn bigint := nextval('public.turns');
        BEGIN
            IF current_setting('application_name') LIKE 'jobherd:%' AND turn % 5 IN (1, 2) THEN
                RAISE EXCEPTION 'refused by the test' USING ERRCODE = (ARRAY['40001', '40P01'])[turn % 5];
            END IF;
            RETURN NULL;
        END $$;
        CREATE TRIGGER refuse AFTER INSERT OR DELETE ON jobherd.running FOR EACH STATEMENT EXECUTE FUNCTION public.refuse();
        CREATE TRIGGER refuse AFTER INSERT ON jobherd.history FOR EACH STATEMENT EXECUTE FUNCTION public.refuse();
        CREATE TRIGGER refuse AFTER UPDATE ON jobherd.supervisors FOR EACH STATEMENT EXECUTE FUNCTION public.refuse();
        """)
    fleet = stage.run_fleet(workers=2, handlers=stage.write("work.py", WORK))
    gated = stage.enqueue("s:gate", '{"label": "dies"}')
    os.kill(gate.wait_arrival("dies").pid, signal.SIGKILL)
    gate.wait_arrival("dies").open("second")
    jobs = []
    for _ in range(15):  # one after the other: one statement claims or settles several jobs
        jobs.append(stage.enqueue("s:short"))
        stage.wait_state(jobs[-1], "completed", limit=LIMIT)
    row = stage.wait_state(gated, "completed", limit=LIMIT)
    assert (row["attempts"], row["crashes"], row["result"]) == (2, 1, "second")
    assert stage.run("SELECT DISTINCT attempts FROM jobherd.jobs WHERE id = ANY (%s)", jobs) == [(1,)]
    assert stage.completed_twice() == []
    assert stage.call("SELECT last_value FROM public.turns") > 40, "too few statements were rejected"
    stage.run("DROP FUNCTION public.refuse() CASCADE")
    assert fleet.stop() == 0


def test_fleet_waits_for_a_database_that_rejects_connections_and_logs_few_lines(
    stage: Stage, cluster: Cluster, gate: Gate
):
    fleet = stage.run_fleet(workers=2, db_retry_initial="0.1s", db_retry_max="0.5s")
    running = stage.enqueue("t:gate", '{"label": "meanwhile"}')
    arrival = gate.wait_arrival("meanwhile")
    before, name = children_of(fleet.pid), database(stage)
    mark, said = len(fleet.log), cluster.log.stat().st_size
    outside = psycopg.connect(cluster.dsn(), autocommit=True)
    with outside:
        outside.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        outside.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND application_name LIKE 'jobherd:%%'",
            [name],
        )
        refused = f'database "{name}" is not currently accepting connections'.encode()
        until(lambda: cluster.log.read_bytes()[said:].count(refused) >= 20, "twenty refused connections")
        arrival.open("late")
        fleet.drain()
        assert len(fleet.log) - mark <= 2 * 4, fleet.text()
        assert [
            event
            for event in fleet.said("not currently accepting connections", after=mark)
            if event["process"] == "supervisor"
        ]
        outside.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    row = stage.wait_state(running, "completed", limit=LIMIT)
    assert (row["result"], row["attempts"]) == ("late", 1)
    stage.wait_state(stage.enqueue("t:noop"), "completed", limit=LIMIT)
    assert children_of(fleet.pid) == before
    assert fleet.stop() == 0
