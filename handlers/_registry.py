"""Find the handlers and hooks in folders and modules, and say what is wrong with those that do not load.

One broken module must not take the others down, and what to do about it is the caller's policy: everything found wrong is returned as
a `LoadProblem` with file and line. Folders are loaded under names of their own, `jobherd_user.<folder>.<module>`, so that a user's
`handlers/` or `json.py` shadows nothing; relative imports inside a folder work. This runs user code (importing is that): never call it
in the parent.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Final, TypeAlias, TypeGuard, TypeVar

from handlers._handler import FOLDERS, USUAL, AnyHandler, Handler, handler
from handlers._hooks import Hook
from handlers._sanitize import describe_exception, sanitize
from handlers._trust import find_fault, find_fault_of_module, find_faults_below

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from handlers._trust import Fault

SHIPPED: Final = "@shipped"
"""The source that stands for the handlers in this package itself."""

HOOKS: Final = "--hooks and JOBHERD_HOOKS"
"""Where people name the sources that are loaded for their hooks."""
_NOT_HANDLERS: Final = frozenset({"testing"})
_SUFFIX: Final = ".py"
_DEEPEST: Final = 20

_T = TypeVar("_T")

Found: TypeAlias = "tuple[str, str]"  # a module's name, its file


@dataclass(frozen=True, slots=True)
class LoadProblem:
    """One thing that is wrong with the handlers."""

    module: str
    """The module's name, or the source as it was given."""
    file: str
    """The file or folder."""
    line: int
    """The line in it, 0 if there is none."""
    message: str
    """What is wrong, and what to do."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file or self.module
        return f"{place}: {self.message}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was found: handlers by kind, problems, the names of the modules that were loaded, and hooks in the order of their declaration."""

    kinds: dict[str, AnyHandler]
    problems: tuple[LoadProblem, ...]
    modules: tuple[str, ...]
    hooks: tuple[Hook, ...] = ()


def load(sources: Iterable[str | os.PathLike[str]], *, named: str = "--handlers and JOBHERD_HANDLERS") -> Loaded:
    """Import every public module of the sources and collect their handlers, in a fixed order.

    sources: folders, `.py` files, dotted names of modules or packages on the import path, or `SHIPPED`. Modules and folders whose
        names begin with an underscore or a dot are passed over.
    named: where people name them, for a source that is not there.

    A handler belongs to the module that defines it; one that is merely imported counts if the module names it in `__all__`. A module
    without any but with a function `handle` makes that one a handler. Never raises for what user code does, SystemExit included; only
    KeyboardInterrupt passes.
    """
    loading = _Loading(named)
    importlib.invalidate_caches()
    for source in sources:
        loading.take(source)
    loading.check_signatures()
    return Loaded(loading.kinds, tuple(loading.problems), tuple(loading.modules), tuple(loading.hooks.values()))


def all_hooks(*loaded: Loaded) -> list[Hook]:
    """Return the hooks of several loadings, in that order, each once: the same lines may be loaded by path and by name."""
    found: dict[tuple[str, str, int], Hook] = {}
    for hook in (hook for each in loaded for hook in each.hooks):
        found.setdefault((hook.event, hook.file, hook.line), hook)
    return list(found.values())


class _Loading:
    def __init__(self, named: str) -> None:
        self._named = named
        self.kinds: dict[str, AnyHandler] = {}
        self.hooks: dict[tuple[str, str, int], Hook] = {}
        """By where they are written: the same lines may be loaded twice, by path and by name."""
        self.problems: list[LoadProblem] = []
        self.modules: list[str] = []
        self._seen: set[str] = set()
        self._faulty: set[str] = set()

    def take(self, source: str | os.PathLike[str]) -> None:
        text = os.fspath(source)
        if text == SHIPPED:
            self._take_package("handlers", [os.path.dirname(__file__)])
            return
        is_name = isinstance(source, str) and all(part.isidentifier() for part in text.split("."))
        if "\0" in text:
            self._complain(text, "", 0, "a path cannot hold a NUL character")
        elif os.path.isdir(text):
            self._take_folder(Path(text).resolve(), text)
        elif os.path.isfile(text):
            self._take_file(Path(text).resolve(), text)
        elif is_name:
            self._take_module(text)
        else:
            self._complain(text, text, 0, f"there is no such folder, file or module; check {self._named}")

    def _take_folder(self, folder: Path, given: str) -> None:
        if os.path.samefile(folder, os.path.dirname(__file__)):
            self.take(SHIPPED)
            return
        package = _folder_name(folder)
        if not self._is_safe(package, given) or not self._are_safe(package, [folder]) or not self._open_folder(package, folder):
            return
        for name, file in self._public_files(package, folder, frozenset({str(folder)})):
            self._import(name, file)

    def _take_file(self, file: Path, given: str) -> None:
        package = _folder_name(file.parent)
        if file.suffix != _SUFFIX:
            self._complain(str(file), str(file), 0, "is no Python module: its name must end in .py")
        elif (
            self._is_safe(package, file.parent)
            and self._is_safe(file.stem, given)
            and self._is_safe_module(file.stem, file)
            and self._open_folder(package, file.parent)
        ):
            self._import(f"{package}.{file.stem}", str(file))

    def _take_module(self, name: str) -> None:
        if not self._is_safe_name(name):
            return
        module = self._import(name, "")
        paths = getattr(module, "__path__", None)
        if paths is not None:
            self._take_package(name, list(paths))

    def _take_package(self, package: str, paths: list[str]) -> None:
        for found in sorted(pkgutil.iter_modules(paths), key=lambda found: found.name):
            if found.name.startswith("_") or (package == "handlers" and found.name in _NOT_HANDLERS):
                continue
            name = f"{package}.{found.name}"
            module = self._import(name, "")
            if found.ispkg and module is not None:
                self._take_package(name, list(getattr(module, "__path__", [])))

    def _open_folder(self, package: str, folder: Path) -> bool:
        """Make the package that stands for a folder. False if its `__init__.py` does not load."""
        if package in sys.modules:
            return True
        if FOLDERS not in sys.modules:
            sys.modules[FOLDERS] = _bare_package(FOLDERS, [])
        start = folder / "__init__.py"
        if not start.is_file():
            sys.modules[package] = _bare_package(package, [str(folder)])
            return True
        if not self._is_safe_module(package, start):
            return False
        spec = importlib.util.spec_from_file_location(package, start, submodule_search_locations=[str(folder)])
        if spec is None or spec.loader is None:
            self._complain(package, str(start), 0, "cannot be loaded as a module")
            return False
        module = importlib.util.module_from_spec(spec)
        sys.modules[package] = module
        try:
            spec.loader.exec_module(module)
        except KeyboardInterrupt:
            raise
        except BaseException as problem:
            del sys.modules[package]
            self._note_broken(package, str(start), problem)
            return False
        self._collect(module, str(start))
        return True

    def _public_files(self, package: str, folder: Path, above: frozenset[str]) -> Iterator[Found]:
        """Walk a folder by name. `above` holds the real folders on the way down: a link back to one of them is passed over."""
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as problem:
            self._complain(package, str(folder), 0, f"cannot be read: {problem.strerror}")
            return
        for entry in entries:
            stem, suffix = os.path.splitext(entry.name)
            if entry.name.startswith(("_", ".")):
                continue
            path = Path(entry.path)
            if suffix == _SUFFIX and os.path.isfile(path):
                if "." in stem:
                    self._complain(package, entry.path, 0, "a module's name cannot have a dot in it: rename the file")
                else:
                    yield f"{package}.{stem}", entry.path
            elif os.path.isdir(path) and entry.name.isidentifier():
                real = os.path.realpath(path)
                if real in above or len(above) > _DEEPEST:
                    continue
                if (path / "__init__.py").is_file():
                    yield f"{package}.{entry.name}", str(path / "__init__.py")
                yield from self._public_files(f"{package}.{entry.name}", path, above | {real})

    def _is_safe(self, module: str, path: str | Path) -> bool:
        """Whether only trusted OS users could change a file or folder, or put another in its place; says why not."""
        return self._tell(module, find_fault(path))

    def _is_safe_module(self, module: str, file: Path) -> bool:
        """The same of a file and its bytecode."""
        return self._tell(module, find_fault_of_module(file))

    def _are_safe(self, module: str, folders: Iterable[str | Path]) -> bool:
        """The same of all code in these folders."""
        told = [self._tell(module, fault) for folder in folders for fault in find_faults_below(folder)]
        return all(told)

    def _is_safe_name(self, name: str) -> bool:
        """The same of a module that is found by its name. Only its top package can be found before something of it is run."""
        top = name.partition(".")[0]
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            return True  # the import itself says what is wrong
        if spec is None:
            return True
        folders = list(spec.submodule_search_locations or ())
        if not folders:
            return not spec.has_location or not spec.origin or self._is_safe_module(name, Path(spec.origin))
        return all(self._is_safe(name, folder) for folder in folders) and self._are_safe(name, folders)

    def _tell(self, module: str, fault: Fault | None) -> bool:
        if fault is not None and fault.place not in self._faulty:  # a folder of bytecode is judged with each of its files
            self._faulty.add(fault.place)
            self._complain(module, fault.place, 0, fault.message)
        return fault is None

    def _import(self, name: str, file: str) -> ModuleType | None:
        try:
            module = importlib.import_module(name)
        except KeyboardInterrupt:
            raise
        except BaseException as problem:
            self._note_broken(name, file, problem)
            return None
        self._collect(module, file or getattr(module, "__file__", None) or "")
        return module

    def _collect(self, module: ModuleType, file: str) -> None:
        if module.__name__ in self._seen:
            return
        self._seen.add(module.__name__)
        self.modules.append(module.__name__)
        try:
            found, hooks = _handlers_of(module), _hooks_of(module)
        except KeyboardInterrupt:
            raise
        except BaseException as problem:
            self._note_broken(module.__name__, file, problem)
            return
        for hook in hooks:
            self.hooks.setdefault((hook.event, hook.file, hook.line), hook)
        for one in found:
            other = self.kinds.setdefault(one.kind, one)
            # The same lines may be loaded twice: by path as a handler, by name as somebody's import.
            if other is not one and (other.file, other.line) != (one.file, one.line):
                self._complain(
                    module.__name__,
                    one.file,
                    one.line,
                    f"kind {one.kind!r} is declared twice, also at {other.file}:{other.line}: give one of them another name",
                )

    def check_signatures(self) -> None:
        """Complain of parameters of types that no payload can be converted to. After all modules: annotations may name any of them."""
        for one in self.kinds.values():
            for problem in one.problems():
                self._complain(one.function.__module__, one.file, one.line, f"{one.kind}: {problem}")

    def _note_broken(self, module: str, file: str, problem: BaseException) -> None:
        message, _ = describe_exception(problem, message_bytes=1000)
        place, line = _where(problem, file)
        self._complain(module, place, line, f"does not load: {message}")

    def _complain(self, module: str, file: str, line: int, message: str) -> None:
        self.problems.append(
            LoadProblem(module=sanitize(module, 300), file=sanitize(file, 1000), line=line, message=sanitize(message, 2000))
        )


def _is_a(kind: type[_T], value: object) -> TypeGuard[_T]:
    """As isinstance, but asks a stranger nothing: a proxy at the top of a module would be set up by that, or raise."""
    return issubclass(type(value), kind)


def _handlers_of(module: ModuleType) -> list[AnyHandler]:
    named = getattr(module, "__all__", ())
    listed = set(named) if isinstance(named, list | tuple) else set()
    found: dict[int, AnyHandler] = {}
    for name, value in list(vars(module).items()):
        if _is_a(Handler, value) and (value.function.__module__ == module.__name__ or name in listed):
            found.setdefault(id(value), value)
    usual = vars(module).get(USUAL)
    if not found and isinstance(usual, FunctionType) and usual.__module__ == module.__name__:
        return [handler(usual)]
    return sorted(found.values(), key=lambda one: (one.line, one.kind))


def _hooks_of(module: ModuleType) -> list[Hook]:
    """Return the hooks that the module defines, by line, and those it merely imports and lists in `__all__`."""
    named = getattr(module, "__all__", ())
    listed = set(named) if isinstance(named, list | tuple) else set()
    found = {
        id(value): value
        for name, value in list(vars(module).items())
        if _is_a(Hook, value) and (getattr(value.function, "__module__", None) == module.__name__ or name in listed)
    }
    return sorted(found.values(), key=lambda one: one.line)


def _where(problem: BaseException, file: str) -> tuple[str, int]:
    """Return file and line of what went wrong: the innermost place in the module's own file, or the last outside the import machinery."""
    if isinstance(problem, SyntaxError) and problem.filename:
        return str(problem.filename), problem.lineno or 0
    place = (file, 0)
    for frame, line in traceback.walk_tb(problem.__traceback__):
        name = frame.f_code.co_filename
        if file and os.path.realpath(name) == os.path.realpath(file):
            place = (file, line)
        elif not file and not name.startswith("<frozen") and name not in {__file__, inspect.getfile(importlib)}:
            place = (name, line)
    return place


def _folder_name(folder: Path) -> str:
    """Return a package name for a folder: readable, the same in each process, different for each path."""
    readable = re.sub(r"\W", "_", folder.name, flags=re.ASCII)[:40] or "root"
    return f"{FOLDERS}.{readable}_{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}"


def _bare_package(name: str, paths: list[str]) -> ModuleType:
    spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = paths
    return importlib.util.module_from_spec(spec)
