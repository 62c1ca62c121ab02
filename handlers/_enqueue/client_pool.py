"""The pool of the synchronous client, opened on first use.

A pool opened before a fork belongs to the parent process. The child process drops it without
contacting the server, because closing it would end the parent's sessions, and opens its own.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

import psycopg
import psycopg_pool

from jobherd.handlers._enqueue import pool as _pool
from jobherd.handlers._enqueue.dsn import find_dsn, session_of
from jobherd.handlers._enqueue.pool import (
    Pool,
    PoolSettings,
    Tries,
    left_behind,
    notice_the_end,
    prepare_nothing_on_others,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobherd.handlers._enqueue.send import Connection


class ClientPool:
    """Lends sessions of one pool per process."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._pool: Pool | None = None
        self._tries = Tries()
        self._pid = os.getpid()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def session(self, within: float | None) -> Iterator[Connection]:
        """Yield a session.

        within: longest wait for it in seconds, if less than the pool's timeout.
        """
        limit = self._settings.within(within)
        with contextlib.ExitStack() as lent:
            with self._tries.explained():
                pool = self._opened()
                connection = lent.enter_context(self._single(limit) if pool is None else pool.connection(limit))
            yield connection

    def close(self) -> None:
        """Close the pool. The next session opens a new one."""
        self._drop_after_fork()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    @contextlib.contextmanager
    def _single(self, within: float) -> Iterator[Connection]:
        """Yield a separate session, for a call while the interpreter exits.

        A pool would need a new thread.
        """
        dsn = find_dsn(self._settings.dsn)
        with psycopg.connect(dsn, **session_of(dsn, within)) as connection:
            prepare_nothing_on_others(connection)
            yield connection

    def _opened(self) -> Pool | None:
        """Return the pool, or None if the interpreter is exiting and has none."""
        self._drop_after_fork()
        if self._pool is None and not _pool.ended:
            with self._lock:
                if self._pool is None:
                    pool: Pool = psycopg_pool.ConnectionPool(
                        **self._settings.arguments(),
                        connection_class=self._tries.connections(),
                        check=notice_the_end,
                        configure=prepare_nothing_on_others,
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

    def _drop_after_fork(self) -> None:
        if self._pid != os.getpid():
            left_behind.append(self._pool)
            # The lock too: another thread of the parent may have held it at the fork. It would
            # never be released in this process.
            self._pool, self._pid, self._lock = None, os.getpid(), threading.Lock()
