"""Fields of classes whose values travel as JSON objects.

These are dataclasses, attrs classes, named tuples and typed dicts. Annotations of fields are
resolved here, and type variables of generic classes are replaced: `items` of `Page[int]` is a
`list[int]`. An annotation that cannot be resolved, because only type checkers import its name,
counts as `Any`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NOTHING: Final = object()


@dataclass(frozen=True, slots=True)
class Field:
    """One field. name: key in the document and attribute of the object."""

    name: str
    argument: str | None
    """Parameter of the constructor. None: the constructor does not take it, and it is set
    afterwards."""
    hint: Any
    required: bool
    kept: bool = True
    """Whether objects have it as an attribute. An InitVar is not kept."""


def is_typed_dict(kind: object) -> bool:
    """Return whether it is a TypedDict, including that of typing_extensions."""
    return typing.is_typeddict(kind) or type(kind).__name__ == "_TypedDictMeta"


def is_named_tuple(kind: type) -> bool:
    """Return whether it is a NamedTuple or was made by namedtuple()."""
    return issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple)


def has_fields(kind: object) -> bool:
    """Return whether `fields_of` can list the fields of the class."""
    return isinstance(kind, type) and (
        dataclasses.is_dataclass(kind) or hasattr(kind, "__attrs_attrs__") or is_named_tuple(kind)
    )


def attributes(kind: Any) -> tuple[str, ...]:
    """Return the attributes that make up a value of the class; empty if they are not known.

    >>> attributes(Field)[:2]
    ('name', 'argument')
    """
    if (of_model := getattr(kind, "__pydantic_fields__", None)) is not None:
        return tuple(of_model)
    if (of_struct := getattr(kind, "__struct_fields__", None)) is not None:
        return tuple(of_struct)
    if (of_attrs := getattr(kind, "__attrs_attrs__", None)) is not None:
        return tuple(one.name for one in of_attrs)
    if dataclasses.is_dataclass(kind):
        return tuple(one.name for one in dataclasses.fields(kind))
    return kind._fields if is_named_tuple(kind) else ()  # public, in spite of its name


def fields_of(hint: Any) -> list[Field]:
    """Return the fields of a class, or of a generic class with arguments such as `Page[int]`."""
    kind = typing.get_origin(hint) or hint
    hints = _resolved(kind, typing.get_args(hint))
    if is_typed_dict(kind):
        return [Field(name, name, one, _is_required(kind, name, one)) for name, one in hints.items()]
    if (of_attrs := getattr(kind, "__attrs_attrs__", None)) is not None:
        # attrs marks a missing default with NOTHING, a constant of its own module.
        return [
            Field(
                one.name,
                one.alias if one.init else None,
                hints.get(one.name, Any),
                one.init and repr(one.default) == "NOTHING",
            )
            for one in of_attrs
        ]
    if dataclasses.is_dataclass(kind):
        return list(_dataclass_fields(kind, hints))
    return [Field(name, name, hints.get(name, Any), name not in kind._field_defaults) for name in kind._fields]


def substituted(hint: Any, known: dict[Any, Any]) -> Any:
    """Return the annotation with its type variables replaced.

    An unknown one counts as its bound, or `Any`.

    >>> T = TypeVar("T")
    >>> substituted(dict[str, T], {T: int})
    dict[str, int]
    """
    if isinstance(hint, TypeVar):
        return known[hint] if hint in known else _bound(hint)
    parameters = (
        () if isinstance(hint, type) and typing.get_origin(hint) is None else getattr(hint, "__parameters__", ())
    )
    return hint[tuple(substituted(one, known) for one in parameters)] if parameters else hint


def _bound(variable: TypeVar) -> Any:
    if variable.__constraints__:
        return typing.Union[variable.__constraints__]
    bound = variable.__bound__
    return Any if bound is None or isinstance(bound, typing.ForwardRef) else bound


def _dataclass_fields(kind: Any, hints: dict[str, Any]) -> Iterator[Field]:
    own = {one.name for one in dataclasses.fields(kind)}
    for name, one in kind.__dataclass_fields__.items():
        hint = hints.get(name, Any)
        has_default = one.default is not dataclasses.MISSING or one.default_factory is not dataclasses.MISSING
        if name in own:
            yield Field(name, name if one.init else None, hint, one.init and not has_default)
        elif isinstance(hint, dataclasses.InitVar):  # the rest are ClassVars
            yield Field(name, name, hint.type, not has_default, kept=False)


def _is_required(kind: Any, name: str, hint: Any) -> bool:
    # Check the annotation first: if it is a string, __required_keys__ misses its Required and
    # NotRequired.
    origin = typing.get_origin(hint)
    return (
        name in kind.__required_keys__
        if origin not in {typing.Required, typing.NotRequired}
        else origin is typing.Required
    )


def _resolved(kind: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Return the annotations of a class and its bases, with type variables replaced."""
    hints = _hints(kind)
    by_class = _variables(kind, arguments)
    if not any(by_class.values()):
        return {name: substituted(hint, {}) for name, hint in hints.items()}
    everywhere = {variable: hint for known in reversed(by_class.values()) for variable, hint in known.items()}
    result = {}
    for name, hint in hints.items():
        owner = next((one for one in kind.__mro__ if name in _annotated(one)), kind)
        result[name] = substituted(hint, everywhere | by_class.get(owner, {}))
    return result


def _hints(kind: Any) -> dict[str, Any]:
    with contextlib.suppress(Exception):  # one unresolved name fails the whole call; then each is resolved separately
        return typing.get_type_hints(kind, include_extras=True)
    found: dict[str, Any] = {}
    for one in reversed(kind.__mro__):
        own = _annotated(one)
        found |= dict.fromkeys(own, Any) | resolve_each(own, module=one.__module__)
    return found


def resolve_each(annotations: Mapping[str, Any], *, module: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the annotations that can be resolved, by name.

    module: where to look names up, unless `names` is given.
    """
    found: dict[str, Any] = {}
    for name, annotation in annotations.items():
        holder = type("holder", (), {"__annotations__": {name: annotation}, "__module__": module})
        with contextlib.suppress(Exception):
            found[name] = typing.get_type_hints(holder, globalns=names, include_extras=True)[name]
    return found


def _annotated(kind: Any) -> dict[str, Any]:
    try:
        return inspect.get_annotations(kind)
    except Exception:  # Python 3.14 evaluates annotations only now
        return {}


def _variables(kind: Any, arguments: tuple[Any, ...]) -> dict[Any, dict[Any, Any]]:
    """Return the values of the type variables of the class and of its generic bases."""
    known = dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=False))
    found = {kind: known}
    for base in kind.__dict__.get("__orig_bases__", getattr(kind, "__bases__", ())):
        origin = typing.get_origin(base) or base
        if origin in {typing.Generic, typing.Protocol, object} or not isinstance(origin, type):
            continue
        for one, variables in _variables(
            origin, tuple(substituted(part, known) for part in typing.get_args(base))
        ).items():
            found.setdefault(one, variables)
    return found
