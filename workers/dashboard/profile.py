"""Requests and shows a running job's stack, or a flame graph of where its time goes.

Both are forms of a job's page; the request is a fleet command. Each request has its own address, so
it can be opened again and shared as long as the row of the command is kept.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.responses import Response
from starlette.routing import Route

from jobherd.workers.dashboard.actions import Done, action
from jobherd.workers.dashboard.database import database
from jobherd.workers.dashboard.job_id import JOB_PATH
from jobherd.workers.dashboard.live_updates import FINAL, Topic
from jobherd.workers.dashboard.render import duration, page
from jobherd.workers.dashboard.request import Refused, root_of, viewer_of
from jobherd.workers.inspect.flamegraph import ROW, SHADES, WIDTH, boxes, counts_of, hottest, picture
from jobherd.workers.inspect.stacks import thread_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from jobherd.workers.dashboard.database import Database
    from jobherd.workers.dashboard.forms import Form

SECONDS: Final = 10
"""Seconds of a profile, unless the form says otherwise."""
LONGEST: Final = 60
RATE: Final = 50
_HOTTEST: Final = 10
_LARGEST: Final = 2**63 - 1
PATIENCE: Final = 30.0
"""Seconds that an answer may take, in addition to the time of the profile itself.

A command that no supervisor has taken by then is rejected.
"""
_SILENT: Final = (
    "The supervisor that runs the job has not answered. It may have died, or have lost its database: the fleet "
    "page shows its last report. If the answer still comes, it is shown here when you reload."
)
_GONE: Final = "The answer is not kept any more: request it again on the job's page."


@action
async def ask(request: Request, form: Form) -> Done:
    """Ask the job's supervisor for its stack or a profile, and redirect to the answer's page."""
    job, name = request.path_params["id"], str(form.get("do", ""))
    if name not in {"stack", "profile"}:
        raise Refused(HTTPStatus.BAD_REQUEST, "Choose an action: stack or profile.")
    seconds = str(form.get("seconds", SECONDS))
    if not (seconds.isascii() and seconds.isdecimal() and len(seconds) < 4 and 1 <= int(seconds) <= LONGEST):
        raise Refused(HTTPStatus.BAD_REQUEST, f"A profile takes 1 to {LONGEST} seconds, a whole number.")
    found = await database(request).row("observe/find_runner", {"id": min(job, _LARGEST)})
    if found is None:
        raise Refused(HTTPStatus.NOT_FOUND, f"Job {job} does not exist.")
    back = _path(request, "job", id=job)
    if found["state"] != "running":
        return Done(f"Job {job} is not running: it is {found['state']}.", back, well=False)
    if found["remote"] is not None:
        return Done(
            f"Job {job} runs on the remote worker {found['remote']}: its process cannot be inspected from here. Use a "
            "tool such as py-spy on its host.",
            back,
            well=False,
        )
    if found["supervisor"] is None:
        return Done(
            f"Job {job} runs under a supervisor whose lease has expired: the dashboard cannot query it.",
            back,
            well=False,
        )
    arguments = {"job": job, "child": found["child"]} | (
        {"seconds": int(seconds), "rate": RATE} if name == "profile" else {}
    )
    given = {"supervisor": found["supervisor"], "name": name, "arguments": orjson.dumps(arguments).decode()}
    order = (
        await database(request).act(
            "control/send_fleet_command", given | {"actor": viewer_of(request).actor, "reason": None}
        )
    )[0]["id"]
    said = (
        f"The stack of job {job} is requested."
        if name == "stack"
        else f"Job {job} is profiled for {seconds} s, {RATE} times a second."
    )
    return Done(said, _path(request, "inside", id=job, order=order))


async def show(request: Request) -> Response:
    """Show the page of one request."""
    job, order = request.path_params["id"], request.path_params["order"]
    known = await _look(database(request), f"{job}/{order}")
    if known["answer"] is None and known["error"] == _GONE:
        raise Refused(HTTPStatus.NOT_FOUND, _GONE)
    answer = page(request, "inside.html", **known)
    if known["waits"]:
        answer.headers["Refresh"] = "2"  # for browsers without scripts
    return answer


async def download(request: Request) -> Response:
    """Return the flame graph as a file."""
    job, order = request.path_params["id"], request.path_params["order"]
    answer = (await _look(database(request), f"{job}/{order}"))["answer"]
    if answer is None or "stacks" not in answer:
        raise Refused(HTTPStatus.NOT_FOUND, _GONE)
    drawn = picture(
        counts_of(answer), title=f"job {job}  {answer['kind']}", about=_about(answer), seconds=answer["seconds"]
    )
    name = f'attachment; filename="profile-{job}.svg"'
    return Response(drawn, media_type="image/svg+xml", headers={"Content-Disposition": name})


async def _look(at: Database, argument: str) -> Mapping[str, Any]:
    """Return the state of a request about a job.

    argument: names both; a request about another job is not shown.
    """
    job, _, order = argument.partition("/")
    known: dict[str, Any] = {
        "id": job,
        "order": order,
        "answer": None,
        "error": None,
        "waits": False,
        "name": "",
        FINAL: True,
    }
    if not (job.isdecimal() and order.isdecimal()):
        return known | {"error": _GONE}
    row = await at.row("dashboard/show_profile", {"job": job, "order": min(int(order), _LARGEST)})
    if row is None:
        return known | {"error": _GONE}
    known |= {"name": row["name"], "error": row["error"], "waits": row["done_at"] is None}
    if known["waits"] and row["age"] > PATIENCE + (row["takes"] or 0.0):
        known |= {"waits": False, "error": _SILENT}  # otherwise the page would announce the answer indefinitely
    known[FINAL] = not known["waits"]
    if row["answer"] is None:
        return known
    answer = orjson.loads(row["answer"])
    known |= {"answer": answer, "at": row["done_at"]}
    if row["name"] == "stack":
        return known | {"threads": [thread_of(thread) for thread in answer["threads"]]}
    counts = counts_of(answer)
    drawn = boxes(counts, answer["seconds"])
    size = {"wide": WIDTH, "row": ROW, "high": ROW * (max(box.depth for box in drawn) + 1), "shades": SHADES}
    return known | {"boxes": drawn, "hottest": hottest(counts, _HOTTEST), "about": _about(answer), **size}


def _about(answer: Mapping[str, Any]) -> str:
    said = f"{answer['samples']} samples in {duration(answer['seconds'])}"
    said += "" if answer["processor"] is None else f", in which it used {duration(answer['processor'])} of processor"
    said += f"; {answer['missed']} could not be taken" if answer["missed"] else ""
    return said + (f"; it ended early: {answer['ended']}" if answer["ended"] else "")


def _path(request: Request, name: str, **parameters: Any) -> str:
    return f"{root_of(request)}{request.app.url_path_for(name, **parameters)}"


routes = (
    Route(f"{JOB_PATH}/inside/action", ask, methods=["POST"], name="inside_action"),
    Route(JOB_PATH + "/inside/{order:int}", show, name="inside"),
    Route(JOB_PATH + "/inside/{order:int}/profile.svg", download, name="inside_picture"),
)
topics = (Topic("inside", "inside/_answer.html", _look, every=1.0),)
