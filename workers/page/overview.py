"""Shows the first page: current and past throughput, running jobs, failures and the backlog.

The past comes from the rollup. Live rows are counted up to a bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.routing import Route

from jobherd.workers.page.charts import HIGH, WIDE, WINDOWS, Series, Window, bars, lines, nice, window_of
from jobherd.workers.page.database import database
from jobherd.workers.page.live_updates import Topic
from jobherd.workers.page.redaction import Redactions, redact_text
from jobherd.workers.page.render import natural, page

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from jobherd.workers.page.database import Database, Row

MOST: Final = 10_000
"""Rows that are counted of a queue and state.

A backlog of millions costs no more to show than one of thousands.
"""
SHOWN: Final = 12
"""Queues, claims and failures that are shown."""
BOUNDS: Final = {"most": MOST, "queues": SHOWN, "names": []}
RETRYING: Final = {"most": MOST, "rows": SHOWN}
STATES: Final = ("ready", "scheduled", "running")
OTHERS: Final = "(other)"
"""The name for all queues that are not shown by name; none can have this name."""
AHEAD: Final = 24
"""Hours of the chart of scheduled jobs."""
ENDED: Final = (Series("completed", "completed", "accent"),)
TROUBLED: Final = (
    Series("failed", "failed", "bad"),
    Series("expired", "expired", "warn"),
    Series("retried", "failed attempts", "soft", of_jobs=False),
)
WAITED: Final = (Series("waited_p50", "half within", "accent"), Series("waited_p95", "95 % within", "warn"))
RAN: Final = (Series("ran_p50", "half within", "accent"), Series("ran_p95", "95 % within", "warn"))


async def show(request: Request) -> Response:
    """Show the overview: what needs attention, the charts, the queues."""
    window = window_of(request.query_params.get("window"))
    data = database(request)
    kind = request.query_params.get("kind", "")[:100].replace("\0", "")
    past = f"{window.name} {kind}".strip()
    context = await ask_now(data, "") | await ask_work(data, "") | await ask_past(data, past)
    names = {row["name"] for row in await data.rows("page/list_kind_choices")} | {kind} - {""}
    kinds = sorted(names, key=natural)
    return page(request, "overview.html", windows=WINDOWS.values(), past=past, kinds=kinds, **context)


async def ask_now(data: Database, _: str) -> dict[str, Any]:
    """Return how many jobs wait and run, and how far a new installation is."""
    found = {state: total_of(await data.rows(f"observe/measure_{state}", BOUNDS)) for state in STATES}
    [beginnings] = await data.rows("page/show_first_steps")
    retrying = await data.rows("observe/list_retrying", RETRYING)
    return {"totals": found, "beginnings": beginnings, "retrying": retrying}


async def ask_work(data: Database, _: str) -> dict[str, Any]:
    """Return the queues, the running jobs, and the jobs due next."""
    found = {state: await data.rows(f"observe/measure_{state}", BOUNDS) for state in STATES}
    return {
        "queues": queues_of(
            found, {row["queue"]: row["paused"] for row in await data.rows("observe/list_queue_names", BOUNDS)}
        ),
        "running": await data.rows("page/list_running", {"most": SHOWN}),
        "due": await data.rows("page/list_due", {"most": 5}),
        "ahead": ahead_of(await data.rows("page/count_due", {"most": MOST, "hours": AHEAD})),
    }


async def ask_past(data: Database, argument: str) -> dict[str, Any]:
    """Return the charts and failures of a window.

    argument: "hour", "day" or "week", optionally followed by a space and a kind.
    """
    name, _, kind = argument.partition(" ")
    window = window_of(name)
    wanted = {"seconds": window.seconds, "kind": kind or None}
    *rows, whole = await data.rows("page/sum_chart", wanted | {"point": window.point})
    hidden = await Redactions().read(data)
    failures = await data.rows("page/list_failures", wanted | {"most": SHOWN, "hidden": list(hidden)})
    retrying = [row for row in await data.rows("observe/list_retrying", RETRYING) if not kind or row["kind"] == kind]
    for failure in failures:
        failure["error"] = redact_text(failure["error"], failure.pop("payload"), hidden.get(failure["kind"], ()))
    return {
        "window": window,
        "only": kind,
        "charts": charts_of(rows, window),
        "points": rows,
        "whole": whole,
        "failures": failures,
        "retrying": retrying,
    }


def charts_of(rows: Sequence[Mapping[str, object]], window: Window) -> list[object]:
    """Return the four charts of finished jobs."""
    return [
        bars("Completed", rows, ENDED, window),
        bars("Failed", rows, TROUBLED, window),
        lines("Start delay", rows, WAITED),
        lines("Duration", rows, RAN),
    ]


def queues_of(found: Mapping[str, Sequence[Row]], known: Mapping[str, bool]) -> list[dict[str, Any]]:
    """Return a row for each queue with its jobs in each state, the deepest first.

    >>> queues_of({"ready": [{"queue": "mail", "jobs": 3, "capped": False, "oldest": 1.5}]}, {"mail": True})[0]["ready"]
    3
    """
    names = {row["queue"] or OTHERS for rows in found.values() for row in rows} | {
        name for name, paused in known.items() if paused
    }
    rows = {name: {"queue": name, "paused": known.get(name, False), "oldest": None} for name in names}
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
    Topic("past", "overview/_past.html", ask_past, every=10.0),
)

routes = (Route("/", show, name="overview"),)
