"""Payloads, results and errors that the database, its backups and whoever may read it must not see: sealed here, opened here.

AES-256-GCM of the package cryptography (the extra `crypto`). A key has a name; the newest seals, all of them open, so a new one is put in
front and an old one is taken away when nothing is left that it has sealed. What is sealed is bound to its place: a payload to its kind, since a
job has no number before the database gives it one, and whoever asked for the number first would pay a round trip for each job; what a job
leaves to its kind and its number. So nobody can pass one job's result off as another's; a payload can be moved to another job of its kind by
somebody who may write the tables, who could as well enqueue it a second time.

Keys are read from the environment (JOBHERD_KEYS, or the file that JOBHERD_KEYS_FILE names) when something is sealed or opened first, and never
shown: errors name keys, never what they are.
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
"""The one key of a JSON document that is sealed, and what a sealed text begins with."""
HEAD: Final = f'{{"{MARK}":"'
_BYTES: Final = b"jobherd:sealed:"
_KEY: Final = re.compile(r"([A-Za-z0-9_-]{1,40})=([A-Za-z0-9+/_-]{43}=?)")
_NONCE: Final = 12
"""Bytes, drawn anew for each text: with one key up to some 4,000,000,000 of them."""
_HOW: Final = (
    "set JOBHERD_KEYS to NAME=KEY, the newest first and separated by commas or lines, or JOBHERD_KEYS_FILE to a file of them; "
    "`openssl rand -base64 32` makes a key"
)


class KeyMissingError(Exception):
    """Something is to be sealed or opened, and the key for it is not here. The message says which, and what to do."""


class KeyRing:
    """Keys by name, the newest first.

    text: `NAME=KEY`, separated by commas, spaces or lines; a key is 32 bytes in base64. Lines that begin with # are passed over.
    Raises ValueError for what is none, without showing it.

    >>> KeyRing("2026=" + base64.b64encode(bytes(32)).decode()).names
    ('2026',)
    """

    def __init__(self, text: str) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - an extra that few need
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
        """The names of the keys, that of the one that seals first."""
        return tuple(self._keys)

    def seal(self, data: bytes, *bound: object) -> bytes:
        """Return the data so that only these keys open it, and only as what it is bound to."""
        name, cipher = next(iter(self._keys.items()))
        nonce = os.urandom(_NONCE)
        return name.encode() + b":" + nonce + cipher.encrypt(nonce, data, _bond(name, bound))

    def open(self, sealed: bytes, *bound: object) -> bytes:
        """Return what was sealed. Raises KeyMissingError for a key that is not here, PayloadError for what was changed or is another's."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415

        head, _, rest = sealed.partition(b":")
        name = head.decode("ascii", "replace")[:40]
        cipher = self._keys.get(name)
        if cipher is None:
            message = f"it is sealed with the key {name!r}, which is not here (here are {', '.join(self._keys)}): {_HOW}"
            raise KeyMissingError(message)
        try:
            return cipher.decrypt(rest[:_NONCE], rest[_NONCE:], _bond(name, bound))
        except (InvalidTag, ValueError):
            message = "what is sealed was changed, or belongs to another kind or job: it cannot be opened"
            raise PayloadError(message) from None


@cache
def ring() -> KeyRing:
    """Return the keys of the environment; they are read once a process. Raises KeyMissingError if there are none, or bad ones."""
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
    """Whether a decoded document is a sealed one."""
    return isinstance(document, dict) and document.keys() == {MARK} and isinstance(document[MARK], str)


def seal_document(text: str, what: str, *bound: object) -> str:
    """Return a JSON text, sealed, as a JSON text. what: payload or result."""
    return f'{HEAD}{_text(ring().seal(text.encode(), what, *bound))}"}}'


def open_document(document: object, what: str, *bound: object) -> object:
    """Return the decoded document that is in a decoded, sealed one; another stays as it is. Raises as `KeyRing.open`."""
    return decode_payload(ring().open(_data(document[MARK]), what, *bound)) if is_sealed(document) else document  # type: ignore[index]


def seal_text(text: str | None, what: str, *bound: object) -> str | None:
    """Return a text, sealed. what: error, traceback or log."""
    return None if text is None else f"{MARK}:{_text(ring().seal(text.encode(errors='replace'), what, *bound))}"


def open_text(text: str | None, what: str, *bound: object) -> str | None:
    """Return what is in a sealed text; another stays as it is. Raises as `KeyRing.open`."""
    if text is None or not text.startswith(MARK + ":"):
        return text
    return ring().open(_data(text[len(MARK) + 1 :]), what, *bound).decode()


def seal_bytes(data: bytes | None, kind: str) -> bytes | None:
    """Return the bytes of a job, sealed."""
    return None if data is None else _BYTES + ring().seal(data, "payload_bytes", kind)


def open_bytes(data: bytes | None, kind: str) -> bytes | None:
    """Return the bytes that are in sealed ones; others stay as they are. Raises as `KeyRing.open`."""
    return data if data is None or not data.startswith(_BYTES) else ring().open(data[len(_BYTES) :], "payload_bytes", kind)


def open_payload(payload: object, kind: str, *, only: bool) -> object:
    """Return the payload of a job of a kind that seals; one that came in clear is taken, unless `only` sealed ones are.

    Raises KeyMissingError also for one in clear: what the job leaves could not be sealed. PayloadError as `KeyRing.open`.
    """
    keys = ring()
    if is_sealed(payload):
        return decode_payload(keys.open(_data(payload[MARK]), "payload", kind))  # type: ignore[index]
    if only:
        message = (
            "the payload is not encrypted, and the kind takes no other (encrypt='only'): enqueue it with its handler, or with encrypt=True"
        )
        raise PayloadError(message)
    return payload


def seal_outcome(outcome: Outcome, kind: str, job: int) -> Outcome:
    """Return an outcome whose result, error and traceback are sealed. Its code and its label are not."""
    if outcome.result is None and outcome.error is None and outcome.traceback is None:
        return outcome
    return replace(
        outcome,
        result=None if outcome.result is None else seal_document(outcome.result, "result", kind, job),
        error=seal_text(outcome.error, "error", kind, job),
        traceback=seal_text(outcome.traceback, "traceback", kind, job),
    )


def seal_log(log: str | None, kind: str, job: int) -> str | None:
    """Return what an attempt has printed and logged, sealed, in the form in which it is kept."""
    return None if log is None else json.dumps({"output": seal_text(log, "log", kind, job)})


def decrypt(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's row with what is encrypted in it opened: payload, payload_bytes, result, error, and the errors of its attempts.

    row: as `Client.job` and `Client.wait` return it.
    Raises KeyMissingError if a key is not here, PayloadError if something was changed.

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
            {name: open_text(value, name, kind, job) if name in {"error", "traceback"} else value for name, value in one.items()}
            if isinstance(one, dict)
            else one
            for one in found["history"]
        ]
    return found


def cover(text: str) -> str:
    """Return a text for people without what is sealed in it: its length would tell nothing, and fill the screen.

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
