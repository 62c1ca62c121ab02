"""Keeps the secrets that sign the dashboard's cookies, and the sessions that have ended.

Both are in the database, so all supervisors share them. They are read again at most every `REFRESH`
seconds, and only while requests come. A process that cannot read them signs with a secret that it
created at its start: its sessions are valid only in this process, and end with it. That applies
while a database has not answered yet, to a role that may not read the secrets (`jobherd_read`), to
a dashboard without tokens, whose forms no other process needs, and to a dashboard of several
databases, whose login must need none of them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from typing import TYPE_CHECKING, Final

import psycopg

from jobherd.workers.dashboard.access import SESSION, Keys, Session, Signer
from jobherd.workers.dashboard.database import Away
from jobherd.workers.database.errors import error_name

if TYPE_CHECKING:
    from jobherd.workers.dashboard.database import Database

log = logging.getLogger("jobherd.dashboard")

REFRESH: Final = 2.0
"""Seconds until a process learns that a session has ended or a secret was replaced elsewhere."""
ROTATE: Final = 30 * 86400.0
"""Age in seconds at which a secret is replaced."""
REMEMBERED: Final = 10_000
"""Logouts of this process that it keeps in memory.

They count even if the database cannot store them.
"""


class Sessions:
    """Stores secrets and ended sessions. Made by `application`, one a process.

    shared: keep the secrets in the database; else use one of this process.
    """

    def __init__(self, database: Database, keys: Keys, *, shared: bool) -> None:
        self._database = database
        self._keys = keys
        self._shared = shared
        self._own = (secrets.token_bytes(32),)
        self._server = self._own
        self._ended: frozenset[str] = frozenset()
        self._ended_here: dict[str, None] = {}
        """Ids of sessions that ended in this process, the oldest first."""
        self._read_at = -math.inf
        self._reading = asyncio.Lock()
        self.known = Signer(keys, self._server)
        """The signer as of the last reading."""

    async def signer(self) -> Signer:
        """Return the signer, at most `REFRESH` seconds old.

        While the database is away, the last one is returned.
        """
        if self._shared and time.monotonic() - self._read_at >= REFRESH:
            async with self._reading:
                if time.monotonic() - self._read_at >= REFRESH:
                    await self._read()
        return self.known

    async def end(self, session: Session) -> None:
        """End a session: in this process at once, in others as soon as they read it."""
        self._ended_here[session.id] = None
        while len(self._ended_here) > REMEMBERED:
            del self._ended_here[next(iter(self._ended_here))]
        self._renew()
        if self._server is self._own:
            return
        try:
            await self._database.act("dashboard/end_dashboard_session", {"session": session.id, "until": session.until})
        except (Away, psycopg.Error) as problem:
            log.warning(
                "a logout was not stored: other supervisors accept the session until it expires (%s)",
                error_name(problem),
            )

    async def end_all(self, database: Database, actor: str) -> None:
        """End all sessions of all supervisors on this database, and of this process.

        Raises Away, or psycopg.Error if this role may not.
        """
        if not self._shared:
            self._server = self._own = (secrets.token_bytes(32),)
            self._renew()
        await database.act("dashboard/end_dashboard_sessions", {"actor": actor})
        self._read_at = -math.inf

    async def _read(self) -> None:
        try:
            found = await self._database.row("dashboard/show_session_checks", {"session": SESSION})
            if found is None or found["age"] is None or found["age"] > ROTATE:
                await self._database.act("dashboard/add_secret", {"rotate": ROTATE})
                found = await self._database.row("dashboard/show_session_checks", {"session": SESSION})
            if found is not None and found["secrets"]:
                self._server, self._ended = tuple(found["secrets"]), frozenset(found["ended"])
                self._renew()
        except Away:
            pass  # `Database` logs that itself
        except psycopg.Error as problem:
            if self._read_at < 0:
                log.warning(
                    "the dashboard's secrets cannot be read: its sessions end with this process (%s)",
                    error_name(problem),
                )
        finally:
            self._read_at = time.monotonic()

    def _renew(self) -> None:
        self.known = Signer(self._keys, self._server, self._ended | self._ended_here.keys())
