"""Behind pgbouncer, in both modes.

Jobs complete once, jobs of a dead worker run again, and the log reports the pooler.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import psycopg
import pytest

from jobherd import AsyncClient, Client
from jobherd.supervisor.cli.database import connect
from jobherd.supervisor.cli.top.watch import Watch
from jobherd.workers.dashboard.database import Database
from jobherd.workers.maintenance.vacuum import DEAD
from jobherd.workers.web.queue_depth import REST_MOST, STALE, Measurer
from tests.cli.shell import jobherd
from tests.support.pooler import PROGRAM, Pooler
from tests.system.test_metrics import fetch, scrape

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tests.support.fleet import Stage
    from tests.support.gate import Gate

LONG = 90.0
pytestmark = pytest.mark.skipif(
    not os.path.exists(PROGRAM), reason="Debian's pgbouncer is not installed: make pgbouncer"
)


@pytest.mark.parametrize(
    ("mode", "listens"), [("transaction", None), ("transaction", "server"), ("session", None), ("session", "pooler")]
)
def test_jobs_complete_once_although_the_pooler_and_a_worker_are_killed(
    stage: Stage, gate: Gate, mode: str, listens: str | None
):
    with Pooler(stage.dsn, mode, size=20) as pooler:
        settings = {"listen_dsn": stage.dsn if listens == "server" else pooler.dsn} if listens else {"poll": "1s"}
        fleet = stage.run_fleet(dsn=pooler.dsn, workers=2, db_retry_initial="0.1s", **{"poll": "300s", **settings})
        if not listens:
            fleet.wait_log("LISTEN does not work through it", limit=LONG)
        elif listens == "pooler":
            fleet.wait_log("it must be in session mode", limit=LONG)
        # A process that loses its prepared statements reconnects, and its backend is recorded again.
        own = "SELECT DISTINCT backend_pid FROM jobherd.children"
        stage.wait(lambda: stage.run(own) == [(0,)], "backends that are recorded as shared", limit=LONG)
        jobs = [
            row[0]
            for row in stage.run(
                """SELECT jobherd.enqueue('t:spin', '{"seconds": 0.002}') FROM generate_series(1, 100)"""
            )
        ]
        stage.wait_all(jobs, "completed", limit=LONG)
        # Sessions that mark idle workers and listen: on a shared backend a notification can cost another client
        # its answer.
        sleepers = "SELECT count(DISTINCT pid) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1785684584 AND objid <> 0"
        if listens:
            stage.wait(lambda: stage.run(sleepers) == [(1,)], "the workers to be idle again after the jobs", limit=LONG)
        else:
            assert stage.run(sleepers) == [(0,)]
        kept, torn = (stage.enqueue("t:gate", f'{{"label": "{label}"}}') for label in ("kept", "torn"))
        first, second = gate.wait_arrival("kept", LONG), gate.wait_arrival("torn", LONG)
        pooler.kill()
        pooler.start()
        first.open("kept")
        os.kill(second.pid, signal.SIGKILL)
        gate.wait_arrival("torn", LONG).open("again")
        assert stage.wait_state(kept, "completed", limit=LONG)["attempts"] == 1
        row = stage.wait_state(torn, "completed", limit=LONG)
        assert (row["attempts"], row["crashes"]) == (2, 1)
        assert stage.completed_twice() == []
        assert fleet.stop() == 0


def test_supervisor_that_does_not_listen_because_of_a_pooler_is_ready(stage: Stage):
    """Otherwise a deployment behind a pooler would never become ready."""
    with Pooler(stage.dsn, "transaction", size=20) as pooler:
        fleet = stage.run_fleet(dsn=pooler.dsn, workers=1, http="127.0.0.1:0")
        address = fleet.wait_log("metrics and health on", limit=LONG)["message"].split(" on ")[1]
        stage.wait(
            lambda: fetch(address, "/readyz")[0] == 200, lambda: f"/readyz: {fetch(address, '/readyz')}", limit=LONG
        )
        assert scrape(address)["jobherd_listening"][()] == 0


@pytest.mark.parametrize(
    "how", ["client", "async client", "jobherd wait", "jobherd doctor", "jobherd doctor --listen-dsn"]
)
def test_clients_and_commands_do_not_listen_on_a_shared_backend(
    database: str, how: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("JOBHERD_LISTEN_DSN", raising=False)
    with Pooler(database, "transaction", size=1) as pooler:
        with psycopg.connect(database, autocommit=True) as direct:
            [(job,)] = direct.execute("SELECT jobherd.enqueue('t:nothing')").fetchall()
        match how:
            case "client":
                with pytest.raises(TimeoutError), Client(pooler.dsn) as client:
                    client.wait(job, timeout="50ms")
            case "async client":
                asyncio.run(_wait_briefly(pooler.dsn, job))
            case "jobherd wait":
                assert jobherd("wait", job, "--timeout", "50ms", dsn=pooler.dsn).code == 124
            case _:
                listens = "--listen-dsn" in how
                done = jobherd(
                    "doctor",
                    *(("--listen-dsn", pooler.dsn) if listens else ()),
                    dsn=database if listens else pooler.dsn,
                )
                assert "a pooler is between" in " ".join(done.out.split()), done
        with psycopg.connect(pooler.dsn, autocommit=True) as shared:
            assert shared.execute("SELECT count(*) FROM pg_listening_channels()").fetchone() == (0,)
            assert shared.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)


async def _wait_briefly(dsn: str, job: int) -> None:
    async with AsyncClient(dsn) as client:
        with pytest.raises(TimeoutError):
            await client.wait(job, timeout="50ms")


@pytest.mark.parametrize("how", ["page", "metrics", "top"])
def test_dashboard_metrics_and_top_leave_no_setting_on_a_shared_backend(database: str, how: str):
    """A page has a statement timeout of 2 s, which would end a later transaction of a job or the application."""
    names = ("statement_timeout", "enable_seqscan", "enable_bitmapscan", "plan_cache_mode", "jit")

    def limits() -> list[object]:
        with psycopg.connect(pooler.dsn, autocommit=True, prepare_threshold=None) as stranger:
            return [stranger.execute(f"SHOW {name}").fetchone() for name in names]

    async def look() -> None:
        page, watch = Database(pooler.dsn), Watch(pooler.dsn, actor="anna")
        now = [0.0]
        measurer = Measurer(pooler.dsn, clock=lambda: now[0])
        for _ in range(7):  # psycopg would prepare a statement that it sends for the sixth time
            match how:
                case "page":
                    await page.rows("observe/show_time")
                case "metrics":
                    await measurer.refresh(LONG)
                    assert measurer.latest()
                    now[0] += STALE
                case _:
                    await watch.look()
        for looker in (page, watch, measurer):
            await looker.close()

    with Pooler(database, "transaction", size=1) as pooler:
        before = limits()
        asyncio.run(look())
        assert limits() == before
        with psycopg.connect(pooler.dsn) as stranger:
            assert stranger.execute("SELECT name FROM pg_prepared_statements").fetchall() == []


def test_nothing_is_prepared_on_a_shared_backend(database: str):
    """psycopg prepares a statement that it sends for the sixth time."""
    turns = range(8)

    async def asynchronously(pooler: Pooler) -> list[int]:
        async with AsyncClient(pooler.dsn) as client:
            return [await turned(pooler, client.enqueue("a:b")) for _ in turns]

    async def turned(pooler: Pooler, sent: Awaitable[int]) -> int:
        pooler.turn()
        return await sent

    with Pooler(database, "transaction", size=2) as pooler:
        numbers = []
        with Client(pooler.dsn) as one, Client(pooler.dsn) as other:
            for _ in turns:
                pooler.turn()
                numbers += [client.enqueue("a:b") for client in (one, other)]
        numbers += asyncio.run(asynchronously(pooler))
        with connect(pooler.dsn, name="jobs") as connection:
            for _ in turns:
                pooler.turn()
                found = connection.execute("SELECT id FROM jobherd.ready WHERE id >= %s ORDER BY id", [1]).fetchall()
    assert found == [(number,) for number in numbers]


def test_queue_depth_is_measured_repeatedly_through_a_pooler(database: str, caplog: pytest.LogCaptureFixture):
    async def measured(pooler: Pooler) -> None:
        now = [0.0]
        measurer = Measurer(pooler.dsn, clock=lambda: now[0])
        try:
            for _ in range(8):
                pooler.turn()
                now[0] += REST_MOST
                await measurer.refresh(LONG)
        finally:
            await measurer.close()

    with Pooler(database, "transaction", size=2) as pooler:
        asyncio.run(measured(pooler))
    assert caplog.messages == []


def test_client_without_a_pooler_prepares_frequent_statements(database: str):
    with Client(database) as client:
        for _ in range(8):
            client.enqueue("a:b")
        with client._session() as connection:
            prepared = connection.execute(
                "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%jobherd.ready%'"
            ).fetchall()
    assert prepared == [(1,)]


OURS = ("application_name", "client_encoding", "DateStyle", "TimeZone", "standard_conforming_strings")
"""Settings that pgbouncer itself sets again for each client."""
ROWS = """
CREATE TABLE rows (
    id serial PRIMARY KEY, state text DEFAULT 'queued', failure_message text, queued_at timestamptz DEFAULT now(), started_at timestamptz,
    finished_at timestamptz, process_after timestamptz, num_resets integer NOT NULL DEFAULT 0, num_failures integer NOT NULL DEFAULT 0,
    last_heartbeat_at timestamptz, execution_logs json[], worker_hostname text NOT NULL DEFAULT '', cancel boolean NOT NULL DEFAULT false);
INSERT INTO rows DEFAULT VALUES;
"""
STORED = """
from dataclasses import dataclass
from jobherd import Job, TableStore, handler

@dataclass
class Row:
    id: int
    state: str

rows = TableStore("rows", table="rows", scan=Row, order_by="id")

@rows.handler
def work(job: Job, record: Row) -> None: ...

@handler("p:quick")
def quick() -> None: ...

@handler("p:transactional")
def transactional(job: Job) -> None:
    with job.transaction() as connection:
        connection.execute("SELECT 1")
"""


def test_supervisor_and_its_workers_leave_no_setting_on_shared_backends(stage: Stage):
    """Planner settings and time limits that stay on a backend would apply to the application's next transaction."""
    with psycopg.connect(stage.dsn, autocommit=True) as direct:
        direct.execute(ROWS)
    with Pooler(stage.dsn, "transaction", size=2) as pooler:
        fleet = stage.run_fleet(dsn=pooler.dsn, workers=1, poll="1s", handlers=stage.write("stored.py", STORED))
        stage.wait_all(
            [stage.enqueue(kind) for kind in ("p:quick", "p:transactional", "p:quick")], "completed", limit=LONG
        )
        stage.wait(
            lambda: stage.run("SELECT count(*) FROM rows WHERE state = 'completed'") == [(1,)], "the record", limit=LONG
        )
        with psycopg.connect(pooler.dsn) as one, psycopg.connect(pooler.dsn) as two:  # both of its backends
            left = {
                each.execute("SELECT pg_backend_pid()").fetchone()[0]: dict(
                    each.execute(
                        "SELECT name, setting FROM pg_settings WHERE source = 'session' AND name <> ALL (%s)",
                        [list(OURS)],
                    ).fetchall()
                )
                for each in (one, two)
            }
        assert len(left) == 2
        assert list(left.values()) == [{}, {}]
        assert fleet.stop() == 0


@pytest.mark.parametrize("limit", ["0", "1s"])
def test_maintenance_vacuums_through_a_pooler_and_continues_when_the_vacuum_is_cancelled(stage: Stage, limit: str):
    """VACUUM cannot run in a transaction.

    If settings preceded it in one, PostgreSQL would reject each try, and no job would become due.
    """
    vacuums = "SELECT pg_stat_get_vacuum_count('jobherd.ready'::regclass)"  # does not count autovacuum
    with psycopg.connect(stage.dsn, autocommit=True) as direct:
        direct.execute("ALTER TABLE jobherd.ready SET (autovacuum_enabled = false)")  # or autovacuum may run first
        direct.execute(f"INSERT INTO jobherd.ready (kind) SELECT 't:noop' FROM generate_series(1, {DEAD + 1000})")
        direct.execute("DELETE FROM jobherd.ready")
        direct.execute("SELECT pg_stat_force_next_flush()")
        if limit != "0":
            database = direct.info.dbname
            for name, value in {
                "statement_timeout": limit,
                "vacuum_cost_delay": "100ms",
                "vacuum_cost_limit": "1",
            }.items():
                direct.execute(f"ALTER DATABASE {database} SET {name} = '{value}'")
        with Pooler(stage.dsn, "transaction", size=5) as pooler:
            fleet = stage.run_fleet(dsn=pooler.dsn, workers=1, poll="1s")
            if limit == "0":
                stage.wait(lambda: stage.run(vacuums)[0][0] >= 1, "a vacuum", limit=LONG)
            else:
                fleet.wait_log(
                    "the server rejects maintenance/vacuum_ready: canceling statement due to statement timeout",
                    limit=LONG,
                )
            due = stage.call("SELECT jobherd.enqueue('t:noop', '{}', '{\"delay\": \"1 millisecond\"}')")
            stage.wait_state(due, "completed", limit=LONG)
            assert fleet.stop() == 0
