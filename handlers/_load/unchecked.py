"""Finds annotations that cannot be resolved, for `jobherd check`.

Values of such parameters are not checked or converted. Type checkers accept names imported under
`if TYPE_CHECKING`. At run time these names do not exist, so a handler would get text where it
expects a `Decimal`.
"""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._define.table_store import TableHandler
from jobherd.handlers._values.shapes import has_fields, is_typed_dict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobherd.handlers._define.handler import AnyHandler

_REMEDY: Final = "Import its names outside of `if TYPE_CHECKING`"


def unchecked(handler: AnyHandler) -> Iterator[str]:
    """Yield a sentence for each parameter that is not checked, or only partly checked."""
    if isinstance(handler, TableHandler):
        return
    hints, unresolved = handler.signature.hints()
    for name in unresolved:
        yield (
            f"parameter {name!r} of {handler.kind} is not checked or converted: its annotation cannot be resolved. "
            f"{_REMEDY}"
        )
    for name, hint in hints.items():
        for field in dict.fromkeys(_unresolved_fields(hint, [])):
            yield (
                f"parameter {name!r} of {handler.kind} is not fully checked or converted: "
                f"the annotation of {field} cannot be resolved. {_REMEDY}"
            )


def _unresolved_fields(hint: Any, seen: list[Any]) -> Iterator[str]:
    kind = typing.get_origin(hint) or hint
    if kind is typing.Literal or any(hint is each for each in seen):
        return
    seen.append(hint)
    for inner in typing.get_args(hint):
        yield from _unresolved_fields(inner, seen)
    if not (has_fields(kind) or is_typed_dict(kind)):
        return
    try:
        known = typing.get_type_hints(kind)
    except Exception:  # a name that only type checkers import
        yield f"a field of {getattr(kind, '__name__', 'a class')}"
        return
    for inner in known.values():
        yield from _unresolved_fields(inner, seen)
