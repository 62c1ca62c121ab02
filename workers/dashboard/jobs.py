"""Shows the list of jobs, filtered and paged by its address.

`job_search` finds the jobs. The form around the list chooses jobs for a bulk action (`bulk_choice`).
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from starlette.datastructures import QueryParams
from starlette.routing import Route

from jobherd.handlers._values.encryption import cover
from jobherd.workers.dashboard import bulk, bulk_choice
from jobherd.workers.dashboard.bulk_choice import BULK_ACTIONS
from jobherd.workers.dashboard.database import database
from jobherd.workers.dashboard.filters import STATES, TEXT_REACHES, Wanted
from jobherd.workers.dashboard.job_search import LARGEST, Found, search_jobs
from jobherd.workers.dashboard.job_search_by_end import search_jobs_by_end
from jobherd.workers.dashboard.live_updates import Topic
from jobherd.workers.dashboard.redaction import paths_of, redact
from jobherd.workers.dashboard.render import page

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from jobherd.workers.dashboard.database import Database, Reading, Row

    Hidden = Mapping[str, Sequence[str]]

SIZES: Final = (50, 200, 1000)
"""Selectable numbers of jobs on a page."""
PAYLOAD: Final = 160
"""Characters of a payload in the list."""
COUNTED: Final = 10_000
"""Jobs of a state that are counted."""
PERIOD: Final = 5.0
"""Seconds for which the counts are kept."""


async def show(request: Request) -> Response:
    """Show the list of jobs, filtered by the query's parameters."""
    at = database(request)
    wanted, problems = Wanted.read(request.query_params)
    before, size = _number(request, "before", LARGEST), _number(request, "size", SIZES[0])
    if size not in SIZES:
        size = SIZES[0]
    ended = _ended_before(request.query_params.get("ended", "")) if wanted.sort else None
    is_first = before == LARGEST and ended is None
    hidden = await paths_of(at)
    found = await _look(at, wanted, before, size, ended, hidden=hidden)
    async with at.reading() as reading:
        context = await _list(reading, wanted, size, found, hidden) | await _tabs(at, reading, wanted)
        going_on = [one for one in await reading.rows("dashboard/list_bulks", {"most": 20}) if one["ended_at"] is None]
    bulk.runner_of(request).take_up(going_on)
    query = wanted.query(size=size if size != SIZES[0] else None)
    return page(
        request,
        "jobs.html",
        **context,
        problems=problems,
        given=request.query_params,
        states=STATES,
        chips=chips_of(wanted),
        sizes=SIZES,
        going_on=[bulk.shown(one) for one in going_on],
        bulk_actions=BULK_ACTIONS,
        text_reaches=TEXT_REACHES,
        is_first=is_first,
        tabs_topic=f"states:{wanted.query()}" if len(query) < 190 else "",
        topic=f"jobs:{query}" if is_first and not wanted.reads_payloads and len(query) < 190 else "",
    )


async def _ask(at: Database, argument: str) -> dict[str, object]:
    given = QueryParams(argument)
    wanted, _ = Wanted.read(given)
    size = int(given["size"]) if given.get("size") in {str(number) for number in SIZES} else SIZES[0]
    hidden = await paths_of(at)
    found = await _look(at, wanted, LARGEST, size, None, hidden=hidden)
    async with at.reading() as reading:
        return await _list(reading, wanted, size, found, hidden)


async def _look(
    at: Database, wanted: Wanted, before: int, size: int, ended: tuple[datetime, int] | None, *, hidden: Hidden
) -> Found:
    if wanted.sort:
        return await search_jobs_by_end(at, wanted, before=ended, limit=size, hidden=hidden)
    return await search_jobs(at, wanted, before=before, limit=size, hidden=hidden)


async def _list(at: Reading, wanted: Wanted, size: int, found: Found, hidden: Hidden) -> dict[str, Any]:
    """Return the context of the list."""
    further: dict[str, object] = {"before": found.onward} if found.onward else {}
    if found.ended_before:
        moment, job = found.ended_before
        further = {"ended": f"{moment.isoformat()},{job}"}
    elif wanted.sort:
        further = {}
    names = await at.rows("dashboard/list_kind_choices")
    attempts = {row["name"]: row["max_attempts"] for row in names}
    payloads = await _payloads(at, [row["id"] for row in found.rows], hidden)
    reached = await at.row("dashboard/show_created", {"id": found.floor}) if found.floor and not found.is_full else None
    # Cost: many rows have few kinds and queues among them.
    same = {("kind", name): replace(wanted, kind=name).query() for name in {row["kind"] for row in found.rows}}
    same |= {("queue", name): replace(wanted, queue=name).query() for name in {row["queue"] for row in found.rows}}
    return {
        "rows": [
            _shown(row, found.asked_at, attempts, payloads)
            | {
                "same_kind": "" if wanted.kind else same["kind", row["kind"]],
                "same_queue": "" if wanted.queue else same["queue", row["queue"]],
            }
            for row in found.rows
        ],
        "names": names,
        "wanted": wanted,
        "size": size,
        "found": found,
        "reached_at": reached["created_at"] if reached else None,
        "onward": wanted.query(**further, size=size if size != SIZES[0] else None) if further else "",
        "by_id": replace(wanted, sort="").query(),
        "by_end": replace(wanted, sort="end").query(),
        "unsearched": sorted(hidden) if wanted.reads_payloads else [],
    }


async def _payloads(at: Reading, ids: list[int], hidden: Hidden) -> dict[int, str]:
    """Return the beginning of each payload in one line, without its redacted parts."""
    if not ids:
        return {}
    rows = await at.rows("dashboard/list_payloads", {"ids": ids, "hidden": list(hidden)})
    texts = {row["id"]: redact(row["payload"], hidden.get(row["kind"], ())) or "" for row in rows}
    return {job: cover(" ".join(text.split()))[:PAYLOAD] for job, text in texts.items() if text not in {"{}", "null"}}


async def _ask_tabs(at: Database, argument: str) -> dict[str, Any]:
    async with at.reading() as reading:
        return await _tabs(at, reading, Wanted.read(QueryParams(argument))[0])


async def _tabs(at: Database, reading: Reading, wanted: Wanted) -> dict[str, Any]:
    """Return the tabs of the states: counted for all jobs, so only without another condition."""
    rest = replace(wanted, states=())
    counted = await _count_states(at, reading) if rest.is_everything else []
    counts = {
        row["state"]: f"{row['jobs']:,}{'+' if row['capped'] else ''}"
        for row in counted
        if row["jobs"] or not row["capped"]
    }
    return {
        "tabs": [("", rest.query(), "", not wanted.states)]
        + [
            (state, replace(rest, states=(state,)).query(), counts.get(state, ""), wanted.states == (state,))
            for state in STATES
        ]
    }


_COUNTS: Final[WeakKeyDictionary[Database, tuple[float, list[Row]]]] = WeakKeyDictionary()


async def _count_states(at: Database, reading: Reading) -> list[Row]:
    """Count the jobs in each state, at most once in `PERIOD` seconds for all viewers."""
    counted_at, counted = _COUNTS.get(at, (-PERIOD, []))
    if time.monotonic() - counted_at >= PERIOD:
        counted = await reading.rows("dashboard/count_states", {"most": COUNTED})
        _COUNTS[at] = (time.monotonic(), counted)
    return counted


def chips_of(wanted: Wanted) -> list[tuple[str, str, str]]:
    """Return each condition but the state: its name, its value, and the query without it."""
    names = ("kind", "queue", "tenant", "code", "field", "since", "until", "text")
    return [
        (name, getattr(wanted, name), Wanted.from_document({**wanted.document(), name: ""}).query())
        for name in names
        if getattr(wanted, name)
    ]


def _shown(row: Row, now: datetime, attempts: dict[str, int], payloads: dict[int, str]) -> dict[str, Any]:
    """Return a job as the list needs it."""
    started, ended = row["started_at"], row["finished_at"]
    return {
        **row,
        "state": "parked" if row["parked"] and row["state"] == "ready" else row["state"],
        "most": row["max_attempts"] or attempts.get(row["kind"], 5),
        "when": ended or started or row["run_at"],
        "took": (ended or now) - started if started else None,
        "shown": payloads.get(row["id"], ""),
        "error": next(iter((row["error"] or "").strip().splitlines()), ""),
    }


def _ended_before(text: str) -> tuple[datetime, int] | None:
    """Return a time of end and an id from the address, or None if they are invalid."""
    try:
        moment, job = text.split(",")
        found = datetime.fromisoformat(moment), int(job)
    except (ValueError, OverflowError):
        return None
    return found if found[0].tzinfo and abs(found[1]) <= LARGEST + 1 else None


def _number(request: Request, name: str, default: int) -> int:
    """Return a whole number from the address, or the default if it is invalid."""
    text = request.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 and 0 < int(text) <= LARGEST else default


routes = (Route("/jobs", show, name="jobs"), *bulk_choice.routes)
topics = (
    Topic("jobs", "jobs/_list.html", _ask, every=3.0),
    Topic("states", "jobs/_tabs.html", _ask_tabs, every=5.0),
    *bulk.topics,
)
