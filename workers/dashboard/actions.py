"""Endpoints that change something: checks the request, runs the action, redirects with its message."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

import psycopg
from starlette.responses import RedirectResponse, Response

from jobherd.workers.dashboard.access import Role
from jobherd.workers.dashboard.cookies import set_message
from jobherd.workers.dashboard.database import Away
from jobherd.workers.dashboard.forms import Form, check_csrf, read_form
from jobherd.workers.dashboard.request import Refused, local, root_of, rules_of, split_address, viewer_of
from jobherd.workers.database.errors import error_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    Endpoint = Callable[[Request, Form], Awaitable["Done | Response"]]

log = logging.getLogger("jobherd.dashboard")


@dataclass(frozen=True, slots=True)
class Done:
    """The message of an action, and the next page.

    message: one sentence, shown above the next page.
    to: its path; None: back to the form's page.
    well: False if the action failed.
    """

    message: str
    to: str | None = None
    well: bool = True


def action(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """Make an endpoint for a form that changes something.

    It checks the request, runs the endpoint, and answers with 303 and a message.
    endpoint: takes the request and the form (`form["id"]`, `form.getlist("id")`) and returns
        `Done`, or its own response. It may raise `Refused`. If the database rejects the action, the
        message is the database's.

    >>> @action
    ... async def pause(request: Request, form: Form) -> Done:
    ...     await database(request).act("dashboard/pause", {"queue": form["queue"], "actor": viewer_of(request).actor})
    ...     return Done("The queue is paused.")
    >>> routes = [Route("/queues/action", pause, methods=["POST"])]  # doctest: +SKIP
    """

    @functools.wraps(endpoint)
    async def act(request: Request) -> Response:
        allow_acting(request)
        form = await read_form(request)
        check_csrf(request, form)
        try:
            done = await endpoint(request, form)
        except Away:
            done = Done(
                "The database does not answer. It is unknown whether the action was done: check once the database "
                "answers.",
                well=False,
            )
        except psycopg.Error as problem:
            log.info("the database rejected an action: %s", error_name(problem))
            done = Done(sentence_of(problem), well=False)
        return _redirect(request, done, form) if isinstance(done, Done) else done

    act.is_action = True  # type: ignore[attr-defined]  # the test of all routes looks for it
    return act


def allow_acting(request: Request) -> None:
    """Raise Refused unless the viewer may change something."""
    if rules_of(request).read_only:
        raise Refused(HTTPStatus.FORBIDDEN, "The dashboard is read-only (setting dashboard_read_only).")
    if viewer_of(request).role < Role.OPERATE:
        raise Refused(
            HTTPStatus.FORBIDDEN, "Your token may only view. To act, log in with a token of the role operate."
        )


def _redirect(request: Request, done: Done, form: Form) -> Response:
    """Return the response to an action: a redirect with a message."""
    back = done.to or form.get("next", "") or _referer(request)
    answer = RedirectResponse(local(back) or f"{root_of(request)}/", status_code=HTTPStatus.SEE_OTHER)
    set_message(request, answer, done.message, well=done.well)
    return answer


def _referer(request: Request) -> str:
    parts = split_address(request.headers.get("referer", ""))
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def sentence_of(problem: psycopg.Error) -> str:
    """Return a database error as a sentence, without its details: they contain rows."""
    text = problem.diag.message_primary or type(problem).__name__
    if problem.diag.message_hint:
        text = f"{text}. {problem.diag.message_hint}"
    text = " ".join(text.split()).rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."
