"""Reads settings from `jobherd.toml`, or from `[tool.jobherd]` in `pyproject.toml`.

The command line and producers both read them here, so they get the same values. This module does
not depend on any setting's name.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FILES = ("jobherd.toml", "pyproject.toml")
"""Files in the working directory. Only the first one that contains settings is used."""
_TABLES: Mapping[str, tuple[str, ...]] = {"jobherd.toml": (), "pyproject.toml": ("tool", "jobherd")}


def working_directory() -> Path:
    """Return the working directory's absolute path.

    The path is relative if the directory was removed: no file is found there.
    """
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path()


def read_table(directory: Path, problems: list[str]) -> tuple[dict[str, object], str]:
    """Return the settings in a file of the directory, and the file's name.

    The name is empty if no file has settings.

    problems: receives a sentence for each file that cannot be read.
    """
    import tomllib  # noqa: PLC0415  # most producers are configured by the environment

    for name in FILES:
        path = directory / name
        try:
            # Editors on Windows begin a file with a byte order mark, which tomllib rejects.
            table: object = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
        except FileNotFoundError:
            continue
        # invalid TOML or UTF-8, or a number with more digits than Python reads
        except (OSError, ValueError, RecursionError) as problem:
            problems.append(f"{path} cannot be read: {problem}")
            return {}, name
        for key in _TABLES[name]:
            table = table.get(key) if isinstance(table, dict) else None
        if isinstance(table, dict):
            return table, name
        if table is not None:
            problems.append(f"{path}: [{'.'.join(_TABLES[name])}] must be a table")
    return {}, ""
