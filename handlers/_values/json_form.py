"""Returns the JSON form of Python values, part by part, and names the first part without one.

This is the slow path of `payload`, which encodes most documents without it. An error must not show
a value: it names the place and the fix.
"""

from __future__ import annotations

import math
import os
import re
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Final
from uuid import UUID

from jobherd.handlers._values.misfit import path_step
from jobherd.handlers._values.models import dump_model, is_model, naive_in
from jobherd.handlers._values.shapes import NOTHING, attributes, has_fields

if TYPE_CHECKING:
    from collections.abc import Callable

DEEPEST: Final = 100
LONGEST_INTEGER: Final = 1000  # digits

_TOO_BIG: Final = 10**LONGEST_INTEGER
_ANNOTATE: Final = ", or annotate the parameter as a set"
_PASS: Final = re.compile(r"\bpass\b")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def convert(value: object) -> object:
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
                message = "is a Decimal that is not a finite number: pass None instead"
                raise TypeError(message)
            return str(value)
        case Enum():
            return value.value
    kind = type(value)
    if is_model(kind):
        return dump_model(value)
    if has_fields(kind):
        try:
            # a field that __init__ does not set may be missing
            parts = [(name, getattr(value, name, NOTHING)) for name in attributes(kind)]
        except Exception as problem:  # a property of the application raised
            message = f"is {with_article(type_name(value))} whose fields cannot be read: {type(problem).__name__}"
            raise TypeError(message) from None
        return {name: part for name, part in parts if part is not NOTHING}
    message = f"is {with_article(type_name(value))}, which JSON cannot represent: {_fix(value)}"
    raise TypeError(message)


class NaiveError(TypeError):
    """A datetime has no zone. place: its path inside the value."""

    def __init__(self, place: str) -> None:
        super().__init__(
            "has no time zone, so it is a different time on each host: "
            "pass datetime.now(UTC) + ..., or value.astimezone()"
        )
        self.place = place


def convert_input(value: object) -> object:
    """Like `convert`, for a payload, which must not contain datetimes without a zone."""
    place = "" if isinstance(value, datetime) and value.utcoffset() is None else naive_in(value)
    if place is not None:
        raise NaiveError(place)
    return convert(value)


def type_name(value: object) -> str:
    """Return the dotted name of the type of a value, without the module for built-in types."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def with_article(name: str) -> str:
    """Return the name of a type with its article.

    >>> with_article("int"), with_article("uuid.UUID")
    ('an int', 'a uuid.UUID')
    """
    return f"{'an' if name[:1] in 'aeioAEIO' else 'a'} {name}"


class Walk:
    """A walk through one value.

    Args:
        what: payload or result, for messages.
        error: class of the error for a part without a JSON form.
        convert: `convert` or `convert_input`.
        wide: also take sets as arrays, and keys that are text in JSON, such as integers and dates.
            The caller has to check that they arrive as given.
    """

    def __init__(
        self, what: str, error: Callable[[str, str], Exception], convert: Callable[[object], object], *, wide: bool
    ) -> None:
        self._what = what
        self._error = error
        self._convert = convert
        self._wide = wide

    def plain(self, value: object, path: str = "$", depth: int = 1) -> object:
        """Return `value` in plain JSON types, or raise the error that names the first invalid place."""
        match value:
            case None | bool():
                return value
            case Enum():
                return self.plain(value.value, path, depth)
            case str():
                self._check_text(value, path)
                return str.__str__(value)
            case int():
                if not -_TOO_BIG < value < _TOO_BIG:
                    raise self._problem(
                        path, f"is an integer of more than {LONGEST_INTEGER:,} digits: pass it as a string"
                    )
                return int(value)
            case float():
                if not math.isfinite(value):
                    raise self._problem(path, f"is {float(value)!r}, which JSON cannot represent: pass None instead")
                return float(value)
        if isinstance(value, dict | list) or type(value) is tuple:
            if depth > DEEPEST:
                fault = f"is nested deeper than {DEEPEST} levels, or contains itself: make it flatter"
                raise self._problem(path, fault)
            if isinstance(value, dict):
                return {
                    self._key(key, path): self.plain(part, path + path_step(key), depth + 1)
                    for key, part in value.items()
                }
            return [self.plain(part, f"{path}[{place}]", depth + 1) for place, part in enumerate(value)]
        if self._wide and isinstance(value, set | frozenset):
            return self.plain(_ordered(value), path, depth)
        try:
            converted = self._convert(value)
        except TypeError as problem:
            path += problem.place if isinstance(problem, NaiveError) else ""
            raise self._problem(path, str(problem)) from None
        return self.plain(converted, path, depth)

    def _key(self, key: object, path: str) -> str:
        text = key
        if self._wide and not isinstance(key, str | tuple):
            text = self.plain(key, path)
            text = str(text) if type(text) is int else text
        if not isinstance(text, str):
            fault = f"has a key of type {type_name(key)}: keys of JSON objects are strings, pass str(key)"
            raise self._problem(path, fault)
        self._check_text(text, path, f"a key of the {self._what}")
        return str.__str__(text)

    def _check_text(self, text: str, path: str, what: str = "") -> None:
        if "\0" in text:
            fault = "holds a NUL character, which PostgreSQL rejects: remove it, or pass base64"
            raise self._problem(path, fault, what=what)
        if not text.isascii() and _SURROGATE.search(text):
            fault = "contains a lone surrogate, which is not valid Unicode: decode the text with its actual encoding"
            raise self._problem(path, fault, what=what)

    def _problem(self, path: str, fault: str, *, what: str = "") -> Exception:
        if self._what == "result":
            fault = _PASS.sub("return", fault.removesuffix(_ANNOTATE))
        return self._error(f"{what or self._what} at {_shortened(path)} {fault}", path)


def _ordered(value: set[object] | frozenset[object]) -> list[object]:
    """Return the members of a set, sorted if possible: equal sets get equal payloads."""
    try:
        return sorted(value)  # type: ignore[type-var]  # members without an order raise
    except Exception:  # or their own comparison does
        return list(value)


def _fix(value: object) -> str:
    match value:
        case bytes() | bytearray() | memoryview():
            return "pass base64.b64encode(value).decode(), or store the bytes elsewhere and pass their key"
        case set() | frozenset():
            return f"pass sorted(value){_ANNOTATE}"
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


def _shortened(path: str) -> str:
    return path if len(path) <= 120 else f"{path[:60]} ... {path[-40:]}"
