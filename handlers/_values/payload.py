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
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import cache
from typing import Final, NoReturn, TypeAlias
from uuid import UUID

import orjson

from jobherd.handlers._values.misfit import path_step
from jobherd.handlers._values.models import dump_model, is_model, naive_in
from jobherd.handlers._values.shapes import NOTHING, attributes, has_fields

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
"""Any JSON document."""

DEEPEST: Final = 100
LONGEST_INTEGER: Final = 1000  # digits
DEFAULT_BYTES: Final = 1_000_000

_TOO_BIG: Final = 10**LONGEST_INTEGER
_LONG_NUMBER: Final = re.compile(r"[0-9]{19,}")
_SAMPLED: Final = re.compile(r"[0-9]{3}")
"""Nineteen digits in a row show as three in a row in every sixth character: checking a sixth clears
most documents."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
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


def check_bytes(value: object) -> bytes:
    """Return `value` as the payload bytes of a job, or raise TypeError or PayloadError.

    >>> check_bytes(bytearray(b"PNG"))
    b'PNG'
    """
    if not isinstance(value, bytes | bytearray | memoryview):
        message = f"payload_bytes must be bytes, not a {type(value).__name__}: pass text.encode(), or a JSON value as the payload"
        raise TypeError(message)
    data = bytes(value)
    if len(data) > max_payload():
        raise PayloadError(_too_long("payload_bytes", len(data), max_payload()))
    return data


def encode_result(value: object, *, max_bytes: int | None = None) -> str | None:
    """Return a handler's return value as JSON text, or None for None.

    The rules are those of `check_payload`. An invalid value raises ResultError with a message that
    can be stored.

    >>> encode_result({"pages": 3})
    '{"pages":3}'
    """
    if value is None:
        return None
    return _encode(value, max_payload() if max_bytes is None else max_bytes, "result", ResultError)


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
    message = f"{name} is no JSON"
    raise ValueError(message)


def _encode(value: object, max_bytes: int, what: str, error: type[PayloadError]) -> str:
    try:
        fast = orjson.dumps(value, default=_convert if error is ResultError else _convert_input, option=_OPTIONS)
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
            plain = _walk(value, "$", 1, what, error)
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
        f"{what} at $ is {size:,} bytes, more than {max_bytes:,}: store the data elsewhere and hand over its key, "
        "or raise JOBHERD_MAX_PAYLOAD"
    )


class _NaiveError(TypeError):
    """A datetime has no zone. place: its path inside the value."""

    def __init__(self, place: str) -> None:
        super().__init__(
            "has no time zone, so it is another moment on each host: pass datetime.now(UTC) + ..., or value.astimezone()"
        )
        self.place = place


def _convert_input(value: object) -> object:
    """Like `_convert`, for a payload, which must not contain datetimes without a zone."""
    place = "" if isinstance(value, datetime) and value.utcoffset() is None else naive_in(value)
    if place is not None:
        raise _NaiveError(place)
    return _convert(value)


def _convert(value: object) -> object:
    """Return the JSON form of a value of a type that JSON lacks.

    Raises TypeError with the fix if there is none.
    """
    match value:
        case datetime() | date() | time():
            return value.isoformat()
        case UUID():
            return str(value)
        case Decimal():
            if not value.is_finite():
                message = "is a Decimal that is no finite number: pass None instead"
                raise TypeError(message)
            return str(value)
        case Enum():
            return value.value
    kind = type(value)
    if is_model(kind):
        return dump_model(value)
    if has_fields(kind):
        try:
            parts = [
                (name, getattr(value, name, NOTHING)) for name in attributes(kind)
            ]  # a field that __init__ does not set may be missing
        except Exception as problem:  # a property of the application raised
            message = f"is a {type_name(value)} whose fields cannot be read: {type(problem).__name__}"
            raise TypeError(message) from None
        return {name: part for name, part in parts if part is not NOTHING}
    message = f"is a {type_name(value)}, which JSON has no word for: {_remedy(value)}"
    raise TypeError(message)


def _remedy(value: object) -> str:
    match value:
        case bytes() | bytearray() | memoryview():
            return "pass base64.b64encode(value).decode(), or store the bytes elsewhere and pass their key"
        case set() | frozenset():
            return "pass sorted(value)"
        case os.PathLike():
            return "pass str(value)"
        case BaseException():
            return "raise it instead"
        case complex():
            return "pass [value.real, value.imag]"
    kind = type(value)
    if hasattr(kind, "total_seconds"):
        return "pass value.total_seconds()"
    if kind.__module__.partition(".")[0] == "numpy":
        return "pass value.item(), or value.tolist() for an array"
    if hasattr(kind, "__next__"):
        return "pass list(value)"
    if hasattr(kind, "__await__"):
        return "await it first"
    return "pass its key, or a dict, list, str, int, float, bool or None made from it"


def type_name(value: object) -> str:
    """Return the dotted name of the type of a value, without the module for built-in types."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _walk(value: object, path: str, depth: int, what: str, error: type[PayloadError]) -> object:
    """Return `value` in plain JSON types, or raise `error` naming the first invalid place."""
    match value:
        case None | bool():
            return value
        case Enum():
            return _walk(value.value, path, depth, what, error)
        case str():
            _check_text(value, path, what, error)
            return str.__str__(value)
        case int():
            if not -_TOO_BIG < value < _TOO_BIG:
                message = f"{what} at {path} is an integer of more than {LONGEST_INTEGER:,} digits: pass it as a string"
                raise error(message, path)
            return int(value)
        case float():
            if not math.isfinite(value):
                message = f"{what} at {path} is {float(value)!r}, which JSON has no word for: pass None instead"
                raise error(message, path)
            return float(value)
    if isinstance(value, dict | list) or type(value) is tuple:
        if depth > DEEPEST:
            message = (
                f"{what} at {_shortened(path)} is nested deeper than {DEEPEST} levels, or holds itself: make it flatter"
            )
            raise error(message, path)
        if isinstance(value, dict):
            return {
                _key(key, path, what, error): _walk(part, path + path_step(key), depth + 1, what, error)
                for key, part in value.items()
            }
        return [_walk(part, f"{path}[{place}]", depth + 1, what, error) for place, part in enumerate(value)]
    try:
        converted = (_convert if error is ResultError else _convert_input)(value)
    except TypeError as problem:
        path += problem.place if isinstance(problem, _NaiveError) else ""
        message = f"{what} at {path} {problem}"
        raise error(message, path) from None
    return _walk(converted, path, depth, what, error)


def _key(key: object, path: str, what: str, error: type[PayloadError]) -> str:
    if not isinstance(key, str):
        message = (
            f"{what} at {path} has a key of type {type_name(key)}: keys of JSON objects are strings, pass str(key)"
        )
        raise error(message, path)
    _check_text(key, path, f"a key of the {what}", error)
    return str.__str__(key)


def _check_text(text: str, path: str, what: str, error: type[PayloadError]) -> None:
    if "\0" in text:
        message = f"{what} at {path} holds a NUL character, which PostgreSQL refuses: remove it, or pass base64"
        raise error(message, path)
    if not text.isascii() and _SURROGATE.search(text):
        message = f"{what} at {path} holds a lone surrogate, which is no Unicode text: decode the text with its right encoding"
        raise error(message, path)


def _shortened(path: str) -> str:
    return path if len(path) <= 120 else f"{path[:60]} ... {path[-40:]}"
