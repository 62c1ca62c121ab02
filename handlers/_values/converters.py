"""Converts and checks a JSON value for each type that can annotate a handler's parameter.

A converter takes a value decoded from JSON and returns the argument, or raises Misfit with what is
expected. Containers add their step to the Misfit as it passes, so the path is built only on an
error. A converter of None accepts any value, as for `Any`. An unsupported type is rejected: by
`facts` when handlers are loaded, otherwise with the first value.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterable
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from jobherd.handlers._values.misfit import Misfit
from jobherd.handlers._values.misfit import path_step as step
from jobherd.handlers._values.models import library_of, model_converter
from jobherd.handlers._values.sanitize import describe_exception
from jobherd.handlers._values.shapes import (
    NOTHING,
    Field,
    fields_of,
    has_fields,
    is_named_tuple,
    is_typed_dict,
    substituted,
)

Convert: TypeAlias = Callable[[Any], Any]

_SEQUENCES: Final = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_MAPPINGS: Final = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_ARRAYS: Final = (*_SEQUENCES, tuple, set, frozenset)
UNKNOWN: Final = (
    "which Jobherd cannot convert from JSON: see the types in docs/writing-handlers.md, or annotate what JSON has"
)
_WRAPPERS: Final = (typing.Annotated, typing.Required, typing.NotRequired)


def converter_for(hint: Any) -> Convert | None:
    """Return the converter from a JSON value to `hint`, or None if any value is accepted.

    The converter of an unsupported type rejects every value.

    >>> converter_for(tuple[int, ...])([1, 2])
    (1, 2)
    """
    try:
        return _converter(hint)
    except _UnknownError as unknown:
        return _refusing(unknown)
    # a schema that its library cannot build, or an annotation that refers only to itself
    except (TypeError, RecursionError):
        return _refusing(_UnknownError(hint))


def facts(hint: Any) -> Facts:
    """Return what can be known of an annotation without a value.

    Checks every field of every class.
    """
    found = Facts()
    _explore(hint, found, set())
    return found


@dataclasses.dataclass(slots=True)
class Facts:
    """Properties of an annotation.

    unknown: names of types without a converter.
    compared: whether an argument may arrive changed and has to be compared.
    own: JSON types that must arrive unchanged, because another member of a union has the same JSON
        form.
    """

    unknown: list[str] = dataclasses.field(default_factory=list)
    compared: bool = False
    own: frozenset[type] = frozenset()


class _UnknownError(Exception):
    def __init__(self, hint: Any) -> None:
        super().__init__(hint)
        self.name = describe_type(hint)[:200]


class _Form(NamedTuple):
    """How an annotation is converted: `make` takes the converters of the annotations in `inner`.

    later: annotations needed only when a value arrives; they may refer to this one.
    compared, own: as in `Facts`.
    """

    make: Callable[..., Convert | None]
    inner: tuple[Any, ...] = ()
    later: Callable[[], Iterable[Any]] = tuple
    compared: bool = False
    own: frozenset[type] = frozenset()


def _explore(hint: Any, found: Facts, seen: set[int | Any]) -> None:
    key = hint if isinstance(hint, collections.abc.Hashable) else id(hint)
    try:
        if key in seen:
            return
        seen.add(key)
        form = _form(hint)
        inner = (*form.inner, *form.later())
        form.make(*map(converter_for, form.inner))
    except _UnknownError as unknown:
        found.unknown.append(unknown.name)
        return
    except (TypeError, RecursionError):
        found.unknown.append(_UnknownError(hint).name)
        return
    found.compared |= form.compared
    found.own |= form.own
    for one in inner:
        _explore(one, found, seen)


def describe_type(hint: Any) -> str:
    """Return a type's name for people: `int`, `list[str]`, `Color`."""
    if isinstance(hint, type) and hint is not type(None) and not typing.get_args(hint):
        return hint.__name__
    if hint is None or hint is type(None):
        return "None"
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        return " | ".join(describe_type(member) for member in typing.get_args(hint))
    return str(hint).replace("typing.", "").replace("NoneType", "None")


def _converter(hint: Any) -> Convert | None:
    """Return the converter for an annotation.

    Raises _UnknownError, and TypeError for what cannot annotate a payload.
    """
    try:
        hash(hint)
    except TypeError:  # Annotated with a list in it
        return _build(hint)
    return _known_converter(hint, repr(hint))


@cache
def _known_converter(hint: Any, _written: str) -> Convert | None:
    return _build(hint)  # two unions in different order are equal but convert differently: `_written` tells them apart


def _build(hint: Any) -> Convert | None:
    form = _form(hint)
    return form.make(*map(converter_for, form.inner))


def _refusing(unknown: _UnknownError) -> Convert:
    def convert(_: Any) -> Any:
        reason = f"is annotated {unknown.name}, {UNKNOWN}"
        raise Misfit(reason)

    return convert


def _form(hint: Any) -> _Form:  # one return for each form of annotation
    if hint is None:
        hint = type(None)
    if isinstance(hint, collections.abc.Hashable) and hint in _PLAIN:
        return _Form(lambda: _PLAIN[hint])
    if isinstance(hint, typing.ForwardRef):  # a name that could not be resolved
        return _Form(lambda: None)
    if isinstance(hint, typing.TypeVar):
        return _Form(_itself, (substituted(hint, {}),))
    if hasattr(hint, "__supertype__"):  # NewType
        return _Form(_itself, (hint.__supertype__,))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if type(hint).__name__ == "TypeAliasType" or type(origin).__name__ == "TypeAliasType":
        value = hint.__value__ if origin is None else origin.__value__[arguments]
        return _Form(lambda: _lazy(value), later=lambda: [value])
    if (library := library_of(hint)) is not None:
        return _Form(lambda: model_converter(hint, library), compared=True)
    if origin in _WRAPPERS:
        return _Form(_itself, arguments[:1])
    if origin is typing.Union or origin is types.UnionType:
        return _union_form(hint, arguments)
    if origin is typing.Literal:
        return _Form(lambda: _literal(arguments))
    kind = hint if origin is None else origin
    if is_typed_dict(kind):
        return _Form(lambda: _record(hint, kind), later=lambda: [one.hint for one in fields_of(hint)])
    if has_fields(kind):
        return _Form(lambda: _object(hint, kind), later=lambda: [one.hint for one in fields_of(hint)], compared=True)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _Form(lambda: _enum(kind))
    return _container_form(kind, arguments)


def _itself(convert: Convert | None) -> Convert | None:
    return convert


def _lazy(hint: Any) -> Convert:
    """Return a converter that is built on first use: a type alias may refer to itself."""

    def convert(value: Any) -> Any:
        known = converter_for(hint)
        return value if known is None else known(value)

    return convert


def _container_form(origin: Any, arguments: tuple[Any, ...]) -> _Form:
    if origin in _SEQUENCES:
        return _Form(lambda item: _list(item, list), arguments or (Any,))
    if origin in {set, frozenset}:
        return _Form(lambda item: _list(item, origin), arguments or (Any,))
    if origin is tuple:
        if not arguments:
            return _Form(lambda: _list(None, tuple))
        if len(arguments) == 2 and arguments[1] is Ellipsis:  # tuple[int, ...]
            return _Form(lambda item: _list(item, tuple), arguments[:1])
        return _Form(lambda *items: _row(items), tuple(one for one in arguments if one != ()))
    if origin in _MAPPINGS:
        key, value = arguments or (str, Any)
        return _Form(lambda *both: _mapping(None if key in {str, Any} else both[0], both[1]), (key, value))
    raise _UnknownError(origin)


def _union_form(hint: Any, members: tuple[Any, ...]) -> _Form:
    # A member that accepts any object would also accept the values of the others, so it comes last.
    members = tuple(sorted(map(_bare, members), key=_is_mapping))
    others = [member for member in members if member not in _JSON_TYPES]
    own: set[type] = set()
    if others:
        bases = (typing.get_args(one)[0] if typing.get_origin(one) is typing.Annotated else one for one in members)
        own.update(base for base in bases if base in _JSON_TYPES)
        own.update(
            type(value) for one in others if typing.get_origin(one) is typing.Literal for value in typing.get_args(one)
        )
    if sum((typing.get_origin(one) or one) in _ARRAYS for one in others) > 1:
        own.update((list, tuple))
    if len(others) > 1 and any(map(_is_mapping, others)):
        own.add(dict)
    compared = len(others) > 1 or (bool(others) and bool(own - {type(None)}))
    return _Form(lambda *converts: _union(hint, members, converts), members, compared=compared, own=frozenset(own))


def _bare(hint: Any) -> Any:
    """Return the type below a NewType, or below an Annotated that no library checks."""
    while True:
        if hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif typing.get_origin(hint) is typing.Annotated and library_of(hint) is None:
            hint = typing.get_args(hint)[0]
        else:
            return hint


def _is_mapping(hint: Any) -> bool:
    return (typing.get_origin(hint) or hint) in _MAPPINGS


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
    """Return a converter for a type that travels as text."""

    def convert(value: Any) -> object:
        if type(value) is not str:
            raise Misfit(_mismatch(f"{name} as a string like {example!r}", value))
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


def _union(hint: Any, members: tuple[Any, ...], converts: tuple[Convert | None, ...]) -> Convert | None:
    exact: dict[type, Convert] = {}
    others: list[Convert] = []
    for member, convert in zip(members, converts, strict=True):
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
            raise alone  # only one member fits the value's form: its error names the place
        raise Misfit(_mismatch(expected, value))

    return convert_union


def _literal(values: tuple[Any, ...]) -> Convert:
    known: dict[tuple[type, Any], Any] = {}
    for value in values:
        plain = value.value if isinstance(value, Enum) else value
        known[type(plain), plain] = value
    expected = f"one of {', '.join(repr(plain) for _, plain in known)}"

    def convert(value: Any) -> Any:
        found = known.get((type(value), value), NOTHING) if isinstance(value, collections.abc.Hashable) else NOTHING
        if found is NOTHING:
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
                return kind(value)  # flags, and enums with their own _missing_
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
                    result.append(item(part))  # noqa: PERF401  # its length is the index of a misfit
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


def _row(items: tuple[Convert | None, ...]) -> Convert:
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


def _mapping(key_of: Convert | None, value_of: Convert | None) -> Convert:
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


def _record(hint: Any, kind: Any) -> Convert:
    """Return a converter for an object with known keys.

    Its fields are resolved on first use: a type may refer to itself.
    """
    fields: list[tuple[Field, Convert | None]] = []
    name = kind.__name__

    def convert(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Misfit(_mismatch(f"an object with the fields of {name}", value))
        if not fields:
            fields.extend([(one, converter_for(one.hint)) for one in fields_of(hint)])
        result = {}
        for field, item in fields:
            key = field.name
            if key in value:
                try:
                    result[key] = value[key] if item is None else item(value[key])
                except Misfit as misfit:
                    misfit.steps.append(step(key))
                    raise
            elif field.required:
                lost = "" if field.kept else ", an InitVar, which an object does not keep: pass a dict that has it"
                reason = f"lacks the field {key!r} of {name}{lost}"
                raise Misfit(reason)
        if len(result) != len(value):
            reason = f"has a key {min(value.keys() - result.keys())[:80]!r} that {name} has no field for"
            raise Misfit(reason)
        return result

    return convert


def _object(hint: Any, kind: Any) -> Convert:
    read = _record(hint, kind)
    arguments: dict[str, str | None] = {}

    names = kind._fields if is_named_tuple(kind) else None

    def convert(value: Any) -> Any:
        # other libraries write a named tuple as a list
        if names is not None and type(value) is list and len(value) == len(names):
            value = dict(zip(names, value, strict=True))
        fields = read(value)
        if not arguments:
            arguments.update({field.name: field.argument for field in fields_of(hint)})
        try:
            made = kind(
                **{
                    argument: fields[name]
                    for name, argument in arguments.items()
                    if argument is not None and name in fields
                }
            )
            for name, argument in arguments.items():
                if argument is None and name in fields:
                    object.__setattr__(made, name, fields[name])  # the class may be frozen
        except Exception as problem:  # user code raised: __post_init__
            reason = f"makes no {kind.__name__}: {describe_exception(problem, message_bytes=500)[0]}"
            raise Misfit(reason) from None
        return made

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
    datetime: _text(_moment, "a date and time with a zone", "2025-01-31T12:00:00+00:00"),
    date: _text(date.fromisoformat, "a date", "2025-01-31"),
    time: _text(time.fromisoformat, "a time", "12:00:00"),
    UUID: _text(UUID, "a UUID", "12345678-1234-5678-1234-567812345678"),
    Decimal: _decimal,
    Any: None,
    object: None,
    inspect.Parameter.empty: None,
}
