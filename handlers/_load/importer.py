"""Imports modules of handlers under the names by which the application imports them.

Without such a name a module becomes `jobherd_user.<folder>.<module>`, so that a user's `handlers/`
or `json.py` shadows nothing (`module_names`). Code that another OS user could change is not
imported (`trust`). What user code raises becomes a problem; only KeyboardInterrupt passes.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from jobherd.handlers._load.module_names import (
    FOLDERS,
    bare_package,
    folder_name,
    imports_above,
    is_file_of,
    leads_to,
    own_name,
)
from jobherd.handlers._load.trust import find_fault, find_fault_of_module, find_faults_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from jobherd.handlers._load.load_problem import Problems
    from jobherd.handlers._load.trust import Fault


class Importer:
    """Imports modules and reports what does not load.

    on_module: called with each imported module and its file.
    on_import: called with the name and the file of each module before its import, which may not end.
    """

    def __init__(
        self,
        problems: Problems,
        on_module: Callable[[ModuleType, str], None],
        on_import: Callable[[str, str], None],
    ) -> None:
        self._problems = problems
        self._called = on_module
        self._on_import = on_import
        self._files: dict[str, ModuleType] = {}
        """Loaded modules by real file, so that no file is loaded under two names."""

    def load(self, name: str, file: str) -> ModuleType | None:
        """Import a module and return it, or None if it does not load.

        file: its file; empty for a module that was found by its name.
        """
        if (known := self._files.get(os.path.realpath(file)) if file else None) is not None:
            return known
        self._on_import(name, file)
        try:
            module = importlib.import_module(name)
        except KeyboardInterrupt:
            raise
        except BaseException as problem:
            self._problems.add_broken(name, file, problem)
            return None
        self._on_module(module, file or getattr(module, "__file__", None) or "")
        return module

    def open_folder(self, folder: Path, files: list[str]) -> str | None:
        """Import the package of a folder and return its name.

        The name is empty for a folder on the import path. Returns None if the package does not
        load.
        """
        own = own_name(folder)
        if own == "" and not imports_above(folder, files):
            return own
        if own and self._open_above(own, folder):
            start = folder / "__init__.py"
            return (
                own if not start.is_file() or (self.is_safe_module(own, start) and self.load(own, str(start))) else None
            )
        name = folder_name(folder)
        return name if self._open_folder(name, folder) else None

    def _open_above(self, name: str, folder: Path) -> bool:
        """Import the packages above a folder.

        Returns False if one of them does not load: then the application cannot import the folder
        either.
        """
        above = name.rpartition(".")[0]
        starts = [parent / "__init__.py" for parent in folder.parents[: above.count(".") + 1]] if above else []
        if not all(self.is_safe_module(name, start) for start in starts if start.is_file()):
            return False
        try:
            if above:
                importlib.import_module(above)
            return leads_to(name, folder)
        except KeyboardInterrupt:
            raise
        except BaseException:
            return False

    def load_file(self, package: str, name: str, file: str, folder: Path) -> None:
        """Import a file of a folder whose package is open."""
        own = f"{package}.{name}" if package else name
        if not package.startswith(f"{FOLDERS}.") and not self._is_found(own, file):
            package = folder_name(folder)
            if not self._open_folder(package, folder):
                return
            own = f"{package}.{name}"
        self.load(own, file)

    def _is_found(self, name: str, file: str) -> bool:
        try:
            return is_file_of(name, file)
        except KeyboardInterrupt:
            raise
        except BaseException:
            return True  # a package above it does not load; the import reports that

    def _open_folder(self, package: str, folder: Path) -> bool:
        """Create the package for a folder that cannot be imported otherwise.

        Returns False if its `__init__.py` does not load.
        """
        if package in sys.modules:
            return True
        if FOLDERS not in sys.modules:
            sys.modules[FOLDERS] = bare_package(FOLDERS, [])
        start = folder / "__init__.py"
        if not start.is_file():
            sys.modules[package] = bare_package(package, [str(folder)])
            return True
        if not self.is_safe_module(package, start):
            return False
        spec = importlib.util.spec_from_file_location(package, start, submodule_search_locations=[str(folder)])
        if spec is None or spec.loader is None:
            self._problems.add(package, str(start), 0, "cannot be loaded as a module")
            return False
        module = importlib.util.module_from_spec(spec)
        sys.modules[package] = module
        self._on_import(package, str(start))
        try:
            spec.loader.exec_module(module)
        except KeyboardInterrupt:
            raise
        except BaseException as problem:
            del sys.modules[package]
            self._problems.add_broken(package, str(start), problem)
            return False
        self._on_module(module, str(start))
        return True

    def is_safe(self, module: str, path: str | Path) -> bool:
        """Return whether only trusted OS users can change or replace the path; report if not."""
        return self._report(module, find_fault(path))

    def is_safe_module(self, module: str, file: Path) -> bool:
        """Like `_is_safe`, for a Python file and its bytecode."""
        return self._report(module, find_fault_of_module(file))

    def are_safe(self, module: str, folders: Iterable[str | Path]) -> bool:
        """Like `_is_safe`, for all code in these folders."""
        safe = [self._report(module, fault) for folder in folders for fault in find_faults_below(folder)]
        return all(safe)

    def is_safe_name(self, name: str) -> bool:
        """Like `_is_safe`, for a module found by its name.

        Only its top package can be found without running code of the package.
        """
        top = name.partition(".")[0]
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            return True  # the import reports the error
        if spec is None:
            return True
        folders = list(spec.submodule_search_locations or ())
        if not folders:
            return not spec.has_location or not spec.origin or self.is_safe_module(name, Path(spec.origin))
        return all(self.is_safe(name, folder) for folder in folders) and self.are_safe(name, folders)

    def _report(self, module: str, fault: Fault | None) -> bool:
        if fault is not None:
            self._problems.add_fault(module, fault)
        return fault is None

    def _on_module(self, module: ModuleType, file: str) -> None:
        if file:
            self._files[os.path.realpath(file)] = module
        self._called(module, file)
