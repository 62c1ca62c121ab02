"""The kinds of jobs: how long, how dear, how often they fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from workers.page.render import page

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


async def show(request: Request) -> Response:
    """The page."""
    return page(request, "kinds.html")


routes = (Route("/kinds", show, name="kinds"),)
