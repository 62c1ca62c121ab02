"""Shows the figures of the charts as a table, each with a link to its jobs.

A separate page: as a part of the charts' page, the table was a quarter of what a browser had to read. Without
scripts, it is the way to the values of a point.
"""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from starlette.routing import Route

from jobherd.workers.dashboard.charts import WINDOWS, window_of
from jobherd.workers.dashboard.database import database
from jobherd.workers.dashboard.render import page
from jobherd.workers.dashboard.window_charts import Chosen, sums

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from jobherd.workers.dashboard.charts import Window
    from jobherd.workers.dashboard.database import Row

COUNTED = ("completed", "failed", "expired", "cancelled")


async def show(request: Request) -> Response:
    """Show the figures of a window, the latest first, without the times in which no job ended."""
    window = window_of(request.query_params.get("window"))
    chosen = Chosen.read(request.query_params.get("of", "")[:300].replace("\0", ""))
    async with database(request).reading() as data:
        points, _ = await sums(data, window, chosen)
    rows = [
        {**row, "address": address(row, window, chosen)}
        for row in reversed(points)
        if row["retried"] or any(row[name] for name in COUNTED)
    ]
    return page(request, "chart_table.html", windows=WINDOWS.values(), window=window, chosen=chosen, rows=rows)


def address(row: Row, window: Window, chosen: Chosen) -> str:
    """Return the filter of the jobs of a row, or "" if none ended or no filter has them.

    >>> from datetime import datetime
    >>> at = datetime(2026, 1, 2, 3, tzinfo=UTC)
    >>> address({"at": at, "completed": 0, "failed": 1, "expired": 0, "cancelled": 0}, window_of("hour"), Chosen())
    'state=failed&since=2026-01-02+03%3A00Z&until=2026-01-02+03%3A01Z'
    """
    states = [("state", name) for name in COUNTED if row[name]]
    if not states or chosen.scope == "host":
        return ""
    at = row["at"].astimezone(UTC)
    ends = at + timedelta(seconds=window.point)
    return urlencode([*states, ("since", f"{at:%Y-%m-%d %H:%M}Z"), ("until", f"{ends:%Y-%m-%d %H:%M}Z")]) + chosen.query


routes = (Route("/figures", show, name="figures"),)
