"""The field at the top of each page: a number is a job, a word is looked for among jobs. Finds nothing itself."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from starlette.responses import RedirectResponse
from starlette.routing import Route

from jobherd.workers.page.guard import root_of

if TYPE_CHECKING:
    from starlette.requests import Request


async def search(request: Request) -> RedirectResponse:
    """Send the browser to where this is found."""
    words = request.query_params.get("q", "").strip()
    if re.fullmatch(r"#?[0-9]{1,18}", words):
        path = request.app.url_path_for("job", id=int(words.removeprefix("#")))
    else:
        path = f"{request.app.url_path_for('jobs')}?{urlencode({'q': words})}" if words else str(request.app.url_path_for("jobs"))
    return RedirectResponse(f"{root_of(request)}{path}", HTTPStatus.SEE_OTHER)


routes = (Route("/search", search, name="search"),)
