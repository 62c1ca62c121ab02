"""Checks that an argument arrives as given.

The producer's value and the handler's are compared before the job is sent. JSON has no types of its
own for most of Python's. A union may convert a value to another member, a `__post_init__` may
compute a field twice, a model may omit a field from its dump. The producer has both values, so it
rejects such an argument. If a caller passes a document instead of an object (a dict for a
dataclass, the text of a date), the document is the object's JSON form and fits.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Final

from jobherd.handlers._values.misfit import Misfit, path_step
from jobherd.handlers._values.models import is_model
from jobherd.handlers._values.shapes import NOTHING, attributes

if TYPE_CHECKING:
    from collections.abc import Iterable

_JSON: Final = frozenset({str, int, float, bool, type(None), list, dict})


def compare(given: object, arrived: object, own: frozenset[type]) -> None:
    """Raise Misfit with the first place at which an argument does not arrive as given.

    own: JSON types that must arrive unchanged, see `Traits`.
    """
    kind, came = type(given), type(arrived)
    if kind is not came:
        _compare_types(given, arrived, own)
    elif isinstance(given, list | tuple) and not hasattr(kind, "_fields"):
        _compare_items(list(given), list(arrived), own)  # type: ignore[call-overload]  # both have the same type
    elif isinstance(given, dict):
        assert isinstance(arrived, dict)
        # A TypedDict arrives in the order of its fields. Converted keys keep their order.
        if given.keys() == arrived.keys():
            arrived = {key: arrived[key] for key in given}
        else:
            _compare_keys(given, arrived, own)
        _compare_items(list(given.values()), list(arrived.values()), own, list(given))
    elif names := attributes(kind):
        for name in names:
            one, other = getattr(given, name, NOTHING), getattr(arrived, name, NOTHING)
            try:
                if (one is NOTHING) is not (other is NOTHING):
                    raise Misfit(CHANGED)
                compare(one, other, own)
            except Misfit as misfit:
                misfit.steps.append(path_step(name))
                raise
        compare(getattr(given, "__pydantic_extra__", None), getattr(arrived, "__pydantic_extra__", None), own)
    elif not _is_equal(given, arrived):
        raise Misfit(CHANGED)


CHANGED: Final = "would not arrive unchanged: its class reads its own JSON form as another value"


def _compare_types(given: object, arrived: object, own: frozenset[type]) -> None:
    kind, came = type(given), type(arrived)
    if (
        isinstance(given, list | tuple)
        and isinstance(arrived, list | tuple)
        and not (own & {kind, came} or attributes(kind))
    ):
        _compare_items(list(given), list(arrived), own)
    elif own & {kind, came}:
        # An IntEnum equals its number and a Decimal an int, but a handler can tell them apart.
        alike = (issubclass(kind, came) and not issubclass(kind, Enum)) or (
            kind is int and came is float and int not in own
        )
        if not (alike and _is_equal(given, arrived)):
            raise Misfit(_taken_for(kind, came))
    elif kind in _JSON and came in _JSON:
        if not (kind is int and came is float and _is_equal(given, arrived)):
            raise Misfit(CHANGED)
    elif came in _JSON and kind is not tuple and kind not in _JSON:
        _check_plain(given)  # an object arrives as its document
    elif (kind in _JSON or kind is tuple) is (came in _JSON) and not _is_equal(given, arrived):
        raise Misfit(_taken_for(kind, came))


def _check_plain(given: object) -> None:
    """Raise Misfit for a set or a key inside an object that arrives as a document."""
    if isinstance(given, set | frozenset):
        reason = f"is a {type(given).__name__} and would arrive as a list: annotate it as a set, or pass sorted(value)"
        raise Misfit(reason)
    if isinstance(given, dict):
        _compare_keys(given, map(str, given), frozenset())
        parts = [(path_step(key), part) for key, part in given.items()]
    elif isinstance(given, list | tuple):
        parts = [(f"[{place}]", part) for place, part in enumerate(given)]
    elif is_model(type(given)):
        return  # its library has dumped it
    else:
        parts = [(path_step(name), getattr(given, name, None)) for name in attributes(type(given))]
    for step, part in parts:
        try:
            _check_plain(part)
        except Misfit as misfit:
            misfit.steps.append(step)
            raise


def _compare_keys(given: Iterable[object], arrived: Iterable[object], own: frozenset[type]) -> None:
    for one, other in zip(given, arrived, strict=False):  # two keys may have the same text: then the lengths differ
        if not isinstance(one, str) and not _is_equal(one, other):
            reason = (
                f"has a key of type {type(one).__name__} that would arrive as {type(other).__name__}: pass str(key)"
            )
            raise Misfit(reason)
        compare(one, other, own)


def _taken_for(kind: type, came: type) -> str:
    return (
        f"would arrive as {came.__name__}, not as {kind.__name__}: "
        "in JSON the two look alike: use a separate type for one of them"
    )


def _compare_items(
    given: list[object], arrived: list[object], own: frozenset[type], keys: list[object] | None = None
) -> None:
    if len(given) != len(arrived):
        raise Misfit(CHANGED)
    for place, (one, other) in enumerate(zip(given, arrived, strict=True)):
        try:
            compare(one, other, own)
        except Misfit as misfit:
            misfit.steps.append(f"[{place}]" if keys is None else path_step(keys[place]))
            raise


def _is_equal(given: object, arrived: object) -> bool:
    try:
        if isinstance(given, datetime) and isinstance(arrived, datetime) and given.tzinfo and arrived.tzinfo:
            # in an hour that occurs twice, == between zones is always False
            return given.astimezone(UTC) == arrived.astimezone(UTC)
        return bool(given == arrived)
    except Exception:  # the application's __eq__ raised
        return False
