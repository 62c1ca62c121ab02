"""If the schema is missing, the error of every driver and call names the command that creates it."""

from __future__ import annotations

import asyncio

import asyncpg
import psycopg
import pytest

from jobherd import AsyncClient, Client, Flow, aenqueue_on, enqueue_on, handler

COMMAND = r"no schema 'jobherd' of this version: run `jobherd migrate` \((relation|schema|function|type) "


@handler("mail:receipt")
def receipt(order_id: int) -> None: ...


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.enqueue("mail:receipt", {"order_id": 7}),
        lambda client: client.enqueue("mail:receipt", {"order_id": 7}, unique=True),
        lambda client: client.enqueue_many("mail:receipt", ({"order_id": n} for n in range(12_000))),
        lambda client: client.job(7),
        lambda client: client.cancel(7),
        lambda client: client.wait(7, timeout="60s"),
    ],
    ids=["enqueue", "unique", "many", "job", "cancel", "wait"],
)
def test_client_error_for_a_missing_schema_names_the_migrate_command(empty_database, call):
    with Client(empty_database) as client, pytest.raises(psycopg.ProgrammingError, match=COMMAND) as raised:
        call(client)
    assert "\n" not in str(raised.value)
    assert raised.value.diag.message_primary  # the error still has its details


def test_client_error_for_a_missing_custom_schema_names_it_in_the_command(empty_database):
    with (
        Client(empty_database, schema="orders") as client,
        pytest.raises(psycopg.errors.UndefinedTable, match="run `jobherd migrate --schema orders`"),
    ):
        client.enqueue("mail:receipt", {"order_id": 7})


def test_errors_on_the_callers_connections_name_the_migrate_command(empty_database):
    async def enqueue() -> None:
        async with AsyncClient(empty_database) as client:
            with pytest.raises(psycopg.ProgrammingError, match=COMMAND):
                await client.enqueue("mail:receipt", {"order_id": 7})
        async with await psycopg.AsyncConnection.connect(empty_database) as own:
            with pytest.raises(psycopg.ProgrammingError, match=COMMAND):
                await aenqueue_on(own, "mail:receipt", {"order_id": 7})
        parts = psycopg.conninfo.conninfo_to_dict(empty_database)
        other = await asyncpg.connect(host=parts["host"], user=parts["user"], database=parts["dbname"])
        with pytest.raises(asyncpg.PostgresError, match=COMMAND):
            await aenqueue_on(other, "mail:receipt", {"order_id": 7})
        await other.close()

    asyncio.run(enqueue())
    with psycopg.connect(empty_database) as own, pytest.raises(psycopg.ProgrammingError, match=COMMAND):
        enqueue_on(own, "mail:receipt", {"order_id": 7})
    with psycopg.connect(empty_database) as own, own.pipeline(), pytest.raises(psycopg.ProgrammingError, match=COMMAND):
        enqueue_on(own, "mail:receipt", {"order_id": 7})


def test_flow_enqueue_error_for_a_missing_schema_names_the_migrate_command(empty_database):
    flow = Flow("orders")
    flow.add(receipt, order_id=7)
    with Client(empty_database) as client, pytest.raises(psycopg.ProgrammingError, match=COMMAND):
        flow.enqueue(client=client)


def test_error_of_a_users_trigger_with_a_missing_table_keeps_its_message(database):
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("""
            CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO notes VALUES (1); RETURN NEW; END $$;
            CREATE TRIGGER note AFTER INSERT ON jobherd.ready FOR EACH ROW EXECUTE FUNCTION note()
        """)
    with Client(database) as client, pytest.raises(psycopg.errors.UndefinedTable, match='^relation "notes" does not'):
        client.enqueue("mail:receipt", {"order_id": 7})
