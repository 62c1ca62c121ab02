"""Database sessions of the dashboard: read-only except for actions, with time limits, and through outages."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import UTC, datetime

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from starlette.routing import Route

from jobherd.workers.dashboard import application
from jobherd.workers.dashboard.database import SESSIONS, Database
from jobherd.workers.dashboard.database import database as database_of
from jobherd.workers.dashboard.render import page as page_of
from jobherd.workers.database.errors import is_disconnected
from tests.dashboard.support import Page, finish
from tests.support.patience import LIMIT
from tests.support.postgres import Cluster

SESSIONS_OF_THE_PAGE = (
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'jobherd page' AND datname = current_database()"
)


@pytest.fixture
def statement(monkeypatch):
    """Let a test pass SQL text in place of the name of a statement."""
    monkeypatch.setattr(
        "jobherd.workers.dashboard.database.sql.load", lambda name, *_: name if " " in name else _loaded(name)
    )


def _loaded(name):
    from importlib.resources import files

    return (files("jobherd.sql") / "queries" / f"{name}.sql").read_text()


def run(dsn, work):
    async def all_of_it():
        at = Database(dsn)
        try:
            return await work(at)
        finally:
            await at.close()

    return finish(all_of_it())


def test_rows_have_named_columns_and_json_stays_text(database, statement):
    async def work(at):
        return await at.rows("SELECT %(n)s::int AS n, '{\"a\": 1e400}'::jsonb AS document", {"n": 7}), await at.row(
            "SELECT 1 AS a WHERE false"
        )

    rows, nothing = run(database, work)
    assert (rows[0]["n"], nothing) == (7, None)
    assert rows[0]["document"].startswith('{"a": 1000')


def test_times_are_read_whatever_the_date_style_of_the_role_or_database(database, statement):
    german = make_conninfo(database, options="-c DateStyle=German")

    async def work(at):
        return await at.rows("SELECT '2100-01-02T03:04:05Z'::timestamptz AS at")

    assert run(german, work) == [{"at": datetime(2100, 1, 2, 3, 4, 5, tzinfo=UTC)}]


def test_read_transaction_cannot_write_and_action_can(database, statement):
    insert = "INSERT INTO jobherd.gates (scope, name, paused_at) VALUES ('queue', 'a', now())"

    async def work(at):
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            await at.rows(insert)
        await at.act(insert)
        return await at.rows("SELECT name FROM jobherd.gates")

    assert run(database, work) == [{"name": "a"}]


def test_several_statements_are_read_in_one_transaction(database, statement, monkeypatch):
    monkeypatch.setattr("jobherd.workers.dashboard.database.STATEMENT", 77.0)

    async def work(at):
        async with at.reading() as reading, reading.reading() as same:
            assert same is reading
            begun = [(await reading.row("SELECT now() AS at, pg_backend_pid() AS pid")) for _ in range(2)]
            assert begun[0] == begun[1]
            assert await reading.row("SELECT 1 AS a WHERE false") is None
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            async with at.reading() as reading:
                await reading.rows("CREATE TABLE written ()")
        async with at.reading() as reading:
            return await reading.rows("SHOW statement_timeout")

    assert run(database, work) == [{"statement_timeout": "77s"}]


def test_server_cancels_a_statement_that_takes_too_long(database, statement, monkeypatch):
    monkeypatch.setattr("jobherd.workers.dashboard.database.STATEMENT", 1.0)  # also applies to the second statement

    async def work(at):
        with pytest.raises(psycopg.errors.QueryCanceled):
            await at.rows("SELECT pg_sleep(60)")
        return await at.rows("SELECT 1 AS one")

    assert run(database, work) == [{"one": 1}]


def test_no_session_is_open_before_the_first_query_and_few_after_it(database, statement):
    async def work(at):
        with psycopg.connect(database, autocommit=True) as conn:
            before = conn.execute(SESSIONS_OF_THE_PAGE).fetchone()
            await asyncio.gather(*(at.rows("SELECT pg_sleep(0.01)") for _ in range(30)))
            return before, conn.execute(SESSIONS_OF_THE_PAGE).fetchone()

    (before,), (during,) = run(database, work)
    assert before == 0
    assert 1 <= during <= SESSIONS


def test_session_that_the_server_has_ended_is_not_used_again(database, statement):
    async def work(at):
        await at.rows("SELECT 1 AS one")
        with psycopg.connect(database, autocommit=True) as conn:
            conn.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'jobherd page'"
            )
        return await at.rows("SELECT 1 AS one")

    assert run(database, work) == [{"one": 1}]


def sessions(dsn):
    """Return the number of sessions of the dashboard, after waiting for those that are ending."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        until = time.monotonic() + LIMIT
        while (found := conn.execute(SESSIONS_OF_THE_PAGE).fetchone()[0]) and time.monotonic() < until:
            conn.execute("SELECT pg_sleep(0.01)")
        return found


def test_query_canceled_while_its_session_opens_leaves_no_session(database, monkeypatch):
    begun = asyncio.Event()
    connections = []

    async def never(connection, *_, **__):
        connections.append(connection)
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(psycopg.AsyncConnection, "execute", never)

    async def work(at):
        looking = asyncio.create_task(at.rows("observe/show_time"))
        await begun.wait()
        looking.cancel()
        await asyncio.wait([looking])
        return [connection.closed for connection in connections]

    assert run(database, work) == [True]
    monkeypatch.undo()
    assert sessions(database) == 0


def test_session_returned_after_close_is_closed(database, statement, monkeypatch):
    lent = asyncio.Event()
    read_only = psycopg.AsyncConnection.set_read_only

    async def tell(connection, value):
        lent.set()
        await read_only(connection, value)

    monkeypatch.setattr(psycopg.AsyncConnection, "set_read_only", tell)

    async def work(at):
        looking = asyncio.create_task(at.rows("SELECT pg_sleep(0.2)"))
        await lent.wait()
        await at.close()
        await looking
        return at._idle

    assert run(database, work) == []
    assert sessions(database) == 0


def test_page_reports_an_outage_and_recovers():
    async def look(request):
        await database_of(request).rows("observe/show_time")
        return page_of(request, "error.html", title="Look", reason="here", since=None)

    with Cluster() as own:
        app = application(own.dsn())
        app.router.routes.insert(0, Route("/look", look))
        with Page(app) as page:
            assert page.get("/look").status_code == 200
            own.stop("immediate")
            first, second = page.get("/look"), page.get("/look")
            since = re.search(r'since <time datetime="([^"]+)"', first.text)
            assert (first.status_code, first.headers["refresh"]) == (503, "5")
            assert since
            assert f'datetime="{since[1]}"' in second.text, "expected the time of the first failure"
            assert page.get("/nothing").status_code == 404, "a request that needs no database must be answered"
            own.start()
            healed = page.get("/look")
            assert (healed.status_code, "does not answer" in healed.text) == (200, False)


def test_log_of_a_rejected_row_does_not_contain_the_row(database, caplog):
    refused = "INSERT INTO jobherd.ready (kind, queue, payload) VALUES ('a:b', 'default', '{\"card\": \"4111-1111\"}')"

    async def put(request):
        async with database_of(request)._session() as connection:
            await connection.execute(refused)

    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("ALTER TABLE jobherd.ready ADD CONSTRAINT paid CHECK (false)")
    app = application(database)
    app.router.routes.insert(0, Route("/put", put))
    with Page(app) as page:
        assert page.get("/put").status_code == 500
    assert "CheckViolation" in caplog.text and 'violates check constraint "paid"' in caplog.text.replace("\\", "")
    assert "4111-1" not in caplog.text


def test_connection_errors_mean_disconnected_and_statement_errors_do_not():
    assert is_disconnected(psycopg.OperationalError("connection refused"))
    assert is_disconnected(psycopg.errors.AdminShutdown())
    assert is_disconnected(psycopg.errors.TooManyConnections())
    assert not is_disconnected(psycopg.errors.QueryCanceled())
    assert not is_disconnected(psycopg.errors.UndefinedTable())
