"""Letting people in: the form that takes a token, and the way out. What a token is worth `access` knows."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from workers.page.guard import begin_session, check_csrf, end_session, local, read_form, root_of, rules_of, viewer_of
from workers.page.render import page

if TYPE_CHECKING:
    from starlette.requests import Request


async def show(request: Request) -> Response:
    """The form."""
    if not rules_of(request).keys or rules_of(request).authorize is not None:
        return RedirectResponse(f"{root_of(request)}/", HTTPStatus.SEE_OTHER)  # there is nothing to log in with
    return page(request, "login.html", onward=request.query_params.get("next", ""), problem="")


async def enter(request: Request) -> Response:
    """Look at the token, and let the browser in."""
    form = await read_form(request)
    onward = str(form.get("next", ""))
    check_csrf(request, form)
    found = rules_of(request).keys.bearer(str(form.get("token", "")).strip())
    if found is None:
        request.app.state.door.refused(request)
        return page(request, "login.html", status=HTTPStatus.FORBIDDEN, onward=onward, problem="This token is not one of this page.")
    answer = RedirectResponse(local(onward) or f"{root_of(request)}/", HTTPStatus.SEE_OTHER)
    begin_session(request, answer, *found)
    role, name = found
    request.app.state.door.opened(request, f"page:{name}", role.word)
    return answer


async def leave(request: Request) -> Response:
    """Have the browser forget the session."""
    check_csrf(request, await read_form(request))
    if viewer_of(request).way == "cookie":
        request.app.state.door.left(request, viewer_of(request).actor)
    answer = RedirectResponse(f"{root_of(request)}/login", HTTPStatus.SEE_OTHER)
    end_session(request, answer)
    return answer


routes = (
    Route("/login", show, name="login"),
    Route("/login", enter, methods=["POST"]),
    Route("/logout", leave, methods=["POST"], name="logout"),
)
