"""Shows the kinds of jobs: duration, failure rate and resources.

All numbers come from the rollup, none from the jobs themselves.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.routing import Route

from jobherd.workers.dashboard.charts import WINDOWS, window_of
from jobherd.workers.dashboard.database import database
from jobherd.workers.dashboard.live_updates import Topic
from jobherd.workers.dashboard.render import count, natural, page
from jobherd.workers.dashboard.window_charts import ask_window_charts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from jobherd.workers.dashboard.database import Database, Row

MOST: Final = 300
"""Kinds that are shown, the most expensive first."""
SORTS: Final[Mapping[str, Callable[[Row], Any]]] = {
    "kind": lambda row: natural(row["kind"] or ""),
    "jobs": lambda row: -row["jobs"],
    "failed": lambda row: (-(row["failure_rate"] or 0), -row["failed"]),
    "p50": lambda row: -(row["p50"] or 0),
    "p95": lambda row: -(row["p95"] or 0),
    "p99": lambda row: -(row["p99"] or 0),
    "ran": lambda row: -row["ran"],
    "cpu": lambda row: -row["cpu"],
    "memory": lambda row: -(row["memory"] or 0),
}
"""Sort orders of the table, the largest value first."""


async def show(request: Request) -> Response:
    """Show all kinds."""
    window = window_of(request.query_params.get("window"))
    sort = request.query_params.get("sort", "")
    sort = sort if sort in SORTS else "cpu"
    return page(
        request, "kinds.html", windows=WINDOWS.values(), **await ask(database(request), f"{window.name} {sort}")
    )


async def show_one(request: Request) -> Response:
    """Show one kind, also one that no handler has declared: jobs can name it."""
    kind = request.path_params["kind"]
    if "\0" in kind:  # the database would reject it
        raise HTTPException(HTTPStatus.NOT_FOUND)
    window = window_of(request.query_params.get("window"))
    data = database(request)
    declared, past = await asyncio.gather(
        data.row("dashboard/show_kind", {"kind": kind}), ask_window_charts(data, f"{window.name} {kind}")
    )
    return page(request, "kind.html", kind=kind, declared=declared, windows=WINDOWS.values(), **past)


async def ask(data: Database, argument: str) -> dict[str, Any]:
    """Return the kinds of a window, sorted; argument: "day cpu"."""
    name, _, sort = argument.partition(" ")
    window = window_of(name)
    whole, *rows = await data.rows("dashboard/list_kinds", {"seconds": window.seconds, "most": MOST + 1})
    return {
        "window": window,
        "sort": sort,
        "kinds": weighed(rows, whole, sort, window.seconds),
        "whole": weighed([whole], whole, "jobs", window.seconds)[0],
        "most": MOST,
    }


def weighed(rows: Sequence[Row], whole: Row, sort: str, seconds: float) -> list[Row]:
    """Add to each row the values derived from its sums and the totals, and sort the rows.

    seconds: the time in which the jobs finished. Adds jobs (finished), rate, failure_rate (of those
        that completed, failed or expired), cpu_share, ran_share; None if the divisor is 0.
    """
    for row in rows:
        tried = row["completed"] + row["failed"] + row["expired"]
        row["jobs"] = ended(row)
        row["rate"] = rate(row["jobs"], seconds)
        row["failure_rate"] = (row["failed"] + row["expired"]) / tried if tried else None
        for name in ("cpu", "ran"):
            row[f"{name}_share"] = row[name] / whole[name] if whole[name] else None
    key = SORTS.get(sort, SORTS["cpu"])
    return sorted(rows, key=lambda row: (not row["jobs"], key(row), natural(row["kind"] or "")))


def rate(jobs: int, seconds: float) -> str:
    """Return the rate in the shortest unit in which there is at least one job.

    >>> rate(900, 3600), rate(2, 3600), rate(3, 604800)
    ('15/min', '2/h', '0.429/d')
    """
    unit, length = next(
        ((unit, length) for unit, length in (("s", 1), ("min", 60), ("h", 3600)) if jobs * length >= seconds),
        ("d", 86400),
    )
    return f"{count(jobs * length / seconds)}/{unit}"


def ended(row: Row) -> int:
    """Return how many jobs have finished, in any final state."""
    return int(row["completed"] + row["failed"] + row["cancelled"] + row["expired"])


topics = (Topic("kinds", "kinds/_live.html", ask, every=10.0),)

routes = (
    Route("/kinds", show, name="kinds"),
    Route("/kinds/{kind:path}", show_one, name="kind"),
)
