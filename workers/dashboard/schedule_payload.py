"""Edits the payload of a schedule, with the checks of the command line.

The browser does not receive what the kind hides: hidden values are restored from the stored payload.
Must not edit the time: `schedule_edit` does, with a preview.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.routing import Route

from jobherd.handlers._policy.schedule import check_payload
from jobherd.workers.dashboard.actions import Done, action, allow_acting
from jobherd.workers.dashboard.database import database
from jobherd.workers.dashboard.documents import pretty, read_edited
from jobherd.workers.dashboard.redaction import redact, restore
from jobherd.workers.dashboard.render import page
from jobherd.workers.dashboard.schedule_edit import row_of, store

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from jobherd.workers.dashboard.database import Row
    from jobherd.workers.dashboard.forms import Form


async def show(request: Request) -> Response:
    """Show the form that edits the payload of a schedule."""
    allow_acting(request)
    row = await row_of(request)
    return _form(request, row, pretty(redact(row["payload"], await _paths(request, row)) or "{}"))


@action
async def change(request: Request, form: Form) -> Done | Response:
    """Store the edited payload, or show the form again with the errors."""
    row = await row_of(request)
    text = form.get("payload", "")
    try:
        # The check first: its message may quote what it finds, which must not be a hidden value.
        edited = check_payload(read_edited(text), field="the payload")
        payload = restore(edited, row["payload"], await _paths(request, row))
    except (TypeError, ValueError) as problem:
        return _form(request, row, text, f"{str(problem).rstrip('.')}.", status=HTTPStatus.UNPROCESSABLE_ENTITY)
    return await store(request, form, payload=json.dumps(payload))


async def _paths(request: Request, row: Row) -> tuple[str, ...]:
    hidden: dict[str, tuple[str, ...]] = await request.app.state.redactions.read(database(request))
    return hidden.get(row["kind"], ())


def _form(request: Request, row: Row, text: str, error: str = "", *, status: int = HTTPStatus.OK) -> Response:
    return page(
        request,
        "schedule_payload.html",
        status=status,
        name=row["name"],
        kind=row["kind"],
        text=text,
        error=error,
    )


routes = (
    Route("/schedules/{schedule}/payload", show, name="schedule_payload", methods=["GET"]),
    Route("/schedules/{schedule}/payload/action", change, name="schedule_payload_action", methods=["POST"]),
)
