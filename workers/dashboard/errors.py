"""Shows what fails, grouped by kind, exception class and place, and the jobs of one group.

Retrying jobs count as well as those that have failed finally. `workers/inspect/failures.py` groups.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.routing import Route

from jobherd.workers.dashboard.charts import WINDOWS, Window, window_of
from jobherd.workers.dashboard.database import database
from jobherd.workers.dashboard.live_updates import Topic
from jobherd.workers.dashboard.redaction import paths_of, redact_text
from jobherd.workers.dashboard.render import page
from jobherd.workers.inspect.failures import SLOTS, Group, groups

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from jobherd.workers.dashboard.database import Database, Row

MOST: Final = 1000
"""Jobs that are grouped, of those that failed and of those that retry."""
SHOWN: Final = 50
"""Groups on the page, and jobs on that of a group."""


async def show(request: Request) -> Response:
    """Show the groups of failed attempts in a period."""
    window = window_of(request.query_params.get("window") or "day")
    return page(
        request, "errors.html", windows=WINDOWS.values(), **await ask(database(request), _argument(window, request))
    )


async def show_one(request: Request) -> Response:
    """Show one group: its sample, its trend and its jobs."""
    given = request.query_params
    window = window_of(given.get("window") or "day")
    key = tuple(given.get(name, "") for name in ("kind", "error", "place"))
    found, cut = await _groups(database(request), window, key[0] or None)
    group = next((one for one in found if one.key == key), None)
    if group is None:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    return page(
        request, "errors/one.html", group=group, window=window, cut=cut, bars=bars(group), shown=group.ids[:SHOWN]
    )


async def ask(at: Database, argument: str) -> dict[str, Any]:
    """Return the context of the list. argument: a window, optionally followed by a space and a kind."""
    name, _, kind = argument.partition(" ")
    window = window_of(name)
    found, cut = await _groups(at, window, kind or None)
    return {
        "window": window,
        "kind": kind,
        "cut": cut,
        "most": MOST,
        "more": max(0, len(found) - SHOWN),
        "groups": [(group, bars(group), _address(group, window)) for group in found[:SHOWN]],
    }


async def _groups(at: Database, window: Window, kind: str | None) -> tuple[list[Group], bool]:
    """Return the groups, and whether there are more jobs than were grouped."""
    hidden = await paths_of(at)
    wanted = {"seconds": float(window.seconds), "most": MOST, "kind": kind, "hidden": list(hidden)}
    rows = await at.rows("observe/list_failing", wanted)
    for row in rows:
        _redact(row, hidden.get(row["kind"], ()))
    return groups(rows, window.seconds), bool(rows and rows[0]["cut"])


def _redact(row: Row, paths: tuple[str, ...]) -> None:
    payload = row.pop("payload")
    for name in ("error", "traceback"):
        row[name] = redact_text(row[name], payload, paths)


def bars(group: Group) -> list[tuple[int, int]]:
    """Return place and height, from 1 to 100, of the bars of a trend."""
    top = max(group.trend)
    return [(slot, max(8, round(100 * jobs / top))) for slot, jobs in enumerate(group.trend) if jobs and slot < SLOTS]


def _address(group: Group, window: Window) -> str:
    return urlencode({"kind": group.kind, "error": group.error, "place": group.place, "window": window.name})


def _argument(window: Window, request: Request) -> str:
    kind = request.query_params.get("kind", "")[:100].replace("\0", "")
    return f"{window.name} {kind}" if kind else window.name


topics = (Topic("errors", "errors/_live.html", ask, every=5.0),)
routes = (Route("/errors", show, name="errors"), Route("/errors/group", show_one, name="error"))
