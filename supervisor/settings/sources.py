"""Collects the values of settings: flags before environment before file before default.

It has the places and their order, and composes the errors. A setting's reader decides which values
are valid. This module must not name a setting.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobherd.handlers._enqueue.config_files import FILES, read_table, working_directory
from jobherd.supervisor.settings.readers import SpokenError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jobherd.supervisor.settings.field import Setting

PREFIX = "JOBHERD_"
_FLAGS = {
    "gateway_addresses": "gateway",
    "gateway_client_cert": "gateway_cert",
    "gateway_client_key": "gateway_key",
}
"""Flags of `jobherd work` that are not named like their setting. `jobherd run` has them for its own gateway."""


class SettingsError(Exception):
    """Some settings cannot be used.

    `problems` has one sentence for each: the value, its source, and what is allowed.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True, slots=True)
class Given:
    """The values that were given, and their sources."""

    values: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, object] = field(default_factory=dict)
    directory: Path = field(default_factory=Path)
    file: str = ""
    """Name of the file with settings; empty if there is none."""
    waiting: tuple[str, ...] = ()
    """Settings that changed since the start and take effect after a restart."""


def still_there(before: Given, now: Given) -> None:
    """Raise SettingsError if the file that had settings before has none now.

    A deploy may be between two steps, and the defaults would be used. A file that takes precedence
    over the earlier one is accepted: that is intended.
    """
    if before.file and (not now.file or FILES.index(now.file) > FILES.index(before.file)):
        path = before.directory / before.file
        raise SettingsError((f"{path} is gone, or holds no settings any more: put it back, or restart without it",))


def flag_of(name: str) -> str:
    """Return the flag of a setting: --max-jobs."""
    return "--" + _FLAGS.get(name, name).replace("_", "-")


def variable_of(name: str) -> str:
    """Return the variable of a setting: JOBHERD_MAX_JOBS."""
    return PREFIX + name.upper()


def gather(
    wanted: Mapping[str, Setting],
    flags: Mapping[str, object],
    *,
    environ: Mapping[str, str] | None,
    directory: Path | None,
    known: Iterable[str],
) -> Given:
    """Read the given values of the `wanted` settings.

    Raises:
        SettingsError: lists everything that is wrong with them at once.
    """
    environ = os.environ if environ is None else environ
    place = working_directory() if directory is None else directory
    problems: list[str] = []
    table, file = read_table(place, problems)
    names = tuple(known)
    for key in table:
        if key.replace("-", "_") not in names:
            near = difflib.get_close_matches(key.replace("-", "_"), names, n=1)
            problems.append(f"{key} (from {file}): unknown setting" + (f"; did you mean {near[0]}?" if near else ""))
    table = {key.replace("-", "_"): value for key, value in table.items()}

    found: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, setting in wanted.items():
        raw, source = _pick(name, setting, flags, environ, table=table, file=file)
        if source is None:
            continue
        sources[name] = source
        try:
            found[name] = setting.reader.read(raw)
        except (ValueError, TypeError, KeyError, OverflowError) as problem:
            more = str(problem) if isinstance(problem, ValueError) and _says_more(problem, setting) else ""
            value = "" if setting.secret else f" = {_brief(raw)}"
            problems.append(
                f"{name}{value} (from {source}): must be {setting.reader.allowed}" + (f"; {more}" if more else "")
            )
    if problems:
        raise SettingsError(problems)
    return Given(found, sources, dict(flags), place, file)


def _pick(
    name: str,
    setting: Setting,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    *,
    table: Mapping[str, object],
    file: str,
) -> tuple[object, str | None]:
    if name in flags:
        return flags[name], flag_of(name)
    for variable in (variable_of(name), *setting.variables):
        if environ.get(variable):  # compose files and units set a variable to nothing to leave it unset
            return environ[variable], variable
    if name in table:
        return table[name], file
    return None, None


def _says_more(problem: ValueError, setting: Setting) -> bool:
    """Return whether the reader's text has the cause, not only that the value is invalid.

    Python's own messages about numbers do not help.
    """
    text = str(problem)
    if setting.secret:
        return isinstance(problem, SpokenError)
    return bool(text) and not text.startswith(("invalid literal", "could not convert", "it ", "schema "))


def _brief(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # a number of thousands of digits, which TOML may contain in another base
        return "a number that is too long"
    return text if len(text) <= 60 else text[:57] + "..."
