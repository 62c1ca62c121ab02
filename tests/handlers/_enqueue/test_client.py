from __future__ import annotations

import asyncio
import os
import threading
import time
from datetime import UTC, datetime, timedelta

import psycopg
import psycopg_pool
import pytest
from psycopg.rows import dict_row

from jobherd import (
    AsyncClient,
    Client,
    Job,
    Json,
    NotConfiguredError,
    aenqueue_on,
    configure,
    default_client,
    enqueue_on,
    handler,
    sql,
)
from jobherd.handlers._enqueue import default as module
from jobherd.handlers._enqueue.dsn import find_dsn, session_of
from jobherd.handlers._enqueue.pool import Tries
from jobherd.handlers._enqueue.waiting import CompletionWait
from tests.support.patience import LIMIT


@handler("mail:receipt", queue="mail", priority=3)
def receipt(job: Job, order_id: int, copies: int = 1) -> None: ...


@handler("any:document")
def document(payload: Json) -> None: ...


@pytest.fixture
def client(database):
    with Client(database) as client:
        yield client


@pytest.fixture
def connection(database):
    with psycopg.connect(database) as connection:
        yield connection


@pytest.fixture
def as_default(client):
    before = module._chosen
    configure(client=client)
    yield client
    module._chosen = before


def jobs(database):
    with psycopg.connect(database, row_factory=dict_row) as connection:
        return connection.execute("SELECT * FROM jobherd.jobs ORDER BY id").fetchall()


def ids(database):
    return [row["id"] for row in jobs(database)]


def test_client_enqueues_by_kind_and_returns_the_stored_row(client):
    job_id = client.enqueue("mail:receipt", {"order_id": 7, "big": 2**70}, priority=-5, max_attempts=8, queue="media")
    row = client.job(job_id)
    assert row["id"] == job_id
    assert (row["kind"], row["queue"], row["priority"], row["state"], row["max_attempts"]) == (
        "mail:receipt",
        "media",
        -5,
        "ready",
        8,
    )
    assert row["payload"] == {"order_id": 7, "big": 2**70}
    assert row["history"] == []
    assert client.job(job_id + 1) is None


def test_pgclientencoding_does_not_limit_the_characters_of_a_payload(database, monkeypatch):
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    with Client(database) as client:
        number = client.enqueue("any:document", {"text": "\N{GRINNING FACE}"})
        assert client.job(number)["payload"] == {"text": "\N{GRINNING FACE}"}


@pytest.mark.parametrize("style", ["SQL, DMY", "German", "Postgres, MDY"])
def test_job_is_read_correctly_with_every_datestyle(connection, style):
    connection.execute("SELECT set_config('DateStyle', %s, false)", [style])
    with Client(connection=connection) as client:
        moment = datetime(2100, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
        row = client.job(client.enqueue("a:b", {"n": 1}, run_at=moment))
    assert (row["run_at"], row["payload"], row["history"]) == (moment, {"n": 1}, [])


def test_payload_defaults_to_an_empty_object(client):
    assert client.job(client.enqueue("mail:receipt"))["payload"] == {}


def test_a_delayed_job_is_scheduled(client):
    row = client.job(client.enqueue("a:b", delay="10m"))
    assert row["state"] == "scheduled"
    assert timedelta(minutes=9) < row["run_at"] - row["created_at"] <= timedelta(minutes=10)
    moment = datetime(2100, 1, 1, tzinfo=UTC)
    assert client.job(client.enqueue("a:b", run_at=moment))["run_at"] == moment


def test_enqueue_many_keeps_the_order_of_the_jobs(client, database):
    found = client.enqueue_many("a:b", ({"n": n} for n in range(500)))
    assert found == sorted(found)
    assert [row["payload"]["n"] for row in jobs(database)] == list(range(500))
    assert client.enqueue_many("a:b", []) == []


def test_client_cancels_a_ready_job_and_runs_it_again(client):
    job_id = client.enqueue("a:b")
    assert client.cancel(job_id) == "cancelled"
    assert client.wait(job_id, timeout=LIMIT)["state"] == "cancelled"
    assert client.retry(job_id) == "ready"
    assert client.job(job_id)["state"] == "ready"
    assert client.cancel(2**40) is None
    assert client.retry(2**40) is None


def test_audit_entries_name_the_actor_and_reason_of_cancel_and_retry(client, database):
    job_id = client.enqueue("a:b")
    assert client.cancel(job_id) == "cancelled"
    assert client.retry(job_id, actor="ada", reason="sent too early") == "ready"
    assert client.cancel(job_id, actor="ada") == "cancelled"
    with psycopg.connect(database) as connection:
        noted = connection.execute(
            "SELECT action, actor, actor = role, reason FROM jobherd.audit ORDER BY id"
        ).fetchall()
    assert [row[0] for row in noted] == ["cancel", "retry", "cancel"]
    assert noted[0][2], "without an actor, the entry names the database role"
    assert noted[1:] == [("retry", "ada", False, "sent too early"), ("cancel", "ada", False, None)]


def test_wait_returns_when_the_job_is_finished(client, database):
    job_id = client.enqueue("a:b")
    waiting = threading.Thread(target=lambda: found.append(client.wait(job_id, timeout=LIMIT)))
    found = []
    waiting.start()
    with Client(database) as other:
        other.cancel(job_id)
    waiting.join(LIMIT)
    assert found[0]["state"] == "cancelled"


def test_wait_ignores_malformed_notifications_and_those_of_other_schemas(client):
    job_id = client.enqueue("a:b")
    waiting = CompletionWait([job_id], None, schema="jobherd", can_listen=True)
    assert waiting.due() == [job_id]  # the first query
    waiting.on_notification("² ²=completed " + "9" * 5000 + "=completed")
    assert waiting.due() == []
    waiting.on_notification(f"other. {job_id}=completed")
    assert waiting.due() == []
    waiting.on_notification(f"jobherd. {job_id}=completed")
    assert waiting.due() == [job_id]


def test_wait_raises_timeout_error_or_lookup_error(client):
    job_id = client.enqueue("a:b")
    with pytest.raises(TimeoutError, match=f"job {job_id} is still ready"):
        client.wait(job_id, timeout="50ms")
    with pytest.raises(LookupError, match="job 12345 not found"):
        client.wait(12345)


def test_client_returns_the_raw_text_of_a_payload_that_python_cannot_decode(client, connection):
    texts = ["1" * 5000, "[" * 3000 + "]" * 3000, '"\\ud800"']
    for text in texts:
        job_id = connection.execute(
            "INSERT INTO jobherd.ready (kind, payload) VALUES ('a:b', %s::json) RETURNING id", [text]
        ).fetchone()[0]
        connection.commit()
        assert client.job(job_id)["payload"] == text


def test_handler_enqueues_with_its_defaults_and_given_options(as_default, database):
    job_id = receipt.enqueue(7)
    later = receipt.options(delay="1h", priority=-1, timeout="30s").enqueue(order_id=8, copies=2)
    document.enqueue([1, None])
    rows = jobs(database)
    assert [row["id"] for row in rows][:2] == [job_id, later]
    assert [(row["queue"], row["priority"], row["state"]) for row in rows] == [
        ("mail", 3, "ready"),
        ("mail", -1, "scheduled"),
        ("default", 0, "ready"),
    ]
    assert [row["payload"] for row in rows] == [{"order_id": 7}, {"order_id": 8, "copies": 2}, [1, None]]


def test_handler_enqueue_many_sends_one_notification(as_default, database):
    with psycopg.connect(database, autocommit=True) as listener:
        listener.execute(sql.load("wake/listen_jobs"))
        listener.execute(sql.load("wake/enable_notify"))
        found = receipt.enqueue_many([{"order_id": 1}, (2,), receipt.payload(order_id=3)])
        heard = list(listener.notifies(timeout=LIMIT, stop_after=1))
        heard += list(listener.notifies(timeout=0))
    assert found == ids(database)
    assert [note.payload for note in heard] == ["mail"]


def test_job_on_the_callers_connection_is_part_of_its_transaction(connection, database):
    enqueue_on(connection, "a:b", {"n": 1})
    receipt.options(connection=connection).enqueue(7)
    assert ids(database) == []
    connection.rollback()
    assert ids(database) == []
    kept = enqueue_on(connection, "a:b", {"n": 1}, delay=0)
    connection.commit()
    assert ids(database) == [kept]


def test_job_on_an_autocommit_connection_is_visible_at_once(database):
    with psycopg.connect(database, autocommit=True) as connection:
        assert enqueue_on(connection, "a:b") in ids(database)


def test_callers_connection_may_have_custom_row_and_cursor_factories(database):
    with psycopg.connect(database, row_factory=dict_row, cursor_factory=psycopg.RawCursor) as connection:
        assert receipt.options(connection=connection).enqueue(7) > 0
        with Client(connection=connection) as client:
            assert client.job(client.enqueue("a:b", {"n": None}))["payload"] == {"n": None}


def test_closing_a_client_leaves_the_callers_connection_open(connection):
    with Client(connection=connection) as client:
        client.enqueue("a:b")
    assert not connection.closed
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS


def test_async_client_enqueues_cancels_waits_and_retries(database):
    async def main():
        async with AsyncClient(database) as client:
            first = await client.enqueue("a:b", {"n": 1}, priority=2)
            more = await client.enqueue_many("a:b", [{"n": 2}, {"n": 3}])
            by_handler = await receipt.options(client=client).aenqueue(7)
            async with await psycopg.AsyncConnection.connect(database) as connection:
                on_mine = await aenqueue_on(connection, "a:b")
                many = await receipt.options(connection=connection).aenqueue_many([(1,), (2,)])
                await connection.rollback()
            assert await client.cancel(first) == "cancelled"
            assert (await client.wait(first, timeout=LIMIT))["state"] == "cancelled"
            assert await client.retry(first) == "ready"
            with pytest.raises(TimeoutError):
                await client.wait(first, timeout=0.05)
            return [first, *more, by_handler], [on_mine, *many]

    kept, undone = asyncio.run(main())
    assert ids(database) == kept
    assert len(undone) == 3


def test_async_client_is_usable_in_a_second_event_loop(database):
    client = AsyncClient(database)

    async def once():
        job_id = await client.enqueue("a:b")
        await client.close()
        return job_id

    assert [asyncio.run(once()), asyncio.run(once())] == ids(database)


def open_files():
    return len(os.listdir("/proc/self/fd"))


def test_async_client_closes_the_connections_of_an_ended_event_loop(database):
    """A long-lived client is used from many short event loops and never closed."""
    client = AsyncClient(database)
    numbers = [asyncio.run(client.enqueue("a:b"))]
    before = open_files()
    numbers += [asyncio.run(client.enqueue("a:b")) for _ in range(5)]
    assert open_files() <= before
    asyncio.run(client.close())
    assert open_files() < before
    assert numbers == ids(database)


def test_alternating_event_loops_keep_their_connections(database):
    client = AsyncClient(database)
    with asyncio.Runner() as one, asyncio.Runner() as other:
        numbers = [each.run(client.enqueue("a:b")) for each in (one, other)]
        before = open_files()
        numbers += [each.run(client.enqueue("a:b")) for each in (one, other, one, other)]
        assert open_files() == before
        for each in (one, other):
            each.run(client.close())
        assert open_files() == before - 2
    assert numbers == ids(database)


def test_aenqueue_without_a_client_uses_the_process_wide_client(as_default, database):
    async def main():
        return [await receipt.aenqueue(7), *await receipt.aenqueue_many([(8,)])]

    assert asyncio.run(main()) == ids(database)


def test_error_for_the_wrong_kind_of_connection_names_the_call_to_use(connection, database):
    async def wrong():
        async with await psycopg.AsyncConnection.connect(database) as theirs:
            with pytest.raises(TypeError, match=r"await aenqueue\(...\) of 'mail:receipt'"):
                receipt.options(connection=theirs).enqueue(7)
        with pytest.raises(TypeError, match=r"call enqueue\(...\) of 'mail:receipt'"):
            await receipt.options(connection=connection).aenqueue(7)

    asyncio.run(wrong())
    with pytest.raises(ValueError, match="exclude each other"):
        receipt.options(connection=connection, client=default_client())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_opens_its_own_pool_and_does_not_use_the_parents_connections(client, database):
    first = client.enqueue("a:b")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(writing, b"%d" % client.enqueue("a:b"))
            client.close()
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    second = int(os.read(reading, 100))
    os.close(reading)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    third = client.enqueue("a:b")
    assert ids(database) == [first, second, third]


def test_connection_ended_by_the_server_is_replaced_before_use(client, database):
    client.enqueue("a:b")
    with psycopg.connect(database, autocommit=True) as other:
        ended = other.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchall()
    assert (True,) in ended
    assert client.enqueue("a:b") in ids(database)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_pool_timeout_error_includes_the_cause(database, kind):
    """The pool's own error contains only the time waited; it logs the cause, which few users read."""

    async def ask(client):
        if isinstance(client, Client):
            client.enqueue("mail:receipt")
        else:
            async with client:
                await client.enqueue("mail:receipt")

    client = kind(f"{database} dbname=nowhere", timeout="50ms")
    until = time.monotonic() + LIMIT
    said = ""
    while "nowhere" not in said:  # the first attempt may take longer than the timeout
        assert time.monotonic() < until, said
        with pytest.raises(psycopg_pool.PoolTimeout) as problem:
            asyncio.run(ask(client))
        said = str(problem.value)
    assert 'database "nowhere" does not exist' in said
    if isinstance(client, Client):
        client.close()


def test_error_masks_a_password_part_that_the_driver_takes_for_the_host():
    """If a password contains an @ that is not written as %40, the driver takes the text after it as the host."""
    with pytest.raises(psycopg.OperationalError) as problem:
        psycopg.connect("postgresql://app:hunter@two@127.0.0.1:1/jobs", connect_timeout=2)
    tries = Tries()
    for told in (str(problem.value), "failed to resolve host 'two@db': [Errno -2] Name or service not known"):
        with pytest.raises(psycopg.OperationalError), tries.recorded():
            raise psycopg.OperationalError(told)
        assert "two" not in tries.failed
    assert tries.failed == "failed to resolve host '***@db': [Errno -2] Name or service not known"


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_wait_timeout_error_includes_the_cause_if_no_connection_succeeds(database, kind):
    async def wait(client):
        if isinstance(client, Client):
            client.wait(1, timeout="0.1s")
        else:
            async with client:
                await client.wait(1, timeout="0.1s")

    client = kind(f"{database} dbname=nowhere")
    until = time.monotonic() + LIMIT
    said = ""
    while "nowhere" not in said:  # the first attempt may take longer than the timeout
        assert time.monotonic() < until, said
        with pytest.raises(TimeoutError, match="the state of job 1 is not known: ") as problem:
            asyncio.run(wait(client))
        said = str(problem.value)
    assert 'database "nowhere" does not exist' in said
    if isinstance(client, Client):
        client.close()


def test_pool_timeout_of_an_exhausted_pool_reports_no_other_cause(database):
    with (
        Client(database, max_size=1) as client,
        client._session(),
        pytest.raises(psycopg_pool.PoolTimeout, match="sec$"),
        client._session(0.01),
    ):
        pass


def test_client_disables_jit_in_its_own_sessions_and_not_in_the_callers(database):
    """With jit, PostgreSQL compiled a query of 1 ms for 0.3 s, because it estimated millions of finished jobs."""

    async def of_a_coroutine():
        async with AsyncClient(database) as client, client._session() as own:
            return await (await own.execute("SHOW jit")).fetchone()

    with Client(database) as client, client._session() as own:
        assert own.execute("SHOW jit").fetchone() == ("off",)
    assert asyncio.run(of_a_coroutine()) == ("off",)
    with psycopg.connect(database, autocommit=True) as mine:
        mine.execute("SET jit = on")
        assert Client(connection=mine).job(7) is None
        assert mine.execute("SHOW jit").fetchone() == ("on",)


def test_client_opens_no_connection_before_its_first_call(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JOBHERD_DSN", raising=False)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    with Client() as client, pytest.raises(NotConfiguredError, match="JOBHERD_DSN and DATABASE_URL"):
        client.enqueue("a:b")


def test_jobherd_dsn_overrides_database_url_and_an_argument_overrides_both(monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgresql:///b")
    monkeypatch.delenv("JOBHERD_DSN", raising=False)
    assert find_dsn() == "postgresql:///b"
    monkeypatch.setenv("JOBHERD_DSN", "postgresql:///a")
    assert find_dsn() == "postgresql:///a"
    assert find_dsn("postgresql:///c") == "postgresql:///c"


@pytest.mark.parametrize("schema", ["", "a b", "pg_x", "x; drop", "X"])
def test_invalid_schema_name_is_rejected(schema):
    with pytest.raises(ValueError, match="schema"):
        Client(schema=schema)


def test_client_and_handler_use_the_configured_schema(empty_database):
    from jobherd.sql.migrate import migrate

    with psycopg.connect(empty_database, autocommit=True) as connection:
        migrate(connection, schema="jobs_eu")
    with Client(empty_database, schema="jobs_eu") as client:
        assert client.job(client.enqueue("a:b", {"n": 1}))["payload"] == {"n": 1}
        before = module._chosen
        try:
            configure(client=client)
            with psycopg.connect(empty_database) as connection:
                assert receipt.options(connection=connection).enqueue(7) > 0
        finally:
            module._chosen = before


def test_client_sets_tcp_timeouts_unless_the_dsn_sets_them(client, database, monkeypatch):
    """Without these timeouts, a client that waits for a job notices only after two hours that the host is gone."""
    monkeypatch.delenv("PGTARGETSESSIONATTRS", raising=False)
    with client._session() as connection:
        given = connection.info.get_parameters()
    assert (given["tcp_user_timeout"], given["keepalives_idle"], given["application_name"]) == (
        "15000",
        "10",
        "jobherd client",
    )
    with Client(f"{database} keepalives_idle=70") as other, other._session() as connection:
        assert connection.info.get_parameters()["keepalives_idle"] == "70"
    assert "target_session_attrs" not in session_of("host=a")
    assert session_of("host=a,b")["target_session_attrs"] == "read-write"
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "any")
    assert "target_session_attrs" not in session_of("host=a,b")
