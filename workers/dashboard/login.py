"""Logs people in and out: the form that takes a token, and the logout.

Must not judge tokens: `access` does.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from jobherd.workers.dashboard.actions import Done, action
from jobherd.workers.dashboard.cookies import begin_session, end_session
from jobherd.workers.dashboard.database import database
from jobherd.workers.dashboard.forms import check_csrf, read_form
from jobherd.workers.dashboard.login_limits import check_attempts, count_right, count_wrong
from jobherd.workers.dashboard.render import page
from jobherd.workers.dashboard.request import Refused, local, root_of, rules_of, viewer_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from jobherd.workers.dashboard.forms import Form


async def show(request: Request) -> Response:
    """Show the form for a token."""
    if not rules_of(request).keys or rules_of(request).authorize is not None:
        return RedirectResponse(f"{root_of(request)}/", HTTPStatus.SEE_OTHER)  # there are no tokens to log in with
    return page(request, "login.html", onward=request.query_params.get("next", ""), problem="")


async def enter(request: Request) -> Response:
    """Check the token and begin a session."""
    form = await read_form(request)
    onward = str(form.get("next", ""))
    check_csrf(request, form)
    try:
        check_attempts(request)
    except Refused as refused:
        answer = page(request, "login.html", status=refused.status, onward=onward, problem=refused.reason)
        answer.headers.update(refused.headers)
        return answer
    found = rules_of(request).keys.bearer(str(form.get("token", "")).strip())
    if found is None:
        count_wrong(request)
        return page(
            request,
            "login.html",
            status=HTTPStatus.FORBIDDEN,
            onward=onward,
            problem="This token is not valid for this dashboard.",
        )
    count_right(request)
    entered = RedirectResponse(local(onward) or f"{root_of(request)}/", HTTPStatus.SEE_OTHER)
    begin_session(request, entered, found)
    request.app.state.access_log.opened(request, f"dashboard:{found.name}", found.role.word)
    return entered


async def leave(request: Request) -> Response:
    """End the session."""
    check_csrf(request, await read_form(request))
    if viewer_of(request).way == "cookie":
        request.app.state.access_log.left(request, viewer_of(request).actor)
    answer = RedirectResponse(f"{root_of(request)}/login", HTTPStatus.SEE_OTHER)
    await end_session(request, answer)
    return answer


@action
async def end_all(request: Request, _form: Form) -> Done:
    """End all sessions, including this one."""
    sessions = request.app.state.sessions
    await sessions.end_all(database(request), viewer_of(request).actor)
    # Otherwise the message below would be signed with the secret that is now void.
    request.scope["state"]["signer"] = await sessions.signer()
    return Done("All sessions have ended, on every supervisor. Log in again.", to=f"{root_of(request)}/login")


routes = (
    Route("/login", show, name="login"),
    Route("/login", enter, methods=["POST"]),
    Route("/logout", leave, methods=["POST"], name="logout"),
    Route("/sessions/end", end_all, methods=["POST"], name="end_sessions"),
)
