"""Describes a setting next to its field, for flags, errors and the documentation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobherd.supervisor.settings.readers import Reader


@dataclass(frozen=True, slots=True)
class Setting:
    """The description of a field of `Settings`."""

    reader: Reader
    explanation: str
    group: str
    variables: tuple[str, ...] = ()
    """Environment variables that are read after the setting's own."""
    metavar: str = "VALUE"
    default_in_words: str | None = None
    secret: bool = False
    """The value is never shown."""
    for_good: bool = False
    """A supervisor keeps its value until it restarts."""


def setting(  # a field whose metadata has the explanation
    default: Any,
    reader: Reader,
    explanation: str,
    *,
    group: str,
    variables: tuple[str, ...] = (),
    metavar: str = "VALUE",
    says: str | None = None,
    secret: bool = False,
    for_good: bool = False,
) -> Any:
    """Return the field of a setting: its default, how it is read, and its description."""
    description = Setting(reader, explanation, group, variables, metavar, says, secret, for_good)
    return field(default=default, metadata={"setting": description}, repr=not secret)
