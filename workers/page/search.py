"""Redirects the search field of each page: a number to that job, other text to the list of jobs.

Must not search itself.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from starlette.responses import RedirectResponse
from starlette.routing import Route

from jobherd.workers.page.request import root_of

if TYPE_CHECKING:
    from starlette.requests import Request


async def search(request: Request) -> RedirectResponse:
    """Redirect the browser to the job or to the filtered list."""
    words = request.query_params.get("q", "").strip()
    if re.fullmatch(r"#?[0-9]{1,18}", words):
        path = request.app.url_path_for("job", id=int(words.removeprefix("#")))
    else:
        path = (
            f"{request.app.url_path_for('jobs')}?{urlencode({'q': words})}"
            if words
            else str(request.app.url_path_for("jobs"))
        )
    return RedirectResponse(f"{root_of(request)}{path}", HTTPStatus.SEE_OTHER)


routes = (Route("/search", search, name="search"),)
