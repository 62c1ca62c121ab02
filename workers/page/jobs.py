"""The list of jobs, filtered and paged, and what is done with many of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from workers.page.render import page

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


async def show(request: Request) -> Response:
    """The page."""
    return page(request, "jobs.html")


routes = (Route("/jobs", show, name="jobs"),)
