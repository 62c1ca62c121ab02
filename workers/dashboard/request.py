"""What the dashboard keeps of a request: its viewer, its configuration, its address and paths.

`guard` stores the viewer and the signer once it has admitted the request. Must not decide who is
admitted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from jobherd.workers.dashboard.access import Keys, Role, Signer, Viewer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import HTTPConnection, Request

    Authorize = Callable[[Request], "Role | Awaitable[Role | None] | None"]
    Actor = Callable[[Request], str]


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


def address_of(request: HTTPConnection) -> str:
    """Return the client address of a request."""
    return request.client.host if request.client else "?"


def root_of(request: HTTPConnection) -> str:
    """Return the path at which this application is mounted, without a trailing slash."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def home_of(request: HTTPConnection) -> str:
    """Return the path of the whole dashboard: with several databases, above the paths of the databases."""
    return root_of(request).removesuffix(request.app.state.mount)


def local(path: str) -> str | None:
    r"""Return a path of this host, or None if it leads, or could lead, to another host.

    >>> local("/jobs?state=failed"), local("//evil.example/"), local("https://evil.example/"), local("/\\evil.example")
    ('/jobs?state=failed', None, None, None)
    """
    if not path.startswith("/") or path.startswith("//") or "\\" in path or any(ord(letter) < 32 for letter in path):
        return None
    return path


def split_address(address: str) -> SplitResult:
    """Return the parts of an address; of an invalid one, empty parts."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")
