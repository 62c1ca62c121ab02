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

import asyncio
import functools
import inspect
import logging
import math
import secrets
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

import psycopg
from starlette.datastructures import Headers, ImmutableMultiDict, MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import RedirectResponse, Response

from jobherd.workers.page.access import Keys, Role, Signer, Viewer
from jobherd.workers.page.database import Away, name_of
from jobherd.workers.system.local_address import host_of, is_local, is_loopback

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    Endpoint = Callable[[Request, "Form"], Awaitable["Done | Response"]]
    Authorize = Callable[[Request], "Role | Awaitable[Role | None] | None"]
    Actor = Callable[[Request], str]
    Broken = Callable[[Request, Exception], Awaitable[Response]]

    from jobherd.workers.page.access import Token

log = logging.getLogger("jobherd.page")

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
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
VISIT: Final = "jobherd_visit"
"""Cookie with a random number for each browser; the token in a form is its signature."""
SAID: Final = "jobherd_said"
"""Cookie with the message of the last action, until the next page shows it."""
FILES: Final = "/static/"
FORM_MOST: Final = 2 * 2**20
"""Bytes of a form: an edited payload is the largest one."""
FIELDS_MOST: Final = 20_000
PATH_MOST: Final = 2000
"""Characters of an address.

Python rejects numbers of thousands of digits, and no name here is longer.
"""
FORM_PATIENCE: Final = 10.0
"""Seconds for a form to arrive."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The configuration of the guard.

    keys: the tokens. hosts: accepted host names, in addition to those of the machine itself.
    authorize: returns the role, instead of a token; None: not set. actor: returns the user's name.
    read_only: nothing can be changed.
    """

    keys: Keys = field(default_factory=Keys)
    hosts: frozenset[str] = frozenset()
    authorize: Authorize | None = None
    actor: Actor | None = None
    read_only: bool = False

    @property
    def is_open(self) -> bool:
        """Whether no authentication is configured: then it answers only this host."""
        return self.authorize is None and not self.keys


class Refused(Exception):  # noqa: N818 - says what happened
    """The request is rejected. The reason must not repeat parts of the request."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = dict(headers or {})


class Form(ImmutableMultiDict[str, str]):
    """The fields of a form.

    `form["id"]`, `form.get("reason", "")`, and `form.getlist("id")` for repeated fields.
    """


@dataclass(frozen=True, slots=True)
class Done:
    """The message of an action, and the next page.

    message: one sentence, shown above the next page.
    to: its path; None: back to the form's page.
    well: False if the action failed.
    """

    message: str
    to: str | None = None
    well: bool = True


def viewer_of(request: HTTPConnection) -> Viewer:
    """Return the viewer of a request. Only for requests that the guard has admitted."""
    viewer = request.scope["state"]["viewer"]
    assert isinstance(viewer, Viewer)
    return viewer


def rules_of(request: HTTPConnection) -> Rules:
    """Return the configuration of the guard."""
    rules = request.app.state.rules
    assert isinstance(rules, Rules)
    return rules


def signer_of(request: HTTPConnection) -> Signer:
    """Return the signer of this request. Only for requests that the guard has admitted."""
    signer = request.scope["state"]["signer"]
    assert isinstance(signer, Signer)
    return signer


def may_act(request: HTTPConnection) -> bool:
    """Whether the viewer may change anything; other viewers see no buttons."""
    return viewer_of(request).role >= Role.OPERATE and not rules_of(request).read_only


def action(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """Make an endpoint for a form that changes something.

    It checks the request, runs the endpoint, and answers with 303 and a message.
    endpoint: takes the request and the form (`form["id"]`, `form.getlist("id")`) and returns
        `Done`, or its own response. It may raise `Refused`. If the database rejects the action, the
        message is the database's.

    >>> @action
    ... async def pause(request: Request, form: Form) -> Done:
    ...     await database(request).act("page/pause", {"queue": form["queue"], "actor": viewer_of(request).actor})
    ...     return Done("The queue is paused.")
    >>> routes = [Route("/queues/action", pause, methods=["POST"])]  # doctest: +SKIP
    """

    @functools.wraps(endpoint)
    async def act(request: Request) -> Response:
        allow_acting(request)
        form = await read_form(request)
        check_csrf(request, form)
        try:
            done = await endpoint(request, form)
        except Away:
            done = Done(
                "The database does not answer. Whether this was done is not known: look again when it is back.",
                well=False,
            )
        except psycopg.Error as problem:
            log.info("an action was refused by the database: %s", name_of(problem))
            done = Done(said(problem), well=False)
        return answer_of(request, done, form) if isinstance(done, Done) else done

    act.is_action = True  # type: ignore[attr-defined]  # the test of all routes looks for it
    return act


def allow_acting(request: Request) -> None:
    """Raise Refused unless the viewer may change something."""
    if rules_of(request).read_only:
        raise Refused(
            HTTPStatus.FORBIDDEN, "This page is read-only: nothing can be changed from it (setting page_read_only)."
        )
    if viewer_of(request).role < Role.OPERATE:
        raise Refused(HTTPStatus.FORBIDDEN, "Your token may only look. Log in with one of the role operate to act.")


def check_csrf(request: Request, form: Form) -> None:
    """Raise Refused unless the form was made by this dashboard for this browser."""
    if viewer_of(request).csrf and not signer_of(request).is_signed(
        _csrf_text(request), "csrf", str(form.get("csrf", ""))
    ):
        raise Refused(
            HTTPStatus.FORBIDDEN,
            "This form is older than the page's server, or was not made by it. Go back, reload and try again.",
        )


def _csrf_text(request: HTTPConnection, visit: str = "") -> str:
    """Return the text that the token in a form signs: the browser's number and its session."""
    return (request.cookies.get(VISIT, "") or visit) + signer_of(request).shown(request.cookies)


def count_wrong(request: Request) -> None:
    """Count and record a wrong token."""
    request.app.state.attempts.failed(address_of(request))
    request.app.state.door.refused(request)


def count_right(request: Request) -> None:
    """Record a right token."""
    request.app.state.attempts.succeeded(address_of(request))


def check_attempts(request: Request) -> None:
    """Raise Refused if too many wrong tokens came from this address, or from all.

    The token is not compared then.
    """
    if wait := request.app.state.attempts.wait(address_of(request)):
        request.app.state.door.limited(request)
        seconds = math.ceil(wait)
        raise Refused(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"Too many wrong tokens. Try again in {seconds} s.",
            headers={"Retry-After": str(seconds)},
        )


def address_of(request: HTTPConnection) -> str:
    """Return the client address of a request."""
    return request.client.host if request.client else "?"


async def read_form(request: Request) -> Form:
    """Return the fields of a form without files, as browsers send it. Raises Refused."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "A form is sent as application/x-www-form-urlencoded.")
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
            HTTPStatus.BAD_REQUEST, f"The form is no UTF-8, or has more than {FIELDS_MOST:,} fields."
        ) from None
    if any("\0" in value for _, value in fields):
        raise Refused(
            HTTPStatus.BAD_REQUEST,
            "A field of the form holds the character NUL, which PostgreSQL cannot store: leave it out.",
        )
    return Form(fields)


def answer_of(request: Request, done: Done, form: Form) -> Response:
    """Return the response to an action: a redirect with a message."""
    back = done.to or str(form.get("next", "")) or _referer(request)
    answer = RedirectResponse(local(back) or f"{root_of(request)}/", status_code=HTTPStatus.SEE_OTHER)
    text = ("1" if done.well else "0") + done.message[:1000]
    answer.set_cookie(SAID, signer_of(request).seal(text, "said"), max_age=60, **_cookie(request))
    return answer


def take_said(request: Request, answer: Response) -> None:
    """Delete the cookie with the message of the last action."""
    if SAID in request.cookies:
        answer.delete_cookie(SAID, **_cookie(request))


def last_said(request: Request) -> tuple[bool, str] | None:
    """Return the message of the last action, and whether the action succeeded."""
    text = signer_of(request).unseal(request.cookies.get(SAID, ""), "said")
    return (text[0] == "1", text[1:]) if text else None


def begin_session(request: Request, answer: Response, token: Token) -> None:
    """Begin a session, valid from the browser's next request."""
    signer = signer_of(request)
    answer.set_cookie(signer.cookie, signer.open_session(token), **_cookie(request))
    # forms from before the login become invalid
    answer.set_cookie(VISIT, secrets.token_urlsafe(18), **_cookie(request))


async def end_session(request: Request, answer: Response) -> None:
    """End the session of this request.

    Its cookie is no longer accepted, and the browser deletes it.
    """
    if session := viewer_of(request).session:
        await request.app.state.sessions.end(session)
    answer.delete_cookie(signer_of(request).cookie, **_cookie(request))


async def is_still_let_in(request: HTTPConnection) -> bool:
    """Whether the session of an ongoing request is still valid. True without a session."""
    if viewer_of(request).session is None:
        return True
    signer: Signer = await request.app.state.sessions.signer()
    return signer.session(request.cookies) is not None


def local(path: str) -> str | None:
    r"""Return a path of this host, or None if it leads, or could lead, to another host.

    >>> local("/jobs?state=failed"), local("//evil.example/"), local("https://evil.example/"), local("/\\evil.example")
    ('/jobs?state=failed', None, None, None)
    """
    if not path.startswith("/") or path.startswith("//") or "\\" in path or any(ord(letter) < 32 for letter in path):
        return None
    return path


def root_of(request: HTTPConnection) -> str:
    """Return the path at which this application is mounted, without a trailing slash."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def said(problem: psycopg.Error) -> str:
    """Return a database error as a sentence, without its details: they contain rows."""
    text = problem.diag.message_primary or type(problem).__name__
    if problem.diag.message_hint:
        text = f"{text}. {problem.diag.message_hint}"
    text = " ".join(text.split()).rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."


def _referer(request: Request) -> str:
    parts = _split(request.headers.get("referer", ""))
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def _split(address: str) -> SplitResult:
    """Return the parts of an address; of an invalid one, empty parts."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


def _cookie(request: HTTPConnection) -> dict[str, Any]:
    secure = request.url.scheme == "https" or request.headers.get("x-forwarded-proto", "") == "https"
    return {"path": f"{root_of(request)}/", "httponly": True, "samesite": "strict", "secure": secure}


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
            viewer = Viewer(Role.VIEW, "", self._csrf(request, fresh), "nobody")
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
            log.exception("the page that says what failed has failed itself")
            return _plain(Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "This page failed; the log says why."))

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
        csrf = self._csrf(request, fresh)
        if rules.authorize is not None:
            role = rules.authorize(request)
            if inspect.isawaitable(role):
                role = await role
            if role is None:
                raise Refused(HTTPStatus.FORBIDDEN, "You may not look at this page.")
            return Viewer(Role(role), rules.actor(request) if rules.actor else "site", csrf, "site")
        if rules.is_open:
            return Viewer(Role.OPERATE, "page", csrf, "local")
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            check_attempts(request)
            found = rules.keys.bearer(token.strip())
            if found is None:
                count_wrong(request)
                raise Refused(HTTPStatus.UNAUTHORIZED, "The token is not one of this page.")
            count_right(request)
            return Viewer(found.role, f"page:{found.name}", "", "bearer")
        if session := signer.session(request.cookies):
            return Viewer(session.role, f"page:{session.name}", csrf, "cookie", session)
        return None

    def _csrf(self, request: Request, fresh: str) -> str:
        return signer_of(request).sign(_csrf_text(request, fresh), "csrf")

    def _check_host(self, request: Request) -> None:
        rules = self._rules
        host = host_of(request.headers.get("host", ""))
        if rules.is_open:
            client = request.client.host if request.client else ""
            if not rules.hosts and client and not is_loopback(client):
                raise Refused(
                    HTTPStatus.FORBIDDEN,
                    "Without a token this page answers only the machine it runs on: set page_operate_token.",
                )
            if not (is_local(host) or host in rules.hosts):
                raise Refused(
                    HTTPStatus.FORBIDDEN,
                    "Without a token this page answers as localhost only: set page_operate_token, or name the host in page_hosts.",
                )
        elif rules.hosts and not (is_local(host) or host in rules.hosts):
            raise Refused(HTTPStatus.FORBIDDEN, "This page does not answer to this name: add it to page_hosts.")

    def _check_origin(self, request: Request) -> None:
        origin = request.headers.get("origin")
        if origin is None:
            if request.headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
                raise Refused(HTTPStatus.FORBIDDEN, "This was sent by another site.")
            return
        parts = _split(origin)
        same = parts.netloc.lower() == request.headers.get("host", "").lower()
        if not parts.netloc or not (same or host_of(parts.netloc) in self._rules.hosts):
            raise Refused(
                HTTPStatus.FORBIDDEN,
                "This was sent by another site. If it was not, a proxy changes the Host header: name the public host in page_hosts.",
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
            jar.set_cookie(VISIT, fresh, **_cookie(request))
            headers.append("Set-Cookie", Headers(raw=jar.raw_headers)["set-cookie"])


def _sets(headers: MutableHeaders, cookie: str) -> bool:
    return any(value.startswith(f"{cookie}=") for value in headers.getlist("set-cookie"))


def _plain(refused: Refused) -> Response:
    return Response(f"{refused.reason}\n", refused.status, refused.headers, "text/plain")
