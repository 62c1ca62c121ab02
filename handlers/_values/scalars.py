"""Converters from a JSON value to a value without parts: numbers, text, dates, enums, literals.

Each returns the argument or raises Misfit with what is expected. None of them coerces: "7" and True
are not an int.
"""

from __future__ import annotations

import collections.abc
import inspect
import re
import typing
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any, Final, TypeAlias
from uuid import UUID

from jobherd.handlers._values.json_form import LONGEST_INTEGER
from jobherd.handlers._values.misfit import Misfit, mismatch
from jobherd.handlers._values.shapes import NOTHING

Convert: TypeAlias = Callable[[Any], Any]

_INTEGER: Final = re.compile(f"0|-?[1-9][0-9]{{0,{LONGEST_INTEGER - 1}}}")


def _exactly(kind: type, expected: str) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is kind:
            return value
        raise mismatch(expected, value)

    return convert


def _float(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            reason = "must be float, not an integer that is too large for one"
            raise Misfit(reason) from None
    raise mismatch("float", value)


def _text(build: Callable[[str], object], name: str, example: str) -> Convert:
    """Return a converter for a type that travels as text."""

    def convert(value: Any) -> object:
        if type(value) is not str:
            raise mismatch(f"{name} as a string like {example!r}", value)
        try:
            return build(value)
        except (ValueError, OverflowError, InvalidOperation):
            reason = f"must be {name} as a string like {example!r}"
            raise Misfit(reason) from None

    return convert


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.utcoffset() is None:  # a date without a time has no zone either
        raise ValueError
    return moment


def _decimal(value: Any) -> Decimal:
    if type(value) is int:
        return Decimal(value)
    number = _decimal_text(value)
    if not number.is_finite():
        reason = "must be Decimal as a string like '12.50', and finite"
        raise Misfit(reason)
    return typing.cast("Decimal", number)


def literal(values: tuple[Any, ...]) -> Convert:
    """Return the converter for `Literal[values]`."""
    known: dict[tuple[type, Any], Any] = {}
    for value in values:
        plain = value.value if isinstance(value, Enum) else value
        known[type(plain), plain] = value
    expected = f"one of {', '.join(repr(plain) for _, plain in known)}"

    def convert(value: Any) -> Any:
        found = known.get((type(value), value), NOTHING) if isinstance(value, collections.abc.Hashable) else NOTHING
        if found is NOTHING:
            raise mismatch(expected, value)
        return found

    return convert


def enum(kind: type[Enum]) -> Convert:
    """Return the converter from a value to the enum's member."""
    try:
        known = {(type(member.value), member.value): member for member in kind}
    except TypeError:  # values that cannot be hashed
        known = {}
    expected = f"{kind.__name__}, one of {', '.join(repr(member.value) for member in list(kind)[:20])}"

    def convert(value: Any) -> Enum:
        if isinstance(value, collections.abc.Hashable) and (found := known.get((type(value), value))) is not None:
            return found
        try:
            if type(value) is not bool:
                return kind(value)  # flags, and enums with their own _missing_
        except Exception:  # noqa: S110  # _missing_ is user code
            pass
        raise mismatch(expected, value)

    return convert


def integer_key(text: str) -> int:
    """Return the integer that a key of a JSON object stands for."""
    if _INTEGER.fullmatch(text) is None:
        reason = "has a key that must be int, like '7'"
        raise Misfit(reason)
    return int(text)


def enum_key(kind: type[Enum]) -> Convert:
    """Return the converter from a key of a JSON object to a member whose value is text or an int."""
    known = {str(member.value): member for member in kind}
    reason = f"has a key that must be {kind.__name__}, one of {', '.join(map(repr, list(known)[:20]))}"

    def convert(text: str) -> Enum:
        if (found := known.get(text)) is None:
            raise Misfit(reason)
        return found

    return convert


_decimal_text: Final = _text(Decimal, "Decimal", "12.50")
JSON_TYPES: Final = frozenset({int, float, str, bool, type(None)})
TEXTS: Final[dict[Any, Convert]] = {
    datetime: _text(_moment, "a date and time with a zone", "2025-01-31T12:00:00+00:00"),
    date: _text(date.fromisoformat, "a date", "2025-01-31"),
    time: _text(time.fromisoformat, "a time", "12:00:00"),
    UUID: _text(UUID, "a UUID", "12345678-1234-5678-1234-567812345678"),
    Decimal: _decimal,
}
"""Converters of the types that travel as text."""
PLAIN: Final[dict[Any, Convert | None]] = {
    int: _exactly(int, "int"),
    str: _exactly(str, "str"),
    bool: _exactly(bool, "bool"),
    type(None): _exactly(type(None), "null"),
    float: _float,
    Any: None,
    object: None,
    inspect.Parameter.empty: None,
    **TEXTS,
}
"""Converters by annotation; None accepts any value."""
