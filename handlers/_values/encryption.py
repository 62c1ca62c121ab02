"""Encrypts and decrypts payloads, results and errors.

The database, its backups and its readers cannot see them. Encryption is AES-256-GCM from the
package cryptography (the extra `crypto`). Each key has a name. The newest key encrypts and all keys
decrypt. So put a new key first, and remove an old one when nothing encrypted with it is left.
Encrypted data is bound to its place. A payload is bound to its kind only: a job has no id before
the database assigns one, and fetching the id first would cost a round trip per job. Result, error
and log are bound to kind and id. So one job's result cannot be passed off as another's. A user who
can write the tables can move a payload to another job of its kind, but could as well enqueue it a
second time.

Keys are read from the environment (JOBHERD_KEYS, or the file named by JOBHERD_KEYS_FILE) on first
use. They are never shown: errors contain names of keys only.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._values.payload import PayloadError, decode_payload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from jobherd.handlers._values.outcome import Outcome

MARK: Final = "jobherd:sealed"
"""The only key of an encrypted JSON document, and the prefix of an encrypted text."""
HEAD: Final = f'{{"{MARK}":"'
_BYTES: Final = b"jobherd:sealed:"
_KEY: Final = re.compile(r"([A-Za-z0-9_-]{1,40})=([A-Za-z0-9+/_-]{43}=?)")
_NONCE: Final = 12
"""Bytes of random nonce for each text: enough for about 4,000,000,000 texts per key."""
_HOW: Final = (
    "set JOBHERD_KEYS to NAME=KEY, the newest first and separated by commas or lines, or JOBHERD_KEYS_FILE to a file of them; "
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
            message = "sealing needs the extra `crypto`: pip install 'jobherd[crypto]'"
            raise KeyMissingError(message) from None
        self._keys: dict[str, AESGCM] = {}
        lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
        for place, word in enumerate(re.split(r"[\s,]+", " ".join(lines).strip()), 1):
            match = _KEY.fullmatch(word)
            secret = _decoded(match[2]) if match else None
            if match is None or secret is None:
                message = f"key {place} is not NAME=KEY with 32 bytes in base64: {_HOW}"
                raise ValueError(message)
            if match[1] in self._keys:
                message = f"two keys have the name {match[1]!r}: what was sealed with one could not be opened"
                raise ValueError(message)
            self._keys[match[1]] = AESGCM(secret)

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
                f"it is sealed with the key {name!r}, which is not here (here are {', '.join(self._keys)}): {_HOW}"
            )
            raise KeyMissingError(message)
        try:
            return cipher.decrypt(rest[:_NONCE], rest[_NONCE:], _bond(name, bound))
        except (InvalidTag, ValueError):
            message = "what is sealed was changed, or belongs to another kind or job: it cannot be opened"
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


def is_sealed(document: object) -> bool:
    """Return whether a decoded document is encrypted."""
    return isinstance(document, dict) and document.keys() == {MARK} and isinstance(document[MARK], str)


def seal_document(text: str, what: str, *bound: object) -> str:
    """Return a JSON text that holds the encrypted JSON text. what: payload or result."""
    return f'{HEAD}{_text(ring().seal(text.encode(), what, *bound))}"}}'


def open_document(document: object, what: str, *bound: object) -> object:
    """Return the document in a decoded, encrypted one; others unchanged.

    Raises what `KeyRing.open` raises.
    """
    return decode_payload(ring().open(_data(document[MARK]), what, *bound)) if is_sealed(document) else document  # type: ignore[index]


def seal_text(text: str | None, what: str, *bound: object) -> str | None:
    """Return a text encrypted. what: error, traceback or log."""
    return None if text is None else f"{MARK}:{_text(ring().seal(text.encode(errors='replace'), what, *bound))}"


def open_text(text: str | None, what: str, *bound: object) -> str | None:
    """Return the text in an encrypted one; others unchanged. Raises what `KeyRing.open` raises."""
    if text is None or not text.startswith(MARK + ":"):
        return text
    return ring().open(_data(text[len(MARK) + 1 :]), what, *bound).decode()


def seal_bytes(data: bytes | None, kind: str) -> bytes | None:
    """Return the bytes of a job encrypted."""
    return None if data is None else _BYTES + ring().seal(data, "payload_bytes", kind)


def open_bytes(data: bytes | None, kind: str) -> bytes | None:
    """Return the bytes in encrypted ones; others unchanged. Raises what `KeyRing.open` raises."""
    return (
        data if data is None or not data.startswith(_BYTES) else ring().open(data[len(_BYTES) :], "payload_bytes", kind)
    )


def open_payload(payload: object, kind: str, *, only: bool) -> object:
    """Return the payload of a job whose kind encrypts.

    With `only`, an unencrypted payload is rejected.
    Raises KeyMissingError also for an unencrypted payload, because the job's result could not be
    encrypted. Raises PayloadError as `KeyRing.open` does.
    """
    keys = ring()
    if is_sealed(payload):
        return decode_payload(keys.open(_data(payload[MARK]), "payload", kind))  # type: ignore[index]
    if only:
        message = "the payload is not encrypted, and the kind takes no other (encrypt='only'): enqueue it with its handler, or with encrypt=True"
        raise PayloadError(message)
    return payload


def seal_outcome(outcome: Outcome, kind: str, job: int) -> Outcome:
    """Return an outcome with encrypted result, error and traceback.

    Code and label stay readable.
    """
    if outcome.result is None and outcome.error is None and outcome.traceback is None:
        return outcome
    return replace(
        outcome,
        result=None if outcome.result is None else seal_document(outcome.result, "result", kind, job),
        error=seal_text(outcome.error, "error", kind, job),
        traceback=seal_text(outcome.traceback, "traceback", kind, job),
    )


def seal_log(log: str | None, kind: str, job: int) -> str | None:
    """Return an attempt's output encrypted, in the form in which it is stored.

    The output is what the attempt printed and logged.
    """
    return None if log is None else json.dumps({"output": seal_text(log, "log", kind, job)})


def decrypt(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's row with payload, payload_bytes, result and errors decrypted.

    The errors of its attempts are decrypted too.

    Args:
        row: a row that `Client.job` or `Client.wait` returned.

    Raises:
        KeyMissingError: a key is missing.
        PayloadError: encrypted data was changed.

    Example:
        >>> decrypt({"id": 7, "kind": "mail:receipt", "payload": {"order_id": 7}})["payload"]
        {'order_id': 7}
    """
    kind, job = row["kind"], row["id"]
    found = dict(row)
    for name, bound in (("payload", (kind,)), ("result", (kind, job))):
        if name in found:
            found[name] = open_document(found[name], name, *bound)
    for name in ("error", "traceback"):
        if isinstance(found.get(name), str):
            found[name] = open_text(found[name], name, kind, job)
    if isinstance(found.get("payload_bytes"), bytes | memoryview):
        found["payload_bytes"] = open_bytes(bytes(found["payload_bytes"]), kind)
    if isinstance(found.get("history"), list):
        found["history"] = [
            {
                name: open_text(value, name, kind, job) if name in {"error", "traceback"} else value
                for name, value in one.items()
            }
            if isinstance(one, dict)
            else one
            for one in found["history"]
        ]
    return found


def cover(text: str) -> str:
    """Return a text for people with its encrypted parts replaced by "(encrypted)".

    They would fill the screen without information.

    >>> cover('jobherd:sealed:MjAyNjo')
    '(encrypted)'
    """
    return _SEALED.sub("(encrypted)", text) if MARK in text else text


_SEALED: Final = re.compile(r'\{\s*"jobherd:sealed":\s*"[^"]*"\s*\}|jobherd:sealed:[A-Za-z0-9_=-]+')


def _decoded(word: str) -> bytes | None:
    try:
        secret = base64.urlsafe_b64decode(word.replace("+", "-").replace("/", "_").rstrip("=") + "=")
    except binascii.Error:
        return None
    return secret if len(secret) == 32 else None


def _bond(name: str, bound: tuple[object, ...]) -> bytes:
    return json.dumps(["jobherd", 1, name, *bound]).encode()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()


def _data(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text)
    except (binascii.Error, ValueError):
        message = "what is sealed was changed: it is no base64"
        raise PayloadError(message) from None
