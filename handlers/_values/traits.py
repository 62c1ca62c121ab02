"""What is known of an annotation before a value arrives.

`check` needs to know whether a converter supports it, a producer whether it has to compare its
arguments. Every field of every class is visited.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

from jobherd.handlers._values.converters import UnknownError, converter_for, form_of


def traits(hint: Any) -> Traits:
    """Return what can be known of an annotation without a value.

    Checks every field of every class.
    """
    found = Traits()
    _explore(hint, found, set())
    return found


@dataclasses.dataclass(slots=True)
class Traits:
    """Properties of an annotation.

    unknown: names of types without a converter.
    compared: whether an argument may arrive changed and has to be compared.
    own: JSON types that must arrive unchanged, because another member of a union has the same JSON
        form.
    wide: whether values have sets, or keys that are text in JSON only.
    """

    unknown: list[str] = dataclasses.field(default_factory=list)
    compared: bool = False
    own: frozenset[type] = frozenset()
    wide: bool = False


def _explore(hint: Any, found: Traits, seen: set[int | Any]) -> None:
    key = hint if isinstance(hint, Hashable) else id(hint)
    try:
        if key in seen:
            return
        seen.add(key)
        form = form_of(hint)
        inner = (*form.inner, *form.later())
        form.make(*map(converter_for, form.inner))
    except UnknownError as unknown:
        found.unknown.append(unknown.name)
        return
    except (TypeError, RecursionError):
        found.unknown.append(UnknownError(hint).name)
        return
    found.compared |= form.compared
    found.own |= form.own
    found.wide |= form.wide
    for one in inner:
        _explore(one, found, seen)
