"""Finds the handlers and hooks in folders and modules, and reports what does not load.

One broken module must not stop the others. Each problem is returned as a `LoadProblem` with file
and line, and the caller decides what to do. A decorated function that would not be used is a
problem too. Loading runs user code: never call it in the supervisor.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from jobherd.handlers._define.definition_site import watching
from jobherd.handlers._define.handler import AnyHandler, Handler
from jobherd.handlers._define.hooks import Hook
from jobherd.handlers._define.wrapping import injected
from jobherd.handlers._load.importer import Importer
from jobherd.handlers._load.load_problem import LoadProblem, Problems, problem_of
from jobherd.handlers._load.module_contents import handlers_of, hooks_of
from jobherd.handlers._load.module_names import twice
from jobherd.handlers._load.sources import Sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

HOOKS: Final = "--hooks and JOBHERD_HOOKS"
"""Where users name the sources that are loaded for their hooks."""


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


def load(
    sources: Iterable[str | os.PathLike[str]],
    *,
    named: str = "--handlers and JOBHERD_HANDLERS",
    on_import: Callable[[str, str], None] = lambda _name, _file: None,
) -> Loaded:
    """Import every public module of the sources and return their handlers, in a fixed order.

    sources: folders, `.py` files, and dotted names of modules or packages on the import path.
        Modules and folders whose names begin with an underscore or a dot are skipped.
    named: where users name the sources, for the message about a missing source.
    on_import: called with the name and the file of each module before its import, which may not
        end. The file is empty for a module that is found by its name.

    A handler belongs to the module whose import creates it. An imported handler counts if the
    module lists it in `__all__`. A handler is served if a name of the module, or of a class in the
    module, holds it. If a module has no handler but a function `handle`, that function becomes a
    handler. Never raises for what user code does, SystemExit included; only KeyboardInterrupt
    passes.
    """
    loading = _Loading(named, on_import)
    importlib.invalidate_caches()
    with watching() as made:
        for source in sources:
            loading.sources.take(source)
    loading.check_signatures()
    loading.report_unused(made, but=loading.report_copies())
    return Loaded(
        loading.kinds,
        tuple(loading.problems.found),
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
    def __init__(self, named: str, on_import: Callable[[str, str], None]) -> None:
        self._named = named
        self.kinds: dict[str, AnyHandler] = {}
        self.hooks: dict[Hook, None] = {}
        self.problems = Problems()
        self.notes: list[LoadProblem] = []
        self.elsewhere: list[LoadProblem] = []
        self.modules: dict[str, None] = {}
        self.sources = Sources(Importer(self.problems, self.collect, on_import), self.problems, named)
        self._broken: set[str] = set()
        """Modules whose names could not be read. Their handlers are unknown."""
        self._judged: set[int] = set()
        """Ids of the hooks, and of the handlers that are served or rejected."""

    def collect(self, module: ModuleType, file: str) -> None:
        """Take the handlers and hooks of a module that was imported."""
        if module.__name__ in self.modules:
            return
        self.modules[module.__name__] = None
        try:
            found, hooks = handlers_of(module), hooks_of(module)
        except KeyboardInterrupt:
            raise
        except BaseException as problem:
            self.problems.add_broken(module.__name__, file, problem)
            self._broken.add(module.__name__)
            return
        self._judged.update(map(id, (*found, *hooks)))
        self.hooks.update(dict.fromkeys(hooks))
        for one in found:
            other = self.kinds.setdefault(one.kind, one)
            if other is not one:
                self.problems.add(
                    module.__name__,
                    one.file,
                    one.line,
                    f"kind {one.kind!r} is declared twice, also at {other.file}:{other.line}: "
                    "give one of them another name",
                )
            for name, place in injected(one.function):
                self.problems.add(
                    module.__name__,
                    one.file,
                    one.line,
                    f"the decorator at {place} passes {name!r} itself, "
                    f"so no payload can have it and every job of {one.kind!r} would fail: "
                    "write the parameters of a job in the decorator's inner function instead of *args and **kwargs",
                )

    def report_unused(self, made: Iterable[object], *, but: set[str]) -> None:
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
            if module in self.modules:
                reason = (
                    "no name of its module holds it. A decorator outside of it, "
                    "or a later definition of the same name, has replaced it: "
                    "make this decorator the outermost one, or assign the result to another name"
                )
                self.problems.add(module, one.file, one.line, f"{what}: {reason}")
            elif any(os.path.realpath(one.file).startswith(root + os.sep) for root in self.sources.roots):
                reason = (
                    "the name of its module or folder begins with an underscore. "
                    "Name it in __all__ of a module that is loaded, or rename it"
                )
                self.notes.append(problem_of(module, one.file, one.line, f"{what}: {reason}", one))
            elif isinstance(one, Handler):
                reason = f"its module {module} is imported here, and {self._named} do not name it"
                self.elsewhere.append(problem_of(module, one.file, one.line, f"{what} here: {reason}"))

    def report_copies(self) -> set[str]:
        """Report modules that are loaded twice, and return the names of the copies.

        That happens if the import path changes after the modules were found.
        """
        found = twice(self.modules)
        for name, other in found:
            file = getattr(sys.modules[name], "__file__", None) or ""
            self.notes.append(
                problem_of(
                    name, file, 0, f"is loaded twice, also as {other}, "
                    "so its exceptions and its state exist twice: put the folder from which "
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
                self.problems.add(one.function.__module__, one.file, one.line, f"{one.kind}: {problem}")
