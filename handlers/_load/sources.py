"""Turns what users name as the place of handlers into modules to import.

A source is a folder, a `.py` file, or the dotted name of a module or package. Modules and folders
whose names begin with an underscore or a dot are skipped.
"""

from __future__ import annotations

import os
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobherd.handlers._load.importer import Importer
    from jobherd.handlers._load.load_problem import Problems

_PACKAGE: Final = Path(__file__).parents[1]
"""The folder of `jobherd.handlers`."""
_NOT_HANDLERS: Final = frozenset({"testing"})
_SUFFIX: Final = ".py"
_DEEPEST: Final = 20

Found: TypeAlias = "tuple[str, str]"  # a module's name, its file


class Sources:
    """Reads sources and has their modules imported.

    named: where users name the sources, for the message about a missing one.
    """

    def __init__(self, importer: Importer, problems: Problems, named: str) -> None:
        self._importer = importer
        self._problems = problems
        self._named = named
        self.roots: list[str] = []
        """Real folders of the sources."""

    def take(self, source: str | os.PathLike[str]) -> None:
        """Import the modules of a source."""
        text = os.fspath(source)
        is_name = isinstance(source, str) and all(part.isidentifier() for part in text.split("."))
        if "\0" in text:
            self._problems.add(text, "", 0, "a path cannot hold a NUL character")
        elif os.path.isdir(text):
            self._take_folder(Path(text).resolve(), text)
        elif os.path.isfile(text):
            self._take_file(Path(text).resolve(), text)
        elif is_name:
            self._take_module(text)
        else:
            self._problems.add(text, text, 0, f"folder, file or module not found; check {self._named}")

    def _take_folder(self, folder: Path, given: str) -> None:
        if os.path.samefile(folder, _PACKAGE):
            self._take_package("jobherd.handlers", [str(_PACKAGE)])
            return
        self.roots.append(str(folder))
        if not self._importer.is_safe(str(folder), given) or not self._importer.are_safe(str(folder), [folder]):
            return
        files = list(self._public_files("", folder, frozenset({str(folder)})))
        package = self._importer.open_folder(folder, [*(file for _, file in files), *map(str, folder.glob("_*.py"))])
        if package is not None:
            for name, file in files:
                self._importer.load_file(package, name, file, folder)

    def _take_file(self, file: Path, given: str) -> None:
        folder = file.parent
        if file.suffix != _SUFFIX:
            self._problems.add(str(file), str(file), 0, "is not a Python module: its name must end in .py")
        elif (
            self._importer.is_safe(str(folder), folder)
            and self._importer.is_safe(file.stem, given)
            and self._importer.is_safe_module(file.stem, file)
        ):
            package = self._importer.open_folder(folder, [str(file)])
            if package is not None:
                self._importer.load_file(package, file.stem, str(file), folder)

    def _take_module(self, name: str) -> None:
        if not self._importer.is_safe_name(name):
            return
        module = self._importer.load(name, "")
        paths = getattr(module, "__path__", None)
        if paths is not None:
            self.roots.extend(map(os.path.realpath, paths))
            self._take_package(name, list(paths))

    def _take_package(self, package: str, paths: list[str]) -> None:
        for found in sorted(pkgutil.iter_modules(paths), key=lambda found: found.name):
            if found.name.startswith("_") or (package == "jobherd.handlers" and found.name in _NOT_HANDLERS):
                continue
            name = f"{package}.{found.name}"
            module = self._importer.load(name, "")
            if found.ispkg and module is not None:
                self._take_package(name, list(getattr(module, "__path__", [])))

    def _public_files(self, package: str, folder: Path, above: frozenset[str]) -> Iterator[Found]:
        """Yield a folder's files by name.

        A link back to one of the real folders in `above` is skipped.
        """
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as problem:
            self._problems.add(package, str(folder), 0, f"cannot be read: {problem.strerror}")
            return
        for entry in entries:
            stem, suffix = os.path.splitext(entry.name)
            if entry.name.startswith(("_", ".")):
                continue
            path = Path(entry.path)
            if suffix == _SUFFIX and os.path.isfile(path):
                name = f"{package}.{stem}".lstrip(".")
                if "." in stem:
                    self._problems.add(name, entry.path, 0, "a module's name cannot have a dot in it: rename the file")
                else:
                    yield name, entry.path
            elif os.path.isdir(path):
                name = f"{package}.{entry.name}".lstrip(".")
                real = os.path.realpath(path)
                if real in above or len(above) > _DEEPEST:
                    continue
                if "." in entry.name:
                    if any(each.name[:1] not in "_." for each in path.glob("*.py")):
                        self._problems.add(
                            name, entry.path, 0, "a folder of modules cannot have a dot in its name: rename the folder"
                        )
                else:
                    if (path / "__init__.py").is_file():
                        yield name, str(path / "__init__.py")
                    yield from self._public_files(name, path, above | {real})
