"""What a setting says of itself, kept with its field: from it flags, errors and the page of all settings are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobherd.supervisor.settings.readers import Reader


@dataclass(frozen=True, slots=True)
class Setting:
    """What a field of `Settings` says of itself."""

    reader: Reader
    explanation: str
    group: str
    variables: tuple[str, ...] = ()
    """Variables of the environment that are looked at after its own."""
    metavar: str = "VALUE"
    default_in_words: str | None = None
    secret: bool = False
    """The value is never shown."""
    for_good: bool = False
    """A supervisor keeps the value of its start."""


def setting(  # a field whose metadata carries the explanation
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
    """Return the field of a setting: its default, how it is read, and what is said of it."""
    told = Setting(reader, explanation, group, variables, metavar, says, secret, for_good)
    return field(default=default, metadata={"setting": told}, repr=not secret)
