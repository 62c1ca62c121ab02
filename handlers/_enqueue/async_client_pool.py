"""The pools of the asynchronous client: one for each event loop, opened on first use."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

import psycopg_pool

from jobherd.handlers._enqueue.pool import AsyncPool, PoolSettings, Sessions, Tries, anotice_the_end, left_behind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jobherd.handlers._enqueue.send import AsyncConnection


class AsyncClientPool:
    """Lends sessions of the running loop's pool."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._pools: dict[asyncio.AbstractEventLoop, tuple[AsyncPool, Sessions]] = {}
        self._tries = Tries()
        self._pid = os.getpid()

    @contextlib.asynccontextmanager
    async def session(self, within: float | None) -> AsyncIterator[AsyncConnection]:
        """Yield a session. within: as in `ClientPool.session`."""
        pool = await self._opened()
        async with contextlib.AsyncExitStack() as lent:
            with self._tries.explained():
                connection = await lent.enter_async_context(pool.connection(self._settings.within(within)))
            yield connection

    async def close(self) -> None:
        """Close the pool of this event loop. The next session opens a new one."""
        self._drop_unusable()
        if (found := self._pools.pop(asyncio.get_running_loop(), None)) is not None:
            await found[0].close()

    async def _opened(self) -> AsyncPool:
        loop = asyncio.get_running_loop()
        if loop in self._pools and self._pid == os.getpid():
            return self._pools[loop][0]
        self._drop_unusable()
        # Race: no await before the pool is stored. Two tasks that arrive together must get the same
        # pool.
        sessions = Sessions()
        pool: AsyncPool = psycopg_pool.AsyncConnectionPool(
            **self._settings.arguments(),
            connection_class=self._tries.aconnections(),
            check=anotice_the_end,
            configure=sessions.note,
        )
        self._pools[loop] = pool, sessions
        await pool.open()
        return pool

    def _drop_unusable(self) -> None:
        """Drop the pools of a parent process, and end those of closed loops.

        Nothing else would end them, and each job has its own loop.
        """
        if self._pid != os.getpid():
            left_behind.append(self._pools)
            self._pools, self._pid = {}, os.getpid()
        for loop in [loop for loop in list(self._pools) if loop.is_closed()]:
            if (found := self._pools.pop(loop, None)) is not None:
                found[1].end()
