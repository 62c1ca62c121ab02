"""Shows the first page: current and past throughput, running jobs, failures and the backlog.

The past comes from the rollup. Live rows are counted up to a bound.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from starlette.routing import Route

from jobherd.workers.dashboard.charts import HIGH, WIDE, WINDOWS, nice, window_of
from jobherd.workers.dashboard.database import database
from jobherd.workers.dashboard.live_updates import Topic
from jobherd.workers.dashboard.render import natural, page
from jobherd.workers.dashboard.window_charts import RETRYING, SCOPES, Chosen, ask_window_charts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from jobherd.workers.dashboard.database import Database, Reading, Row

MOST: Final = 10_000
"""Rows that are counted of a queue and state.

A backlog of millions costs no more to show than one of thousands.
"""
SHOWN: Final = 12
"""Queues and claims that are shown."""
BOUNDS: Final = {"most": MOST, "queues": SHOWN, "names": []}
STATES: Final = ("ready", "scheduled", "running")
OTHERS: Final = "(other)"
"""The name for all queues that are not shown by name; none can have this name."""
CHOICES: Final = {"seconds": 604_800, "most": 200}
"""Queues and hosts whose charts can be chosen."""
GATES: Final = 1000
"""Pauses and limits that are read."""
AHEAD: Final = 24
"""Hours of the chart of scheduled jobs."""


async def show(request: Request) -> Response:
    """Show the overview: what needs attention, the charts, the queues."""
    window = window_of(request.query_params.get("window"))
    chosen = chosen_of(request.query_params)
    past = f"{window.name} {chosen.text}".strip()
    data = database(request)
    (context, found), ended = await asyncio.gather(_rest(data), ask_window_charts(data, past))
    choices = choices_of([*found, chosen])
    return page(request, "overview.html", windows=WINDOWS.values(), past=past, choices=choices, **context | ended)


async def _rest(data: Database) -> tuple[dict[str, Any], list[Chosen]]:
    """Return all but the past, and whose charts can be shown."""
    async with data.reading() as reading:
        found = await depths(reading)
        context = await now_of(reading, found) | await work_of(reading, found)
        kinds = [Chosen("kind", row["name"]) for row in await reading.rows("dashboard/list_kind_choices")]
        busy = [
            Chosen(row["scope"], row["name"]) for row in await reading.rows("dashboard/list_scope_choices", CHOICES)
        ]
        return context, kinds + busy


def chosen_of(given: Mapping[str, str]) -> Chosen:
    """Return whose charts an address asks for: `of` from the form, or kind, queue or host from a link."""
    scoped = next((f"{scope} {given[scope]}" for scope in SCOPES if given.get(scope)), "")
    return Chosen.read((given.get("of") or given.get("kind") or scoped)[:300].replace("\0", ""))


def choices_of(found: Iterable[Chosen]) -> dict[str, list[Chosen]]:
    """Return what can be chosen, by scope, each once and in natural order."""
    ordered = sorted(set(found), key=lambda one: natural(one.name))
    return {scope: [one for one in ordered if one.scope == scope] for scope in ("kind", *SCOPES)}


async def ask_now(data: Database, _: str) -> dict[str, Any]:
    """Return how many jobs wait and run, and how far a new installation is."""
    async with data.reading() as reading:
        return await now_of(reading, await depths(reading))


async def ask_work(data: Database, _: str) -> dict[str, Any]:
    """Return the queues, the running jobs, and the jobs due next."""
    async with data.reading() as reading:
        return await work_of(reading, await depths(reading))


async def depths(data: Reading) -> dict[str, list[Row]]:
    """Return the depth of each queue, by state."""
    return {state: await data.rows(f"observe/measure_{state}", BOUNDS) for state in STATES}


async def now_of(data: Reading, found: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """Return the first part of the page. found: the depths."""
    [beginnings] = await data.rows("dashboard/show_first_steps")
    totals = {state: total_of(rows) for state, rows in found.items()}
    return {"totals": totals, "beginnings": beginnings, "again": await data.rows("observe/list_retrying", RETRYING)}


async def work_of(data: Reading, found: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """Return the last part of the page. found: the depths."""
    gates = await data.rows("observe/list_limits", {"most": GATES})
    return {
        "queues": queues_of(found, {gate["name"]: gate for gate in gates if gate["scope"] == "queue"}),
        "everything": any(gate["scope"] == "all" and gate["paused"] for gate in gates),
        "running": await data.rows("dashboard/list_running", {"most": SHOWN}),
        "due": await data.rows("dashboard/list_due", {"most": 5}),
        "ahead": ahead_of(await data.rows("dashboard/count_due", {"most": MOST, "hours": AHEAD})),
    }


def queues_of(found: Mapping[str, Sequence[Row]], gates: Mapping[str, Row]) -> list[dict[str, Any]]:
    """Return a row for each queue with its jobs in each state and its pause or limit, the deepest first.

    found: by state. gates: rows of observe/list_limits by queue.

    >>> queues_of({"ready": [{"queue": "mail", "jobs": 3, "capped": False, "oldest": 1.5}]}, {})[0]["ready"]
    3
    """
    names = {row["queue"] or OTHERS for rows in found.values() for row in rows} | {
        name for name, gate in gates.items() if gate["paused"]
    }
    rows = {name: {"queue": name, "gate": gates.get(name), "oldest": None} for name in names}
    for state, held in found.items():
        for row in held:
            rows[row["queue"] or OTHERS] |= {state: row["jobs"], f"{state}_capped": row["capped"]}
            if state == "ready":
                rows[row["queue"] or OTHERS]["oldest"] = row["oldest"]
    for row in rows.values():
        for state in STATES:
            row.setdefault(state, 0)
            row.setdefault(f"{state}_capped", False)
    return sorted(rows.values(), key=lambda row: (-row["ready"], -row["running"], row["queue"]))


def total_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the sum of these queues' jobs, whether there may be more, and the oldest age."""
    return {
        "jobs": sum(row["jobs"] for row in rows),
        "capped": any(row["capped"] for row in rows),
        "oldest": max((row["oldest"] for row in rows), default=None),
    }


def ahead_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the bars of the hours ahead: position, height in the frame of the charts, and jobs."""
    jobs = {row["hour"]: row["jobs"] for row in rows}
    top = nice(max(jobs.values(), default=0))
    wide = WIDE / AHEAD
    return {
        "hours": [
            {
                "hour": hour,
                "jobs": jobs.get(hour, 0),
                "x": round(hour * wide, 2),
                "height": round(HIGH * jobs.get(hour, 0) / top, 2),
            }
            for hour in range(AHEAD)
        ],
        "wide": round(wide, 2),
        "top": int(top),
        "jobs": sum(jobs.values()),
        "capped": any(row["capped"] for row in rows),
    }


topics = (
    Topic("now", "overview/_now.html", ask_now, every=2.0),
    Topic("work", "overview/_work.html", ask_work, every=2.0),
    Topic("past", "overview/_past.html", ask_window_charts, every=10.0),
)

routes = (Route("/", show, name="overview"),)
