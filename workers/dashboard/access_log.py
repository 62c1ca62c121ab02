"""Writes logins, logouts and rejected requests to the audit log.

No request waits for the entry, and a rejected client cannot cause many entries. The first wrong
token of an address is written at once. Further ones in the next 10 min are counted, and written as
one entry at the end of that time. If the database is away, the entry is lost and the request is
not; the process log has it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

import orjson
import psycopg

from jobherd.workers.dashboard.database import Away
from jobherd.workers.dashboard.request import address_of
from jobherd.workers.database.errors import error_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import HTTPConnection

    from jobherd.workers.dashboard.database import Database

log = logging.getLogger("jobherd.dashboard")

TOGETHER: Final = 600.0
"""Seconds in which the wrong tokens of one address become one entry."""
ADDRESSES: Final = 100
"""Addresses that are counted separately at a time; all others are counted together."""
WAITING: Final = 300
"""Entries that wait to be written; if the database is away, the oldest are lost."""
UNKNOWN: Final = "dashboard:unknown"


class AccessLog:
    """Write the entries, each to all of these databases. Made by `application`, one a process."""

    def __init__(self, *databases: Database) -> None:
        self._databases = databases
        self._notes: deque[dict[str, object]] = deque(maxlen=WAITING)
        self._writing: asyncio.Task[None] | None = None
        self._since: dict[tuple[str, str], int] = {}
        """Rejections since the last entry, by reason and address."""
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}

    def opened(self, request: HTTPConnection, actor: str, role: str) -> None:
        """Record a login."""
        self._note(actor, "log in", {"address": address_of(request), "may": role})

    def left(self, request: HTTPConnection, actor: str) -> None:
        """Record a logout."""
        self._note(actor, "log out", {"address": address_of(request)})

    def refused(self, request: HTTPConnection) -> None:
        """Record a request with a wrong token."""
        self._refuse(request, "refuse login", "a wrong token was shown")

    def limited(self, request: HTTPConnection) -> None:
        """Record a request after too many wrong tokens; its own token was not compared."""
        self._refuse(request, "limit logins", "logins are limited after too many wrong tokens")

    def _refuse(self, request: HTTPConnection, action: str, said: str) -> None:
        what = action, address_of(request)
        if what not in self._since and len(self._since) >= ADDRESSES:
            what = action, "others"
        if what in self._since:
            self._since[what] += 1
            return
        log.warning(said, extra={"address": what[1]})
        self._note(UNKNOWN, action, {"address": what[1]})
        self._since[what] = 0
        self._timers[what] = asyncio.get_running_loop().call_later(TOGETHER, self._count, what)

    async def close(self) -> None:
        """Write the counts that have no entry yet."""
        for timer in self._timers.values():
            timer.cancel()
        for what in list(self._since):
            self._count(what)
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=1.0)
            self._writing.cancel()

    def _count(self, what: tuple[str, str]) -> None:
        self._timers.pop(what, None)
        action, address = what
        if times := self._since.pop(what, 0):
            self._note(UNKNOWN, action, {"address": address, "times": times})

    def _note(self, actor: str, action: str, target: Mapping[str, object]) -> None:
        self._notes.append({"actor": actor, "action": action, "target": orjson.dumps(target).decode()})
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        while self._notes:
            note = self._notes.popleft()
            await asyncio.gather(*(_record(database, note) for database in self._databases))


async def _record(database: Database, note: Mapping[str, object]) -> None:
    try:
        await database.act("dashboard/record_visit", note)
    except (Away, psycopg.Error) as problem:
        log.warning("the audit could not be written (%s): %s by %s", error_name(problem), note["action"], note["actor"])
