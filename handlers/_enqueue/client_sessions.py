"""Sends the statements of the synchronous client: in its pool, on the caller's connection, or to a shard."""

from __future__ import annotations

import contextlib
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from jobherd.handlers._enqueue.client_pool import ClientPool
from jobherd.handlers._enqueue.driver_connection import check_sync, driver_of, is_django
from jobherd.handlers._enqueue.dsn import find_schema
from jobherd.handlers._enqueue.pool import PoolSettings
from jobherd.handlers._enqueue.send import put_on, run_on, start_on
from jobherd.handlers._enqueue.wait_for import wait_for
from jobherd.handlers._enqueue.waiting import CompletionWait
from jobherd.handlers._policy.durations import Duration, at_least_zero

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType

    from jobherd.handlers._enqueue.bulk import Chunk
    from jobherd.handlers._enqueue.client_shards import ClientShards
    from jobherd.handlers._enqueue.driver_connection import CallersConnection
    from jobherd.handlers._enqueue.origin import Origin
    from jobherd.handlers._enqueue.send import Connection
    from jobherd.handlers._enqueue.statements import Statement

T = TypeVar("T")


class ClientSessions:
    """Sends statements and chunks of jobs. The parameters are those of `Client`."""

    def __init__(
        self,
        dsn: str | None = None,
        *,
        schema: str | None = None,
        connection: CallersConnection | None = None,
        shards: Mapping[str, str] | None = None,
        min_size: int = 0,
        max_size: int = 4,
        timeout: Duration = 30.0,
    ) -> None:
        self.schema: Final = find_schema(schema)
        self._dsn = dsn
        if connection is not None:
            check_sync(connection)
        self._connection = connection
        self._pool = ClientPool(PoolSettings(dsn, min_size, max_size, at_least_zero(timeout, field="timeout")))
        self.shards: ClientShards | None = None
        if shards is not None:
            self.shards = self._divided(shards, {"min_size": min_size, "max_size": max_size, "timeout": timeout})

    def _divided(self, shards: Mapping[str, str], pool: dict[str, Any]) -> ClientShards:
        from jobherd.handlers._enqueue.client_shards import ClientShards  # noqa: PLC0415 - only with several databases

        if self._dsn is not None:
            message = "dsn and shards exclude each other: shards has the addresses"
            raise ValueError(message)
        own = None if self._connection is None else ClientSessions(schema=self.schema, connection=self._connection)
        return ClientShards(shards, lambda address: ClientSessions(address, schema=self.schema, **pool), own)

    @property
    def is_of_a_thread(self) -> bool:
        """Whether the connection is Django's: another thread would get another one, and no transaction."""
        return is_django(self._connection)

    def run(self, statement: Statement[T], job_id: int | None = None, *, within: float | None = None) -> T:
        """Run one of this package's statements. Handlers and tests use the methods above.

        job_id: the job or flow that the statement is about, by which a client with shards finds the database.
        within: longest wait for a session in seconds, if less than the client's `timeout`.
        """
        if self.shards is not None:
            return self.shards.about(job_id, statement).run(statement)
        with self._session(within) as connection:
            return run_on(connection, statement, schema=self.schema)

    def put(self, chunks: Iterable[Chunk]) -> list[int]:
        """Enqueue chunks made by this package, all or none of them. All have the same options."""
        left = iter(chunks)
        ahead = list(islice(left, 2))  # an invalid payload must raise without a database
        if self.shards is not None and ahead:
            return self.shards.of_chunk(ahead[0]).put(chain(ahead, left))
        with self._session() as connection:
            return put_on(connection, chain(ahead, left), schema=self.schema)

    def start(self, build: Callable[[Origin | None], Statement[int]]) -> int:
        """Enqueue a flow made by this package, and return its id."""
        if self.shards is not None:
            return self.shards.of_flow(build(None)).start(build)
        with self._session() as connection:
            return start_on(connection, build, schema=self.schema)

    def wait_many(self, job_ids: Iterable[int], timeout: Duration | None = None) -> dict[int, dict[str, Any]]:
        """Wait until all jobs are completed, failed, canceled or expired.

        Return their rows by id, in order. The database notifies the client; the client does not
        poll. While it waits it uses a separate connection (JOBHERD_LISTEN_DSN, if the configured
        database is behind a pooler). Through a pooler, and on your own connection, it polls
        instead, at intervals that grow from 20 ms to 1 s. If nothing is kept of a job, its row is
        the last one seen, with the job's final state. A client that polls does not learn the final
        state of such a job. A client with shards waits for the jobs of one database after those of
        another.

        Args:
            job_ids: ids of the jobs.
            timeout: longest wait for all of them, a duration. Default None: no limit.

        Raises:
            TimeoutError: the timeout has passed. The message names the jobs that are left.
            LookupError: a job does not exist, or it is gone and its final state is unknown.

        Example:
            >>> [row["state"] for row in client.wait_many([42, 43], timeout="1m").values()]  # doctest: +SKIP
            ['completed', 'failed']
        """
        if self.shards is not None:
            return self.shards.wait_many(job_ids, timeout)
        wait = CompletionWait(job_ids, timeout, schema=self.schema, can_listen=self._connection is None)
        return wait_for(wait, self._session, dsn=self._dsn, is_own=self._connection is not None)

    def close(self) -> None:
        """Close the pool. The client can be used again; it then opens a new pool."""
        if self.shards is not None:
            self.shards.close()
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _session(self, within: float | None = None) -> Iterator[Connection]:
        """Yield a session.

        within: longest wait for it in seconds, if less than the client's `timeout`.
        """
        if self._connection is not None:
            yield driver_of(self._connection)
            return
        with self._pool.session(within) as connection:
            yield connection
