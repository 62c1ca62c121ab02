"""Prepares payloads, results and other JSON documents for the pages, whatever they contain.

Documents of handlers, producers and dead processes may contain anything. A document that cannot be
parsed is shown as text. Must not redact: `redaction` does.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Final

from jobherd.handlers._values.payload import decode_payload

LONG: Final = 4000
"""Characters from which on a document is collapsed."""
SHOWN: Final = 100_000
"""Characters of a document that the job's page shows; a longer one has its own page."""


@dataclass(frozen=True, slots=True)
class Document:
    """A formatted payload or result. name: the word for it in its address."""

    name: str
    text: str
    size: int
    """Size of the whole document, in bytes."""

    @property
    def is_long(self) -> bool:
        """Whether it is collapsed."""
        return len(self.text) > LONG

    @property
    def is_cut(self) -> bool:
        """Whether it is longer than the job's page shows."""
        return len(self.text) > SHOWN

    @property
    def shown(self) -> str:
        """The part that the job's page shows."""
        return self.text[:SHOWN]


def document(name: str, text: str | None) -> Document | None:
    r"""Return a formatted document; None if there is none.

    A document that Python cannot hold stays unchanged.

    >>> document("payload", '{"order_id":7}').text
    '{\n  "order_id": 7\n}'
    """
    return None if text is None else Document(name, pretty(text), len(text.encode(errors="replace")))


def pretty(text: str) -> str:
    """Return indented JSON.

    A document that Python cannot hold is returned unchanged. Characters that no browser may be sent
    are written as JSON escapes.
    """
    try:
        shown = json.dumps(json.loads(text, parse_constant=_refuse, parse_float=_finite), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        shown = text
    return sendable(shown)


def read_edited(text: str) -> Any:
    """Return the value of a document that a user has edited.

    Raises ValueError with the position for invalid JSON, PayloadError for a value that Python
    cannot hold.
    """
    try:
        json.loads(text)
    except json.JSONDecodeError as problem:
        message = f"This is not JSON: {problem.msg}, in line {problem.lineno}, column {problem.colno}."
        raise ValueError(message) from None
    except RecursionError:
        pass  # decode_payload has a better message
    return decode_payload(text)


def sendable(text: str) -> str:
    """Return a text that can be encoded as UTF-8.

    A lone surrogate, which JSON can express, becomes its escape sequence.
    """
    return text.encode("utf-8", "backslashreplace").decode()


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(digits)
    return number


def _refuse(word: str) -> object:
    raise ValueError(word)


def parsed(text: object) -> Any:
    """Return the parsed document, or None if it cannot be parsed. One that is not text stays."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
