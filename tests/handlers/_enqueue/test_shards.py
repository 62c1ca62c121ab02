"""One client enqueues to queues that are split over two databases."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import psycopg
import pytest

from jobherd import AsyncClient, Client, Flow, Unique, aenqueue_on, chain, configure, enqueue_on, extend, handler, sql
from jobherd.handlers._enqueue import default as module
from jobherd.handlers._enqueue.shards import BRIEFLY, MOST, WIDTH, ShardMap, first_id, shard_of
from jobherd.sql.migrate import migrate
from tests.support.patience import LIMIT


@handler("mail:receipt", queue="mail-out")
def receipt(order_id: int) -> None: ...


@handler("pdf:print", queue="pdf")
def pdf(order_id: int) -> None: ...


def ask(dsn, text, *parameters):
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(text, parameters).fetchall()


def ids(dsn):
    return [number for (number,) in ask(dsn, "SELECT id FROM jobherd.jobs ORDER BY id")]


def become(dsn, shard):
    with psycopg.connect(dsn, autocommit=True) as connection:
        migrate(connection)
        return connection.execute(sql.load("migrate/set_shard", "jobherd"), {"shard": shard}).fetchone()[0]


@pytest.fixture(scope="module")
def databases(cluster, template):
    with cluster.database(template=template) as first, cluster.database(template=template) as second:
        assert become(first, 1) and become(second, 2)
        yield first, second


@pytest.fixture
def first(databases):
    return databases[0]


@pytest.fixture
def second(databases):
    return databases[1]


@pytest.fixture
def shards(first, second):
    return {"mail-*": first, "*": second}


@pytest.fixture
def client(shards):
    with Client(shards=shards, timeout=LIMIT) as client:
        yield client


@pytest.fixture
def as_default(client):
    before = module._chosen
    configure(client=client)
    yield client
    module._chosen = before


def test_a_job_goes_to_the_database_of_its_queue(client, first, second):
    mail = client.enqueue("mail:receipt", {"order_id": 7}, queue="mail-out")
    other = client.enqueue("pdf:print", {"order_id": 7}, queue="pdf")
    assert (shard_of(mail), shard_of(other)) == (1, 2)
    assert mail in ids(first)
    assert other in ids(second)


def test_handler_enqueues_in_the_database_of_its_queue(client, first, second):
    assert receipt.options(client=client).enqueue(order_id=7) in ids(first)
    assert pdf.options(client=client).enqueue_many([7, 8])[1] in ids(second)
    assert receipt.options(client=client, queue="pdf").enqueue(order_id=7) in ids(second)


def test_client_finds_the_database_of_a_job_by_its_id(client, shards):
    mail, other = client.enqueue("a:b", queue="mail-in"), client.enqueue("a:b", queue="x")
    with Client(shards=shards) as fresh:  # has not enqueued anything yet
        assert [fresh.job(number)["queue"] for number in (mail, other)] == ["mail-in", "x"]
        assert next(fresh.watch(other))["id"] == other
        assert fresh.cancel(other, actor="ada") == "cancelled"
        assert fresh.cancel(mail) == "cancelled"
        assert list(fresh.wait_many([other, mail], timeout=LIMIT)) == [other, mail]
        assert fresh.retry(other) == "ready"
        assert fresh.job(mail + 1000) is None
        with pytest.raises(TimeoutError):
            fresh.wait(other, timeout=0)


def test_async_client_chooses_the_database_by_queue_and_by_id(shards, second):
    async def use():
        async with AsyncClient(shards=shards, timeout=LIMIT) as client:
            mail, other = await client.enqueue("a:b", queue="mail-in"), await client.enqueue("a:b", queue="x")
            assert (shard_of(mail), shard_of(other)) == (1, 2)
            assert (await client.job(other))["queue"] == "x"
            assert (await client.cancel(mail), await client.cancel(other)) == ("cancelled", "cancelled")
            assert list(await client.wait_many([other, mail], timeout=LIMIT)) == [other, mail]
            flow = Flow("one")
            flow.add(pdf, order_id=7)
            assert shard_of(await flow.aenqueue(client=client)) == 2
            with pytest.raises(ValueError, match="shard 3"):
                await client.job(first_id(3))
            with pytest.raises(ValueError, match="after names job"):
                await client.enqueue("a:b", queue="mail-in", after=other)
        async with await psycopg.AsyncConnection.connect(second) as connection:
            own = AsyncClient(shards=shards, connection=connection)
            assert shard_of(await own.enqueue("a:b", queue="x")) == 2
            with pytest.raises(ValueError, match="connection leads to shard 2"):
                await own.enqueue("a:b", queue="mail-in")
            await own.close()

    asyncio.run(use())


def test_client_with_shards_requires_a_queue_that_matches_a_shard(first):
    with Client(shards={"mail-*": first}) as client:
        with pytest.raises(ValueError, match="queue of 'a:b' is missing: a client with shards"):
            client.enqueue("a:b")
        with pytest.raises(ValueError, match=r"queue 'pdf' matches none of shards \('mail-\*'\): add it"):
            client.enqueue("a:b", queue="pdf")


def test_id_of_an_unknown_shard_raises_value_error(client):
    with pytest.raises(ValueError, match="is in shard 9, and shards has only shard 1, 2: add it"):
        client.job(first_id(9))


def test_statement_without_a_job_id_is_rejected(client):
    with pytest.raises(ValueError, match="does not name a job"):
        client.run(ShardMap.show())


@pytest.mark.parametrize("options", [{"unique": True}, {"unique_key": "k"}, {"debounce": 5}, {"unique": Unique("n")}])
def test_job_unique_in_only_one_of_several_databases_is_rejected(client, first, options):
    with pytest.raises(ValueError, match=r"unique: with shards.*queue=True"):
        client.enqueue("a:b", {"n": 1}, queue="mail-in", **options)
    unique = options.get("unique")
    by = unique.by if isinstance(unique, Unique) else None
    job = client.enqueue("a:b", {"n": 1}, queue="mail-in", **options | {"unique": Unique(by, queue=True)})
    assert job in ids(first)


def test_unique_needs_no_queue_if_all_shards_are_one_database(first):
    with Client(shards={"mail-*": first, "pdf": first}) as client:
        assert client.enqueue("a:b", {"n": 2}, queue="pdf", unique=True).new


def test_job_can_depend_only_on_jobs_of_its_own_database(client, first, second):
    before = client.enqueue("a:b", queue="pdf")
    assert client.job(client.enqueue("a:b", queue="x", after=before))["state"] == "blocked"
    with pytest.raises(ValueError, match="after names job .* of shard 2, and queue 'mail-in' is in shard 1"):
        client.enqueue("a:b", queue="mail-in", after=before)
    # the same in plain SQL, which has no list of shards
    for dsn, other in ((first, first_id(2)), (second, 1)):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="which does not exist"):
            ask(dsn, "SELECT * FROM jobherd.enqueue_after('a:b', ARRAY['{}'], ARRAY[%s]::bigint[])", other)


def test_flow_must_be_in_one_database(client, first, second):
    flow = Flow("both")
    mail = flow.add(receipt, order_id=7)
    flow.add(pdf, order_id=7)
    with pytest.raises(ValueError, match=r"flow: its jobs are in queues of several shards \('mail-out', 'pdf'\)"):
        flow.enqueue(client=client)
    for dsn in (first, second):
        assert not ask(dsn, "SELECT FROM jobherd.flows WHERE name = 'both'")
    other = chain(pdf.call(order_id=1), pdf.call(order_id=2)).enqueue(client=client)
    assert shard_of(other) == 2
    assert extend(other, [pdf.call(order_id=3)], client=client) == 1
    with pytest.raises(
        ValueError, match=r"calls: they belong to shards\['mail-\*'\], and the flow is in shards\['\*'\]"
    ):
        extend(other, [receipt.call(order_id=3)], client=client)
    late = Flow("late")
    late.add(receipt, order_id=7).after(other)
    with pytest.raises(ValueError, match=r"after names job .* and node 'mail:receipt' is in shard 1"):
        late.enqueue(client=client)
    assert (client.retry_flow(other), client.cancel_flow(other)) == (0, "cancelling")
    assert mail.name == "mail:receipt"


def test_callers_transaction_is_limited_to_one_database(shards, as_default, first, second):
    wrong = r"connection leads to shard 1, and shards\['\*'\] is shard 2: one transaction"
    with psycopg.connect(first) as connection:
        with Client(shards=shards, connection=connection) as own:
            number = own.enqueue("a:b", queue="mail-in")
            with pytest.raises(ValueError, match=wrong):
                own.enqueue("a:b", queue="pdf")
            with pytest.raises(ValueError, match=wrong):
                own.job(first_id(2))
            assert own.job(number)["state"] == "ready"
        assert shard_of(receipt.options(connection=connection).enqueue(order_id=7)) == 1
        assert shard_of(enqueue_on(connection, "a:b", queue="mail-in")) == 1
        for call in (
            lambda: pdf.options(connection=connection).enqueue(order_id=7),
            lambda: enqueue_on(connection, "a:b", queue="pdf"),
            lambda: chain(pdf.call(order_id=1)).enqueue(connection=connection),
        ):
            with pytest.raises(ValueError, match=wrong):
                call()
        connection.rollback()
    assert number not in ids(first)


def test_async_transaction_is_limited_to_one_database(as_default, second):
    async def use():
        async with await psycopg.AsyncConnection.connect(second) as connection:
            assert shard_of(await pdf.options(connection=connection).aenqueue(order_id=7)) == 2
            assert shard_of(await aenqueue_on(connection, "a:b", queue="pdf")) == 2
            with pytest.raises(ValueError, match="connection leads to shard 2"):
                await receipt.options(connection=connection).aenqueue(order_id=7)
            token = module.enter_transaction(connection)
            assert shard_of(await chain(pdf.call(order_id=1)).aenqueue()) == 2
            with pytest.raises(ValueError, match="connection leads to shard 2"):
                await chain(receipt.call(order_id=1)).aenqueue()
            module.leave_transaction(token)

    asyncio.run(use())


def test_transaction_of_a_running_job_is_limited_to_one_database(as_default, first):
    with psycopg.connect(first) as connection:
        token = module.enter_transaction(connection)
        try:
            assert shard_of(receipt.enqueue(order_id=7)) == 1
            with pytest.raises(ValueError, match="connection leads to shard 1"):
                pdf.enqueue(order_id=7)
        finally:
            module.leave_transaction(token)


def test_databases_without_a_shard_number_or_with_the_same_one_are_rejected(first, database, cluster, template):
    with Client(shards={"a": first, "b": database}) as client:
        assert client.enqueue("a:b", queue="a")
        with pytest.raises(ValueError, match=r"the database shards\['b'\] has no shard: run"):
            client.enqueue("a:b", queue="b")
    assert ids(database) == []
    with cluster.database(template=template) as twin:
        become(twin, 1)
        with Client(shards={"a": first, "b": twin}) as client:
            assert client.enqueue("a:b", queue="a")
            with pytest.raises(ValueError, match=r"shards\['b'\] and shards\['a'\] are both shard 1"):
                client.enqueue("a:b", queue="b")
        assert ids(twin) == []


def test_client_finds_a_job_while_another_database_is_unreachable(client, second):
    """The client queries each database briefly first. An unreachable one would cost the timeout, 30 s by default."""
    number = client.enqueue("a:b", queue="pdf")
    there = {"mail-*": "host=/nonexistent dbname=x", "*": second}

    async def find():
        async with AsyncClient(shards=there, timeout=LIMIT) as fresh:
            return await fresh.job(number)

    waits = []
    with Client(shards=there, timeout=LIMIT) as fresh:
        away = fresh.shards._clients[there["mail-*"]]
        original = away.run
        away.run = lambda statement, *, within=None: (waits.append(within), original(statement, within=within))
        assert fresh.job(number)["queue"] == "pdf"
    assert waits[0] == BRIEFLY
    assert asyncio.run(find())["queue"] == "pdf"
    with Client(shards=there, timeout=1) as fresh, pytest.raises(psycopg.OperationalError):
        fresh.job(1)


@pytest.mark.parametrize(
    ("shards", "problem"),
    [
        ({}, "shards is a dict .* not an empty dict"),
        ([("*", "dbname=x")], "shards is a dict .* not list"),
        ({"Mail": "dbname=x"}, "shards: 'Mail' is not a queue"),
        ({"*mail": "dbname=x"}, "is not a queue"),
        ({"*": None}, r"shards\['\*'\] must be the address of a database, not NoneType"),
        ({"*": "dbname=x", "a": "dbname=y"}, r"shards\['a'\] is never used: '\*' is before it"),
        ({"ma*": "dbname=x", "mail-*": "dbname=y"}, "is never used"),
    ],
)
def test_invalid_shards_are_rejected_by_the_constructor(shards, problem):
    for kind in (Client, AsyncClient):
        with pytest.raises((TypeError, ValueError), match=problem):
            kind(shards=shards)


def test_dsn_and_shards_exclude_each_other():
    for kind in (Client, AsyncClient):
        with pytest.raises(ValueError, match="dsn and shards exclude each other"):
            kind("dbname=x", shards={"*": "dbname=y"})


def test_errors_of_a_client_with_shards_contain_no_address(first, database):
    with Client(shards={"a": first, "b": database + " application_name=hidden"}) as client:
        for queue in ("b", "c"):
            with pytest.raises(ValueError) as found:
                client.enqueue("a:b", queue=queue)
            assert "hidden" not in str(found.value)


def test_ids_of_a_shard_never_leave_its_range(cluster, template):
    with cluster.database(template=template) as dsn:
        assert become(dsn, MOST)
        assert not become(dsn, MOST)
        ask(dsn, "SELECT setval('jobherd.job_ids', %s)", MOST * WIDTH + WIDTH - 2)
        with Client(dsn) as client:
            last = client.enqueue("a:b")
            assert last == (MOST + 1) * WIDTH - 1 < 2**53
            with pytest.raises(psycopg.errors.SequenceGeneratorLimitExceeded):
                client.enqueue("a:b")


def test_database_with_jobs_can_become_only_shard_1(cluster, template):
    with cluster.database(template=template) as dsn, Client(dsn) as client:
        number = client.enqueue("a:b")
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="already given ids up to"):
            become(dsn, 2)
        assert become(dsn, 1)
        assert client.enqueue("a:b") == number + 1
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="is shard 1 .* cannot become shard 2"):
            become(dsn, 2)
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="from 1 to 899"):
            become(dsn, 900)


def test_client_without_shards_does_not_import_the_shard_modules():
    text = (
        "import sys; from jobherd import Client, AsyncClient; Client('dbname=x'); AsyncClient('dbname=x'); "
        "print(sorted(name for name in sys.modules if 'shard' in name))"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_signal_to_a_topic_needs_a_client_of_one_database(client, shards):
    """A topic belongs to no database, so the client queries none. A signal to a job goes to the database of its id."""
    message = r"^shards: control/send_signal does not name a job.* Call it on a Client of one database"

    async def signal():
        async with AsyncClient(shards=shards, timeout=LIMIT) as other:
            await other.signal("order:42/packed")

    with pytest.raises(ValueError, match=message):
        client.signal("order:42/packed")
    with pytest.raises(ValueError, match=message):
        asyncio.run(signal())
    job = client.enqueue("pdf:print", {"order_id": 7}, queue="pdf")
    assert client.signal_job(job, "packed") is not None
