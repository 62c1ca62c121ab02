"""The keys of encryption: reads them from the environment, encrypts and decrypts bytes.

Encryption is AES-256-GCM from the package cryptography (the extra `crypto`). Each key has a name.
The newest key encrypts and all keys decrypt. So put a new key first, and remove an old one when
nothing encrypted with it is left. Keys are read from JOBHERD_KEYS, or the file named by
JOBHERD_KEYS_FILE, on first use. They are never shown: errors contain names of keys only.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jobherd.handlers._values.payload import PayloadError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_KEY: Final = re.compile(r"([A-Za-z0-9_-]{1,40})=([A-Za-z0-9+/_-]{43}=?)")
_NONCE: Final = 12
"""Bytes of random nonce for each text: enough for about 4,000,000,000 texts per key."""
_HOW: Final = (
    "set JOBHERD_KEYS to NAME=KEY, the newest first and separated by commas or lines, "
    "or JOBHERD_KEYS_FILE to a file of them; "
    "`openssl rand -base64 32` makes a key"
)


class KeyMissingError(Exception):
    """Raised if the key to encrypt or decrypt something is missing.

    The message names the key and says what to do.
    """


class KeyRing:
    """Keys by name, the newest first.

    Args:
        text: `NAME=KEY` pairs, separated by commas, spaces or lines. A key is 32 bytes in base64.
            Lines that begin with # are ignored.

    Raises:
        ValueError: a pair is invalid. The message does not show it.

    Example:
        >>> KeyRing("2026=" + base64.b64encode(bytes(32)).decode()).names
        ('2026',)
    """

    def __init__(self, text: str) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - an extra that few users need
        except ImportError:
            message = "encryption needs the extra `crypto`: pip install 'jobherd[crypto]'"
            raise KeyMissingError(message) from None
        self._keys: dict[str, AESGCM] = {}
        self._oldest = b""
        lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
        for place, word in enumerate(re.split(r"[\s,]+", " ".join(lines).strip()), 1):
            match = _KEY.fullmatch(word)
            secret = _decoded(match[2]) if match else None
            if match is None or secret is None:
                message = f"key {place} is not NAME=KEY with 32 bytes in base64: {_HOW}"
                raise ValueError(message)
            if match[1] in self._keys:
                message = (
                    f"two keys have the name {match[1]!r}: values encrypted with one of them could not be decrypted"
                )
                raise ValueError(message)
            self._keys[match[1]] = AESGCM(secret)
            self._oldest = secret

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the keys; the first key encrypts."""
        return tuple(self._keys)

    def seal(self, data: bytes, *bound: object) -> bytes:
        """Return the data encrypted.

        Only these keys decrypt it, and only with the same `bound` values.
        """
        name, cipher = next(iter(self._keys.items()))
        nonce = os.urandom(_NONCE)
        return name.encode() + b":" + nonce + cipher.encrypt(nonce, data, _bond(name, bound))

    def digest(self, data: bytes, *bound: object) -> str:
        """Return a text that only these keys produce for the data, the same each time.

        It is made with the oldest key, so adding a key changes no digest.
        """
        own = hmac.digest(self._oldest, b"jobherd:digest", "sha256")  # no key serves two algorithms
        return hmac.digest(own, _bond("", bound) + data, "sha256").hex()

    def open(self, sealed: bytes, *bound: object) -> bytes:
        """Return the decrypted data.

        Raises KeyMissingError if the key is missing, PayloadError if the data was changed or is
        bound to other values.
        """
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415

        head, _, rest = sealed.partition(b":")
        name = head.decode("ascii", "replace")[:40]
        cipher = self._keys.get(name)
        if cipher is None:
            message = (
                f"it is encrypted with the key {name!r}, which is not configured (configured: "
                f"{', '.join(self._keys)}): {_HOW}"
            )
            raise KeyMissingError(message)
        try:
            return cipher.decrypt(rest[:_NONCE], rest[_NONCE:], _bond(name, bound))
        except (InvalidTag, ValueError):
            message = "the encrypted value cannot be decrypted: it was changed, or belongs to another kind or job"
            raise PayloadError(message) from None


@cache
def ring() -> KeyRing:
    """Return the keys of the environment, read once per process.

    Raises KeyMissingError if there are none, or if they are invalid.
    """
    text = os.environ.get("JOBHERD_KEYS", "").strip()
    file = os.environ.get("JOBHERD_KEYS_FILE", "").strip()
    if not text and file:
        try:
            text = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeError) as problem:
            message = f"the keys in JOBHERD_KEYS_FILE cannot be read: {type(problem).__name__}"
            raise KeyMissingError(message) from None
    if not text:
        message = f"there is no key: {_HOW}"
        raise KeyMissingError(message)
    try:
        return KeyRing(text)
    except ValueError as problem:
        raise KeyMissingError(str(problem)) from None


def _decoded(word: str) -> bytes | None:
    try:
        secret = base64.urlsafe_b64decode(word.replace("+", "-").replace("/", "_").rstrip("=") + "=")
    except binascii.Error:
        return None
    return secret if len(secret) == 32 else None


def _bond(name: str, bound: tuple[object, ...]) -> bytes:
    return json.dumps(["jobherd", 1, name, *bound]).encode()
