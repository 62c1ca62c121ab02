"""Finds the handlers and hooks in folders and modules, and reports what does not load.

One broken module must not stop the others. Each problem is returned as a `LoadProblem` with file
and line, and the caller decides what to do. The modules of a folder are loaded under the names by
which the application imports them. Without such a name they become
`jobherd_user.<folder>.<module>`, so that a user's `handlers/` or `json.py` shadows nothing
(`module_names`). A decorated function that would not be used is a problem too. Loading runs user
code: never call it in the supervisor.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeGuard, TypeVar

from jobherd.handlers._define.definition_site import watching
from jobherd.handlers._define.handler import USUAL, AnyHandler, Handler, handler
from jobherd.handlers._define.hooks import Hook
from jobherd.handlers._define.module_names import (
    FOLDERS,
    bare_package,
    folder_name,
    imports_above,
    is_file_of,
    leads_to,
    own_name,
    twice,
)
from jobherd.handlers._define.trust import find_fault, find_fault_of_module, find_faults_below
from jobherd.handlers._define.wrapping import injected
from jobherd.handlers._values.sanitize import describe_exception, sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from jobherd.handlers._define.trust import Fault

HOOKS: Final = "--hooks and JOBHERD_HOOKS"
"""Where users name the sources that are loaded for their hooks."""
_PACKAGE: Final = Path(__file__).parents[1]
"""The folder of `jobherd.handlers`."""
_NOT_HANDLERS: Final = frozenset({"testing"})
_SUFFIX: Final = ".py"
_DEEPEST: Final = 20

_T = TypeVar("_T")

Found: TypeAlias = "tuple[str, str]"  # a module's name, its file


@dataclass(frozen=True, slots=True)
class LoadProblem:
    """One problem found while loading handlers."""

    module: str
    """Name of the module, or the source as given."""
    file: str
    """The file or folder."""
    line: int
    """Line in the file, 0 if there is none."""
    message: str
    """What is wrong, and how to fix it."""
    about: object = None
    """The handler or hook, if the problem is that it would not be called."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file or self.module
        return f"{place}: {self.message}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """Result of loading sources.

    Attributes:
        kinds: handlers by kind.
        problems: errors with which no process should start.
        modules: names of the loaded modules.
        hooks: hooks in the order of their declaration.
        notes: warnings for users.
        elsewhere: handlers that the modules only import and that are not served.
    """

    kinds: dict[str, AnyHandler]
    problems: tuple[LoadProblem, ...]
    modules: tuple[str, ...]
    hooks: tuple[Hook, ...] = ()
    notes: tuple[LoadProblem, ...] = ()
    elsewhere: tuple[LoadProblem, ...] = ()


def load(sources: Iterable[str | os.PathLike[str]], *, named: str = "--handlers and JOBHERD_HANDLERS") -> Loaded:
    """Import every public module of the sources and return their handlers, in a fixed order.

    sources: folders, `.py` files, and dotted names of modules or packages on the import path.
        Modules and folders whose names begin with an underscore or a dot are skipped.
    named: where users name the sources, for the message about a missing source.

    A handler belongs to the module whose import creates it. An imported handler counts if the
    module lists it in `__all__`. A handler is served if a name of the module, or of a class in the
    module, holds it. If a module has no handler but a function `handle`, that function becomes a
    handler. Never raises for what user code does, SystemExit included; only KeyboardInterrupt
    passes.
    """
    loading = _Loading(named)
    importlib.invalidate_caches()
    with watching() as made:
        for source in sources:
            loading.take(source)
    loading.check_signatures()
    loading.tell_lost(made, but=loading.tell_twice())
    return Loaded(
        loading.kinds,
        tuple(loading.problems),
        tuple(loading.modules),
        tuple(loading.hooks),
        tuple(loading.notes),
        tuple(loading.elsewhere),
    )


def all_hooks(*loaded: Loaded) -> list[Hook]:
    """Return the hooks of several `Loaded`, in that order, each once."""
    found: list[Hook] = []
    for each in loaded:
        places = {(hook.event, hook.file, hook.line) for hook in found}  # one file may be loaded by path and by name
        found += [hook for hook in each.hooks if (hook.event, hook.file, hook.line) not in places]
    return found


def notes_of(found: Loaded, hooks: Loaded) -> list[LoadProblem]:
    """Return the notes of both. Leaves out a note about a hook that the other `Loaded` calls."""
    called = {id(hook) for hook in all_hooks(hooks, found)}
    return [note for note in (*found.notes, *hooks.notes) if id(note.about) not in called]


class _Loading:
    def __init__(self, named: str) -> None:
        self._named = named
        self.kinds: dict[str, AnyHandler] = {}
        self.hooks: dict[Hook, None] = {}
        self.problems: list[LoadProblem] = []
        self.notes: list[LoadProblem] = []
        self.elsewhere: list[LoadProblem] = []
        self.modules: list[str] = []
        self._seen: set[str] = set()
        self._faulty: set[str] = set()
        self._files: dict[str, ModuleType] = {}
        """Loaded modules by real file, so that no file is loaded under two names."""
        self._roots: list[str] = []
        """Real folders of the sources."""
        self._broken: set[str] = set()
        """Modules whose names could not be read. Their handlers are unknown."""
        self._judged: set[int] = set()
        """Ids of the hooks, and of the handlers that are served or rejected."""

    def take(self, source: str | os.PathLike[str]) -> None:
        text = os.fspath(source)
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
        if os.path.samefile(folder, _PACKAGE):
            self._take_package("jobherd.handlers", [str(_PACKAGE)])
            return
        self._roots.append(str(folder))
        if not self._is_safe(str(folder), given) or not self._are_safe(str(folder), [folder]):
            return
        files = list(self._public_files("", folder, frozenset({str(folder)})))
        package = self._open(folder, [*(file for _, file in files), *map(str, folder.glob("_*.py"))])
        if package is not None:
            for name, file in files:
                self._import_file(package, name, file, folder)

    def _take_file(self, file: Path, given: str) -> None:
        folder = file.parent
        if file.suffix != _SUFFIX:
            self._complain(str(file), str(file), 0, "is no Python module: its name must end in .py")
        elif (
            self._is_safe(str(folder), folder)
            and self._is_safe(file.stem, given)
            and self._is_safe_module(file.stem, file)
        ):
            package = self._open(folder, [str(file)])
            if package is not None:
                self._import_file(package, file.stem, str(file), folder)

    def _take_module(self, name: str) -> None:
        if not self._is_safe_name(name):
            return
        module = self._import(name, "")
        paths = getattr(module, "__path__", None)
        if paths is not None:
            self._roots.extend(map(os.path.realpath, paths))
            self._take_package(name, list(paths))

    def _take_package(self, package: str, paths: list[str]) -> None:
        for found in sorted(pkgutil.iter_modules(paths), key=lambda found: found.name):
            if found.name.startswith("_") or (package == "jobherd.handlers" and found.name in _NOT_HANDLERS):
                continue
            name = f"{package}.{found.name}"
            module = self._import(name, "")
            if found.ispkg and module is not None:
                self._take_package(name, list(getattr(module, "__path__", [])))

    def _open(self, folder: Path, files: list[str]) -> str | None:
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
                own
                if not start.is_file() or (self._is_safe_module(own, start) and self._import(own, str(start)))
                else None
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
        if not all(self._is_safe_module(name, start) for start in starts if start.is_file()):
            return False
        try:
            if above:
                importlib.import_module(above)
            return leads_to(name, folder)
        except KeyboardInterrupt:
            raise
        except BaseException:
            return False

    def _import_file(self, package: str, name: str, file: str, folder: Path) -> None:
        own = f"{package}.{name}" if package else name
        if not package.startswith(f"{FOLDERS}.") and not self._is_found(own, file):
            package = folder_name(folder)
            if not self._open_folder(package, folder):
                return
            own = f"{package}.{name}"
        self._import(own, file)

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
        """Yield a folder's files by name.

        A link back to one of the real folders in `above` is skipped.
        """
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
                name = f"{package}.{stem}".lstrip(".")
                if "." in stem:
                    self._complain(name, entry.path, 0, "a module's name cannot have a dot in it: rename the file")
                else:
                    yield name, entry.path
            elif os.path.isdir(path):
                name = f"{package}.{entry.name}".lstrip(".")
                real = os.path.realpath(path)
                if real in above or len(above) > _DEEPEST:
                    continue
                if "." in entry.name:
                    if any(each.name[:1] not in "_." for each in path.glob("*.py")):
                        self._complain(
                            name, entry.path, 0, "a folder of modules cannot have a dot in its name: rename the folder"
                        )
                else:
                    if (path / "__init__.py").is_file():
                        yield name, str(path / "__init__.py")
                    yield from self._public_files(name, path, above | {real})

    def _is_safe(self, module: str, path: str | Path) -> bool:
        """Return whether only trusted OS users can change or replace the path; report if not."""
        return self._tell(module, find_fault(path))

    def _is_safe_module(self, module: str, file: Path) -> bool:
        """Like `_is_safe`, for a Python file and its bytecode."""
        return self._tell(module, find_fault_of_module(file))

    def _are_safe(self, module: str, folders: Iterable[str | Path]) -> bool:
        """Like `_is_safe`, for all code in these folders."""
        told = [self._tell(module, fault) for folder in folders for fault in find_faults_below(folder)]
        return all(told)

    def _is_safe_name(self, name: str) -> bool:
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
            return not spec.has_location or not spec.origin or self._is_safe_module(name, Path(spec.origin))
        return all(self._is_safe(name, folder) for folder in folders) and self._are_safe(name, folders)

    def _tell(self, module: str, fault: Fault | None) -> bool:
        # the bytecode folder is checked again with each of its files
        if fault is not None and fault.place not in self._faulty:
            self._faulty.add(fault.place)
            self._complain(module, fault.place, 0, fault.message)
        return fault is None

    def _import(self, name: str, file: str) -> ModuleType | None:
        if (known := self._files.get(os.path.realpath(file)) if file else None) is not None:
            return known
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
        if file:
            self._files[os.path.realpath(file)] = module
        try:
            found, hooks = _handlers_of(module), _hooks_of(module)
        except KeyboardInterrupt:
            raise
        except BaseException as problem:
            self._note_broken(module.__name__, file, problem)
            self._broken.add(module.__name__)
            return
        self._judged.update(map(id, (*found, *hooks)))
        self.hooks.update(dict.fromkeys(hooks))
        for one in found:
            other = self.kinds.setdefault(one.kind, one)
            if other is not one:
                self._complain(
                    module.__name__,
                    one.file,
                    one.line,
                    f"kind {one.kind!r} is declared twice, also at {other.file}:{other.line}: give one of them another name",
                )
            for name, place in injected(one.function):
                self._complain(
                    module.__name__,
                    one.file,
                    one.line,
                    f"the decorator at {place} passes {name!r} itself, so no payload can have it and every job of {one.kind!r} would fail: "
                    "write the parameters of a job in the decorator's inner function instead of *args and **kwargs",
                )

    def tell_lost(self, made: Iterable[object], *, but: set[str]) -> None:
        """Report each handler and hook that was created while loading but would not be called.

        but: modules that are second copies of served modules.
        """
        for one in made:
            if (
                not isinstance(one, Handler | Hook)
                or id(one) in self._judged
                or one.made.module not in sys.modules.keys() - but - self._broken
            ):
                continue
            if isinstance(one, Handler) and self._named == HOOKS:
                continue  # sources of hooks do not serve any jobs
            what = (
                f"kind {one.kind!r} would not be served"
                if isinstance(one, Handler)
                else f"the hook {one.event} would not be called"
            )
            module = one.made.module
            if module in self._seen:
                reason = (
                    "no name of its module holds it. A decorator outside of it, or a later definition of the same name, has replaced it: "
                    "make this decorator the outermost one, or assign the result to a name of its own"
                )
                self._complain(module, one.file, one.line, f"{what}: {reason}")
            elif any(os.path.realpath(one.file).startswith(root + os.sep) for root in self._roots):
                reason = "the name of its module or folder begins with an underscore. Name it in __all__ of a module that is loaded, or rename it"
                self.notes.append(_problem(module, one.file, one.line, f"{what}: {reason}", one))
            elif isinstance(one, Handler):
                reason = f"its module {module} is imported here, and {self._named} do not name it"
                self.elsewhere.append(_problem(module, one.file, one.line, f"{what} here: {reason}"))

    def tell_twice(self) -> set[str]:
        """Report modules that are loaded twice, and return the names of the copies.

        That happens if the import path changes after the modules were found.
        """
        found = twice(self.modules)
        for name, other in found:
            file = getattr(sys.modules[name], "__file__", None) or ""
            self.notes.append(
                _problem(
                    name, file, 0, f"is loaded twice, also as {other}, so its exceptions and its state exist twice: put the folder from which "
                    f"{other} is imported on the path before the handlers are loaded, with --app-dir or PYTHONPATH",
                )
            )  # fmt: skip
        return {other for _, other in found}

    def check_signatures(self) -> None:
        """Report parameters whose types payloads cannot be converted to.

        Runs after all modules are loaded: annotations may name any of them.
        """
        for one in self.kinds.values():
            for problem in one.problems():
                self._complain(one.function.__module__, one.file, one.line, f"{one.kind}: {problem}")

    def _note_broken(self, module: str, file: str, problem: BaseException) -> None:
        message, _ = describe_exception(problem, message_bytes=1000)
        place, line = _where(problem, file)
        self._complain(module, place, line, f"does not load: {message}")

    def _complain(self, module: str, file: str, line: int, message: str) -> None:
        self.problems.append(_problem(module, file, line, message))


def _problem(module: str, file: str, line: int, message: str, about: object = None) -> LoadProblem:
    return LoadProblem(
        module=sanitize(module, 300), file=sanitize(file, 1000), line=line, message=sanitize(message, 2000), about=about
    )


def _is_a(kind: type[_T], value: object) -> TypeGuard[_T]:
    """Like isinstance, but does not read `value.__class__`.

    A lazy proxy in a module would load or raise.
    """
    return issubclass(type(value), kind)


def _handlers_of(module: ModuleType) -> list[AnyHandler]:
    listed = _listed(module)
    found: dict[int, AnyHandler] = {}
    for name, value in _values(module):
        if _is_a(Handler, value) and (value.made.module == module.__name__ or name in listed):
            found.setdefault(id(value), value)
    usual = vars(module).get(USUAL)
    if not found and isinstance(usual, FunctionType) and usual.__module__ == module.__name__:
        return [handler(usual)]
    return sorted(found.values(), key=lambda one: (one.line, one.kind))


def _hooks_of(module: ModuleType) -> list[Hook]:
    """Return the module's own hooks, by line, and the imported ones that it lists in `__all__`."""
    listed = _listed(module)
    found = {
        id(value): value
        for name, value in _values(module)
        if _is_a(Hook, value) and (value.made.module == module.__name__ or name in listed)
    }
    return sorted(found.values(), key=lambda one: one.line)


def _listed(module: ModuleType) -> set[str]:
    named = getattr(module, "__all__", ())
    return set(named) if isinstance(named, list | tuple) else set()


_dict_of: Final[Callable[[type], Mapping[str, Any]]] = type.__dict__["__dict__"].__get__
"""Returns the attributes of a class without calling its metaclass, which could raise."""


def _values(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the values of the module's names and of the classes it defines.

    Static methods are unwrapped.
    """
    values: list[tuple[str, Any]] = list(vars(module).items())
    classes: set[int] = set()
    for name, value in values:  # the list grows during the loop
        yield name, value.__func__ if _is_a(staticmethod, value) else value
        if _is_a(type, value) and id(value) not in classes:
            classes.add(id(value))
            held = _dict_of(value)
            if held.get("__module__") == module.__name__:
                values.extend((f"{name}.{inner}", each) for inner, each in held.items())


def _where(problem: BaseException, file: str) -> tuple[str, int]:
    """Return file and line of an error.

    That is the innermost line in the module's own file, or the last line outside the import
    machinery.
    """
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
