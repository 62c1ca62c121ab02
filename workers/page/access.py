"""Who somebody is and what proves it: roles, tokens, and the signed cookies that stand for them. No request is judged here: `guard` does.

Everything is derived from one key, and the key from the tokens: another process with the same tokens, or the next one, takes the same
cookies, and a token that is withdrawn ends all sessions. Without tokens the key is made up at each start.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import time
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

TOKEN: Final = re.compile(r"(?:([A-Za-z0-9_.@-]{1,40})=)?([!-+\--~]{16,200})")
"""A token, perhaps with the name of whoever has it before it: `alice=...`."""
SESSION: Final = 12 * 3600.0
"""Seconds after which one has to show the token again."""


class Role(IntEnum):
    """What somebody may do; the greater may what the lesser may."""

    VIEW = 1
    """Look at everything that is not redacted."""
    OPERATE = 2
    """And act: pause, retry, cancel, change."""

    @property
    def word(self) -> str:
        """The role's name, as people write it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody whose request was let in."""

    role: Role
    actor: str
    """Who it is, for the audit."""
    csrf: str
    """What a form must carry; empty where nothing is sent along by itself, so that no other site can send it."""
    way: str
    """How it was proved: cookie, bearer, local or site."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The tokens and what is derived from them.

    view, operate: tokens of these roles, each perhaps `name=token`. Raises ValueError for one that is too short to be safe.

    >>> keys = Keys(view=("only-to-look-at-it",), operate=("alice=wonderful-rabbit-hole",))
    >>> keys.bearer("wonderful-rabbit-hole")
    (<Role.OPERATE: 2>, 'alice')
    """

    view: tuple[str, ...] = field(default=(), repr=False)
    operate: tuple[str, ...] = field(default=(), repr=False)
    _known: tuple[tuple[bytes, Role, str], ...] = field(init=False, repr=False, default=())
    _key: bytes = field(init=False, repr=False, default=b"")

    def __post_init__(self) -> None:
        known = [*_read(self.view, Role.VIEW), *_read(self.operate, Role.OPERATE)]
        object.__setattr__(self, "_known", tuple(known))
        parts = sorted(digest for digest, _, _ in known)
        key = hashlib.sha256(b"jobherd page" + b"".join(parts)).digest() if parts else secrets.token_bytes(32)
        object.__setattr__(self, "_key", key)

    def __bool__(self) -> bool:
        """Whether there is any token."""
        return bool(self._known)

    @property
    def cookie(self) -> str:
        """The name of the session's cookie. A browser sends cookies to all ports of a host: two supervisors must not overwrite each other's."""
        return f"jobherd_session_{hashlib.sha256(self._key).hexdigest()[:8]}"

    def bearer(self, token: str) -> tuple[Role, str] | None:
        """Return the role and the name that a token stands for. Every token is compared, so that the time tells nothing."""
        digest = _digest(token)
        found = None
        for known, role, name in self._known:
            if hmac.compare_digest(known, digest):
                found = role, name
        return found

    def open_session(self, role: Role, name: str, *, now: float | None = None) -> str:
        """Return the cookie of a new session."""
        until = int((time.time() if now is None else now) + SESSION)
        return self.seal(f"{int(role)}.{until}.{secrets.token_urlsafe(12)}.{name}", "session")

    def session(self, cookie: str, *, now: float | None = None) -> tuple[Role, str] | None:
        """Return the role and the name that a session's cookie stands for, unless it is forged or over."""
        text = self.unseal(cookie, "session")
        if text is None:
            return None
        role, until, _, name = text.split(".", 3)
        return (Role(int(role)), name) if float(until) > (time.time() if now is None else now) else None

    def seal(self, text: str, purpose: str) -> str:
        """Return the text as a cookie that only this key can have made, and only for this purpose."""
        body = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        return f"{body}.{self.sign(body, purpose)}"

    def unseal(self, cookie: str, purpose: str) -> str | None:
        """Return what was sealed, or None if it was not sealed here and for this purpose."""
        body, _, signature = cookie.partition(".")
        if not hmac.compare_digest(signature.encode(), self.sign(body, purpose).encode()):
            return None
        return base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)).decode()

    def sign(self, text: str, purpose: str) -> str:
        """Return the signature of a text for one purpose."""
        mac = hmac.new(self._key, f"{purpose}\0{text}".encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(mac.digest()).decode().rstrip("=")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def _read(tokens: Iterable[str], role: Role) -> Iterable[tuple[bytes, Role, str]]:
    for each in tokens:
        match = TOKEN.fullmatch(each)
        if match is None:
            message = f"a token of the role {role.word} is not 16 to 200 printable characters without commas: make one with `openssl rand -hex 20`"
            raise ValueError(message)
        yield _digest(match[2]), role, match[1] or role.word
