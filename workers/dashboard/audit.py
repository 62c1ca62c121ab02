"""Shows the audit log: the entries of `jobherd.audit`, latest first, page by page by number."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from starlette.routing import Route

from jobherd.workers.dashboard.database import database
from jobherd.workers.dashboard.json_values import document
from jobherd.workers.dashboard.render import page

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

MOST: Final = 50
"""Entries on one page."""
ACTIONS: Final = 100
"""Actions in the selection field."""
LONGEST: Final = 200


async def show(request: Request) -> Response:
    """Show the audit log, newest first.

    `?actor=` and `?action=` filter it; `?before=` is where the previous page ended.
    """
    asked: dict[str, Any] = {
        name: request.query_params.get(name, "").replace("\0", "").strip()[:LONGEST] for name in ("actor", "action")
    }
    before = request.query_params.get("before", "")
    wanted: dict[str, Any] = {name: value or None for name, value in asked.items()}
    wanted |= {
        "before": int(before) if before.isascii() and before.isdigit() and len(before) <= 18 else None,
        "most": MOST + 1,
    }
    db = database(request)
    rows = await db.rows("dashboard/list_audit", wanted)
    notes, more = rows[:MOST], len(rows) > MOST
    for note in notes:
        note["parts"] = parts(note["target"])
    older = (
        urlencode({**{name: value for name, value in asked.items() if value}, "before": notes[-1]["id"]})
        if more
        else ""
    )
    actions = [row["action"] for row in await db.rows("dashboard/list_actions", {"most": ACTIONS})]
    return page(
        request,
        "audit.html",
        notes=notes,
        older=older,
        actions=actions,
        narrowed=any(asked.values()),
        first=wanted["before"] is None,
        **asked,
    )


def parts(target: str | None) -> list[tuple[str, object]]:
    """Return the target of an action as names and values, without empty ones, timestamps parsed."""
    return [
        (name, _moment(name, value))
        for name, value in document(target).items()
        if value is not None and value not in ([], {})
    ]


def _moment(name: str, value: object) -> object:
    if isinstance(value, str) and (name == "until" or name.endswith(("_at", "_by"))):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return value
        return moment if moment.tzinfo is not None else value
    return value


routes = (Route("/audit", show, name="audit"),)
