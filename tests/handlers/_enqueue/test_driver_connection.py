"""`connection=` accepts connections of other libraries: commit, rollback, savepoint and bulk enqueue with each."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager

import asyncpg
import psycopg
import pytest
import sqlalchemy
from alembic.autogenerate import produce_migrations
from alembic.migration import MigrationContext
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlmodel import Session as ModelSession

from jobherd import (
    AsyncClient,
    Client,
    DuplicateJob,
    PayloadError,
    Unique,
    aenqueue_many_on,
    aenqueue_on,
    enqueue_many_on,
    enqueue_on,
    handler,
)
from jobherd.sqlalchemy import include_name, upgrade


@handler("mail:receipt")
def receipt(order_id: int) -> None: ...


@pytest.fixture
def count(database):
    def counted() -> int:
        with psycopg.connect(database) as connection:
            return connection.execute("SELECT count(*) FROM jobherd.jobs").fetchone()[0]

    return counted


def address(database: str, driver: str) -> tuple[str, dict]:
    """Return SQLAlchemy's address of the database, and the arguments of its driver."""
    parts = psycopg.conninfo.conninfo_to_dict(database)
    host = {"host": parts["host"], "port": int(parts.get("port", 5432))}
    return f"postgresql+{driver}://", host | {
        "user": parts["user"],
        "password": parts.get("password"),
        ("database" if driver == "asyncpg" else "dbname"): parts["dbname"],
    }


@contextmanager
def engine(database, **options):
    url, arguments = address(database, "psycopg")
    made = sqlalchemy.create_engine(url, connect_args=arguments, **options)
    yield made
    made.dispose()


@asynccontextmanager
async def async_engine(database, driver, **options):
    url, arguments = address(database, driver)
    made = create_async_engine(url, connect_args=arguments, **options)
    yield made
    await made.dispose()


@contextmanager
def registry(engine):
    session = scoped_session(sessionmaker(engine))
    yield session
    session.remove()


@pytest.mark.parametrize(
    "held",
    [
        pytest.param(lambda engine: Session(engine), id="Session"),
        pytest.param(lambda engine: ModelSession(engine), id="SQLModel"),
        pytest.param(registry, id="scoped_session"),
        pytest.param(lambda engine: engine.connect(), id="Connection"),
    ],
)
def test_jobs_are_part_of_the_sqlalchemy_transaction(database, count, held):
    with engine(database) as made, held(made) as connection:
        job = receipt.options(connection=connection)
        job.enqueue(order_id=1)
        assert count() == 0
        connection.commit()
        assert count() == 1
        enqueue_on(connection, "mail:receipt", {"order_id": 2})
        Client(connection=connection).enqueue("mail:receipt", {"order_id": 3})
        connection.rollback()
        assert count() == 1
        with connection.begin_nested() as savepoint:
            job.enqueue(order_id=4)
            savepoint.rollback()
        with pytest.raises(PayloadError):
            job.enqueue_many([(1,)] * 12_000 + [("no",)])
        assert len(job.enqueue_many((n,) for n in range(3000))) == 3000
        assert len(enqueue_many_on(connection, "mail:receipt", [{"order_id": 5}] * 2)) == 2
        connection.commit()
        assert count() == 3003
        client = Client(connection=connection)
        assert client.job(client.enqueue("mail:receipt", {"order_id": 6}))["payload"] == {"order_id": 6}


def test_sqlalchemy_autocommit_makes_a_job_visible_at_once(database, count):
    with engine(database, isolation_level="AUTOCOMMIT") as made, made.connect() as connection:
        receipt.options(connection=connection).enqueue(order_id=1)
        assert count() == 1


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("kind", ["AsyncSession", "async_scoped_session", "AsyncConnection"])
def test_jobs_are_part_of_the_async_sqlalchemy_transaction(database, count, driver, kind):
    async def run() -> None:
        async with async_engine(database, driver) as made:
            held = {
                "AsyncSession": lambda: AsyncSession(made),
                "async_scoped_session": lambda: async_scoped_session(
                    async_sessionmaker(made), scopefunc=asyncio.current_task
                ),
                "AsyncConnection": made.connect,
            }[kind]()
            if kind == "AsyncConnection":
                await held.start()
            await committed(held, held.commit, held.rollback, count)
            async with held.begin_nested() as savepoint:
                await receipt.options(connection=held).aenqueue(order_id=4)
                await savepoint.rollback()
            await held.commit()
            assert count() == 3003
            await held.close()

    asyncio.run(run())


async def committed(held, commit, rollback, count) -> None:
    job = receipt.options(connection=held)
    await job.aenqueue(order_id=1)
    assert count() == 0
    await commit()
    assert count() == 1
    await aenqueue_on(held, "mail:receipt", {"order_id": 2})
    await AsyncClient(connection=held).enqueue("mail:receipt", {"order_id": 3})
    await rollback()
    assert count() == 1
    with pytest.raises(PayloadError):
        await job.aenqueue_many([(1,)] * 12_000 + [("no",)])
    assert len(await job.aenqueue_many((n,) for n in range(3000))) == 3000
    assert len(await aenqueue_many_on(held, "mail:receipt", [{"order_id": 5}] * 2)) == 2
    await commit()
    assert count() == 3003


@asynccontextmanager
async def of_asyncpg(database):
    _, arguments = address(database, "asyncpg")
    async with asyncpg.create_pool(**arguments, min_size=1) as pool, pool.acquire() as connection:
        yield connection


@pytest.mark.parametrize("manual", [False, True])
def test_jobs_are_part_of_the_asyncpg_transaction(database, count, manual):
    class Transaction:
        """The open transaction of a connection: asyncpg's object, or plain BEGIN and COMMIT."""

        def __init__(self, connection) -> None:
            self.connection, self.open = connection, None

        async def begin(self) -> None:
            if manual:
                await self.connection.execute("BEGIN")
            else:
                self.open = self.connection.transaction()
                await self.open.start()

        async def commit(self) -> None:
            await (self.connection.execute("COMMIT") if manual else self.open.commit())
            await self.begin()

        async def rollback(self) -> None:
            await (self.connection.execute("ROLLBACK") if manual else self.open.rollback())
            await self.begin()

    async def run() -> None:
        async with of_asyncpg(database) as connection:
            transaction = Transaction(connection)
            await transaction.begin()
            await committed(connection, transaction.commit, transaction.rollback, count)
            await transaction.rollback()

    asyncio.run(run())


def test_each_call_is_atomic_on_asyncpg_without_a_transaction_and_with_custom_json_codecs(database, count):
    import json

    async def run() -> None:
        async with of_asyncpg(database) as connection:
            for name in ("json", "jsonb"):
                await connection.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
            job = receipt.options(connection=connection, unique=True, partition="a", cost={"gpu": 1})
            first = await job.aenqueue(order_id=1)
            assert count() == 1
            with pytest.raises(PayloadError):
                await job.aenqueue_many([(1,)] * 12_000 + [("no",)])
            assert count() == 1
            client = AsyncClient(connection=connection)
            with pytest.raises(DuplicateJob):
                await client.enqueue("mail:receipt", {"order_id": 1}, unique=Unique(conflict="raise"))
            assert (await client.job(first))["payload"] == {"order_id": 1}
            assert await client.cancel(first, actor="ada") == "cancelled"
            assert (await client.wait(first))["state"] == "cancelled"

    asyncio.run(run())


def test_connection_parameter_rejects_unsupported_objects_and_names_the_expected_type(database):
    with engine(database) as made, pytest.raises(TypeError, match="connection must be .* not a .*Engine"):
        receipt.options(connection=made)
    with pytest.raises(TypeError, match="connection must be a connection or session of psycopg 3"):
        enqueue_on(sqlite3.connect(":memory:"), "a:b")
    with engine(database) as made, Session(made) as session:
        with pytest.raises(TypeError, match=r"connection is synchronous \(Session\).*use Client"):
            AsyncClient(connection=session)
        with pytest.raises(TypeError, match="would stop the event loop"):
            asyncio.run(receipt.options(connection=session).aenqueue(order_id=1))
    with pytest.raises(TypeError, match=r"connection is asynchronous \(AsyncSession\): use AsyncClient"):
        Client(connection=AsyncSession())
    with sqlalchemy.create_engine("sqlite://").connect() as connection:
        with pytest.raises(TypeError, match="connection has the driver sqlite3: use psycopg 3"):
            receipt.options(connection=connection).enqueue(order_id=1)


def test_importing_jobherd_imports_no_optional_library(tmp_path):
    code = (
        "import sys, jobherd, jobherd.sqlalchemy\n"
        "from jobherd import Client, AsyncClient, handler, enqueue_on\n"
        "print([name for name in ('sqlalchemy', 'django', 'asyncpg', 'alembic', 'sentry_sdk') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.filterwarnings("ignore:Did not recognize type:sqlalchemy.exc.SAWarning")
def test_include_name_hook_makes_alembic_ignore_the_jobherd_schema(database):
    def found(**options) -> list[str]:
        with engine(database) as made, made.connect() as connection:
            context = MigrationContext.configure(connection, opts={"include_schemas": True, **options})
            operations = produce_migrations(context, sqlalchemy.MetaData()).upgrade_ops.ops
            return sorted({one.schema for one in operations})

    assert "jobherd" in found()
    assert found(include_name=include_name) == []


def test_upgrade_creates_the_schema_in_the_transaction_of_the_callers_connection(empty_database):
    with engine(empty_database) as made, made.connect() as connection:
        assert upgrade(connection) > 0
        connection.rollback()
        assert not connection.execute(text("SELECT 1 FROM pg_namespace WHERE nspname = 'jobherd'")).all()
        upgrade(connection)
        connection.commit()
        assert upgrade(connection) == 0
        receipt.options(connection=connection).enqueue(order_id=1)
