"""What is done to many jobs: in slices, each one transaction that also says how far it came, by a task that needs no viewer.

The row in `jobherd.bulks` is the only truth. Whoever works on it names where it stood: if somebody else has moved it, or has stopped it, nothing is
done. So a bulk that a web child left behind when it died is taken up by the next one, on whatever host, and nothing happens twice. Here
stand the work and the page that shows it; what may be asked for, and of which jobs, `jobs` decides.
"""

from __future__ import annotations

import asyncio
import json
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import psycopg
from psycopg import errors
from starlette.exceptions import HTTPException
from starlette.routing import Route

from jobherd.workers.page.database import Away, database, name_of
from jobherd.workers.page.filters import Wanted
from jobherd.workers.page.guard import Done, action, root_of, said, viewer_of
from jobherd.workers.page.listing import look
from jobherd.workers.page.live_updates import FINAL, Topic
from jobherd.workers.page.redaction import paths_of
from jobherd.workers.page.render import page

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from jobherd.workers.page.database import Database, Row
    from jobherd.workers.page.guard import Form

log = logging.getLogger("jobherd.page")

SLICE: Final = 200
"""Jobs in a transaction: what they lock is not locked for long."""
SCAN: Final = 5_000
"""Waiting jobs that are walked past for a slice."""
BUDGET: Final = 10.0
"""Seconds to find a slice."""
STILL: Final = 15.0
"""Seconds after which a bulk that nobody moves is taken up by whoever sees it."""
AGAIN: Final = (0.5, 30.0)
"""Seconds before it is tried again when the database is away: the first and the longest."""
TRIES: Final = 8
"""Times that a slice is tried which collides with what others do."""
_COLLISIONS: Final = (errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable, errors.QueryCanceled)
WORDS: Final = {
    "retry": ("Retrying", "retried"),
    "cancel": ("Cancelling", "cancelled"),
    "delete": ("Deleting", "deleted"),
    "reprioritize": ("Changing the priority of", "given the priority"),
    "reschedule": ("Changing the time of", "given the time"),
}
_WHY: Final = {
    "running": "they run",
    "ready": "they wait",
    "scheduled": "they wait for their time",
    "retrying": "they wait for their next attempt",
    "gone": "they are no longer there",
}


class Runner:
    """The bulks that this process works on, one after the other.

    database: where they are. enabled: False where nothing may be changed.
    """

    def __init__(self, at: Database, *, enabled: bool = True) -> None:
        self._database = at
        self._enabled = enabled
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()
        _RUNNERS[at] = self

    def take(self, bulk: int) -> None:
        """Work on it from now on, unless that is done already."""
        if self._enabled and bulk not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._run(bulk))
            self._tasks[bulk] = task
            task.add_done_callback(lambda _: self._tasks.pop(bulk, None))

    def take_up(self, bulks: list[Row]) -> None:
        """Work on those that somebody has left behind."""
        for bulk in bulks:
            if bulk["ended_at"] is None and bulk["still_for"] > STILL:
                self.take(bulk["id"])

    async def resume(self) -> None:
        """Take up what is left behind, as soon as the database answers. For the start of a process."""
        patience, longest = AGAIN
        while self._enabled:
            try:
                self.take_up(await self._database.rows("page/list_bulks", {"most": 100}))
                return
            except (Away, psycopg.Error):
                await asyncio.sleep(patience)
                patience = min(longest, patience * 2)

    async def close(self) -> None:
        """Leave everything where it stands."""
        self._enabled = False
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, bulk: int) -> None:
        patience, longest = AGAIN
        size, tries = SLICE, 0
        async with self._turn:
            while True:
                try:
                    if not await self._move(bulk, size):
                        return
                    patience, tries, size = AGAIN[0], 0, min(SLICE, 2 * size)
                except Away:
                    await asyncio.sleep(patience)
                    patience = min(longest, patience * 2)
                except _COLLISIONS as problem:
                    tries, size = tries + 1, max(1, size // 2)
                    log.info("bulk %d: a slice of it is tried again (%s)", bulk, name_of(problem))
                    if tries >= TRIES and await self._broken(bulk, said(problem)):
                        return
                except psycopg.Error as problem:
                    log.error("bulk %d: the database refused (%s); its row says why", bulk, name_of(problem))  # a trace would quote the job
                    if await self._broken(bulk, said(problem)):
                        return

    async def _broken(self, bulk: int, error: str) -> bool:
        """Write down that it cannot go on. False if the database is away."""
        try:
            await self._database.act("page/end_bulk", {"id": bulk, "error": error})
        except (Away, psycopg.Error):
            await asyncio.sleep(AGAIN[0])
            return False
        return True

    async def _move(self, bulk: int, size: int) -> bool:
        """Do the next slice; return whether there is more to do here."""
        row = await self._database.row("page/show_bulk", {"id": bulk})
        if row is None or row["ended_at"] is not None:
            return False
        if row["stopped_by"] is None:
            ids, reaches = await self._next(row, size)
            step = {"id": bulk, "reached": row["reached"], "ids": ids, "reaches": reaches}
            if not await self._database.act("page/move_bulk", step):
                row = await self._database.row("page/show_bulk", {"id": bulk})
                return row is not None and row["stopped_by"] is not None  # else somebody else is at it
            if reaches > 0:
                return True
        await self._database.act("page/end_bulk", {"id": bulk, "error": None})
        return False

    async def _next(self, row: Row, size: int) -> tuple[list[int], int]:
        """Return the jobs of the next slice, and the id down to which all is done with after it: 0 for all."""
        chosen = json.loads(row["wanted"])
        if "ids" in chosen:
            left = sorted((number for number in chosen["ids"] if number < row["reached"]), reverse=True)
            return left[:size], left[size - 1] if len(left) > size else 0
        found = await look(
            self._database, Wanted.from_document(chosen["filter"]), before=row["reached"], limit=size, scan=SCAN, budget=BUDGET,
            hidden=await paths_of(self._database),
        )  # fmt: skip
        if not found.rows and found.onward == row["reached"]:
            raise errors.QueryCanceled("not even the next of its jobs could be looked for in time")
        return [job["id"] for job in found.rows], found.onward or 0


_RUNNERS: WeakKeyDictionary[Database, Runner] = WeakKeyDictionary()
"""By database, for what knows no application: a live topic."""


def runner_of(request: Request) -> Runner:
    """Return what works on bulks for this application."""
    found = request.app.state.bulks
    assert isinstance(found, Runner)
    return found


# -- the page that shows one ---------------------------------------------------------------------------------------------


def shown(bulk: Row) -> dict[str, Any]:
    """Return a bulk as the templates show it."""
    refused = json.loads(bulk["refused"])
    jobs = bulk["done"] + sum(refused.values())
    doing, done = WORDS[bulk["action"]]
    return {
        **bulk,
        "jobs": jobs,
        "part": 1.0 if bulk["ended_at"] and not bulk["stopped_by"] and not bulk["error"] else min(jobs / max(bulk["expected"], 1), 0.99),
        "refused": [
            (number, _WHY.get(why, f"it {why}" if number == 1 else f"they {why.replace('was ', 'were ')}"))
            for why, number in sorted(refused.items())
        ],
        "doing": doing,
        "done_word": done,
        "state": "running"
        if bulk["ended_at"] is None
        else "failed"
        if bulk["error"]
        else "cancelled"
        if bulk["stopped_by"]
        else "completed",
    }


async def _ask(at: Database, argument: str) -> dict[str, object]:
    found = (
        await at.row("page/show_bulk", {"id": int(argument)}) if argument.isascii() and argument.isdigit() and len(argument) < 19 else None
    )
    if found is not None and at in _RUNNERS:
        _RUNNERS[at].take_up([found])
    return {"bulk": shown(found) if found else None, FINAL: found is None or found["ended_at"] is not None}


async def show(request: Request) -> Response:
    """How far one is."""
    context = await _ask(database(request), str(request.path_params["id"]))
    if context["bulk"] is None:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    return page(request, "jobs/bulk.html", bulk=context["bulk"])


@action
async def stop(request: Request, _form: Form) -> Done:
    """Stop one after the slice it is at."""
    bulk = request.path_params["id"]
    stopped = await database(request).act("page/stop_bulk", {"id": bulk, "actor": viewer_of(request).actor})
    runner_of(request).take(bulk)  # if nobody works on it, nobody would say that it has ended
    to = f"{root_of(request)}{request.app.url_path_for('bulk', id=bulk)}"
    return Done("It stops after the jobs it is at.", to) if stopped else Done("It had ended already.", to, well=False)


routes = (
    Route("/jobs/bulk/{id:int}", show, name="bulk"),
    Route("/jobs/bulk/{id:int}/action", stop, methods=["POST"], name="bulk_stop"),
)
topics = (Topic("bulk", "jobs/_bulk.html", _ask),)
