"""The queues: how deep, how old, paused or capped, and by whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from workers.page.render import page

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


async def show(request: Request) -> Response:
    """The page."""
    return page(request, "queues.html")


routes = (Route("/queues", show, name="queues"),)
