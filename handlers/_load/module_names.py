"""Chooses the import name of a file of handlers: the application's own, or one of Jobherd's.

A name of Jobherd's is below `jobherd_user`. A module that the application can import must not be
loaded under a second name. Its exceptions, state and metrics would exist twice, and a spawned
process could not find its functions. Files that cannot be imported otherwise get a name that
shadows nothing.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

FOLDERS: Final = "jobherd_user"
"""Package for folders of handlers that cannot be imported otherwise."""
_RELATIVE: Final = re.compile(rb"^\s*from\s+\.", re.MULTILINE)


def own_name(folder: Path) -> str | None:
    """Return the dotted name by which this process can import a folder, or None if there is none.

    The name is empty if the folder itself is on the import path. Of several names the shortest one
    whose first package is not inside another package wins. Nothing is imported here: the caller has
    to handle what the packages above the folder do on import.
    """
    parts: list[str] = []
    here = folder
    while True:
        if not (here / "__init__.py").is_file() and (
            _is_on_path(here) if not parts else _is_found(parts[0], here / parts[0])
        ):
            return ".".join(parts)
        if here == here.parent or not here.name.isidentifier():
            return None
        parts.insert(0, here.name)
        here = here.parent


def folder_name(folder: Path) -> str:
    """Return a folder's name below `jobherd_user`: readable, stable, different for each path."""
    readable = re.sub(r"\W", "_", folder.name, flags=re.ASCII)[:40] or "root"
    return f"{FOLDERS}.{readable}_{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}"


def is_file_of(name: str, file: str) -> bool:
    """Return whether importing `name` runs this file, not another one like the stdlib's `json`."""
    spec = _spec_of(name)
    return spec is not None and spec.origin is not None and os.path.realpath(spec.origin) == os.path.realpath(file)


def leads_to(name: str, folder: Path) -> bool:
    """Return whether importing `name` gives this folder.

    Its parent packages must be imported already.
    """
    spec = _spec_of(name)
    return spec is not None and any(
        os.path.realpath(each) == os.path.realpath(folder) for each in spec.submodule_search_locations or ()
    )


def imports_above(folder: Path, files: Iterable[str]) -> bool:
    """Return whether a file has a relative import that leads to the folder itself or above it.

    Such a file cannot be imported as a top-level module.
    """
    for file in files:
        depth = len(Path(file).parent.relative_to(folder).parts)
        try:
            text = Path(file).read_bytes()
            found = ast.walk(ast.parse(text)) if _RELATIVE.search(text) else ()
            if any(isinstance(node, ast.ImportFrom) and node.level > depth for node in found):
                return True
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue  # the later import reports the error
    return False


def bare_package(name: str, paths: list[str]) -> ModuleType:
    """Return a package without a file."""
    spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = paths
    return importlib.util.module_from_spec(spec)


def twice(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the `names` whose file is also loaded under another name, each with that name."""
    others: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not name.startswith(f"{FOLDERS}.") and name != "__main__":
            others.setdefault(os.path.realpath(file), name)
    ours = [
        (name, getattr(sys.modules.get(name), "__file__", None)) for name in names if name.startswith(f"{FOLDERS}.")
    ]
    return [
        (name, others[os.path.realpath(file)])
        for name, file in ours
        if isinstance(file, str) and os.path.realpath(file) in others
    ]


def _spec_of(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ValueError:  # a module without a spec, as __main__
        return None


def _is_on_path(folder: Path) -> bool:
    try:
        return any(os.path.realpath(entry or os.curdir) == str(folder) for entry in sys.path)
    except FileNotFoundError:  # the working directory was removed
        return False


def _is_found(name: str, folder: Path) -> bool:
    try:
        return name.isidentifier() and leads_to(name, folder)
    except Exception:  # a finder of the application raised
        return False
