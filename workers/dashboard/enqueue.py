"""Enqueues a job: a form with a field for each parameter of the handler, or the payload as JSON.

Without `?kind=` the page lets the user choose a kind. Must not read the payload: `payload_form` does.
"""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.routing import Route

from jobherd.handlers._policy.durations import at_least_zero
from jobherd.handlers._policy.names import RESERVED, check_kind, check_queue, check_whole
from jobherd.workers.dashboard.actions import Done, action, allow_acting
from jobherd.workers.dashboard.database import database
from jobherd.workers.dashboard.job import path_of
from jobherd.workers.dashboard.payload_form import Signature, payload_of, read_signature
from jobherd.workers.dashboard.redaction import paths_of
from jobherd.workers.dashboard.render import page
from jobherd.workers.dashboard.request import viewer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from jobherd.workers.dashboard.database import Row
    from jobherd.workers.dashboard.forms import Form

_NUMBER: Final = re.compile("[+-]?[0-9]{1,9}")
_CHECKS: Final[Mapping[str, Callable[..., object]]] = {
    "queue": check_queue,
    "priority": check_whole,
    "delay": at_least_zero,
}


async def show(request: Request) -> Response:
    """Show the form for a job of a kind, or the choice of a kind."""
    allow_acting(request)
    kind = request.query_params.get("kind", "").strip()
    return await _form(request, kind, request.query_params)


@action
async def enqueue(request: Request, form: Form) -> Done | Response:
    """Enqueue the job, or show the form again with the errors."""
    kind = form.get("kind", "").strip()
    if _invalid(kind):
        return await _form(request, kind, form)
    _, signature = await _read(request, kind)
    if signature.refused:
        return Done(signature.refused, path_of(request, "enqueue"), well=False)
    payload, problems = payload_of(signature, form)
    options, others = _options(form)
    if problems or others:
        return await _form(request, kind, form, problems | others)
    given = {"kind": kind, "payload": payload, "options": json.dumps(options)}
    given |= {"actor": viewer_of(request).actor, "reason": form.get("reason", "")}
    [row] = await database(request).act("dashboard/enqueue_job", given)
    return Done(f"Job {row['id']} is enqueued.", path_of(request, "job", id=row["id"]))


def _invalid(kind: str) -> str:
    try:
        check_kind(kind)
    except (TypeError, ValueError) as problem:
        return f"{problem}."
    return ""


def _options(form: Form) -> tuple[dict[str, object], dict[str, str]]:
    """Return the options of the job, and a message for each invalid one."""
    options: dict[str, object] = {}
    problems: dict[str, str] = {}
    for name, check in _CHECKS.items():
        if text := form.get(name, "").strip():
            try:
                options[name] = check(int(text) if name == "priority" and _NUMBER.fullmatch(text) else text, field=name)
            except (TypeError, ValueError) as problem:
                problems[name] = f"{problem}."
    return options, problems


async def _read(request: Request, kind: str) -> tuple[Row | None, Signature]:
    row = await database(request).row("dashboard/show_kind", {"kind": kind})
    if kind.startswith(RESERVED):
        return row, Signature(refused=f"Jobherd itself enqueues the jobs of kinds that begin with {RESERVED}.")
    hidden = (await paths_of(database(request))).get(kind, ())
    return row, read_signature(row["signature"] if row else None, hidden)


async def _form(
    request: Request, kind: str, given: Mapping[str, str], problems: Mapping[str, str] | None = None
) -> Response:
    """Return the page with what the user has given."""
    invalid = _invalid(kind) if kind else ""
    declared, signature = (None, Signature()) if invalid or not kind else await _read(request, kind)
    return page(
        request,
        "enqueue.html",
        status=HTTPStatus.UNPROCESSABLE_ENTITY if problems or invalid else HTTPStatus.OK,
        kind=kind,
        invalid=invalid,
        names=await database(request).rows("dashboard/list_kind_choices"),
        declared=declared,
        signature=signature,
        given=given,
        problems=problems or {},
    )


routes = (
    Route("/enqueue", show, name="enqueue"),
    Route("/enqueue/action", enqueue, methods=["POST"], name="enqueue_action"),
)
