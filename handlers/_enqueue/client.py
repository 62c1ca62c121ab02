"""The synchronous client, for threads and plain code. Opens no connection before the first statement."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from jobherd.handlers._enqueue import bulk, statements
from jobherd.handlers._enqueue.client_flows import ClientFlows
from jobherd.handlers._enqueue.client_sessions import ClientSessions
from jobherd.handlers._enqueue.watching import JobWatch
from jobherd.handlers._values.job_id import JobId, job_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from jobherd.handlers._enqueue.driver_connection import CallersConnection
    from jobherd.handlers._policy.durations import Duration


class Client(ClientFlows):
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
        shards: addresses of several databases by queue or prefix with a `*`, in place of `dsn`. The
            first match in order applies. Each call goes to the database of its queue, or of its
            job's id.
        min_size: connections that the pool keeps open, default 0.
        max_size: most open connections, default 4.
        timeout: longest wait for a connection, a duration, default 30 s.

    Raises:
        ValueError: the schema's name or `shards` is invalid. NotConfiguredError and psycopg's errors are raised
            by the first statement.

    Example:
        >>> with Client("postgresql:///app") as client:  # doctest: +SKIP
        ...     client.enqueue("mail:receipt", {"order_id": 7}, delay="10m")
        42
    """

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
        """Return the job's row of the view `jobherd.jobs`, or None if the job does not exist.

        Args:
            job_id: id of the job.

        Returns:
            The columns by name, such as `state`, `result`, `progress` and `history`.

        Raises:
            psycopg.Error: the database reports an error.

        Example:
            >>> client.job(42)["state"]  # doctest: +SKIP
            'completed'
        """
        return self.run(statements.show_job(job_id), job_id)

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
            row = self.run(watched.statement, job_id)
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
            state it was already in; or None if the job does not exist.

        Example:
            >>> client.cancel(42, actor="ada", reason="sent by mistake")  # doctest: +SKIP
            'cancelled'
        """
        return self.run(statements.cancel_job(job_id, actor, reason), job_id)

    def signal(self, topic: str, payload: object = None) -> int:
        """Send a signal to the jobs that wait for a topic, now or in the next 30 days, and return its id.

        On a connection of yours the signal is part of your transaction.

        Args:
            topic: 1 to 300 characters, as in `Job.wait_for(name, topic=...)`.
            payload: what the jobs get, JSON of at most 1 MB. Default: None.

        Raises:
            psycopg.errors.InvalidParameterValue: topic or payload is invalid.

        Example:
            >>> client.signal("order:42/packed", {"by": "ada"})  # doctest: +SKIP
        """
        return self.run(statements.send_signal(topic, payload))

    def signal_job(self, job_id: int, name: str, payload: object = None) -> int | None:
        """Send a signal to one job, for its `Job.wait_for(name)`, and return its id.

        Returns None if the job does not exist. The job may begin to wait later.

        Args:
            job_id: id of the job.
            name: name of the wait.
            payload: what the job gets, JSON of at most 1 MB. Default: None.

        Example:
            >>> client.signal_job(42, "approved", {"by": "ada"})  # doctest: +SKIP
        """
        return self.run(statements.send_signal_to(job_id, name, payload), job_id)

    def retry(self, job_id: int, *, actor: str | None = None, reason: str | None = None) -> str | None:
        """Run a job again, at once.

        Args:
            job_id: id of the job.
            actor: who runs it again, for the audit log. Default: the database user.
            reason: why, for the audit log. Default: none.

        Returns:
            "ready"; "running" if it is already running; "conflict" if the job is unique and another
            live job holds its key; or None if the job does not exist.

        Example:
            >>> client.retry(42)  # doctest: +SKIP
            'ready'
        """
        return self.run(statements.retry_job(job_id, actor, reason), job_id)

    def on(self, connection: CallersConnection) -> Client:
        """Return a client of your connection, with the schema and shards of this client.

        Args:
            connection: a connection as for `Client`. What the client enqueues is part of its transaction.

        Example:
            >>> client.on(connection).enqueue("mail:receipt", {"order_id": 7})  # doctest: +SKIP
            42
        """
        found = Client(schema=self.schema, connection=connection)
        if self.shards is not None:
            found.shards = self.shards.on(ClientSessions(schema=self.schema, connection=connection))
        return found
