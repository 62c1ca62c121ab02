"""Who came in and who was turned away, noted in the audit. Nobody waits for it, and nobody who is turned away can have much written.

A guess is noted at once; what the same address tries in the next minutes is counted, and noted as one at their end. A database that is away
loses the note, not the visitor: the log has it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

import orjson
import psycopg

from jobherd.workers.page.database import Away, name_of
from jobherd.workers.page.guard import address_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import HTTPConnection

    from jobherd.workers.page.database import Database

log = logging.getLogger("jobherd.page")

TOGETHER: Final = 600.0
"""Seconds in which the wrong tokens of one address become one note."""
ADDRESSES: Final = 100
"""Addresses that are counted by themselves at a time; those of all others together."""
WAITING: Final = 300
"""Notes that wait to be written; of a database that is away the oldest are lost."""
NOBODY: Final = "page:unknown"


class Door:
    """Notes it. Made by `application`, one a process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._notes: deque[dict[str, object]] = deque(maxlen=WAITING)
        self._writing: asyncio.Task[None] | None = None
        self._since: dict[tuple[str, str], int] = {}
        """How often each address has been refused for each reason since that was last noted."""
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}

    def opened(self, request: HTTPConnection, actor: str, role: str) -> None:
        """Somebody has logged in."""
        self._note(actor, "log in", {"address": address_of(request), "may": role})

    def left(self, request: HTTPConnection, actor: str) -> None:
        """Somebody has logged out."""
        self._note(actor, "log out", {"address": address_of(request)})

    def refused(self, request: HTTPConnection) -> None:
        """A request came with a wrong token."""
        self._refuse(request, "refuse login", "a wrong token was shown")

    def limited(self, request: HTTPConnection) -> None:
        """A request came after too many wrong tokens, and its own was not looked at."""
        self._refuse(request, "limit logins", "logins are limited after too many wrong tokens")

    def _refuse(self, request: HTTPConnection, action: str, said: str) -> None:
        what = action, address_of(request)
        if what not in self._since and len(self._since) >= ADDRESSES:
            what = action, "others"
        if what in self._since:
            self._since[what] += 1
            return
        log.warning(said, extra={"address": what[1]})
        self._note(NOBODY, action, {"address": what[1]})
        self._since[what] = 0
        self._timers[what] = asyncio.get_running_loop().call_later(TOGETHER, self._count, what)

    async def close(self) -> None:
        """Write what is counted and not noted."""
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
            self._note(NOBODY, action, {"address": address, "times": times})

    def _note(self, actor: str, action: str, target: Mapping[str, object]) -> None:
        self._notes.append({"actor": actor, "action": action, "target": orjson.dumps(target).decode()})
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        while self._notes:
            note = self._notes.popleft()
            try:
                await self._database.act("page/note_visit", note)
            except (Away, psycopg.Error) as problem:
                log.warning("the audit could not be written (%s): %s by %s", name_of(problem), note["action"], note["actor"])
