"""Sets and reads the dashboard's cookies: the session, the browser's number, the last message.

Every cookie is for the paths of the dashboard only, hidden from scripts, and not sent with requests of other sites.
Must not judge tokens.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

from jobherd.workers.dashboard.request import home_of, signer_of, viewer_of

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import Response

    from jobherd.workers.dashboard.access import Signer, Token

VISIT: Final = "jobherd_visit"
"""Cookie with a random number for each browser; the token in a form is its signature."""
MESSAGE: Final = "jobherd_message"
"""Cookie with the message of the last action, until the next page shows it."""


def begin_session(request: Request, answer: Response, token: Token) -> None:
    """Begin a session, valid from the browser's next request."""
    signer = signer_of(request)
    answer.set_cookie(signer.cookie, signer.open_session(token), **cookie_options(request))
    # forms from before the login become invalid
    answer.set_cookie(VISIT, secrets.token_urlsafe(18), **cookie_options(request))


async def end_session(request: Request, answer: Response) -> None:
    """End the session of this request.

    Its cookie is no longer accepted, and the browser deletes it.
    """
    if session := viewer_of(request).session:
        await request.app.state.sessions.end(session)
    answer.delete_cookie(signer_of(request).cookie, **cookie_options(request))


async def is_session_valid(request: HTTPConnection) -> bool:
    """Whether the session of an ongoing request is still valid. True without a session."""
    if viewer_of(request).session is None:
        return True
    signer: Signer = await request.app.state.sessions.signer()
    return signer.session(request.cookies) is not None


def set_message(request: Request, answer: Response, message: str, *, well: bool) -> None:
    """Store the message of an action for the next page."""
    text = ("1" if well else "0") + message[:1000]
    answer.set_cookie(MESSAGE, signer_of(request).seal(text, "message"), max_age=60, **cookie_options(request))


def clear_message(request: Request, answer: Response) -> None:
    """Delete the cookie with the message of the last action."""
    if MESSAGE in request.cookies:
        answer.delete_cookie(MESSAGE, **cookie_options(request))


def last_message(request: Request) -> tuple[bool, str] | None:
    """Return the message of the last action, and whether the action succeeded."""
    text = signer_of(request).unseal(request.cookies.get(MESSAGE, ""), "message")
    return (text[0] == "1", text[1:]) if text else None


def form_token(request: HTTPConnection, visit: str = "") -> str:
    """Return the token for the forms of this browser and session; `visit`: its new number, if it had none."""
    return signer_of(request).sign(_csrf_text(request, visit), "csrf")


def is_form_token(request: HTTPConnection, token: str) -> bool:
    """Whether this server made the token, for this browser and session."""
    return signer_of(request).is_signed(_csrf_text(request), "csrf", token)


def cookie_options(request: HTTPConnection) -> dict[str, Any]:
    """Return the options of every cookie."""
    secure = request.url.scheme == "https" or request.headers.get("x-forwarded-proto", "") == "https"
    return {"path": f"{home_of(request)}/", "httponly": True, "samesite": "strict", "secure": secure}


def _csrf_text(request: HTTPConnection, visit: str = "") -> str:
    """Return the text that the token in a form signs: the browser's number and its session."""
    return (request.cookies.get(VISIT, "") or visit) + signer_of(request).shown(request.cookies)
