"""The way to the database for threads and plain code: `Client`, a thin shell around the statements of `_enqueue` and the chunks of `_bulk`.

It keeps a psycopg pool, opened at the first use. A pool that was opened before a fork belongs to the parent: the child drops it without a
word to the server (closing it would end the parent's sessions) and opens its own.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import psycopg
import psycopg_pool

from jobherd.handlers._enqueue import bulk
from jobherd.handlers._enqueue import options as _enqueue
from jobherd.handlers._enqueue import pool as _pool
from jobherd.handlers._enqueue.answer_deadline import answered
from jobherd.handlers._enqueue.dsn import find_dsn, find_listen_dsn, find_schema, session_of
from jobherd.handlers._enqueue.pool import UNANSWERED, Pool, Tries, left_behind, notice_the_end, prepare_nothing_on_others
from jobherd.handlers._enqueue.send import put_on, run_on
from jobherd.handlers._enqueue.waiting import CompletionWait, ready_to_hear
from jobherd.handlers._policy.durations import Duration, at_least_zero

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from jobherd.handlers._enqueue.bulk import Chunk
    from jobherd.handlers._enqueue.options import Statement
    from jobherd.handlers._enqueue.send import Connection

T = TypeVar("T")


class Client:
    """Enqueue and look after jobs by name, from threads and plain code. No handler module is imported.

    dsn: the database's address; default the one that `jobherd` uses in this folder: JOBHERD_DSN, else DATABASE_URL, else `dsn` in jobherd.toml
        or [tool.jobherd], else the embedded PostgreSQL of this folder, which must be running. Looked for when the first statement is sent.
    schema: the schema Jobherd lives in, default JOBHERD_SCHEMA, else `schema` in the same file, else "jobherd".
    connection: a psycopg connection of the caller's own: then every job is part of its transaction, and there is no pool.
    min_size, max_size: connections kept and at most open, default 0 and 4.
    timeout: how long to wait for a connection, a span of time, default 30 s.
    Raises ValueError for a schema that cannot be one; NotConfiguredError and psycopg's errors come with the first statement.

    >>> with Client("postgresql:///app") as client:  # doctest: +SKIP
    ...     client.enqueue("mail:receipt", {"order_id": 7}, delay="10m")
    42
    """

    def __init__(  # all but the first by name
        self,
        dsn: str | None = None,
        *,
        schema: str | None = None,
        connection: Connection | None = None,
        min_size: int = 0,
        max_size: int = 4,
        timeout: Duration = 30.0,
    ) -> None:
        self.schema: Final = find_schema(schema)
        self._dsn = dsn
        self._connection = connection
        self._sizes = (min_size, max_size)
        self._timeout = at_least_zero(timeout, field="timeout")
        self._pool: Pool | None = None
        self._tries = Tries()
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def enqueue(self, kind: str, payload: object = None, **options: Any) -> int:  # checked by check_options
        """Put one job into the queue and return its id.

        kind: the handler's name. payload: what it is to be called with, a dict of its parameters; default {}.
        options: queue, priority, delay, run_at, max_attempts, timeout, good_until, tenant, webhook, set_off_by, traceparent, as in
            `Handler.options`; payload_bytes: bytes that reach the handler untouched, beside the payload;
            encrypt: True for a kind that encrypts, which is not known here (default False).
        Raises PayloadError, ValueError or TypeError for what is wrong with them.

        >>> client.enqueue("mail:receipt", {"order_id": 7}, priority=-5)  # doctest: +SKIP
        42
        """
        return self.put([bulk.one_by_name(kind, payload, options)])[0]

    def enqueue_many(self, kind: str, payloads: Iterable[object], **options: Any) -> list[int]:
        """Put many jobs of one kind into the queue, all or none, in one transaction, and return their ids in the order of `payloads`.

        payloads: any iterable, taken chunk by chunk while the transaction is open; only the ids grow with its length.
        options: as in `enqueue`, for all of them.
        Raises what `enqueue` does; a PayloadError has the `index` of the payload.

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
        """Put jobs into the queue as they come, each chunk in a transaction of its own, and return how many.

        For iterators of any length: it takes the memory of one chunk. What stands before a payload that is refused, or before an
        error of the iterator's own, is enqueued; nothing from it on. On a connection of the caller's all is part of its transaction.

        on_chunk: is called with the ids of each chunk once it is committed. chunk: jobs of one, 1 to 10,000, default 10,000.
        options: as in `enqueue`, for all of them; a delay is counted from each chunk.
        Raises what `enqueue_many` does.

        >>> client.enqueue_stream("mail:receipt", ({"order_id": n} for n in range(1_000_000)))  # doctest: +SKIP
        1000000
        """
        return bulk.stream(bulk.many_by_name(kind, payloads, options, most=chunk, call="enqueue_stream"), self.put, on_chunk)

    def job(self, job_id: int) -> dict[str, Any] | None:
        """Return the job's row of the view `jobherd.jobs`, or None if there is no such job (any more)."""
        return self.run(_enqueue.show_job(job_id))

    def wait(self, job_id: int, timeout: Duration | None = None) -> dict[str, Any]:
        """Return the job's row once it is completed, failed, cancelled or expired. See `wait_many`.

        timeout: a span of time, default None: for ever. Raises TimeoutError past it, and LookupError if there is no such job.

        >>> client.wait(client.enqueue("mail:receipt", {"order_id": 7}), timeout="1m")["result"]  # doctest: +SKIP
        'sent the receipt of order 7'
        """
        return self.wait_many([job_id], timeout)[job_id]

    def wait_many(self, job_ids: Iterable[int], timeout: Duration | None = None) -> dict[int, dict[str, Any]]:
        """Return the rows of these jobs by id, in the order given, once all are completed, failed, cancelled or expired.

        It is told by the database and does not poll; while it waits it holds a connection of its own (JOBHERD_LISTEN_DSN, where the
        database of the environment is behind a pooler). Through a pooler, and on a connection of the caller's, it looks now and then, at
        last once a second.
        Of a job of which nothing is kept, the row is what it was before its end, with its last state; who cannot listen is not told of it.

        timeout: a span of time for all of them, default None: for ever. Raises TimeoutError past it, which names who is left, and
        LookupError if one of them does not exist, or is gone without a word.

        >>> [row["state"] for row in client.wait_many([42, 43], timeout="1m").values()]  # doctest: +SKIP
        ['completed', 'failed']
        """
        vigil = CompletionWait(job_ids, timeout, schema=self.schema, deaf=self._connection is not None)
        due = vigil.due()
        try:
            with self._session(vigil.connecting()) as connection:
                self._look(vigil, due, connection)
        except UNANSWERED as problem:
            vigil.unanswered(problem)
        while vigil.left and self._connection is not None:
            time.sleep(vigil.patience())
            due = vigil.due()
            vigil.found(due, self.run(_enqueue.show_jobs(due)))
        while vigil.left:
            vigil.patience()
            try:
                self._listen(vigil)
            except UNANSWERED as problem:
                vigil.unanswered(problem)
        return vigil.rows()

    def cancel(self, job_id: int, *, actor: str | None = None, reason: str | None = None) -> str | None:
        """Cancel a job. Returns "cancelled", "cancelling" (it runs and is told), the state it ended in before, or None.

        actor, reason: who does it and why, for the audit; default the database's user, and nothing.

        >>> client.cancel(42, actor="ada", reason="sent by mistake")  # doctest: +SKIP
        'cancelled'
        """
        return self.run(_enqueue.cancel_job(job_id, actor, reason))

    def retry(self, job_id: int, *, actor: str | None = None, reason: str | None = None) -> str | None:
        """Run a job again, at once. Returns "ready", "running" if it runs already, or None if there is no such job.

        actor, reason: who does it and why, for the audit; default the database's user, and nothing.

        >>> client.retry(42)  # doctest: +SKIP
        'ready'
        """
        return self.run(_enqueue.retry_job(job_id, actor, reason))

    def run(self, statement: Statement[T]) -> T:
        """Send one of this package's statements. For handlers and tests there are the methods above."""
        with self._session() as connection:
            return run_on(connection, statement, schema=self.schema)

    def put(self, chunks: Iterable[Chunk]) -> list[int]:
        """Put jobs of this package's making into the queue, all or none of them."""
        left = iter(chunks)
        ahead = list(islice(left, 2))  # what is wrong with a payload needs no database to be told
        with self._session() as connection:
            return put_on(connection, chain(ahead, left), schema=self.schema)

    def close(self) -> None:
        """Close the pool. The client may be used again; it opens another one."""
        self._forget_the_parents()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _listen(self, vigil: CompletionWait) -> None:
        """Look again and again, on a session that is told of the ends, until all are over. Raises SilentError if it says nothing."""
        dsn, listens = find_listen_dsn(self._dsn)
        with psycopg.connect(dsn, **session_of(dsn, vigil.connecting())) as ears:
            with answered(ears, vigil.within()):
                promised = ears.info.backend_pid
                if run_on(ears, _enqueue.forgo_compiling(promised), schema=self.schema) == promised or listens:
                    for statement in ready_to_hear(vigil):
                        run_on(ears, statement, schema=self.schema)
                else:
                    vigil.deafen()
                    ears.prepare_threshold = None
            due = list(vigil.left)
            while True:
                if due:
                    self._look(vigil, due, ears)
                if not vigil.left:
                    break
                for note in ears.notifies(timeout=vigil.patience(), stop_after=1):
                    vigil.heard(note.payload)
                due = vigil.due()

    def _look(self, vigil: CompletionWait, due: list[int], connection: Connection) -> None:
        statement = _enqueue.show_jobs(due)
        if connection is self._connection:
            rows = run_on(connection, statement, schema=self.schema)
        else:
            with answered(connection, vigil.within()):
                rows = run_on(connection, statement, schema=self.schema)
        vigil.found(due, rows)

    @contextlib.contextmanager
    def _session(self, within: float | None = None) -> Iterator[Connection]:
        """Lend a session. within: seconds until one is to be had, if that is less than the client's `timeout`."""
        if self._connection is not None:
            yield self._connection
            return
        patience = self._timeout if within is None else min(within, self._timeout)
        with contextlib.ExitStack() as lent:
            with self._tries.told():
                pool = self._opened()
                connection = lent.enter_context(self._single(patience) if pool is None else pool.connection(patience))
            yield connection

    @contextlib.contextmanager
    def _single(self, within: float) -> Iterator[Connection]:
        """Give a session of its own, for a call while the interpreter ends: a pool would need a new thread."""
        dsn = find_dsn(self._dsn)
        with psycopg.connect(dsn, **session_of(dsn, within)) as connection:
            prepare_nothing_on_others(connection)
            yield connection

    def _opened(self) -> Pool | None:
        """Return the pool, or None if the interpreter ends and there is none."""
        self._forget_the_parents()
        if self._pool is None and not _pool.ended:
            with self._lock:
                if self._pool is None:
                    dsn = find_dsn(self._dsn)
                    pool: Pool = psycopg_pool.ConnectionPool(
                        dsn,
                        kwargs=session_of(dsn),
                        connection_class=self._tries.connections(),
                        min_size=self._sizes[0],
                        max_size=self._sizes[1],
                        timeout=self._timeout,
                        check=notice_the_end,
                        configure=prepare_nothing_on_others,
                        num_workers=1,
                        open=False,
                        name="jobherd",
                    )
                    try:
                        pool.open()
                    except RuntimeError:  # CPython 3.12 starts no thread once the main thread has ended
                        if threading.main_thread().is_alive():
                            raise
                        return None
                    self._pool = pool
                    _pool.close_at_exit(self)
        return self._pool

    def _forget_the_parents(self) -> None:
        if self._pid != os.getpid():
            left_behind.append(self._pool)
            # The lock too: another thread of the parent may have held it at the fork, and would never let go of it here.
            self._pool, self._pid, self._lock = None, os.getpid(), threading.Lock()
