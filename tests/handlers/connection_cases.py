"""Types of connections. test_typing runs type checkers, which must report exactly the lines marked `wrong`."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_type

from jobherd import AsyncClient, Client, JobId, aenqueue_many_on, aenqueue_on, enqueue_many_on, enqueue_on, handler
from jobherd.sqlalchemy import include_name, upgrade

if TYPE_CHECKING:
    import asyncpg
    import psycopg
    import sqlmodel
    from alembic.runtime.environment import EnvironmentContext
    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session


@handler("mail:receipt")
def receipt(order_id: int) -> None: ...


def synchronous(
    session: Session,
    model_session: sqlmodel.Session,
    scoped: scoped_session[Session],
    connection: Connection,
    own: psycopg.Connection,
) -> None:
    from django.db import connection as proxy
    from django.db import connections

    for held in (session, model_session, scoped, connection, own, proxy, connections["default"]):
        receipt.options(connection=held)
    receipt.options(connection=session, delay="10m").enqueue(order_id=7)
    receipt.options(connection=scoped).enqueue(order_id=7)
    receipt.options(connection=connection).enqueue(order_id=7)
    assert_type(enqueue_on(session, "mail:receipt", {"order_id": 7}), JobId)
    enqueue_on(model_session, "mail:receipt")
    enqueue_on(scoped, "mail:receipt")
    enqueue_on(connection, "mail:receipt")
    enqueue_on(own, "mail:receipt")
    enqueue_on(proxy, "mail:receipt")
    enqueue_on(connections["default"], "mail:receipt")
    assert_type(enqueue_many_on(scoped, "mail:receipt", [{}]), list[int])
    Client(connection=session)
    Client(connection=connection)
    upgrade(connection)


async def asynchronous(
    session: AsyncSession,
    scoped: async_scoped_session[AsyncSession],
    connection: AsyncConnection,
    own: psycopg.AsyncConnection,
    direct: asyncpg.Connection,
) -> None:
    receipt.options(connection=session)
    receipt.options(connection=direct)
    assert_type(await aenqueue_on(session, "mail:receipt"), JobId)
    await aenqueue_on(scoped, "mail:receipt")
    await aenqueue_on(connection, "mail:receipt")
    await aenqueue_on(own, "mail:receipt")
    await aenqueue_on(direct, "mail:receipt")
    assert_type(await aenqueue_many_on(direct, "mail:receipt", [{}]), list[int])
    AsyncClient(connection=session)
    AsyncClient(connection=direct)


def alembic(context: EnvironmentContext, connection: Connection) -> None:
    context.configure(connection, include_schemas=True, include_name=include_name)


def mistaken(session: Session, later: AsyncSession, engine: Engine, own: psycopg.Connection) -> None:
    receipt.options(connection="postgresql:///app")  # wrong
    receipt.options(connection=engine)  # wrong
    enqueue_on(7, "mail:receipt")  # wrong
    enqueue_on(later, "mail:receipt")  # wrong
    Client(connection=engine)  # wrong
    Client(connection=later)  # wrong
    AsyncClient(connection=session)  # wrong
    AsyncClient(connection=own)  # wrong
    receipt.options(connection=session).enqueue(order_id="7")  # wrong
