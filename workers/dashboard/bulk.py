"""Runs bulk actions on jobs in slices, in a task that needs no viewer, and shows their progress.

Each slice is one transaction that also stores the progress. The row in `jobherd.bulks` is the only
truth. A process that works on it names the position it has read. If another process has moved the
row, or a user has stopped it, nothing is done. So if a web process dies, the next one continues its
bulk actions, on whatever host, and nothing happens twice. `jobs` decides which actions are allowed,
and on which jobs.
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

from jobherd.workers.dashboard.actions import Done, action, sentence_of
from jobherd.workers.dashboard.database import Away, database
from jobherd.workers.dashboard.filters import Wanted
from jobherd.workers.dashboard.job_search import search_jobs
from jobherd.workers.dashboard.live_updates import FINAL, Topic
from jobherd.workers.dashboard.redaction import paths_of
from jobherd.workers.dashboard.render import page
from jobherd.workers.dashboard.request import root_of, viewer_of
from jobherd.workers.database.errors import error_name

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from jobherd.workers.dashboard.database import Database, Row
    from jobherd.workers.dashboard.forms import Form

log = logging.getLogger("jobherd.dashboard")

SLICE: Final = 200
"""Jobs in a transaction: their locks must be short."""
SCAN: Final = 5_000
"""Waiting jobs that a search for a slice walks past."""
BUDGET: Final = 10.0
"""Seconds to find a slice."""
STILL: Final = 15.0
"""Seconds without progress after which any process that sees a bulk action continues it."""
AGAIN: Final = (0.5, 30.0)
"""Seconds before the next try if the database is away: the first and the longest."""
TRIES: Final = 8
"""Tries for a slice that collides with other transactions."""
_COLLISIONS: Final = (
    errors.DeadlockDetected,
    errors.SerializationFailure,
    errors.LockNotAvailable,
    errors.QueryCanceled,
)
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
    "blocked": "they wait for other jobs",
    "retrying": "they wait for their next attempt",
    "gone": "they are no longer there",
}


class Runner:
    """Run the bulk actions of this process, one after the other.

    at: the database. enabled: False if nothing may be changed.
    """

    def __init__(self, at: Database, *, enabled: bool = True) -> None:
        self._database = at
        self._enabled = enabled
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()
        _RUNNERS[at] = self

    def take(self, bulk: int) -> None:
        """Start working on a bulk action, unless that is already so."""
        if self._enabled and bulk not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._run(bulk))
            self._tasks[bulk] = task
            task.add_done_callback(lambda _: self._tasks.pop(bulk, None))

    def take_up(self, bulks: list[Row]) -> None:
        """Work on those that another process has left unfinished."""
        for bulk in bulks:
            if bulk["ended_at"] is None and bulk["still_for"] > STILL:
                self.take(bulk["id"])

    async def resume(self) -> None:
        """Continue unfinished bulk actions as soon as the database answers.

        Called at process start.
        """
        patience, longest = AGAIN
        while self._enabled:
            try:
                self.take_up(await self._database.rows("dashboard/list_bulks", {"most": 100}))
                return
            except (Away, psycopg.Error):
                await asyncio.sleep(patience)
                patience = min(longest, patience * 2)

    async def close(self) -> None:
        """Stop working; every bulk action stays at its position."""
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
                    log.info("bulk %d: retrying a slice (%s)", bulk, error_name(problem))
                    if tries >= TRIES and await self._broken(bulk, sentence_of(problem)):
                        return
                except psycopg.Error as problem:
                    # No traceback: it would quote the job.
                    log.error(
                        "bulk %d: the database rejected a statement (%s); its row has the error",
                        bulk,
                        error_name(problem),
                    )
                    if await self._broken(bulk, sentence_of(problem)):
                        return

    async def _broken(self, bulk: int, error: str) -> bool:
        """Store that the bulk action cannot continue. False if the database is away."""
        try:
            await self._database.act("dashboard/end_bulk", {"id": bulk, "error": error})
        except (Away, psycopg.Error):
            await asyncio.sleep(AGAIN[0])
            return False
        return True

    async def _move(self, bulk: int, size: int) -> bool:
        """Do the next slice; return whether there is more to do in this process."""
        row = await self._database.row("dashboard/show_bulk", {"id": bulk})
        if row is None or row["ended_at"] is not None:
            return False
        if row["stopped_by"] is None:
            ids, reaches = await self._next(row, size)
            step = {"id": bulk, "reached": row["reached"], "ids": ids, "reaches": reaches}
            if not await self._database.act("dashboard/run_bulk_slice", step):
                row = await self._database.row("dashboard/show_bulk", {"id": bulk})
                return row is not None and row["stopped_by"] is not None  # otherwise another process works on it
            if reaches > 0:
                return True
        await self._database.act("dashboard/end_bulk", {"id": bulk, "error": None})
        return False

    async def _next(self, row: Row, size: int) -> tuple[list[int], int]:
        """Return the jobs of the next slice, and the id down to which all are done after it.

        An id of 0 means that all are done.
        """
        chosen = json.loads(row["wanted"])
        if "ids" in chosen:
            left = sorted((number for number in chosen["ids"] if number < row["reached"]), reverse=True)
            return left[:size], left[size - 1] if len(left) > size else 0
        found = await search_jobs(
            self._database,
            Wanted.from_document(chosen["filter"]),
            before=row["reached"],
            limit=size,
            scan=SCAN,
            budget=BUDGET,
            hidden=await paths_of(self._database),
        )
        if not found.rows and found.onward == row["reached"]:
            raise errors.QueryCanceled("the query for its next jobs took too long")
        return [job["id"] for job in found.rows], found.onward or 0


_RUNNERS: WeakKeyDictionary[Database, Runner] = WeakKeyDictionary()
"""By database, for code without the application: a live topic."""


def runner_of(request: Request) -> Runner:
    """Return the application's runner of bulk actions."""
    found = request.app.state.bulks
    assert isinstance(found, Runner)
    return found


# -- the page of one bulk action


def shown(bulk: Row) -> dict[str, Any]:
    """Return a bulk action as the templates need it."""
    refused = json.loads(bulk["refused"])
    jobs = bulk["done"] + sum(refused.values())
    doing, done = WORDS[bulk["action"]]
    return {
        **bulk,
        "jobs": jobs,
        "part": 1.0
        if bulk["ended_at"] and not bulk["stopped_by"] and not bulk["error"]
        else min(jobs / max(bulk["expected"], 1), 0.99),
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
        await at.row("dashboard/show_bulk", {"id": int(argument)})
        if argument.isascii() and argument.isdigit() and len(argument) < 19
        else None
    )
    if found is not None and at in _RUNNERS:
        _RUNNERS[at].take_up([found])
    return {"bulk": shown(found) if found else None, FINAL: found is None or found["ended_at"] is not None}


async def show(request: Request) -> Response:
    """Show the progress of a bulk action."""
    context = await _ask(database(request), str(request.path_params["id"]))
    if context["bulk"] is None:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    return page(request, "jobs/bulk.html", bulk=context["bulk"])


@action
async def stop(request: Request, _form: Form) -> Done:
    """Stop a bulk action after its current slice."""
    bulk = request.path_params["id"]
    stopped = await database(request).act("dashboard/stop_bulk", {"id": bulk, "actor": viewer_of(request).actor})
    runner_of(request).take(bulk)  # if no process works on it, nothing would store its end
    to = f"{root_of(request)}{request.app.url_path_for('bulk', id=bulk)}"
    return Done("It stops after its current jobs.", to) if stopped else Done("It had ended already.", to, well=False)


routes = (
    Route("/jobs/bulk/{id:int}", show, name="bulk"),
    Route("/jobs/bulk/{id:int}/action", stop, methods=["POST"], name="bulk_stop"),
)
topics = (Topic("bulk", "jobs/_bulk.html", _ask),)
