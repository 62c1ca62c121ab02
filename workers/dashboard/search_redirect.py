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

from jobherd.workers.dashboard.database_list import database_of_job
from jobherd.workers.dashboard.request import home_of, root_of

if TYPE_CHECKING:
    from starlette.requests import Request


def job_id_of(words: str) -> int:
    """Return the id that the field contains; 0: it contains other text."""
    return int(words.removeprefix("#")) if re.fullmatch(r"#?[0-9]{1,18}", words) else 0


async def search(request: Request) -> RedirectResponse:
    """Redirect the browser to the job or to the filtered list."""
    words = request.query_params.get("q", "").strip()
    if number := job_id_of(words):
        if (owner := await database_of_job(request, number)) is not None:  # perhaps another database
            return RedirectResponse(f"{home_of(request)}{owner.link('job', id=number)}", HTTPStatus.SEE_OTHER)
        path = str(request.app.url_path_for("job", id=number))
    else:
        path = (
            f"{request.app.url_path_for('jobs')}?{urlencode({'q': words})}"
            if words
            else str(request.app.url_path_for("jobs"))
        )
    return RedirectResponse(f"{root_of(request)}{path}", HTTPStatus.SEE_OTHER)


routes = (Route("/search", search, name="search"),)
