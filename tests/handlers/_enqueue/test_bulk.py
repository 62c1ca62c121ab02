"""Bulk enqueue: by COPY or by a statement, all or nothing, as a stream, in constant memory."""

from __future__ import annotations

import asyncio
import tracemalloc
from datetime import UTC, datetime

import psycopg
import pytest

from jobherd import (
    AsyncClient,
    BindingError,
    Client,
    PayloadError,
    aenqueue_many_on,
    configure,
    enqueue_many_on,
    enqueue_on,
    handler,
    sql,
)
from jobherd.handlers._enqueue import bulk
from jobherd.handlers._enqueue import default as module
from jobherd.sql.migrate import migrate
from jobherd.testing import inline
from tests.support.patience import LIMIT

MOMENT = datetime(2100, 1, 1, 12, tzinfo=UTC)
PAYLOADS = [
    {"text": 'back\\slash, "quote", tab\t, line\nend, \r\x01\x7f'},
    {"text": "é 漢字 🐎 \\N \\. %s %d"},
    None,
    [],
    "\\N",
    "",
    {"big": 2**70, "small": -1.5e-300, "": {"deep": [[None, True]]}},
]
MANY = bulk.CHUNK + bulk.COPY_FROM + 7
"""Two chunks."""


@handler("mail:receipt", queue="mail", priority=3)
def receipt(order_id: int, copies: int = 1) -> None: ...


@pytest.fixture
def client(database):
    with Client(database) as client:
        yield client


@pytest.fixture
def as_default(client):
    before = module._chosen
    configure(client=client)
    yield client
    module._chosen = before


@pytest.fixture
def connection(database):
    with psycopg.connect(database) as connection:
        yield connection


@pytest.fixture
def copied(monkeypatch):
    """Copy every chunk, however small."""
    monkeypatch.setattr(bulk, "COPY_FROM", 1)


@pytest.fixture
def small_chunks(monkeypatch):
    """End a chunk after a few dozen payloads such as {"n": 1}, and copy it."""
    monkeypatch.setattr(bulk, "CHUNK_SIZE", 100)
    monkeypatch.setattr(bulk, "COPY_FROM", 1)


def select(dsn, statement):
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(statement).fetchall()


def count(dsn):
    return select(dsn, "SELECT count(*) FROM jobherd.jobs")[0][0]


def numbers(n):
    return ({"n": number} for number in range(n))


def bad_at(place, n):
    return ({"n": "\0" if number == place else number} for number in range(n))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"queue": "media", "priority": -5, "max_attempts": 8, "timeout": 90.5, "expires_at": MOMENT},
        {"run_at": MOMENT, "priority": 2},
        {"run_at": datetime(2000, 1, 1, tzinfo=UTC)},
        {"delay": 0},
    ],
    ids=str,
)
def test_copied_jobs_equal_jobs_enqueued_by_the_statement(client, database, monkeypatch, options):
    by_statement = client.enqueue_many("a:b", PAYLOADS, **options)
    monkeypatch.setattr(bulk, "COPY_FROM", 1)
    by_copy = client.enqueue_many("a:b", PAYLOADS, **options)
    columns = "id, state, queue, priority, attempts, max_attempts, crashes, kind, payload::text, expires_at, timeout"
    # Without run_at, the statement uses the time of the transaction. COPY uses the time of the id reservation, which is
    # slightly earlier.
    moment = "run_at" if "run_at" in options else "run_at <= created_at AND run_at > created_at - interval '1 min'"
    rows = {row[0]: row[1:] for row in select(database, f"SELECT {columns}, {moment} FROM jobherd.jobs")}
    assert [rows[job_id] for job_id in by_statement] == [rows[job_id] for job_id in by_copy]
    assert [client.job(job_id)["payload"] for job_id in by_copy] == PAYLOADS


def test_delay_counts_from_the_time_of_the_call(client, database, copied):
    client.enqueue_many("a:b", numbers(3), delay="10m")
    assert select(
        database, "SELECT DISTINCT run_at - created_at BETWEEN '9m 50s' AND '10m' FROM jobherd.scheduled"
    ) == [(True,)]


@pytest.mark.parametrize("style", ["SQL, DMY", "German", "Postgres, MDY"])
def test_timestamps_are_independent_of_the_datestyle_and_time_zone_of_the_callers_connection(
    connection, database, copied, style
):
    """The abbreviation of Asia/Kolkata is IST, which PostgreSQL reads as Israel's time zone."""
    connection.execute(
        "SELECT set_config('DateStyle', %s, false), set_config('TimeZone', 'Asia/Kolkata', false)", [style]
    )
    enqueue_many_on(connection, "a:b", [{}], run_at=MOMENT, expires_at=MOMENT)
    connection.commit()
    assert select(database, "SELECT run_at, expires_at FROM jobherd.scheduled") == [(MOMENT, MOMENT)]


def test_copied_jobs_get_the_defaults_of_their_kind(client, database, copied):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed) "
            "VALUES ('image:thumbnail', 'media', 3, 8, 3, 7, 30)"
        )
    client.enqueue_many("image:thumbnail", [{}, {}])
    client.enqueue_many("image:thumbnail", [{}], queue="other", priority=0)
    assert select(database, "SELECT queue, priority, max_attempts FROM jobherd.jobs ORDER BY id") == [
        ("media", 3, 8), ("media", 3, 8), ("other", 0, 8),
    ]  # fmt: skip


def test_ids_are_ascending_and_one_notification_is_sent_for_several_chunks(client, database):
    with psycopg.connect(database, autocommit=True) as listener:
        listener.execute("LISTEN jobherd_jobs")
        listener.execute(sql.load("wake/enable_notify"))  # without an idle worker, no notification is sent
        found = client.enqueue_many("a:b", numbers(MANY))
        heard = list(listener.notifies(timeout=LIMIT, stop_after=1))
        heard += list(listener.notifies(timeout=0))
    assert [note.payload for note in heard] == ["default"]
    assert select(database, "SELECT id FROM jobherd.ready ORDER BY (payload ->> 'n')::int") == [
        (job_id,) for job_id in found
    ]
    assert found == sorted(found)
    assert len(found) == MANY


@pytest.mark.parametrize("place", [0, 3, 70, 99])
def test_no_job_is_enqueued_if_one_payload_is_invalid(client, database, small_chunks, place):
    with pytest.raises(PayloadError, match=rf"^index {place}: payload at \$\.n holds a NUL character") as caught:
        client.enqueue_many("a:b", bad_at(place, 100))
    assert (caught.value.index, caught.value.path) == (place, "$.n")
    assert count(database) == 0
    assert client.enqueue("a:b") > 0, "the pool's connection is still usable"


@pytest.mark.parametrize(
    "value",
    ["\0", "\ud800", float("nan"), float("inf"), 10**1001, {1: 2}, {1, 2}, b"x", "x" * 1_000_001],
    ids=lambda value: repr(value)[:20],
)
def test_copied_payloads_are_validated_like_others(client, database, copied, value):
    with pytest.raises(PayloadError, match=r"^index 1: (a key of the )?payload at \$"):
        client.enqueue_many("a:b", [{}, {"n": value}])
    deep: list[object] = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(PayloadError, match="^index 0: .*nested deeper"):
        client.enqueue_many("a:b", [deep])
    assert count(database) == 0


def test_no_job_is_enqueued_if_the_iterable_raises(client, database, small_chunks):
    def broken():
        yield from numbers(100)
        raise LookupError("the file has ended")

    with pytest.raises(LookupError):
        client.enqueue_many("a:b", broken())
    assert count(database) == 0


def test_invalid_option_is_rejected_before_the_iterable_is_read(client):
    taken = []
    for call in (client.enqueue_many, client.enqueue_stream):
        with pytest.raises(ValueError, match="queue 'No'"):
            call("a:b", (taken.append(n) for n in range(3)), queue="No")
        with pytest.raises(ValueError, match="is not a name"):
            call("A b", (taken.append(n) for n in range(3)))
    for chunk in (0, -1, 10_001, True, 2.5):
        with pytest.raises(ValueError, match="chunk must be a whole number from 1 to 10000"):
            client.enqueue_stream("a:b", (taken.append(n) for n in range(3)), chunk=chunk)
    assert taken == []


def test_enqueueing_an_empty_iterable_is_allowed(client, database):
    assert client.enqueue_many("a:b", []) == []
    assert client.enqueue_stream("a:b", iter(())) == 0
    assert receipt.options(client=client).enqueue_many([]) == []


def test_all_chunks_on_the_callers_connection_are_part_of_its_transaction(connection, database, small_chunks):
    assert len(enqueue_many_on(connection, "a:b", numbers(100))) == 100
    assert count(database) == 0, "only the caller commits"
    connection.rollback()
    assert count(database) == 0
    first = enqueue_on(connection, "a:b")
    with pytest.raises(PayloadError, match="index 70"):
        enqueue_many_on(connection, "a:b", bad_at(70, 100))
    last = receipt.options(connection=connection).enqueue_many([(1,), (2,)])
    connection.commit()
    assert [row[0] for row in select(database, "SELECT id FROM jobherd.jobs ORDER BY id")] == [first, *last]


@pytest.mark.usefixtures("small_chunks")
def test_all_chunks_on_an_autocommit_connection_are_one_transaction(database):
    with psycopg.connect(database, autocommit=True) as connection:
        with pytest.raises(PayloadError, match="index 70"):
            enqueue_many_on(connection, "a:b", bad_at(70, 100))
        assert count(database) == 0
        assert len(enqueue_many_on(connection, "a:b", numbers(100))) == 100
        assert count(database) == 100
        with connection.transaction(force_rollback=True):
            enqueue_many_on(connection, "a:b", numbers(100))
        assert count(database) == 100


def test_iterable_may_read_from_the_connection_that_enqueues_its_jobs(connection, database, small_chunks):
    with connection.cursor("orders") as orders:
        orders.itersize = 7
        orders.execute("SELECT n FROM generate_series(1, 100) AS n")
        assert len(enqueue_many_on(connection, "a:b", ({"n": n} for (n,) in orders))) == 100
    connection.commit()
    assert count(database) == 100


@pytest.mark.usefixtures("copied")
def test_jobs_on_a_pipeline_connection_are_not_copied(database):
    with psycopg.connect(database, autocommit=True) as connection, connection.pipeline():
        ids = enqueue_many_on(connection, "a:b", numbers(10))
        assert len(ids) == 10
    assert count(database) == 10


def test_enqueue_stream_commits_after_each_chunk(client, database, copied):
    seen = []
    assert (
        client.enqueue_stream(
            "a:b", numbers(25), chunk=10, on_chunk=lambda ids: seen.append((len(ids), count(database)))
        )
        == 25
    )
    assert seen == [(10, 10), (10, 20), (5, 25)]


@pytest.mark.parametrize("place", [0, 10, 13])
def test_enqueue_stream_stops_at_an_invalid_payload_and_keeps_the_jobs_before_it(client, database, place):
    told = []
    with pytest.raises(PayloadError, match=f"^index {place}: ") as caught:
        client.enqueue_stream("a:b", bad_at(place, 25), chunk=10, on_chunk=told.extend)
    assert caught.value.index == place
    assert select(database, "SELECT id FROM jobherd.jobs ORDER BY id") == [(job_id,) for job_id in told]
    assert len(told) == place


def test_enqueue_stream_on_the_callers_connection_is_part_of_its_transaction(connection, database):
    with Client(connection=connection) as client:
        assert client.enqueue_stream("a:b", numbers(25), chunk=10) == 25
    assert count(database) == 0
    connection.commit()
    assert count(database) == 25


def peak(work):
    """Return the most memory that `work` held at once, in bytes."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_bulk_enqueue_needs_the_memory_of_one_chunk_only(client, database, monkeypatch):
    def large(n):
        return ({"n": number, "text": "x" * 4000} for number in range(n))

    client.enqueue_stream("a:b", large(500), chunk=250)  # fills the pool and the statement cache before measuring
    most = 8_000_000  # a chunk of 250 is 1 MB as texts, 1 MB as lines and 1 MB as sent bytes
    assert peak(lambda: client.enqueue_stream("a:b", large(5_000), chunk=250)) < most
    monkeypatch.setattr(bulk, "CHUNK_SIZE", 1_000_000)
    monkeypatch.setattr(bulk, "COPY_FROM", 100)
    assert peak(lambda: client.enqueue_many("a:b", large(5_000))) < most
    assert peak(lambda: client.put(list(bulk.many_by_name("a:b", large(5_000), {})))) > 20_000_000, (
        "the measurement detects it if all chunks are held at once"
    )


def test_large_payloads_end_a_chunk_early():
    texts = [len(chunk.texts) for chunk in bulk.many_by_name("a:b", ({"text": "x" * 900_000} for _ in range(12)), {})]
    assert texts == [5, 5, 2]


def test_only_a_large_chunk_is_copied():
    sizes = [len(chunk.texts) for chunk in bulk.many_by_name("a:b", numbers(MANY), {})]
    assert sizes == [bulk.CHUNK, MANY - bulk.CHUNK]
    assert not bulk.Chunk("a:b", ["{}"] * (bulk.COPY_FROM - 1), bulk.Options()).is_large
    assert bulk.Chunk("a:b", ["{}"] * bulk.COPY_FROM, bulk.Options()).is_large


def test_copies_are_written_in_the_encoding_of_the_callers_connection(database, copied):
    with psycopg.connect(database, client_encoding="latin1") as connection:
        enqueue_many_on(connection, "a:b", [{"name": "é"}])
    assert select(database, "SELECT payload FROM jobherd.ready") == [({"name": "é"},)]


def test_handler_checks_each_job_of_a_bulk_enqueue_against_its_signature(as_default, database, copied):
    with pytest.raises(BindingError, match=r"^index 2: payload at \$\.order_id must be int, not str"):
        receipt.enqueue_many([(1,), {"order_id": 2}, ("3",)])
    with pytest.raises(TypeError, match="has no parameter 'oder_id'") as caught:
        receipt.enqueue_many([(1,), {"oder_id": 2}])
    assert caught.value.__notes__ == ["It was the job at index 1."]
    with pytest.raises(BindingError, match="index 1: "):
        receipt.enqueue_stream([(1,), ("2",)])
    assert select(database, "SELECT payload, queue, priority FROM jobherd.jobs") == [({"order_id": 1}, "mail", 3)]
    assert receipt.enqueue_stream((n,) for n in range(25)) == 25


def test_bulk_enqueue_works_from_asyncio_with_each_kind_of_client_and_connection(as_default, database, small_chunks):
    async def main():
        async with AsyncClient(database) as client:
            ids = await client.enqueue_many("a:b", numbers(100))
            with pytest.raises(PayloadError, match="index 70"):
                await client.enqueue_many("a:b", bad_at(70, 100))
            told: list[int] = []
            assert await client.enqueue_stream("a:b", numbers(25), chunk=10, on_chunk=told.extend) == 25
            mine = await receipt.options(client=client).aenqueue_many((n,) for n in range(100))
            assert await receipt.options(client=client).aenqueue_stream([(1,)]) == 1
        async with await psycopg.AsyncConnection.connect(database) as connection:
            assert len(await aenqueue_many_on(connection, "a:b", numbers(100))) == 100
            await connection.rollback()
            with pytest.raises(PayloadError, match="index 70"):
                await aenqueue_many_on(connection, "a:b", bad_at(70, 100))
            kept = await receipt.options(connection=connection).aenqueue_many([(1,), (2,)])
        in_a_thread = await receipt.aenqueue_many((n,) for n in range(100))
        assert await receipt.aenqueue_stream(((n,) for n in range(25)), chunk=10) == 25
        return [*ids, *told, *mine, *kept, *in_a_thread]

    found = asyncio.run(main())
    assert set(found) < {row[0] for row in select(database, "SELECT id FROM jobherd.jobs")}
    assert count(database) == len(found) + 1 + 25


@pytest.mark.usefixtures("small_chunks")
def test_bulk_enqueue_uses_the_schema_of_the_client(empty_database):
    with psycopg.connect(empty_database, autocommit=True) as connection:
        migrate(connection, schema="jobs_eu")
    with Client(empty_database, schema="jobs_eu") as client:
        assert len(client.enqueue_many("a:b", numbers(100))) == 100
    assert select(empty_database, "SELECT count(*) FROM jobs_eu.jobs") == [(100,)]


@pytest.mark.usefixtures("small_chunks")
def test_inline_testing_records_jobs_of_several_chunks(database):
    with inline(database) as jobs:
        receipt.options(max_attempts=2).enqueue_many((n,) for n in range(30))
        assert jobs.enqueued(receipt) == [{"order_id": n} for n in range(30)]
        assert {job.options["max_attempts"] for job in jobs.jobs} == {2}
