"""From the row of an application's table to the record that its handler gets.

A handler must only ever be handed what it understands: so the columns are compared with the record's fields when a worker starts, and
the values with their annotations when a row is read. It must not coerce, and it must not speak to the database.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from jobherd.handlers._values.payload import PayloadError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Scan: TypeAlias = "type[Any] | Callable[[Mapping[str, Any]], Any]"
"""What makes a record of a row: a dataclass, whose fields are columns, or a function of a dict from column to value."""

_LOGS: Final = "execution_logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionLogEntry:
    """One entry of `execution_logs`: something that an attempt ran or said, as `job.log(key, ...)` takes it.

    >>> ExecutionLogEntry(key="clone", command="git clone .", exit_code=0).key
    'clone'
    """

    key: str = ""
    """What it is about, for programs."""
    command: str = ""
    """What was run, if anything was."""
    at: datetime | None = None
    """When it was put down; of what an attempt has printed and logged, when the attempt began."""
    exit_code: int | None = None
    """How it ended."""
    duration: float | None = None
    """Seconds it took."""
    out: str = ""
    """What it said."""


class Scanner:
    """Makes records of rows. `scan`: as `TableStore` takes it; None: the row itself, a dict.

    Raises TypeError for a `scan` that is neither a dataclass nor a function.
    """

    def __init__(self, scan: Any) -> None:
        if scan is not None and not callable(scan):
            message = f"scan takes a dataclass, or a function of a dict, not {scan!r}"
            raise TypeError(message)
        self._scan: Any = scan
        self._fields: tuple[dataclasses.Field[Any], ...] = ()
        self._allowed: dict[str, tuple[type, ...] | None] | None = None
        if isinstance(scan, type) and dataclasses.is_dataclass(scan):
            self._fields = tuple(one for one in dataclasses.fields(scan) if one.init)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the dataclass; none if it is a function."""
        return tuple(one.name for one in self._fields)

    def misfits(self, columns: Sequence[str]) -> list[str]:
        """Return a sentence for each field that no selected column fills, and each column that no field takes."""
        if not self._fields or not isinstance(self._scan, type):
            return []
        name = self._scan.__name__
        needed = {one.name for one in self._fields if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING}
        lost = [
            f"no column of the store is called {each!r}, which {name}.{each} needs: select it in columns"
            for each in sorted(needed - set(columns))
        ]
        return lost + [
            f"{name} has no field for the column {each!r}: add one, or leave it out of columns"
            for each in columns
            if each not in self.fields
        ]

    def record(self, row: Mapping[str, Any]) -> Any:
        """Return the record of a row. Raises PayloadError naming a column that does not fit, or whatever the function raises."""
        values = dict(row)
        if isinstance(values.get(_LOGS), list):
            values[_LOGS] = [_entry(each) for each in values[_LOGS]]
        if self._scan is None:
            return values
        if not self._fields:
            return self._scan(values)
        if self._allowed is None:
            self._allowed = _allowed(self._scan)
        for column, value in values.items():
            allowed = self._allowed.get(column)
            if allowed is not None and not isinstance(value, allowed):
                wanted = " or ".join("None" if each is type(None) else each.__name__ for each in allowed)
                message = f"the record's column {column!r} is {'null' if value is None else type(value).__name__} and must be {wanted}"
                raise PayloadError(message)
        return self._scan(**values)


def _allowed(scan: Any) -> dict[str, tuple[type, ...] | None]:
    """Return of which classes each field's value may be; None where the annotation is no plain class or union of such."""
    try:
        hints = typing.get_type_hints(scan)
    except Exception:  # a name that only a type checker knows: checks that cannot be made are not made
        return {}
    return {name: _classes(hint) for name, hint in hints.items()}


def _classes(hint: Any) -> tuple[type, ...] | None:
    if hint is None:
        return (type(None),)
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        parts = [_classes(member) for member in typing.get_args(hint)]
        return None if any(part is None for part in parts) else tuple(each for part in parts if part for each in part)
    origin = typing.get_origin(hint) or hint
    if not isinstance(origin, type) or origin is object:
        return None
    return (int, float) if origin is float else (origin,)


def _entry(value: Any) -> Any:
    """Return an entry of the log as people use it; one that somebody else wrote in another form stays as it is."""
    if not isinstance(value, dict):
        return value
    known = {one.name: value[one.name] for one in dataclasses.fields(ExecutionLogEntry) if one.name in value}
    try:
        if "at" in known:
            known["at"] = datetime.fromtimestamp(known["at"], UTC)
        return ExecutionLogEntry(**known)
    except (TypeError, ValueError, OverflowError, OSError):
        return value
