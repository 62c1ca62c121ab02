"""The synchronous client, for threads and plain code. Opens no connection before the first statement."""

from __future__ import annotations

import contextlib
import time
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from jobherd.handlers._enqueue import bulk, statements
from jobherd.handlers._enqueue.client_pool import ClientPool
from jobherd.handlers._enqueue.driver_connection import check_sync, driver_of, is_django
from jobherd.handlers._enqueue.dsn import find_schema
from jobherd.handlers._enqueue.pool import PoolSettings
from jobherd.handlers._enqueue.send import put_on, run_on, start_on
from jobherd.handlers._enqueue.wait_for import wait_for
from jobherd.handlers._enqueue.waiting import CompletionWait
from jobherd.handlers._enqueue.watching import JobWatch
from jobherd.handlers._policy.durations import Duration, at_least_zero
from jobherd.handlers._values.job_id import JobId, job_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from jobherd.handlers._enqueue.bulk import Chunk
    from jobherd.handlers._enqueue.driver_connection import CallersConnection
    from jobherd.handlers._enqueue.origin import Origin
    from jobherd.handlers._enqueue.send import Connection
    from jobherd.handlers._enqueue.statements import Statement

T = TypeVar("T")


class Client:
    """Enqueues and manages jobs by kind, from threads and plain code. Imports no handler module.

    Args:
        dsn: address of the database. Default: the one that `jobherd` uses in this folder:
            JOBHERD_DSN, else DATABASE_URL, else `dsn` in jobherd.toml or [tool.jobherd], else the
            running embedded PostgreSQL of this folder. It is looked up when the first statement is
            sent.
        schema: Jobherd's schema. Default: JOBHERD_SCHEMA, else `schema` in the same file, else
            "jobherd".
        connection: your own connection of psycopg 3, session or connection of SQLAlchemy, or Django's
            connection. Every job is then part of its transaction, and the client has no pool.
        min_size: connections that the pool keeps open, default 0.
        max_size: most open connections, default 4.
        timeout: longest wait for a connection, a duration, default 30 s.

    Raises:
        ValueError: the schema's name is invalid. NotConfiguredError and psycopg's errors are raised
            by the first statement.

    Example:
        >>> with Client("postgresql:///app") as client:  # doctest: +SKIP
        ...     client.enqueue("mail:receipt", {"order_id": 7}, delay="10m")
        42
    """

    def __init__(  # all but the first by name
        self,
        dsn: str | None = None,
        *,
        schema: str | None = None,
        connection: CallersConnection | None = None,
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

    def enqueue(self, kind: str, payload: object = None, **options: Any) -> JobId:  # checked by check_options
        """Enqueue one job and return its id.

        Args:
            kind: kind of the job.
            payload: a dict of the handler's parameters, default {}.
            options: such as `delay="10m"` or `priority=-5`, the same as of `Handler.options`.
                `payload_bytes`: bytes that the handler gets unchanged, besides the payload.
                `encrypt`: True for a kind that encrypts, which the client cannot detect; default
                False.

        Raises:
            PayloadError, ValueError, TypeError: the payload or an option is invalid.
            DuplicateJob: a unique job is there already, and `conflict` is "raise".

        Example:
            >>> client.enqueue("mail:receipt", {"order_id": 7}, priority=-5)  # doctest: +SKIP
            42
        """
        return job_id(self.put([bulk.one_by_name(kind, payload, options)])[0])

    def enqueue_many(self, kind: str, payloads: Iterable[object], **options: Any) -> list[int]:
        """Enqueue many jobs of one kind, all or none, in one transaction.

        Return their ids in order.

        Args:
            kind: kind of the jobs.
            payloads: any iterable. It is read in chunks while the transaction is open; only the
                list of ids grows with its length.
            options: as in `enqueue`, for all jobs.

        Raises:
            What `enqueue` raises. A PayloadError has the `index` of the payload.

        Example:
            >>> client.enqueue_many("mail:receipt", [{"order_id": 7}, {"order_id": 8}])  # doctest: +SKIP
            [42, 43]
        """
        return self.put(bulk.many_by_name(kind, payloads, options))

    def enqueue_stream(
        self,
        kind: str,
        payloads: Iterable[object],
        *,
        on_chunk: Callable[[list[int]], object] | None = None,
        chunk: int = bulk.CHUNK,
        **options: Any,
    ) -> int:
        """Enqueue jobs from a stream, each chunk in its own transaction, and return their number.

        For iterators of any length: only one chunk is in memory at a time. If a payload is
        rejected, or the iterator raises, the jobs before it are enqueued, and none from it on. On
        your own connection all jobs are part of its transaction.

        Args:
            kind: kind of the jobs.
            payloads: any iterable.
            on_chunk: called with the ids of each chunk after its commit. Default: not called.
            chunk: jobs per chunk, 1 to 10,000, default 10,000.
            options: as in `enqueue`, for all jobs. A delay counts from the chunk's transaction.

        Raises:
            What `enqueue_many` raises.

        Example:
            >>> client.enqueue_stream("mail:receipt", ({"order_id": n} for n in range(1_000_000)))  # doctest: +SKIP
            1000000
        """
        return bulk.stream(
            bulk.many_by_name(kind, payloads, options, most=chunk, call="enqueue_stream"), self.put, on_chunk
        )

    def job(self, job_id: int) -> dict[str, Any] | None:
        """Return the job's row of the view `jobherd.jobs`, or None if there is no such job."""
        return self.run(statements.show_job(job_id))

    def wait(self, job_id: int, timeout: Duration | None = None) -> dict[str, Any]:
        """Wait until a job is completed, failed, canceled or expired, and return its row.

        See `wait_many`.

        Args:
            job_id: id of the job.
            timeout: longest wait, a duration. Default None: no limit.

        Raises:
            TimeoutError: the timeout has passed.
            LookupError: the job does not exist.

        Example:
            >>> client.wait(client.enqueue("mail:receipt", {"order_id": 7}), timeout="1m")["result"]  # doctest: +SKIP
            'sent the receipt of order 7'
        """
        return self.wait_many([job_id], timeout)[job_id]

    def wait_many(self, job_ids: Iterable[int], timeout: Duration | None = None) -> dict[int, dict[str, Any]]:
        """Wait until all jobs are completed, failed, canceled or expired.

        Return their rows by id, in order. The database notifies the client; the client does not
        poll. While it waits it uses a separate connection (JOBHERD_LISTEN_DSN, if the configured
        database is behind a pooler). Through a pooler, and on your own connection, it polls
        instead, at intervals that grow from 20 ms to 1 s. If nothing is kept of a job, its row is
        the last one seen, with the job's final state. A client that polls does not learn the final
        state of such a job.

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
        wait = CompletionWait(job_ids, timeout, schema=self.schema, can_listen=self._connection is None)
        return wait_for(wait, self._session, dsn=self._dsn, is_own=self._connection is not None)

    def watch(self, job_id: int, *, every: Duration = 1.0) -> Iterator[dict[str, Any]]:
        """Yield the job's row at once, and again when its state, progress or error changes.

        The iterator ends with the job. It holds no session while it waits.

        Args:
            job_id: id of the job.
            every: pause between two queries, a duration, default 1 s, as often as workers store progress.

        Raises:
            LookupError: the job does not exist, or it is gone and nothing of it was kept.

        Example:
            >>> for row in client.watch(42):  # doctest: +SKIP
            ...     print(row["state"], row["progress"])
        """
        watched = JobWatch(job_id, every)
        while True:
            row = self.run(watched.statement)
            if watched.is_news(row) and row is not None:
                yield row
            if watched.over:
                return
            time.sleep(watched.every)

    def cancel(self, job_id: int, *, actor: str | None = None, reason: str | None = None) -> str | None:
        """Cancel a job.

        Args:
            job_id: id of the job.
            actor: who cancels it, for the audit log. Default: the database user.
            reason: why, for the audit log. Default: none.

        Returns:
            "cancelled"; "cancelling" if the job is running and is being interrupted; the final
            state it was already in; or None if there is no such job.

        Example:
            >>> client.cancel(42, actor="ada", reason="sent by mistake")  # doctest: +SKIP
            'cancelled'
        """
        return self.run(statements.cancel_job(job_id, actor, reason))

    def retry(self, job_id: int, *, actor: str | None = None, reason: str | None = None) -> str | None:
        """Run a job again, at once.

        Args:
            job_id: id of the job.
            actor: who runs it again, for the audit log. Default: the database user.
            reason: why, for the audit log. Default: none.

        Returns:
            "ready"; "running" if it is already running; "conflict" if the job is unique and another
            live job holds its key; or None if there is no such job.

        Example:
            >>> client.retry(42)  # doctest: +SKIP
            'ready'
        """
        return self.run(statements.retry_job(job_id, actor, reason))

    @property
    def is_of_a_thread(self) -> bool:
        """Whether the connection is Django's: another thread would get another one, and no transaction."""
        return is_django(self._connection)

    def run(self, statement: Statement[T]) -> T:
        """Run one of this package's statements. Handlers and tests use the methods above."""
        with self._session() as connection:
            return run_on(connection, statement, schema=self.schema)

    def put(self, chunks: Iterable[Chunk]) -> list[int]:
        """Enqueue chunks made by this package, all or none of them."""
        left = iter(chunks)
        ahead = list(islice(left, 2))  # an invalid payload must raise without a database
        with self._session() as connection:
            return put_on(connection, chain(ahead, left), schema=self.schema)

    def start(self, build: Callable[[Origin | None], Statement[int]]) -> int:
        """Enqueue a flow made by this package, and return its id."""
        with self._session() as connection:
            return start_on(connection, build, schema=self.schema)

    def close(self) -> None:
        """Close the pool. The client can be used again; it then opens a new pool."""
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
