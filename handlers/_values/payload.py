"""Checks, encodes and decodes payloads and results.

Every payload from a producer passes `check_payload`, every handler's result passes `encode_result`,
and every document that a worker reads passes `decode_payload`. Raw SQL can insert documents that
Python cannot load, so decoding raises an error that can be stored and never ends the process. This
module must not show a payload's values in an error, because payloads may be secret. It shows where
they are (`$.items[3].name`).

orjson does the work, except where it would silently change a value: it writes NaN as null, drops
fields of dataclasses that begin with an underscore, and reads integers beyond 64 bits as floats.
Documents that may contain one of these take the slow path, which walks the document.
"""

from __future__ import annotations

import json
import math
import os
import re
from functools import cache
from typing import Final, NoReturn, TypeAlias

import orjson

from jobherd.handlers._values.json_form import DEEPEST, Walk, convert, convert_input, type_name, with_article

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
"""Any JSON document."""

DEFAULT_BYTES: Final = 1_000_000

_LONG_NUMBER: Final = re.compile(r"[0-9]{19,}")
_SAMPLED: Final = re.compile(r"[0-9]{3}")
"""Nineteen digits in a row show as three in a row in every sixth character: checking a sixth clears
most documents."""
_PLAIN: Final = frozenset({str, int, bool, type(None)})
_OPTIONS: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


class PayloadError(ValueError):
    """Raised for an invalid payload. The message names the place and the fix, never the value.

    Attributes:
        path: the place, such as `$.items[3].name`.
        index: position of the payload among several, from 0; None for a single one.
    """

    def __init__(self, message: str, path: str = "$") -> None:
        super().__init__(message)
        self.path = path
        self.index: int | None = None

    def __str__(self) -> str:
        message = super().__str__()
        return message if self.index is None else f"index {self.index}: {message}"


class ResultError(PayloadError):
    """Raised if a handler's return value cannot be stored as its result."""


def check_payload(value: object, *, max_bytes: int | None = None) -> str:
    """Return `value` as JSON text if it is a valid payload.

    Args:
        value: None, bool, int, float, str, and lists, tuples and dicts of these. Also dataclasses,
            attrs classes and named tuples (as objects), models of Pydantic and msgspec (as their
            own dump), datetime with a zone, date and time (ISO 8601), UUID and Decimal (as strings)
            and Enum members (as their values).
        max_bytes: longest text in UTF-8 bytes. Default: the environment variable
            JOBHERD_MAX_PAYLOAD, or 1,000,000.

    Raises:
        PayloadError: NUL characters, lone surrogates, NaN or infinity, a datetime without a zone,
            more than 100 levels, an integer of more than 1,000 digits, a key that is not a string,
            another type, or a text that is too long.

    Example:
        >>> check_payload({"order_id": 7})
        '{"order_id":7}'
    """
    return _encode(value, max_payload() if max_bytes is None else max_bytes, "payload", PayloadError)


def encode_arguments(value: object, *, wide: bool) -> str:
    """Like `check_payload`, for a producer that compares its arguments with what arrives.

    wide: take sets as arrays, and keys such as integers and dates as text.
    """
    return _encode(value, max_payload(), "payload", PayloadError, wide=wide)


def check_bytes(value: object, *, field: str = "payload_bytes") -> bytes:
    """Return `value` as the payload bytes of a job, or raise TypeError or PayloadError.

    >>> check_bytes(bytearray(b"PNG"))
    b'PNG'
    """
    if not isinstance(value, bytes | bytearray | memoryview):
        message = (
            f"{field} must be bytes, not {with_article(type_name(value))}: "
            "pass text.encode(), or a JSON value as the payload"
        )
        raise TypeError(message)
    data = bytes(value)
    if len(data) > max_payload():
        raise PayloadError(_too_long(field, len(data), max_payload()))
    return data


def encode_result(value: object) -> str | None:
    """Return a handler's return value as JSON text, or None for None.

    The rules are those of `check_payload`. An invalid value raises ResultError with a message that
    can be stored.

    >>> encode_result({"pages": 3})
    '{"pages":3}'
    """
    if value is None:
        return None
    return _encode(value, max_payload(), "result", ResultError)


def decode_payload(text: str | bytes) -> object:
    """Return the document in `text`. Integers of any size are exact.

    Raises PayloadError for what Python cannot hold: integers of more than 4,300 digits, more than
    about 1,000 levels, numbers beyond a float, lone surrogates, and text that is not valid JSON.

    >>> decode_payload('{"big": 12345678901234567890123}')
    {'big': 12345678901234567890123}
    """
    try:
        if isinstance(text, bytes):
            text = text.decode()
        if _SAMPLED.search(text[::6]) is None or _LONG_NUMBER.search(text) is None:
            return orjson.loads(text)
        # orjson checks surrogates, depth and syntax that json would accept. The numbers that orjson
        # would reject or round are replaced for that check.
        orjson.loads(_LONG_NUMBER.sub("0", text))
        return json.loads(text, parse_float=_finite, parse_constant=_no_number)
    except orjson.JSONDecodeError as problem:
        message = f"the payload cannot be read: {problem.msg}, at character {problem.pos}"
    except UnicodeError:
        message = "the payload cannot be read: it is not UTF-8"
    except ValueError as problem:
        message = f"the payload cannot be read: {problem}"
    except RecursionError:
        message = "the payload cannot be read: it is nested too deeply"
    except MemoryError:
        message = "the payload cannot be read: it does not fit into memory"
    raise PayloadError(message)


@cache
def max_payload() -> int:
    """Return the longest payload in bytes: the environment's JOBHERD_MAX_PAYLOAD, or 1,000,000.

    Read once.
    """
    given = os.environ.get("JOBHERD_MAX_PAYLOAD", "").strip().replace("_", "")
    if not given:
        return DEFAULT_BYTES
    if not given.isdecimal() or len(given) > 18 or int(given) == 0:
        message = f"JOBHERD_MAX_PAYLOAD must be a number of bytes, like 1000000, not {given[:40]!r}"
        raise ValueError(message)
    return int(given)


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        message = "a number is too large for a float"
        raise ValueError(message)
    return number


def _no_number(name: str) -> NoReturn:
    message = f"{name} is not JSON"
    raise ValueError(message)


def _encode(value: object, max_bytes: int, what: str, error: type[PayloadError], *, wide: bool = False) -> str:
    own = convert if error is ResultError else convert_input
    try:
        fast = orjson.dumps(value, default=own, option=_OPTIONS)
    except (TypeError, ValueError, RecursionError):  # orjson's own error is a TypeError that does not name the place
        fast = b""
    # These patterns also occur in valid documents (a None, a backslash in a text). Those take the
    # walk and pass.
    if (
        fast
        and b"\\u0000" not in fast
        and fast.count(b"[") + fast.count(b"{") <= DEEPEST
        and (b"null" not in fast or _holds_no_nan(value))
    ):
        text = fast.decode()
        size = len(fast)
    else:
        if len(fast) > max_bytes:
            raise error(_too_long(what, len(fast), max_bytes))
        try:
            plain = Walk(what, error, own, wide=wide).plain(value)
        except RecursionError:
            message = f"{what} at $ is nested too deeply for what is left of the stack: make it flatter"
            raise error(message) from None
        text = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        size = len(text.encode())
    if size > max_bytes:
        raise error(_too_long(what, size, max_bytes))
    return text


def _holds_no_nan(value: object) -> bool:
    """Return whether a document of plain types contains no NaN, so that its nulls come from None.

    Returns False for other types, so that the document is walked.
    """
    seen = [value]
    for part in seen:
        kind = type(part)
        if kind is dict:
            seen.extend(part.values())  # type: ignore[attr-defined]
        elif kind is list or kind is tuple:
            seen.extend(part)  # type: ignore[arg-type]
        elif kind is float:
            if not math.isfinite(part):  # type: ignore[arg-type]
                return False
        elif kind not in _PLAIN:
            return False
    return True


def _too_long(what: str, size: int, max_bytes: int) -> str:
    return (
        f"{what} at $ is {size:,} bytes, more than {max_bytes:,}: store the data elsewhere and pass its key, "
        "or raise JOBHERD_MAX_PAYLOAD"
    )
