"""One job: what it was given, what became of it and why, and what can be done with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from workers.page.render import page

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


async def show(request: Request) -> Response:
    """The page."""
    return page(request, "job.html", id=request.path_params["id"])


routes = (Route("/jobs/{id:int}", show, name="job"),)
