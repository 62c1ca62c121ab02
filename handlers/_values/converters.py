"""Chooses the converter for a type that annotates a handler's parameter.

A converter takes a value decoded from JSON and returns the argument, or raises Misfit with what is
expected. A converter of None accepts any value, as for `Any`. An unsupported type is rejected: by
`traits` when handlers are loaded, otherwise with the first value.
"""

from __future__ import annotations

import collections.abc
import types
import typing
from enum import Enum
from functools import cache, partial
from typing import Any, Final, NamedTuple

from jobherd.handlers._values import containers, scalars
from jobherd.handlers._values.misfit import Misfit
from jobherd.handlers._values.models import library_of, model_converter
from jobherd.handlers._values.scalars import JSON_TYPES, PLAIN, TEXTS, Convert
from jobherd.handlers._values.shapes import Field, fields_of, has_fields, is_typed_dict, substituted

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_SEQUENCES: Final = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_MAPPINGS: Final = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_ARRAYS: Final = (*_SEQUENCES, tuple, set, frozenset)
UNKNOWN: Final = (
    "which Jobherd cannot convert from JSON: see the types in docs/how-to/write/payloads-and-results.md, "
    "or annotate what JSON has"
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
    except UnknownError as unknown:
        return _refusing(unknown)
    # a schema that its library cannot build, or an annotation that refers only to itself
    except (TypeError, RecursionError):
        return _refusing(UnknownError(hint))


class UnknownError(Exception):
    """No converter supports an annotation. name: how to show it."""

    def __init__(self, hint: Any) -> None:
        super().__init__(hint)
        self.name = describe_type(hint)[:200]


class Form(NamedTuple):
    """How an annotation is converted: `make` takes the converters of the annotations in `inner`.

    later: annotations needed only when a value arrives; they may refer to this one.
    compared, own, wide: as in `Traits`.
    """

    make: Callable[..., Convert | None]
    inner: tuple[Any, ...] = ()
    later: Callable[[], Iterable[Any]] = tuple
    compared: bool = False
    own: frozenset[type] = frozenset()
    wide: bool = False


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

    Raises UnknownError, and TypeError for what cannot annotate a payload.
    """
    try:
        hash(hint)
    except TypeError:  # Annotated with a list in it
        return _build(hint)
    return _known_converter(hint, repr(hint))


@cache
def _known_converter(hint: Any, _written: str) -> Convert | None:
    # Two unions in different order are equal but convert differently: `_written` tells them apart.
    return _build(hint)


def _build(hint: Any) -> Convert | None:
    form = form_of(hint)
    return form.make(*map(converter_for, form.inner))


def _refusing(unknown: UnknownError) -> Convert:
    def convert(_: Any) -> Any:
        reason = f"is annotated {unknown.name}, {UNKNOWN}"
        raise Misfit(reason)

    return convert


def form_of(hint: Any) -> Form:  # one return for each form of annotation
    """Return how an annotation is converted. Raises UnknownError."""
    if hint is None:
        hint = type(None)
    if isinstance(hint, collections.abc.Hashable) and hint in PLAIN:
        return Form(lambda: PLAIN[hint])
    if isinstance(hint, typing.ForwardRef):  # a name that could not be resolved
        return Form(lambda: None)
    if isinstance(hint, typing.TypeVar):
        return Form(_itself, (substituted(hint, {}),))
    if hasattr(hint, "__supertype__"):  # NewType
        return Form(_itself, (hint.__supertype__,))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if (aliased := _aliased(hint)) is not None:
        return Form(lambda: _lazy(aliased), later=lambda: [aliased])
    if (library := library_of(hint)) is not None:
        return Form(lambda: model_converter(hint, library), compared=True)
    if origin in _WRAPPERS:
        return Form(_itself, arguments[:1])
    if origin is typing.Union or origin is types.UnionType:
        return _union_form(hint, arguments)
    if origin is typing.Literal:
        return Form(lambda: scalars.literal(arguments))
    kind = hint if origin is None else origin
    if is_typed_dict(kind):
        return Form(lambda: containers.record(kind, _fields(hint)), later=lambda: _hints(hint))
    if has_fields(kind):
        return Form(lambda: containers.instance(kind, _fields(hint)), later=lambda: _hints(hint), compared=True)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return Form(lambda: scalars.enum(kind))
    return _container_form(hint, kind, arguments)


def _fields(hint: Any) -> Callable[[], list[tuple[Field, Convert | None]]]:
    return cache(lambda: [(one, converter_for(one.hint)) for one in fields_of(hint)])


def _hints(hint: Any) -> list[Any]:
    return [one.hint for one in fields_of(hint)]


def _itself(convert: Convert | None) -> Convert | None:
    return convert


def _lazy(hint: Any) -> Convert:
    """Return a converter that is built on first use: a type alias may refer to itself."""

    def convert(value: Any) -> Any:
        known = converter_for(hint)
        return value if known is None else known(value)

    return convert


def _container_form(hint: Any, origin: Any, arguments: tuple[Any, ...]) -> Form:
    if origin in _SEQUENCES:
        return Form(lambda item: containers.array(item, list), arguments or (Any,))
    if origin in {set, frozenset}:
        if arguments and _is_unhashable(arguments[0]):
            raise UnknownError(hint)
        return Form(lambda item: containers.array(item, origin), arguments or (Any,), compared=True, wide=True)
    if origin is tuple:
        if not arguments:
            return Form(lambda: containers.array(None, tuple))
        if len(arguments) == 2 and arguments[1] is Ellipsis:  # tuple[int, ...]
            return Form(lambda item: containers.array(item, tuple), arguments[:1])
        return Form(lambda *items: containers.row(items), tuple(one for one in arguments if one != ()))
    if origin in _MAPPINGS:
        key, value = arguments or (str, Any)
        if bare(key) in (str, Any):  # it may not be hashable
            return Form(lambda item: containers.mapping(None, item), (value,))
        if (key_of := _key_converter(key)) is None:
            raise UnknownError(hint)
        return Form(lambda _, item: containers.mapping(key_of, item), (key, value), compared=True, wide=True)
    raise UnknownError(hint)


def _is_unhashable(hint: Any) -> bool:
    kind = typing.get_origin(bare(hint)) or bare(hint)
    return kind in _SEQUENCES or kind in _MAPPINGS or is_typed_dict(kind) or getattr(kind, "__hash__", kind) is None


def _key_converter(hint: Any) -> Convert | None:
    """Return the converter from the text of a key to `hint`, or None if JSON has no such keys."""
    kind = bare(hint)
    if kind is int:
        return scalars.integer_key
    if isinstance(kind, type) and issubclass(kind, Enum):
        return scalars.enum_key(kind) if all(type(one.value) in {int, str} for one in kind) else None
    members = typing.get_args(kind) if typing.get_origin(kind) in {typing.Union, types.UnionType} else (kind,)
    return converter_for(kind) if all(map(_is_text, members)) else None


def _is_text(hint: Any) -> bool:
    """Return whether every value of the annotation is text in JSON."""
    kind = bare(hint)
    if typing.get_origin(kind) is typing.Literal:
        return all(type(one) is str for one in typing.get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return all(type(one.value) is str for one in kind)
    return kind is str or kind in TEXTS or library_of(kind) is not None


def _union_form(hint: Any, members: tuple[Any, ...]) -> Form:
    # A member that accepts any object would also accept the values of the others, so it comes last.
    members = tuple(sorted(map(bare, members), key=_is_mapping))
    others = [member for member in members if member not in JSON_TYPES]
    own: set[type] = set()
    if others:
        bases = (typing.get_args(one)[0] if typing.get_origin(one) is typing.Annotated else one for one in members)
        own.update(base for base in bases if base in JSON_TYPES)
        own.update(
            type(value) for one in others if typing.get_origin(one) is typing.Literal for value in typing.get_args(one)
        )
    if sum((typing.get_origin(one) or one) in _ARRAYS for one in others) > 1:
        own.update((list, tuple))
    if len(others) > 1 and any(map(_is_mapping, others)):
        own.add(dict)
    compared = len(others) > 1 or (bool(others) and bool(own - {type(None)}))
    make = partial(_union, describe_type(hint), members)
    return Form(make, members, compared=compared, own=frozenset(own))


def _union(expected: str, members: tuple[Any, ...], *converts: Convert | None) -> Convert | None:
    return containers.union(expected, members, converts)


def bare(hint: Any) -> Any:
    """Return the type below a NewType, an alias, or an Annotated that no library checks."""
    while True:
        if hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif isinstance(hint, typing.TypeVar):
            hint = substituted(hint, {})
        elif (aliased := _aliased(hint)) is not None:
            hint = aliased
        elif typing.get_origin(hint) is typing.Annotated and library_of(hint) is None:
            hint = typing.get_args(hint)[0]
        else:
            return hint


def _aliased(hint: Any) -> Any:
    """Return what a `type` alias stands for, or None if the annotation is not an alias."""
    if type(hint).__name__ == "TypeAliasType":
        return hint.__value__
    origin = typing.get_origin(hint)
    return origin.__value__[typing.get_args(hint)] if type(origin).__name__ == "TypeAliasType" else None


def _is_mapping(hint: Any) -> bool:
    return (typing.get_origin(hint) or hint) in _MAPPINGS
