"""Shows one job: its payload, its outcome and the reason, and the actions on it.

The live parts are two fragments because they change at different speeds. The head (state, reasons,
progress) is updated once a second, and the trail (attempts, result, parent and child jobs) every
three. Both contain only what every viewer may see. The payload, which does not change, and the form
that edits it are only in the page.
"""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from jobherd.handlers._values.encryption import HEAD, cover
from jobherd.handlers._values.outcome import FINAL_STATES
from jobherd.handlers._values.payload import PayloadError, check_payload
from jobherd.workers.dashboard.actions import Done, action, allow_acting
from jobherd.workers.dashboard.database import database
from jobherd.workers.dashboard.documents import document, pretty, read_edited
from jobherd.workers.dashboard.job_details import head_of, trail_of
from jobherd.workers.dashboard.job_id import JOB_PATH
from jobherd.workers.dashboard.live_updates import FINAL, PACE, Topic
from jobherd.workers.dashboard.redaction import redact, restore
from jobherd.workers.dashboard.remote_output import stored_output
from jobherd.workers.dashboard.render import page
from jobherd.workers.dashboard.request import Refused, root_of, viewer_of
from jobherd.workers.inspect.live_output import tail_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.applications import Starlette
    from starlette.requests import Request

    from jobherd.workers.dashboard.database import Database, Row
    from jobherd.workers.dashboard.forms import Form

LARGEST_ID: Final = 2**63 - 1
GONE: Final = "It never existed, it was deleted, or its retention has ended."
SELDOM: Final = 10.0
"""Seconds between two queries of a finished job."""
_ANSWERS: Final = {
    ("retry", "ready"): ("Job {id} is ready to run again.", True),
    ("retry", "running"): ("Job {id} runs already.", False),
    ("retry", "blocked"): ("Job {id} waits for other jobs, and starts when they have ended.", False),
    ("retry", "conflict"): ("Job {id} does not run again: another live job holds its key.", False),
    ("cancel", "cancelled"): ("Job {id} is cancelled.", True),
    ("cancel", "cancelling"): ("Job {id} runs and is being interrupted.", True),
    ("delete", "deleted"): ("Job {id} is deleted.", True),
}
"""The message for each answer of the database to an action, and whether the action was done."""


async def show(request: Request) -> Response:
    """Show one job, with its attempts and logs. The id of a flow leads to the flow; 404 if there is neither."""
    number = number_of(request)
    at, hidden = database(request), request.app.state.redactions
    async with at.reading() as reading:
        head = await head_of(reading, hidden, number)
        trail = await trail_of(reading, hidden, head.row) if head is not None else None
    if head is None and await at.row("observe/show_flow", {"id": number}) is not None:  # ids of one sequence
        return RedirectResponse(path_of(request, "flow", id=number), HTTPStatus.SEE_OTHER)
    if head is None or trail is None:
        return page(request, "job_gone.html", status=HTTPStatus.NOT_FOUND, id=number, reason=GONE)
    paths = (await hidden.read(at)).get(head.job["kind"], ())
    return page(
        request,
        "job.html",
        id=number,
        head=head,
        tail=await _tail(request.app, at, head.job),
        trail=trail,
        payload=document("payload", redact(head.job["payload"], paths)),
    )


async def show_document(request: Request) -> Response:
    """Return a whole payload or result as text, for those that are too long for the page."""
    number, name = number_of(request), request.path_params["part"]
    row = await database(request).row("observe/show_job", {"id": number})
    if row is None or name not in {"payload", "result"} or row[name] is None:
        raise Refused(HTTPStatus.NOT_FOUND, f"Job {number} does not have this document.")
    paths = (await request.app.state.redactions.read(database(request))).get(row["kind"], ())
    return Response(cover(pretty(redact(row[name], paths) or "")), media_type="text/plain")


async def edit(request: Request) -> Response:
    """Show the form that edits the payload of a finished job, to run it again."""
    allow_acting(request)
    row = await _past(request)
    paths = (await request.app.state.redactions.read(database(request))).get(row["kind"], ())
    return _form(request, row, pretty(redact(row["payload"], paths) or "{}"))


@action
async def retry_edited(request: Request, form: Form) -> Done | Response:
    """Run the job again with the edited payload, after the checks that apply to every payload."""
    row = await _past(request)
    text = form.get("payload", "")
    paths = (await request.app.state.redactions.read(database(request))).get(row["kind"], ())
    try:
        # Restore hidden values from the stored document: the browser never received them.
        payload = check_payload(restore(read_edited(text), row["payload"], paths))
    except (PayloadError, ValueError) as problem:
        return _form(request, row, text, str(problem), status=HTTPStatus.UNPROCESSABLE_ENTITY)
    given = {"id": row["id"], "payload": payload, "actor": viewer_of(request).actor, "reason": form.get("reason", "")}
    new = (await database(request).act("dashboard/retry_edited", given))[0]["answer"]
    if new is None:
        return Done(f"Job {row['id']} is not there any more: nothing was done.", path_of(request, "jobs"), well=False)
    return Done(
        f"Job {row['id']} runs again as job {new}, with the payload as you edited it.", path_of(request, "job", id=new)
    )


@action
async def act(request: Request, form: Form) -> Done:
    """Retry, cancel or delete the job."""
    number, what = number_of(request), form.get("do", "")
    if what not in {"retry", "cancel", "delete"}:
        raise Refused(HTTPStatus.BAD_REQUEST, "Choose an action: retry, cancel or delete.")
    given = {"id": number, "actor": viewer_of(request).actor, "reason": form.get("reason", "")}
    answer = (await database(request).act(f"control/{what}_job", given))[0]["answer"]
    if answer is None:
        return Done(f"Job {number} does not exist any more.", path_of(request, "jobs"), well=False)
    sentence, well = _ANSWERS.get((what, answer), (f"Job {{id}} was not changed: it is {answer}.", False))
    to = path_of(request, "jobs") if answer == "deleted" else path_of(request, "job", id=number)
    return Done(sentence.format(id=number), to, well=well)


def topics_of(app: Starlette) -> tuple[Topic, ...]:
    """Return the live topics of a job. They need the application for its boards and redactions."""
    return (
        Topic("job", "job/_head.html", partial(_ask_head, app), every=1.0),
        Topic("trail", "job/_trail.html", partial(_ask_trail, app), every=3.0),
    )


async def _ask_head(app: Starlette, at: Database, argument: str) -> Mapping[str, object]:
    head = await head_of(at, app.state.redactions, _known(argument))
    tail = None if head is None else await _tail(app, at, head.job)
    return {"id": argument, "head": head, "tail": tail} | _pace(head.job["state"] if head is not None else None)


async def _ask_trail(app: Starlette, at: Database, argument: str) -> Mapping[str, object]:
    async with at.reading() as reading:
        row = await reading.row("observe/show_job", {"id": _known(argument)})
        trail = None if row is None else await trail_of(reading, app.state.redactions, row)
    return {"id": argument, "trail": trail} | _pace(row["state"] if row is not None else None)


def _pace(state: str | None) -> dict[str, object]:
    """Return the update interval for a state.

    A job that no longer exists is not queried again. A finished one is queried seldom, because it
    may be run again.
    """
    return {FINAL: True} if state is None else {PACE: SELDOM} if state in FINAL_STATES else {}


def _known(argument: str) -> int:
    return int(argument) if argument.isascii() and argument.isdecimal() and int(argument) <= LARGEST_ID else 0


async def _tail(app: Starlette, at: Database, job: Row) -> str | None:
    if job["state"] != "running" or (job["payload"] or "").startswith(HEAD):
        return None  # the output of a job with an encrypted payload is not shown either
    tail = tail_of(app.state.boards, job["id"], job["token"])
    return await stored_output(at, job["id"], job["token"]) if tail is None else tail


async def _past(request: Request) -> Row:
    """Return the job. Raises Refused unless it has finished."""
    number = number_of(request)
    row = await database(request).row("observe/show_job", {"id": number})
    if row is None:
        raise Refused(HTTPStatus.NOT_FOUND, f"Job {number} does not exist. {GONE}")
    if row["state"] not in FINAL_STATES:
        raise Refused(
            HTTPStatus.CONFLICT,
            f"Job {number} is {row['state']}: it can be edited once it is finished. Cancel it first.",
        )
    return row


def _form(request: Request, row: Row, text: str, error: str = "", *, status: int = HTTPStatus.OK) -> Response:
    return page(
        request,
        "job_edit.html",
        status=status,
        id=row["id"],
        kind=row["kind"],
        state=row["state"],
        text=text,
        error=error,
    )


def number_of(request: Request) -> int:
    """Return the id in the path. Raises Refused if no job can have it."""
    number: int = request.path_params["id"]
    if abs(number) > LARGEST_ID:
        raise Refused(HTTPStatus.NOT_FOUND, f"A job's number has at most 19 digits. {GONE}")
    return number


def path_of(request: Request, name: str, **params: Any) -> str:
    """Return the path of a route."""
    return f"{root_of(request)}{request.app.url_path_for(name, **params)}"


routes = (
    Route(JOB_PATH, show, name="job"),
    Route(f"{JOB_PATH}/action", act, name="job_action", methods=["POST"]),
    Route(f"{JOB_PATH}/edit", edit, name="job_edit", methods=["GET"]),
    Route(f"{JOB_PATH}/edit/action", retry_edited, name="job_edit_action", methods=["POST"]),
    Route(JOB_PATH + "/documents/{part}", show_document, name="job_document"),
)
