"""For each type that may annotate a handler's parameter: what checks a JSON value against it, and builds it.

A converter takes a value that came out of JSON and returns the argument, or raises Misfit with what belongs there. Containers add
the step to the misfit as it passes, so the path is only built when something is wrong. None in place of a converter means that
anything goes. An annotation that is not known here is one of these: checks that cannot be made are not made.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import cache
from typing import Any, Final, TypeAlias
from uuid import UUID

from handlers._payload import path_step as step
from handlers._sanitize import describe_exception

Convert: TypeAlias = Callable[[Any], Any]

_SEQUENCES: Final = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_MAPPINGS: Final = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_WRAPPERS: Final = (typing.Annotated, typing.Required, typing.NotRequired)
_NOTHING: Final = object()


class Misfit(Exception):  # noqa: N818  # never leaves the package
    """A value does not fit. `steps` leads to it, the innermost first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []


def converter_for(hint: Any) -> Convert | None:  # any annotation
    """Return what converts a JSON value to `hint`, or None if anything goes."""
    try:
        return _known_converter(hint)
    except (TypeError, RecursionError):  # an annotation that cannot be hashed, or that only ever mentions itself
        return None


def describe_type(hint: Any) -> str:
    """Return how people call the type: `int`, `list[str]`, `Color`."""
    if isinstance(hint, type) and hint is not type(None) and not typing.get_args(hint):
        return hint.__name__
    if hint is None or hint is type(None):
        return "None"
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        return " | ".join(describe_type(member) for member in typing.get_args(hint))
    return str(hint).replace("typing.", "").replace("NoneType", "None")


@cache
def _known_converter(hint: Any) -> Convert | None:
    return _build(hint)


def _build(hint: Any) -> Convert | None:  # one return for each form of annotation
    if hint is None:
        hint = type(None)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if hasattr(hint, "__supertype__"):  # NewType
        return converter_for(hint.__supertype__)
    if type(hint).__name__ == "TypeAliasType":
        return converter_for(hint.__value__)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in _WRAPPERS:
        return converter_for(arguments[0])
    if origin is typing.Union or origin is types.UnionType:
        return _union(hint, arguments)
    if origin is typing.Literal:
        return _literal(arguments)
    if origin is not None:
        return _container(origin, arguments)
    if typing.is_typeddict(hint):
        return _typed_dict(hint)
    if not isinstance(hint, type):
        return None
    if issubclass(hint, Enum):
        return _enum(hint)
    if dataclasses.is_dataclass(hint):
        return _dataclass(hint)
    return _container(hint, ())


def _container(origin: Any, arguments: tuple[Any, ...]) -> Convert | None:
    if origin in _SEQUENCES:
        return _list(converter_for(arguments[0]) if arguments else None, list)
    if origin in {set, frozenset}:
        return _list(converter_for(arguments[0]) if arguments else None, origin)
    if origin is tuple:
        if not arguments:
            return _list(None, tuple)
        if len(arguments) == 2 and arguments[1] is Ellipsis:  # tuple[int, ...]
            return _list(converter_for(arguments[0]), tuple)
        return _row(arguments)
    if origin in _MAPPINGS:
        return _mapping(*(arguments or (str, Any)))
    return None


def _exactly(kind: type, expected: str) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is kind:
            return value
        raise Misfit(_mismatch(expected, value))

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
    raise Misfit(_mismatch("float", value))


def _text(build: Callable[[str], object], name: str, example: str) -> Convert:
    """Return a converter for what travels as text."""

    def convert(value: Any) -> object:
        if type(value) is not str:
            raise Misfit(_mismatch(f"{name} as a string like {example!r}", value))
        try:
            return build(value)
        except (ValueError, OverflowError, InvalidOperation):
            reason = f"must be {name} as a string like {example!r}"
            raise Misfit(reason) from None

    return convert


def _decimal(value: Any) -> Decimal:
    if type(value) is int:
        return Decimal(value)
    number = _decimal_text(value)
    if not number.is_finite():
        reason = "must be Decimal as a string like '12.50', and finite"
        raise Misfit(reason)
    return typing.cast("Decimal", number)


def _union(hint: Any, members: tuple[Any, ...]) -> Convert | None:
    exact: dict[type, Convert] = {}
    others: list[Convert] = []
    for member in members:
        convert = converter_for(member)
        if convert is None:
            return None
        if member in _JSON_TYPES:
            exact[member] = convert
        else:
            others.append(convert)
    if float in exact and int not in exact:
        exact[int] = exact[float]
    expected = describe_type(hint)

    def convert_union(value: Any) -> Any:
        if (known := exact.get(type(value))) is not None and not (others and type(value) is str):
            return known(value)
        alone = None
        for convert in others:
            try:
                return convert(value)
            except Misfit as misfit:
                alone = misfit
        if known is not None:
            return known(value)
        if alone is not None and len(others) == 1 and alone.steps:
            raise alone  # the one member that could be meant says where it is wrong
        raise Misfit(_mismatch(expected, value))

    return convert_union


def _literal(values: tuple[Any, ...]) -> Convert:
    known: dict[tuple[type, Any], Any] = {}
    for value in values:
        plain = value.value if isinstance(value, Enum) else value
        known[type(plain), plain] = value
    expected = f"one of {', '.join(repr(plain) for _, plain in known)}"

    def convert(value: Any) -> Any:
        found = known.get((type(value), value), _NOTHING) if isinstance(value, collections.abc.Hashable) else _NOTHING
        if found is _NOTHING:
            raise Misfit(_mismatch(expected, value))
        return found

    return convert


def _enum(kind: type[Enum]) -> Convert:
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
                return kind(value)  # flags, and enums with a _missing_ of their own
        except Exception:  # noqa: S110  # _missing_ is user code
            pass
        raise Misfit(_mismatch(expected, value))

    return convert


def _list(item: Convert | None, build: Callable[[list[Any]], Any]) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not list:
            raise Misfit(_mismatch("an array", value))
        if item is not None:
            result = []
            try:
                for part in value:
                    result.append(item(part))  # noqa: PERF401  # its length says where a misfit is
            except Misfit as misfit:
                misfit.steps.append(f"[{len(result)}]")
                raise
            value = result
        if build is list:
            return value
        try:
            return build(value)
        except TypeError:  # set: a member that cannot be hashed
            reason = "holds arrays or objects, which cannot be members of a set"
            raise Misfit(reason) from None

    return convert


def _row(hints: tuple[Any, ...]) -> Convert:
    items = [converter_for(hint) for hint in hints if hint != ()]

    def convert(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(items):
            length = f" with {len(value)}" if type(value) is list else ""
            raise Misfit(_mismatch(f"an array with {len(items)} items", value) + length)
        result = []
        for place, (item, part) in enumerate(zip(items, value, strict=True)):
            try:
                result.append(part if item is None else item(part))
            except Misfit as misfit:
                misfit.steps.append(f"[{place}]")
                raise
        return tuple(result)

    return convert


def _mapping(key_hint: Any, value_hint: Any) -> Convert:
    key_of = None if key_hint in {str, Any} else converter_for(key_hint)
    value_of = converter_for(value_hint)

    def convert(value: Any) -> dict[Any, Any]:
        if type(value) is not dict:
            raise Misfit(_mismatch("an object", value))
        if key_of is None and value_of is None:
            return value
        result = {}
        for key, part in value.items():
            try:
                result[key if key_of is None else key_of(key)] = part if value_of is None else value_of(part)
            except Misfit as misfit:
                misfit.steps.append(step(key))
                raise
        return result

    return convert


def _fields(name: str, slots: Callable[[], list[tuple[str, Convert | None, bool]]]) -> Callable[[Any], dict[str, Any]]:
    """Return what reads an object with known keys. The slots are asked for at the first use: a type may mention itself."""
    ready: list[tuple[str, Convert | None, bool]] = []

    def convert(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Misfit(_mismatch(f"an object with the fields of {name}", value))
        if not ready:
            ready.extend(slots())
        result = {}
        for key, item, required in ready:
            if key in value:
                try:
                    result[key] = value[key] if item is None else item(value[key])
                except Misfit as misfit:
                    misfit.steps.append(f".{key}")
                    raise
            elif required:
                reason = f"lacks the field {key!r} of {name}"
                raise Misfit(reason)
        if len(result) != len(value):
            reason = f"has a key {min(value.keys() - result.keys())[:80]!r} that {name} has no field for"
            raise Misfit(reason)
        return result

    return convert


def _typed_dict(kind: Any) -> Convert:
    def slots() -> list[tuple[str, Convert | None, bool]]:
        # NotRequired is looked at here: __required_keys__ does not see it in an annotation that is a string.
        return [
            (key, converter_for(hint), key in kind.__required_keys__ and typing.get_origin(hint) is not typing.NotRequired)
            for key, hint in typing.get_type_hints(kind, include_extras=True).items()
        ]

    return _fields(kind.__name__, slots)


def _dataclass(kind: Any) -> Convert:
    def slots() -> list[tuple[str, Convert | None, bool]]:
        try:
            hints = typing.get_type_hints(kind)
        except Exception:  # a name that only type checkers import
            hints = {}
        return [
            (
                field.name,
                converter_for(hints[field.name]) if field.name in hints else None,
                field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
            )
            for field in dataclasses.fields(kind)
            if field.init
        ]

    read = _fields(kind.__name__, slots)
    derived = frozenset(field.name for field in dataclasses.fields(kind) if not field.init)

    def convert(value: Any) -> Any:
        if derived and type(value) is dict:  # the door writes every field, also those that __init__ does not take
            value = {key: part for key, part in value.items() if key not in derived}
        fields = read(value)
        try:
            return kind(**fields)
        except Exception as problem:  # user code: __post_init__
            reason = f"makes no {kind.__name__}: {describe_exception(problem, message_bytes=500)[0]}"
            raise Misfit(reason) from None

    return convert


def _mismatch(expected: str, value: object) -> str:
    names = {type(None): "null", dict: "an object", list: "an array"}
    return f"must be {expected}, not {names.get(type(value), type(value).__name__)}"


_decimal_text: Final = _text(Decimal, "Decimal", "12.50")
_JSON_TYPES: Final = frozenset({int, float, str, bool, type(None)})
_PLAIN: Final[dict[Any, Convert | None]] = {
    int: _exactly(int, "int"),
    str: _exactly(str, "str"),
    bool: _exactly(bool, "bool"),
    type(None): _exactly(type(None), "null"),
    float: _float,
    datetime: _text(datetime.fromisoformat, "a date and time", "2025-01-31T12:00:00+00:00"),
    date: _text(date.fromisoformat, "a date", "2025-01-31"),
    time: _text(time.fromisoformat, "a time", "12:00:00"),
    UUID: _text(UUID, "a UUID", "12345678-1234-5678-1234-567812345678"),
    Decimal: _decimal,
    Any: None,
    object: None,
    inspect.Parameter.empty: None,
}
