"""Enqueues by kind on the caller's own connection: the job is part of the caller's transaction.

Nothing here commits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobherd.handlers._enqueue import bulk
from jobherd.handlers._enqueue.default import aput_on_own, put_on_own
from jobherd.handlers._enqueue.driver_connection import adriver_of, driver_of
from jobherd.handlers._values.job_id import JobId, job_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jobherd.handlers._enqueue.driver_connection import CallersAsyncConnection, CallersConnection


def enqueue_on(
    connection: CallersConnection, kind: str, payload: object = None, *, schema: str | None = None, **options: Any
) -> JobId:
    """Enqueue one job as part of the transaction of `connection`, and return its id.

    Args:
        connection: a connection of psycopg 3, a session or connection of SQLAlchemy, or Django's
            connection. This function does not commit. In autocommit mode the job is visible at
            once.
        kind: kind of the job.
        payload: a dict of the handler's parameters, default {}.
        schema: Jobherd's schema. Default: the one set by `configure`, or "jobherd".
        options: as in `Client.enqueue`.

    Example:
        >>> with connection.transaction():  # doctest: +SKIP
        ...     enqueue_on(connection, "mail:receipt", {"order_id": 7})
        42
    """
    chunk = bulk.one_by_name(kind, payload, options, call="enqueue_on")
    return job_id(put_on_own(driver_of(connection), [chunk], schema)[0])


def enqueue_many_on(
    connection: CallersConnection, kind: str, payloads: Iterable[object], *, schema: str | None = None, **options: Any
) -> list[int]:
    """Enqueue many jobs as part of the transaction of `connection`, all or none.

    Return their ids in order.
    The parameters are those of `enqueue_on` and `Client.enqueue_many`. If it raises, the caller's
    transaction is unchanged.

    Example:
        >>> with connection.transaction():  # doctest: +SKIP
        ...     enqueue_many_on(connection, "mail:receipt", ({"order_id": n} for n in range(3)))
        [42, 43, 44]
    """
    chunks = bulk.many_by_name(kind, payloads, options, call="enqueue_many_on")
    return put_on_own(driver_of(connection), chunks, schema)


async def aenqueue_on(
    connection: CallersAsyncConnection, kind: str, payload: object = None, *, schema: str | None = None, **options: Any
) -> JobId:
    """`enqueue_on` for asyncio: a connection of psycopg or asyncpg, or SQLAlchemy's asynchronous ones."""
    chunk = bulk.one_by_name(kind, payload, options, call="aenqueue_on")
    return job_id((await aput_on_own(await adriver_of(connection), [chunk], schema))[0])


async def aenqueue_many_on(
    connection: CallersAsyncConnection,
    kind: str,
    payloads: Iterable[object],
    *,
    schema: str | None = None,
    **options: Any,
) -> list[int]:
    """`enqueue_many_on` for asyncio. The connections are those of `aenqueue_on`."""
    chunks = bulk.many_by_name(kind, payloads, options, call="aenqueue_many_on")
    return await aput_on_own(await adriver_of(connection), chunks, schema)
