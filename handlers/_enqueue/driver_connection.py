"""Finds the driver's connection below what an application has: of SQLAlchemy, Django, asyncpg or psycopg.

Must not import any of these libraries but psycopg. A class is recognized by the library that defines
it or its base. Nothing here commits. A connection is looked up for each enqueue: a session gets
another one with its next transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import psycopg

from jobherd.handlers._enqueue.asyncpg_connection import AsyncpgConnection
from jobherd.handlers._values.json_form import type_name, with_article

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from jobherd.handlers._enqueue.send import AsyncDriver


class SqlalchemyConnection(Protocol):
    """SQLAlchemy's `Connection`."""

    @property
    def connection(self) -> Any: ...

    def exec_driver_sql(self, statement: str, /) -> Any: ...


class SqlalchemySession(Protocol):
    """SQLAlchemy's `Session` and `scoped_session`, and SQLModel's `Session`."""

    def connection(self) -> SqlalchemyConnection: ...

    def flush(self) -> None: ...


class SqlalchemyAsyncConnection(Protocol):
    """SQLAlchemy's `AsyncConnection`."""

    def exec_driver_sql(self, statement: str, /) -> Coroutine[Any, Any, Any]: ...

    def get_raw_connection(self) -> Coroutine[Any, Any, Any]: ...


class SqlalchemyAsyncSession(Protocol):
    """SQLAlchemy's `AsyncSession` and `async_scoped_session`."""

    def connection(self) -> Coroutine[Any, Any, SqlalchemyAsyncConnection]: ...

    def flush(self) -> Coroutine[Any, Any, None]: ...


class DjangoConnection(Protocol):
    """Django's database wrapper."""

    def ensure_connection(self) -> Any: ...

    def get_autocommit(self) -> Any: ...


class ConnectionProxy(Protocol):
    """Django's `connection` and what asyncpg's pool lends: each forwards every attribute."""

    def __getattr__(self, name: str, /) -> Any: ...


class AsyncpgLike(Protocol):
    """asyncpg's `Connection`."""

    def fetch(self, query: str, /, *args: Any) -> Coroutine[Any, Any, Any]: ...

    def is_in_transaction(self) -> Any: ...


CallersConnection: TypeAlias = (
    "psycopg.Connection[Any] | SqlalchemySession | SqlalchemyConnection | DjangoConnection | ConnectionProxy"
)
CallersAsyncConnection: TypeAlias = (
    "psycopg.AsyncConnection[Any] | SqlalchemyAsyncSession | SqlalchemyAsyncConnection | AsyncpgLike | ConnectionProxy"
)

_SYNC: Final = {
    ("sqlalchemy", "Session"): "session",
    ("sqlalchemy", "scoped_session"): "session",
    ("sqlalchemy", "Connection"): "sqlalchemy",
    ("django", "BaseDatabaseWrapper"): "django",
    ("django", "ConnectionProxy"): "django",
    ("psycopg", "Connection"): "driver",
}
_ASYNC: Final = {
    ("sqlalchemy", "AsyncSession"): "session",
    ("sqlalchemy", "async_scoped_session"): "session",
    ("sqlalchemy", "AsyncConnection"): "sqlalchemy",
    ("asyncpg", "Connection"): "asyncpg",
    ("asyncpg", "PoolConnectionProxy"): "asyncpg",
    ("psycopg", "AsyncConnection"): "driver",
}
"""What each class is, by its library and name."""


def check_connection(value: object) -> None:
    """Raise TypeError unless `value` is one of the connections that Jobherd supports."""
    if not is_sync(value) and not is_async(value):
        message = "connection must be a connection or session of psycopg 3, SQLAlchemy, Django or asyncpg, not "
        raise TypeError(message + with_article(type_name(value)))


def check_sync(value: object) -> None:
    """Raise TypeError unless `value` is a synchronous connection."""
    check_connection(value)
    if not is_sync(value):
        message = f"connection is asynchronous ({type(value).__name__}): use AsyncClient, aenqueue or aenqueue_on"
        raise TypeError(message)


def check_async(value: object) -> None:
    """Raise TypeError unless `value` is an asynchronous connection."""
    check_connection(value)
    if not is_async(value):
        message = f"connection is synchronous ({type(value).__name__}) and would stop the event loop: "
        raise TypeError(message + "use Client, enqueue or enqueue_on")


def is_sync(value: object) -> bool:
    """Return whether `value` is a synchronous connection that Jobherd supports."""
    return _kind(value, _SYNC) is not None


def is_django(value: object) -> bool:
    """Return whether `value` is Django's connection."""
    return _kind(value, _SYNC) == "django"


def is_async(value: object) -> bool:
    """Return whether `value` is an asynchronous connection that Jobherd supports."""
    return _kind(value, _ASYNC) is not None


def driver_of(connection: Any) -> psycopg.Connection[Any]:
    """Return psycopg's connection below `connection`, in the caller's transaction.

    Raises:
        TypeError: it is asynchronous, unknown, or has another driver than psycopg 3.
    """
    if isinstance(connection, psycopg.Connection):
        return connection
    check_sync(connection)
    kind = _kind(connection, _SYNC)
    if kind == "django":
        connection.ensure_connection()
        return _psycopg(connection.connection)
    if kind == "session":
        connection = connection.connection()
    if not connection.in_transaction():
        # SQLAlchemy's commit() does nothing if it has not begun a transaction, whatever the driver has done.
        connection.begin()
    return _psycopg(connection.connection.driver_connection)


async def adriver_of(connection: Any) -> AsyncDriver:
    """Return the driver's connection below `connection`, in the caller's transaction.

    Raises:
        TypeError: it is synchronous, unknown, or has another driver than psycopg 3 and asyncpg.
    """
    if isinstance(connection, psycopg.AsyncConnection | AsyncpgConnection):
        return connection
    check_async(connection)
    kind = _kind(connection, _ASYNC)
    if kind == "asyncpg":
        return AsyncpgConnection(connection)
    if kind == "session":
        connection = await connection.connection()
    if not connection.in_transaction():
        await connection.begin()  # as in driver_of
    driver = (await connection.get_raw_connection()).driver_connection
    if isinstance(driver, psycopg.AsyncConnection):
        return driver
    if _kind(driver, _ASYNC) != "asyncpg":
        raise _another(driver)
    if not driver.is_in_transaction():
        # SQLAlchemy begins asyncpg's transaction with its first statement.
        await connection.exec_driver_sql("SELECT 1")
    return AsyncpgConnection(driver)


def _psycopg(driver: object) -> psycopg.Connection[Any]:
    if not isinstance(driver, psycopg.Connection):
        raise _another(driver)
    return driver


def _another(driver: object) -> TypeError:
    return TypeError(
        f"connection has the driver {type(driver).__module__.partition('.')[0]}: use psycopg 3 (asyncpg also works "
        "with asyncio), or call the SQL function jobherd.enqueue"
    )


def _kind(value: object, known: dict[tuple[str, str], str]) -> str | None:
    """Return what `value` is, or None. Its own `__getattr__` or `__class__` is not asked."""
    found = (known.get((one.__module__.partition(".")[0], one.__name__)) for one in type(value).__mro__)
    return next((kind for kind in found if kind is not None), None)
