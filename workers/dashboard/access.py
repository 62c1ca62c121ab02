"""Defines roles and tokens, and signs the cookies of sessions.

`guard` decides about requests; `sessions` keeps the secrets that are used here. Every signature
needs a secret of the server, which no token holder has. A session is signed with the secret and the
digest of its token. Its role and name are those of the token in the current configuration, and a
removed token ends its sessions.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from jobherd.workers.system import tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SESSION: Final = 12 * 3600.0
"""Seconds a session is valid."""


class Role(IntEnum):
    """The permissions of a viewer; a greater role includes the lesser one."""

    VIEW = 1
    """Read everything that is not redacted."""
    OPERATE = 2
    """Also act: pause, retry, cancel, change."""

    @property
    def word(self) -> str:
        """The role's name in lower case."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Session:
    """The session of a cookie."""

    role: Role
    name: str
    id: str
    """Random, unique to this session."""
    until: float
    """Time of its end, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """The sender of an admitted request."""

    role: Role
    actor: str
    """The name in the audit log."""
    csrf: str
    """The token that a form must contain.

    Empty for requests that no browser sends on behalf of another site.
    """
    way: str
    """The kind of authentication: cookie, bearer, local or site; without one `none`."""
    session: Session | None = None
    """The session of the cookie."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The configured tokens.

    view, operate: tokens of these roles, each optionally `name=token`.
    Raises ValueError for a token that is too short to be safe.

    >>> keys = Keys(view=("only-to-look-at-it",), operate=("alice=wonderful-rabbit-hole",))
    >>> keys.bearer("wonderful-rabbit-hole").name
    'alice'
    """

    view: tuple[str, ...] = field(default=(), repr=False)
    operate: tuple[str, ...] = field(default=(), repr=False)
    known: tuple[Token, ...] = field(init=False, repr=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "known", (*_read(self.view, Role.VIEW), *_read(self.operate, Role.OPERATE)))

    def __bool__(self) -> bool:
        """Whether there is any token."""
        return bool(self.known)

    def bearer(self, token: str) -> Token | None:
        """Return the configured token that equals this text."""
        return tokens.find(self.known, token)


@dataclass(frozen=True, slots=True)
class Token:
    """A configured token, without its text."""

    digest: bytes = field(repr=False)
    role: Role
    name: str


class Signer:
    """Sign and check cookies and forms.

    keys: the tokens.
    server: secrets of the server, newest first; the newest signs, each of them is accepted.
    ended: ids of sessions that have ended by a logout.

    >>> keys = Keys(view=("only-to-look-at-it",))
    >>> signer = Signer(keys, (b"a secret of 32 bytes, or the like",))
    >>> signer.session({signer.cookie: signer.open_session(keys.known[0])}).role
    <Role.VIEW: 1>
    """

    def __init__(self, keys: Keys, server: tuple[bytes, ...], ended: frozenset[str] = frozenset()) -> None:
        self._keys = keys
        self._server = server
        self._ended = ended

    @property
    def cookie(self) -> str:
        """The name of the session's cookie.

        A browser sends cookies to all ports of a host, so dashboards with other tokens or another
        database need another name.
        """
        return self._cookie(self._server[0])

    def open_session(self, token: Token, *, now: float | None = None) -> str:
        """Return the cookie of a new session."""
        until = int((time.time() if now is None else now) + SESSION)
        body = _encode(f"{until}.{secrets.token_urlsafe(12)}".encode())
        return f"{body}.{_mac(_session_key(self._server[0], token), body)}"

    def session(self, cookies: Mapping[str, str], *, now: float | None = None) -> Session | None:
        """Return the session of these cookies. None if there is none, it is forged or has ended."""
        for secret in self._server:
            body, _, signature = cookies.get(self._cookie(secret), "").partition(".")
            for token in self._keys.known:
                if _equal(signature, _mac(_session_key(secret, token), body)):
                    until, _, number = _decode(body).partition(".")
                    is_valid = float(until) > (time.time() if now is None else now) and number not in self._ended
                    return Session(token.role, token.name, number, float(until)) if is_valid else None
        return None

    def shown(self, cookies: Mapping[str, str]) -> str:
        """Return the session's cookie, whether or not it is valid; empty if there is none."""
        return next((cookies[name] for name in map(self._cookie, self._server) if name in cookies), "")

    def seal(self, text: str, purpose: str) -> str:
        """Return the text as a cookie that only this server can create, for one purpose."""
        body = _encode(text.encode())
        return f"{body}.{self.sign(body, purpose)}"

    def unseal(self, cookie: str, purpose: str) -> str | None:
        """Return the sealed text, or None if it was not sealed by this server for this purpose."""
        body, _, signature = cookie.partition(".")
        return _decode(body) if self.is_signed(body, purpose, signature) else None

    def sign(self, text: str, purpose: str) -> str:
        """Return the signature of a text for one purpose."""
        return _mac(_form_key(self._server[0]), f"{purpose}\0{text}")

    def is_signed(self, text: str, purpose: str, signature: str) -> bool:
        """Whether this is a signature of the text for this purpose, by any accepted secret."""
        return any(_equal(signature, _mac(_form_key(secret), f"{purpose}\0{text}")) for secret in self._server)

    def _cookie(self, secret: bytes) -> str:
        digests = b"".join(sorted(token.digest for token in self._keys.known))
        return f"jobherd_session_{_hmac(secret, b'cookie' + digests).hex()[:8]}"


def _session_key(secret: bytes, token: Token) -> bytes:
    return _hmac(secret, b"session" + token.digest)


def _form_key(secret: bytes) -> bytes:
    return _hmac(secret, b"forms")


def _mac(key: bytes, text: str) -> str:
    return _encode(_hmac(key, text.encode(errors="surrogateescape")))


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(errors="replace"), other.encode())


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(body: str) -> str:
    return base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)).decode()


def _read(texts: Iterable[str], role: Role) -> Iterable[Token]:
    for each in texts:
        found = tokens.split(each)
        if found is None:
            message = (
                f"a token of the role {role.word} is not 16 to 200 printable characters without commas: "
                "make one with `openssl rand -hex 20`"
            )
            raise ValueError(message)
        yield Token(found[1], role, found[0] or role.word)
