"""Waits for jobs to finish, for any number of calls, on one database session that listens.

The session exists only while a call waits. Behind a pooler that shares its sessions it cannot
listen, and queries at intervals. `handlers/_enqueue/waiting.py` explains the order of listening,
announcing and querying.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import psycopg

from jobherd.handlers._enqueue import statements
from jobherd.handlers._enqueue.dsn import find_listen_dsn, session_of
from jobherd.handlers._enqueue.send import arun_on
from jobherd.handlers._enqueue.waiting import ends
from jobherd.handlers._values.outcome import FINAL_STATES
from jobherd.workers.database.errors import error_name

if TYPE_CHECKING:
    from jobherd.handlers._enqueue.send import AsyncConnection

_log = logging.getLogger("jobherd.gateway")

TURN: Final = 0.2
"""Seconds until a job that a call has begun to wait for is announced, at most."""
BACKSTOP: Final = 5.0
"""Seconds after which all jobs are queried, in case a notification was lost."""
UNNOTIFIED: Final = 1.0
"""The same for a session that cannot listen."""
AGAIN: Final = 1.0
"""Seconds until the next session after one was lost."""


class FinishedJobs:
    """The jobs that calls wait for."""

    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn = dsn
        self._schema = schema
        self._waiting: dict[int, set[asyncio.Future[str]]] = {}
        self._new: set[int] = set()
        """Those that are not announced."""
        self._watching: asyncio.Task[None] | None = None

    async def wait(self, job: int, seconds: float) -> str | None:
        """Return the final state of a job once it is finished, or None after that time."""
        finished: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job, set()).add(finished)
        self._new.add(job)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        try:
            async with asyncio.timeout(seconds):
                return await finished
        except TimeoutError:
            return None
        finally:
            waiting = self._waiting.get(job, set())
            waiting.discard(finished)
            if not waiting:
                self._waiting.pop(job, None)
                self._new.discard(job)

    async def _watch(self) -> None:
        try:
            while self._waiting:
                try:
                    await self._listen()
                except psycopg.Error as problem:
                    _log.warning("the session that waits for finished jobs is lost: %s", error_name(problem))
                    await asyncio.sleep(AGAIN)
        finally:
            self._watching = None

    async def _listen(self) -> None:
        dsn, for_listening = find_listen_dsn(self._dsn)
        async with await psycopg.AsyncConnection.connect(dsn, **session_of(dsn)) as listener:
            backend = listener.info.backend_pid
            listens = await arun_on(listener, statements.disable_jit(backend), schema=self._schema) == backend
            listens = listens or for_listening
            if listens:
                await arun_on(listener, statements.listen_finished(), schema=self._schema)
            else:
                listener.prepare_threshold = None
            self._new = set(self._waiting)
            loop = asyncio.get_running_loop()
            query_at = loop.time()
            while self._waiting:
                if due := await self._announce(listener, listens=listens):
                    await self._query(listener, due)
                elif loop.time() >= query_at:
                    await self._query(listener, list(self._waiting))
                    query_at = loop.time() + (BACKSTOP if listens else UNNOTIFIED)
                async for note in listener.notifies(timeout=TURN, stop_after=1):
                    for job, state in ends(note.payload, self._schema).items():
                        self._finish(job, state)

    async def _announce(self, listener: AsyncConnection, *, listens: bool) -> list[int]:
        """Announce jobs that calls have begun to wait for, and return them: they are to be queried."""
        new, self._new = list(self._new), set()
        if new and listens:
            await arun_on(listener, statements.announce_wait(new), schema=self._schema)
            await arun_on(listener, statements.wait_for_settlements(new), schema=self._schema)
        return new

    async def _query(self, listener: AsyncConnection, jobs: list[int]) -> None:
        if not jobs:
            return
        rows = await arun_on(listener, statements.show_jobs(jobs), schema=self._schema)
        for job in jobs:
            row = rows.get(job)
            if row is not None and row["state"] in FINAL_STATES:
                self._finish(job, row["state"])

    def _finish(self, job: int, state: str) -> None:
        for waiting in self._waiting.get(job, ()):
            if not waiting.done():
                waiting.set_result(state)
