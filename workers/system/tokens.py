"""Reads and compares tokens of clients. Only digests are stored, so that no log or dump shows a token."""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

TOKEN: Final = re.compile(r"(?:([A-Za-z0-9_.@-]{1,40})=)?([!-+\--~]{16,200})")
"""A token, optionally with the name of its holder before it: `alice=...`."""


class HasDigest(Protocol):
    """What belongs to one token."""

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the token."""


Known = TypeVar("Known", bound=HasDigest)


def digest_of(token: str) -> bytes:
    """Return the digest under which a token is stored."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def split(text: str) -> tuple[str, bytes] | None:
    """Return the name before a configured token, or "", and the digest of the token.

    None: the text is not a token, or is too short to be safe.

    >>> split("alice=wonderful-rabbit-hole")[0]
    'alice'
    """
    match = TOKEN.fullmatch(text)
    return None if match is None else (match[1] or "", digest_of(match[2]))


def find(known: Iterable[Known], token: str) -> Known | None:
    """Return what belongs to a token. All are compared, so the time taken reveals nothing."""
    digest = digest_of(token)
    found = None
    for each in known:
        if hmac.compare_digest(each.digest, digest):
            found = each
    return found
