"""Encrypts and decrypts payloads, results and errors.

The database, its backups and its readers cannot see them. Encrypted data is bound to its place. A
payload is bound to its kind only: a job has no id before the database assigns one, and fetching the
id first would cost a round trip per job. Result, error and log are bound to kind and id. So one
job's result cannot be passed off as another's. A user who can write the tables can move a payload
to another job of its kind, but could as well enqueue it a second time.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._values.keys import ring
from jobherd.handlers._values.payload import PayloadError, decode_payload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobherd.handlers._values.outcome import Outcome

MARK: Final = "jobherd:sealed"
"""The only key of an encrypted JSON document, and the prefix of an encrypted text."""
HEAD: Final = f'{{"{MARK}":"'
_BYTES: Final = b"jobherd:sealed:"


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


def digest_key(value: object, kind: str) -> str:
    """Return a text that is equal for equal JSON values and shows nothing of them."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return ring().digest(text.encode(), "unique", kind)


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
        message = (
            "the payload is not encrypted, and the kind takes no other (encrypt='only'): "
            "enqueue it with its handler, or with encrypt=True"
        )
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


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()


def _data(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text)
    except (binascii.Error, ValueError):
        message = "the encrypted value was changed: it is not base64"
        raise PayloadError(message) from None
