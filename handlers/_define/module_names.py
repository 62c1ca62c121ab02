"""Which name a file of handlers is imported under: the application's own if there is one, else one below `jobherd_user`.

A module that the application can import too must not be loaded under a second name: its exceptions, its state and its metrics would exist
twice, and a spawned process could not find its functions. What cannot be imported otherwise gets a name that shadows nothing.
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
"""The package under which folders of handlers are loaded that cannot be imported otherwise."""
_RELATIVE: Final = re.compile(rb"^\s*from\s+\.", re.MULTILINE)


def own_name(folder: Path) -> str | None:
    """Return the dotted name by which this process can import a folder, and None if there is none.

    It is empty for a folder that is itself on the import path. Of several names the shortest one counts whose first package is not inside
    another package. Nothing is imported: what the packages above do when they are imported is for the caller.
    """
    parts: list[str] = []
    here = folder
    while True:
        if not (here / "__init__.py").is_file() and (_is_on_path(here) if not parts else _is_found(parts[0], here / parts[0])):
            return ".".join(parts)
        if here == here.parent or not here.name.isidentifier():
            return None
        parts.insert(0, here.name)
        here = here.parent


def folder_name(folder: Path) -> str:
    """Return the name below `jobherd_user` for a folder: readable, the same in each process, different for each path."""
    readable = re.sub(r"\W", "_", folder.name, flags=re.ASCII)[:40] or "root"
    return f"{FOLDERS}.{readable}_{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}"


def is_file_of(name: str, file: str) -> bool:
    """Whether importing `name` runs this file, and not another one of that name, like `json` of the standard library."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module without a spec, as __main__
        return False
    return spec is not None and spec.origin is not None and os.path.realpath(spec.origin) == os.path.realpath(file)


def leads_to(name: str, folder: Path) -> bool:
    """Whether importing the package `name` gives this folder. The packages above it must be imported already."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:
        return False
    return spec is not None and any(os.path.realpath(each) == os.path.realpath(folder) for each in spec.submodule_search_locations or ())


def imports_above(folder: Path, files: Iterable[str]) -> bool:
    """Whether a file has a relative import that leads to the folder itself or above it: as a top-level module it cannot be imported."""
    for file in files:
        depth = len(Path(file).parent.relative_to(folder).parts)
        try:
            text = Path(file).read_bytes()
            found = ast.walk(ast.parse(text)) if _RELATIVE.search(text) else ()
            if any(isinstance(node, ast.ImportFrom) and node.level > depth for node in found):
                return True
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue  # importing it says so
    return False


def bare_package(name: str, paths: list[str]) -> ModuleType:
    """Return a package that has no file of its own."""
    spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = paths
    return importlib.util.module_from_spec(spec)


def twice(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return those of `names` whose file is loaded under another name too, with that name."""
    others: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not name.startswith(f"{FOLDERS}.") and name != "__main__":
            others.setdefault(os.path.realpath(file), name)
    ours = [(name, getattr(sys.modules.get(name), "__file__", None)) for name in names if name.startswith(f"{FOLDERS}.")]
    return [(name, others[os.path.realpath(file)]) for name, file in ours if isinstance(file, str) and os.path.realpath(file) in others]


def _is_on_path(folder: Path) -> bool:
    try:
        return any(os.path.realpath(entry or os.curdir) == str(folder) for entry in sys.path)
    except FileNotFoundError:  # the working directory was removed
        return False


def _is_found(name: str, folder: Path) -> bool:
    try:
        return name.isidentifier() and leads_to(name, folder)
    except Exception:  # a finder of the application
        return False
