"""The asynchronous client: sends statements and chunks of jobs from asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import psycopg
import psycopg_pool

from jobherd.handlers._enqueue import bulk, statements
from jobherd.handlers._enqueue.answer_deadline import aanswered
from jobherd.handlers._enqueue.dsn import find_dsn, find_listen_dsn, find_schema, session_of
from jobherd.handlers._enqueue.options import check_target
from jobherd.handlers._enqueue.pool import UNANSWERED, AsyncPool, Sessions, Tries, anotice_the_end, left_behind
from jobherd.handlers._enqueue.send import aput_on, arun_on
from jobherd.handlers._enqueue.waiting import CompletionWait, ready_to_hear
from jobherd.handlers._policy.durations import Duration, at_least_zero

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from types import TracebackType

    from jobherd.handlers._enqueue.bulk import Chunk
    from jobherd.handlers._enqueue.send import AsyncConnection
    from jobherd.handlers._enqueue.statements import Statement

T = TypeVar("T")


class AsyncClient:
    """`Client` for asyncio.

    The parameters are those of `Client`; `connection` is an asynchronous one. Each event loop gets
    its own pool. The pool's sessions end with the loop, or when the client is used next.

    Example:
        >>> async with AsyncClient("postgresql:///app") as client:  # doctest: +SKIP
        ...     await client.enqueue("mail:receipt", {"order_id": 7})
        42
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        schema: str | None = None,
        connection: AsyncConnection | None = None,
        min_size: int = 0,
        max_size: int = 4,
        timeout: Duration = 30.0,
    ) -> None:
        self.schema: Final = find_schema(schema)
        self._dsn = dsn
        check_target(connection, "connection", "a psycopg.AsyncConnection (psycopg 3)", psycopg.AsyncConnection)
        self._connection = connection
        self._sizes = (min_size, max_size)
        self._timeout = at_least_zero(timeout, field="timeout")
        self._pools: dict[asyncio.AbstractEventLoop, tuple[AsyncPool, Sessions]] = {}
        self._tries = Tries()
        self._pid = os.getpid()

    async def enqueue(self, kind: str, payload: object = None, **options: Any) -> int:
        """Enqueue one job and return its id. See `Client.enqueue`."""
        return (await self.put([bulk.one_by_name(kind, payload, options)]))[0]

    async def enqueue_many(self, kind: str, payloads: Iterable[object], **options: Any) -> list[int]:
        """Enqueue many jobs of one kind, all or none. See `Client.enqueue_many`."""
        return await self.put(bulk.many_by_name(kind, payloads, options))

    async def enqueue_stream(
        self,
        kind: str,
        payloads: Iterable[object],
        *,
        on_chunk: Callable[[list[int]], object] | None = None,
        chunk: int = bulk.CHUNK,
        **options: Any,
    ) -> int:
        """Enqueue jobs from a stream, each chunk in its own transaction.

        See `Client.enqueue_stream`.
        """
        return await bulk.astream(
            bulk.many_by_name(kind, payloads, options, most=chunk, call="enqueue_stream"), self.put, on_chunk
        )

    async def job(self, job_id: int) -> dict[str, Any] | None:
        """Return the job's row of the view `jobherd.jobs`, or None."""
        return await self.run(statements.show_job(job_id))

    # as in Client
    async def wait(self, job_id: int, timeout: Duration | None = None) -> dict[str, Any]:  # noqa: ASYNC109
        """Wait until a job is finished and return its row. See `Client.wait`."""
        return (await self.wait_many([job_id], timeout))[job_id]

    async def wait_many(self, job_ids: Iterable[int], timeout: Duration | None = None) -> dict[int, dict[str, Any]]:  # noqa: ASYNC109
        """Wait until all jobs are finished and return their rows by id. See `Client.wait_many`."""
        vigil = CompletionWait(job_ids, timeout, schema=self.schema, deaf=self._connection is not None)
        due = vigil.due()
        try:
            async with self._session(vigil.connecting()) as connection:
                await self._look(vigil, due, connection)
        except UNANSWERED as problem:
            vigil.unanswered(problem)
        while vigil.left and self._connection is not None:
            await asyncio.sleep(vigil.patience())
            due = vigil.due()
            vigil.found(due, await self.run(statements.show_jobs(due)))
        while vigil.left:
            vigil.patience()
            try:
                await self._listen(vigil)
            except UNANSWERED as problem:
                vigil.unanswered(problem)
        return vigil.rows()

    async def cancel(self, job_id: int, *, actor: str | None = None, reason: str | None = None) -> str | None:
        """Cancel a job. See `Client.cancel`."""
        return await self.run(statements.cancel_job(job_id, actor, reason))

    async def retry(self, job_id: int, *, actor: str | None = None, reason: str | None = None) -> str | None:
        """Run a job again, at once. See `Client.retry`."""
        return await self.run(statements.retry_job(job_id, actor, reason))

    async def run(self, statement: Statement[T]) -> T:
        """Run one of this package's statements."""
        async with self._session() as connection:
            return await arun_on(connection, statement, schema=self.schema)

    async def put(self, chunks: Iterable[Chunk]) -> list[int]:
        """Enqueue chunks made by this package, all or none of them."""
        left = iter(chunks)
        ahead = list(islice(left, 2))  # see Client.put
        async with self._session() as connection:
            return await aput_on(connection, chain(ahead, left), schema=self.schema)

    async def close(self) -> None:
        """Close the pool of this event loop.

        The client can be used again; it then opens a new pool.
        """
        self._forget_the_gone()
        if (found := self._pools.pop(asyncio.get_running_loop(), None)) is not None:
            await found[0].close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _listen(self, vigil: CompletionWait) -> None:
        """Wait on a session that listens for finished jobs, until all are finished.

        Raises SilentError if the session does not answer.
        """
        dsn, listens = find_listen_dsn(self._dsn)
        async with await psycopg.AsyncConnection.connect(dsn, **session_of(dsn, vigil.connecting())) as ears:
            with aanswered(ears, vigil.within()):
                promised = ears.info.backend_pid
                if await arun_on(ears, statements.disable_jit(promised), schema=self.schema) == promised or listens:
                    for statement in ready_to_hear(vigil):
                        await arun_on(ears, statement, schema=self.schema)
                else:
                    vigil.deafen()
                    ears.prepare_threshold = None
            due = list(vigil.left)
            while True:
                if due:
                    await self._look(vigil, due, ears)
                if not vigil.left:
                    break
                async for note in ears.notifies(timeout=vigil.patience(), stop_after=1):
                    vigil.heard(note.payload)
                due = vigil.due()

    async def _look(self, vigil: CompletionWait, due: list[int], connection: AsyncConnection) -> None:
        statement = statements.show_jobs(due)
        if connection is self._connection:
            rows = await arun_on(connection, statement, schema=self.schema)
        else:
            with aanswered(connection, vigil.within()):
                rows = await arun_on(connection, statement, schema=self.schema)
        vigil.found(due, rows)

    @contextlib.asynccontextmanager
    async def _session(self, within: float | None = None) -> AsyncIterator[AsyncConnection]:
        if self._connection is not None:
            yield self._connection
            return
        pool = await self._opened()
        async with contextlib.AsyncExitStack() as lent:
            with self._tries.told():
                connection = await lent.enter_async_context(
                    pool.connection(None if within is None else min(within, self._timeout))
                )
            yield connection

    async def _opened(self) -> AsyncPool:
        loop = asyncio.get_running_loop()
        if loop in self._pools and self._pid == os.getpid():
            return self._pools[loop][0]
        self._forget_the_gone()
        # Race: no await before the pool is stored. Two tasks that arrive together must get the same
        # pool.
        sessions = Sessions()
        dsn = find_dsn(self._dsn)
        pool: AsyncPool = psycopg_pool.AsyncConnectionPool(
            dsn,
            kwargs=session_of(dsn),
            connection_class=self._tries.aconnections(),
            min_size=self._sizes[0],
            max_size=self._sizes[1],
            timeout=self._timeout,
            check=anotice_the_end,
            configure=sessions.note,
            num_workers=1,
            open=False,
            name="jobherd",
        )
        self._pools[loop] = pool, sessions
        await pool.open()
        return pool

    def _forget_the_gone(self) -> None:
        """Drop the pools of a parent process, and end those of closed loops.

        Nothing else would end them, and each job has its own loop.
        """
        if self._pid != os.getpid():
            left_behind.append(self._pools)
            self._pools, self._pid = {}, os.getpid()
        for loop in [loop for loop in list(self._pools) if loop.is_closed()]:
            if (found := self._pools.pop(loop, None)) is not None:
                found[1].end()
