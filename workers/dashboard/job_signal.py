"""Sends the signal that a suspended job waits for, from a form on the job's page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from starlette.routing import Route

from jobherd.handlers._values.payload import PayloadError, check_payload
from jobherd.workers.dashboard.actions import Done, action
from jobherd.workers.dashboard.database import database
from jobherd.workers.dashboard.documents import read_edited
from jobherd.workers.dashboard.job import number_of, path_of
from jobherd.workers.dashboard.job_id import JOB_PATH
from jobherd.workers.dashboard.request import viewer_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from jobherd.workers.dashboard.forms import Form


@action
async def send(request: Request, form: Form) -> Done:
    """Send a signal to the job, or to every job that waits for the topic of the form."""
    number, name, topic = number_of(request), form.get("name", ""), form.get("topic", "")
    text = form.get("payload", "").strip()
    to = path_of(request, "job", id=number)
    try:
        payload = None if not text else check_payload(read_edited(text))
    except (PayloadError, ValueError) as problem:
        return Done(f"No signal was sent: {problem}", to, well=False)
    given = {
        "job": number,
        "name": name,
        "topic": topic or None,
        "payload": payload,
        "actor": viewer_of(request).actor,
        "reason": form.get("reason", ""),
        "target": json.dumps({"job": number, "signal": topic or name}),
    }
    row = (await database(request).act("dashboard/send_signal", given))[0]
    if row["id"] is None:
        return Done(f"Job {number} does not exist any more.", path_of(request, "jobs"), well=False)
    return Done(f"The signal {topic or name} is sent.", to)


routes = (Route(f"{JOB_PATH}/signal", send, name="job_signal", methods=["POST"]),)
