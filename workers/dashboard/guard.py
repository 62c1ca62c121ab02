"""Checks every request for a page or a file, and decides what the client may do.

It rejects:
- A foreign Host. Otherwise a web page could resolve its own name to 127.0.0.1 and read this
  dashboard with the visitor's browser.
- A change that another site sends with the visitor's cookies. Origin, SameSite and a token in each
  form would each suffice; all three are checked.
- A change by a read-only role, or while the dashboard is read-only.
- A request without a token, if tokens are configured.
Every response, including a rejection, has headers that allow only our own script and style files.
Must not show pages or query the database.
"""

from __future__ import annotations

import inspect
import logging
import secrets
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from jobherd.workers.dashboard.access import Role, Viewer
from jobherd.workers.dashboard.cookies import VISIT, cookie_options, form_token
from jobherd.workers.dashboard.login_limits import check_attempts, count_right, count_wrong
from jobherd.workers.dashboard.request import Refused, root_of, split_address
from jobherd.workers.system.local_address import host_of, is_local, is_loopback

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from jobherd.workers.dashboard.request import Rules

    Broken = Callable[[Request, Exception], Awaitable[Response]]

log = logging.getLogger("jobherd.dashboard")

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not "no-referrer": browsers would then send `Origin: null` with our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every response."""
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
FILES: Final = "/static/"
PATH_MOST: Final = 2000
"""Characters of an address.

Python rejects numbers of thousands of digits, and no name here is longer.
"""


class Guard:
    """The outermost middleware.

    app: the guarded application.
    rules: its configuration.
    free: paths below the root that need no token (the login form, its style sheet).
    broken: answers if an endpoint failed. Starlette's own handler runs outside of this middleware,
        where the headers would be missing.
    """

    def __init__(
        self, app: ASGIApp, *, rules: Rules, broken: Broken, free: tuple[str, ...] = ("/login", FILES)
    ) -> None:
        self._app = app
        self._rules = rules
        self._broken = broken
        self._free = free

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        fresh = "" if request.cookies.get(VISIT) else secrets.token_urlsafe(18)
        begun = False

        async def sent(message: Message) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start":
                self._complete(request, MutableHeaders(scope=message), fresh)
            await send(message)

        try:
            viewer = await self._admit(request, fresh)
        except Refused as refused:
            await _plain(refused)(scope, receive, sent)
            return
        if viewer is None:
            if not self._is_free(request):
                await self._turn_away(request)(scope, receive, sent)
                return
            viewer = Viewer(Role.VIEW, "", form_token(request, fresh), "none")
        scope["state"]["viewer"] = viewer
        try:
            await self._app(scope, receive, sent)
        except Exception as problem:
            if begun:
                log.error("%s failed while it was answered", request.url.path, exc_info=problem)
                raise
            await (await self._explain(request, problem))(scope, receive, sent)

    async def _explain(self, request: Request, problem: Exception) -> Response:
        try:
            return await self._broken(request, problem)
        except Exception:
            log.exception("the error page failed")
            return _plain(
                Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal error: the supervisor's log has the details.")
            )

    async def _admit(self, request: Request, fresh: str) -> Viewer | None:
        if len(request.scope["path"]) > PATH_MOST:
            raise Refused(HTTPStatus.NOT_FOUND, "There is nothing here: the address is too long.")
        self._check_host(request)
        if request.method not in SAFE:
            self._check_origin(request)
        rules, sessions = self._rules, request.app.state.sessions
        # A file needs no form and no session, so it is served even while the database is away.
        signer = sessions.known if self._path(request).startswith(FILES) else await sessions.signer()
        request.scope.setdefault("state", {})["signer"] = signer
        csrf = form_token(request, fresh)
        if rules.authorize is not None:
            role = rules.authorize(request)
            if inspect.isawaitable(role):
                role = await role
            if role is None:
                raise Refused(HTTPStatus.FORBIDDEN, "You may not view this page.")
            return Viewer(Role(role), rules.actor(request) if rules.actor else "site", csrf, "site")
        if rules.is_open:
            return Viewer(Role.OPERATE, "dashboard", csrf, "local")
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            check_attempts(request)
            found = rules.keys.bearer(token.strip())
            if found is None:
                count_wrong(request)
                raise Refused(HTTPStatus.UNAUTHORIZED, "The token is not valid for this dashboard.")
            count_right(request)
            return Viewer(found.role, f"dashboard:{found.name}", "", "bearer")
        if session := signer.session(request.cookies):
            return Viewer(session.role, f"dashboard:{session.name}", csrf, "cookie", session)
        return None

    def _check_host(self, request: Request) -> None:
        rules = self._rules
        host = host_of(request.headers.get("host", ""))
        if rules.is_open:
            client = request.client.host if request.client else ""
            if client and not is_loopback(client):
                raise Refused(
                    HTTPStatus.FORBIDDEN,
                    "Without a token the dashboard answers only this host: set dashboard_operate_token.",
                )
            if not (is_local(host) or host in rules.hosts):
                raise Refused(
                    HTTPStatus.FORBIDDEN,
                    "Without a token the dashboard answers as localhost only: set dashboard_operate_token, "
                    "or name the host in dashboard_hosts.",
                )
        elif rules.hosts and not (is_local(host) or host in rules.hosts):
            raise Refused(
                HTTPStatus.FORBIDDEN, "The dashboard does not accept this host name: add it to dashboard_hosts."
            )

    def _check_origin(self, request: Request) -> None:
        origin = request.headers.get("origin")
        if origin is None:
            if request.headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
                raise Refused(HTTPStatus.FORBIDDEN, "The request was sent by another site.")
            return
        parts = split_address(origin)
        same = parts.netloc.lower() == request.headers.get("host", "").lower()
        if not parts.netloc or not (same or host_of(parts.netloc) in self._rules.hosts):
            raise Refused(
                HTTPStatus.FORBIDDEN,
                "The request was sent by another site. If it was not, a proxy changes the Host header: "
                "name the public host in dashboard_hosts.",
            )

    def _is_free(self, request: Request) -> bool:
        path = self._path(request)
        return any(path == free or (free.endswith("/") and path.startswith(free)) for free in self._free)

    def _path(self, request: Request) -> str:
        return request.url.path.removeprefix(root_of(request))

    def _turn_away(self, request: Request) -> Response:
        """Answer a client without a token: browsers get the login form, programs a message."""
        if request.method in SAFE and "text/html" in request.headers.get("accept", ""):
            asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            return RedirectResponse(f"{root_of(request)}/login?{urlencode({'next': asked})}", HTTPStatus.SEE_OTHER)
        refused = _plain(Refused(HTTPStatus.UNAUTHORIZED, "Log in, or send a token: Authorization: Bearer ..."))
        refused.headers["WWW-Authenticate"] = "Bearer"
        return refused

    def _complete(self, request: Request, headers: MutableHeaders, fresh: str) -> None:
        for name, value in HEADERS.items():
            headers[name] = value
        if "cache-control" not in headers:
            headers["Cache-Control"] = "no-store"
        if fresh and "text/html" in headers.get("content-type", "") and not _sets(headers, VISIT):
            jar = Response()
            jar.set_cookie(VISIT, fresh, **cookie_options(request))
            headers.append("Set-Cookie", Headers(raw=jar.raw_headers)["set-cookie"])


def _sets(headers: MutableHeaders, cookie: str) -> bool:
    return any(value.startswith(f"{cookie}=") for value in headers.getlist("set-cookie"))


def _plain(refused: Refused) -> Response:
    return Response(f"{refused.reason}\n", refused.status, refused.headers, "text/plain")
