"""Converters from a JSON array or object to a container, a class with fields, or a union member.

Each takes the converters of its parts; None stands for a part of any type. A Misfit gets its step
of the path as it passes, so a path is built only on an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from jobherd.handlers._values.misfit import Misfit, mismatch, path_step
from jobherd.handlers._values.sanitize import describe_exception
from jobherd.handlers._values.scalars import JSON_TYPES
from jobherd.handlers._values.shapes import is_named_tuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.handlers._values.scalars import Convert
    from jobherd.handlers._values.shapes import Field

    Fields: TypeAlias = Callable[[], list[tuple[Field, Convert | None]]]
    """Returns the fields of a class with their converters, resolved once and on first use: a type
    may refer to itself."""


def array(item: Convert | None, build: Callable[[list[Any]], Any]) -> Convert:
    """Return a converter for an array of any length. build: list, tuple, set or frozenset."""

    def convert(value: Any) -> Any:
        if type(value) is not list:
            raise mismatch("an array", value)
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


def row(items: tuple[Convert | None, ...]) -> Convert:
    """Return a converter for an array with one item for each of these converters."""

    def convert(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(items):
            problem = mismatch(f"an array with {len(items)} items", value)
            if type(value) is list:
                problem.reason += f" with {len(value)}"
            raise problem
        result = []
        for place, (item, part) in enumerate(zip(items, value, strict=True)):
            try:
                result.append(part if item is None else item(part))
            except Misfit as misfit:
                misfit.steps.append(f"[{place}]")
                raise
        return tuple(result)

    return convert


def mapping(key_of: Convert | None, value_of: Convert | None) -> Convert:
    """Return a converter for an object with any keys. key_of: takes a key's text."""

    def convert(value: Any) -> dict[Any, Any]:
        if type(value) is not dict:
            raise mismatch("an object", value)
        if key_of is None and value_of is None:
            return value
        result = {}
        for key, part in value.items():
            try:
                result[key if key_of is None else key_of(key)] = part if value_of is None else value_of(part)
            except Misfit as misfit:
                misfit.steps.append(path_step(key))
                raise
        return result

    return convert


def record(kind: Any, fields: Fields) -> Convert:
    """Return a converter for an object with known keys."""
    name = kind.__name__

    def convert(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise mismatch(f"an object with the fields of {name}", value)
        result = {}
        for field, item in fields():
            key = field.name
            if key in value:
                try:
                    result[key] = value[key] if item is None else item(value[key])
                except Misfit as misfit:
                    misfit.steps.append(path_step(key))
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


def instance(kind: Any, fields: Fields) -> Convert:
    """Return a converter for an object of a class with fields."""
    read = record(kind, fields)
    names = kind._fields if is_named_tuple(kind) else None

    def convert(value: Any) -> Any:
        # other libraries write a named tuple as a list
        if names is not None and type(value) is list and len(value) == len(names):
            value = dict(zip(names, value, strict=True))
        found = read(value)
        given: dict[str, Any] = {}
        late: dict[str, Any] = {}
        for field, _ in fields():
            if field.name in found:
                if field.argument is None:
                    late[field.name] = found[field.name]
                else:
                    given[field.argument] = found[field.name]
        try:
            made = kind(**given)
            for name, part in late.items():
                object.__setattr__(made, name, part)  # the class may be frozen
        except Exception as problem:  # user code raised: __post_init__
            reason = f"cannot become a {kind.__name__}: {describe_exception(problem, message_bytes=500)[0]}"
            raise Misfit(reason) from None
        return made

    return convert


def union(expected: str, members: tuple[Any, ...], converts: tuple[Convert | None, ...]) -> Convert | None:
    """Return a converter for a value that fits one of several members.

    None: one of them takes any value.
    """
    exact: dict[type, Convert] = {}
    others: list[Convert] = []
    for member, convert in zip(members, converts, strict=True):
        if convert is None:
            return None
        if member in JSON_TYPES:
            exact[member] = convert
        else:
            others.append(convert)
    if float in exact and int not in exact:
        exact[int] = exact[float]

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
        raise mismatch(expected, value)

    return convert_union
