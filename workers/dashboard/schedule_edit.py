"""Edits the time of a schedule: shows the next instants of a new time before it is stored.

The form is sent with GET until it is valid, so a preview changes nothing and can be linked. Must not
edit the payload: `schedule_payload` does, which restores the parts that the browser does not receive.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.routing import Route

from jobherd.handlers._policy.durations import seconds
from jobherd.handlers._policy.schedule import check_cron, check_every, check_tz
from jobherd.handlers._policy.timing_words import words_of
from jobherd.workers.dashboard.actions import Done, action, allow_acting
from jobherd.workers.dashboard.database import database
from jobherd.workers.dashboard.render import duration, page
from jobherd.workers.dashboard.request import root_of, viewer_of
from jobherd.workers.dashboard.schedules import LONGEST, upcoming

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from starlette.requests import Request
    from starlette.responses import Response

    from jobherd.workers.dashboard.database import Row
    from jobherd.workers.dashboard.forms import Form


async def show(request: Request) -> Response:
    """Show the form that edits the times of a schedule.

    With `?cron=` or `?every=` also what the new time means, or why it is not valid.
    """
    allow_acting(request)
    row = await row_of(request)
    given = request.query_params
    asked = "cron" in given or "every" in given
    fields = _fields(given) if asked else {name: row[name] or "" for name in ("cron", "every", "tz")}
    found: tuple[list[tuple[datetime, str]], str] = ([], "")
    words = ""
    if asked:
        try:
            timing = _timing(fields)
            words = f"every {duration(timing['every'])}" if timing["cron"] is None else words_of(timing["cron"])
            found = upcoming({**row, **timing, "next_at": None})
        except (TypeError, ValueError) as invalid:
            found = [], f"{invalid}."
    instants, problem = found
    return page(
        request,
        "schedule_edit.html",
        name=row["name"],
        fields=fields,
        instants=instants,
        words=words,
        problem=problem,
        status=HTTPStatus.UNPROCESSABLE_ENTITY if problem else HTTPStatus.OK,
    )


@action
async def change(request: Request, form: Form) -> Done:
    """Store the new times of a schedule."""
    try:
        timing = _timing(_fields(form))
    except (TypeError, ValueError) as problem:
        return Done(f"{problem}.", well=False)
    every = None if timing["every"] is None else str(timing["every"])
    return await store(request, form, **{**timing, "every": every})


async def store(request: Request, form: Form, **changed: str | None) -> Done:
    """Store what has changed, with the reason in the form. What is not given stays."""
    name = request.path_params["schedule"]
    given: dict[str, Any] = dict.fromkeys(("kind", "cron", "every", "tz", "payload"))
    given |= {"name": name, "options": json.dumps({}), "adds": False, **changed}
    given |= {"actor": viewer_of(request).actor, "reason": form.get("reason", "").strip()[:LONGEST] or None}
    [row] = await database(request).act("schedule/store_schedule", given)
    if row["became"] is None:
        return Done(f"Schedule {name} does not exist any more.", well=False)
    to = f"{root_of(request)}{request.app.url_path_for('schedule', schedule=name)}"
    return Done(f"Schedule {name} is {row['became']}.", to)


def _fields(given: Mapping[str, str]) -> dict[str, str]:
    return {name: given.get(name, "").replace("\0", "").strip()[:LONGEST] for name in ("cron", "every", "tz")}


def _timing(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the time as the database stores it. Raises TypeError or ValueError for an invalid one."""
    cron, every = fields["cron"] or None, fields["every"] or None
    if (cron is None) == (every is None):
        message = "Fill in the cron expression or the period, and not both"
        raise ValueError(message)
    return {
        "cron": cron and check_cron(cron, field="cron"),
        "every": every and check_every(seconds(every, field="the period"), field="the period"),
        "tz": check_tz(fields["tz"] or "UTC", field="tz"),
    }


async def row_of(request: Request) -> Row:
    """Return the schedule that the address names. 404 if it does not exist."""
    name = request.path_params["schedule"]
    row = None
    if "\0" not in name:
        row = await database(request).row("dashboard/list_schedules", {"name": name, "most": 1})
    if row is None:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    return row


routes = (
    Route("/schedules/{schedule}/edit", show, name="schedule_edit"),
    Route("/schedules/{schedule}/edit/action", change, methods=["POST"], name="schedule_edit_action"),
)
