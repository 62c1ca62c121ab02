"""Converts a row of an application's table to the record that its handler gets.

A handler must get only records that fit. So the columns are compared with the record's fields when
a worker starts, and the values with their annotations when a row is read. This module must not
coerce values, and it must not use the database.
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
"""Makes a record from a row: a dataclass whose fields are columns, or a function of a dict by
column."""

_LOGS: Final = "execution_logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionLogEntry:
    """One entry of `execution_logs`: a step of an attempt, as `job.log(key, ...)` writes it.

    >>> ExecutionLogEntry(key="clone", command="git clone .", exit_code=0).key
    'clone'
    """

    key: str = ""
    """Name of the step, for programs."""
    command: str = ""
    """Command that was run, if any."""
    at: datetime | None = None
    """Time of the entry. For printed and logged output of an attempt: when the attempt began."""
    exit_code: int | None = None
    """Exit code of the command."""
    duration: float | None = None
    """Duration in seconds."""
    out: str = ""
    """Output of the command."""


class Scanner:
    """Makes records from rows.

    scan: as `TableStore` takes it. None: the record is the row itself, a dict.

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
        """Fields of the dataclass; empty if `scan` is a function."""
        return tuple(one.name for one in self._fields)

    def misfits(self, columns: Sequence[str]) -> list[str]:
        """Return a sentence for each field without a column, and each column without a field."""
        if not self._fields or not isinstance(self._scan, type):
            return []
        name = self._scan.__name__
        needed = {
            one.name
            for one in self._fields
            if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        }
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
        """Return the record of a row.

        Raises PayloadError naming a column that does not fit, or what the function raises.
        """
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
                message = (
                    f"the record's column {column!r} is {'null' if value is None else type(value).__name__} and "
                    f"must be {wanted}"
                )
                raise PayloadError(message)
        return self._scan(**values)


def _allowed(scan: Any) -> dict[str, tuple[type, ...] | None]:
    """Return the accepted classes of each field.

    None if the annotation is not a plain class or a union of plain classes.
    """
    try:
        hints = typing.get_type_hints(scan)
    except Exception:  # a name that exists only for type checkers: those values are not checked
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
    """Return a log entry as an `ExecutionLogEntry`; an entry in another format stays unchanged."""
    if not isinstance(value, dict):
        return value
    known = {one.name: value[one.name] for one in dataclasses.fields(ExecutionLogEntry) if one.name in value}
    try:
        if "at" in known:
            known["at"] = datetime.fromtimestamp(known["at"], UTC)
        return ExecutionLogEntry(**known)
    except (TypeError, ValueError, OverflowError, OSError):
        return value
