"""Reads the fields of a form, within limits, and checks that this dashboard made the form.

Must not run the action.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import ClientDisconnect, Request

from jobherd.workers.dashboard.cookies import is_form_token
from jobherd.workers.dashboard.request import Refused, viewer_of

FORM_MOST: Final = 2 * 2**20
"""Bytes of a form: an edited payload is the largest one."""
FIELDS_MOST: Final = 20_000
FORM_PATIENCE: Final = 10.0
"""Seconds for a form to arrive."""


class Form(ImmutableMultiDict[str, str]):
    """The fields of a form.

    `form["id"]`, `form.get("reason", "")`, and `form.getlist("id")` for repeated fields.
    """


def check_csrf(request: Request, form: Form) -> None:
    """Raise Refused unless the form was made by this dashboard for this browser."""
    if viewer_of(request).csrf and not is_form_token(request, form.get("csrf", "")):
        raise Refused(
            HTTPStatus.FORBIDDEN,
            "This form is too old, or another server made it. Go back, reload the page and try again.",
        )


async def read_form(request: Request) -> Form:
    """Return the fields of a form without files, as browsers send it. Raises Refused."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "The form must be sent as application/x-www-form-urlencoded.")
    body = bytearray()
    try:
        async with asyncio.timeout(FORM_PATIENCE):
            async for part in request.stream():
                body += part
                if len(body) > FORM_MOST:
                    raise Refused(
                        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The form is longer than {FORM_MOST // 2**20} MiB."
                    )
    except TimeoutError:
        raise Refused(HTTPStatus.REQUEST_TIMEOUT, "The form did not arrive in time.") from None
    except ClientDisconnect:  # not an error of the dashboard: any client can cause it, so it must not fill the log
        raise Refused(HTTPStatus.BAD_REQUEST, "The connection ended before the form did.") from None
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MOST)
    except ValueError:
        raise Refused(
            HTTPStatus.BAD_REQUEST, f"The form is not UTF-8, or has more than {FIELDS_MOST:,} fields."
        ) from None
    if any("\0" in value for _, value in fields):
        raise Refused(
            HTTPStatus.BAD_REQUEST,
            "A field contains a NUL character, which PostgreSQL cannot store: remove it.",
        )
    return Form(fields)
