"""The dashboard next to Django's views under ASGI, with Django's session and permissions.

    # asgi.py
    application = with_dashboard(get_asgi_application(), path="/jobherd")

A user needs `jobherd.view_job` to view and `jobherd.change_job` to act. Requires the extra `web`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib.auth import SESSION_KEY, get_user
from django.db import connections
from django.http import HttpRequest
from django.utils.module_loading import import_string
from starlette.applications import Starlette
from starlette.responses import RedirectResponse
from starlette.routing import Mount, Route

from jobherd.django.management.commands.jobherd import address
from jobherd.handlers._enqueue.default import schema_or_default
from jobherd.workers.dashboard import Role, application

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp


def with_dashboard(django: ASGIApp, *, path: str = "/jobherd", **options: Any) -> Starlette:
    """Return an ASGI application: the dashboard at `path`, and Django everywhere else.

    Args:
        django: Django's ASGI application.
        path: where the dashboard is.
        options: others of `jobherd.workers.dashboard.application`, such as `read_only=True`.
    """
    page = application(address(), schema=schema_or_default(), authorize=_role, actor=_name, **options)
    with_slash = [Route(path.rstrip("/"), _add_slash)] if path.strip("/") else []
    return Starlette(routes=[*with_slash, Mount(path, page), Mount("/", django)])


async def _add_slash(request: Request) -> RedirectResponse:
    """Redirect to the dashboard a user who left out the last slash: Django would answer "not found"."""
    return RedirectResponse(request.url.replace(path=f"{request.url.path}/"))


async def _role(request: Request) -> Role | None:
    from asgiref.sync import sync_to_async  # noqa: PLC0415 - at its only use

    return await sync_to_async(_find_role)(request)


def _find_role(request: Request) -> Role | None:
    key = request.cookies.get(settings.SESSION_COOKIE_NAME)
    if key is None:
        return None
    asked = HttpRequest()
    asked.session = import_string(f"{settings.SESSION_ENGINE}.SessionStore")(key)
    try:
        user = get_user(asked) if SESSION_KEY in asked.session else None
        if user is None or not user.is_active:
            return None
        request.state.jobherd_user = user.get_username()
        if user.has_perm("jobherd.change_job"):
            return Role.OPERATE
        return Role.VIEW if user.has_perm("jobherd.view_job") else None
    finally:
        for connection in connections.all(initialized_only=True):
            connection.close_if_unusable_or_obsolete()


def _name(request: Request) -> str:
    name: str = request.state.jobherd_user
    return name
