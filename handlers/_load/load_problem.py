"""Problems found while handlers are loaded, each with file and line."""

from __future__ import annotations

import importlib
import inspect
import os
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobherd.handlers._values.sanitize import describe_exception, sanitize

if TYPE_CHECKING:
    from jobherd.handlers._load.trust import Fault


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


class Problems:
    """The problems with which no process should start, in the order in which they were found."""

    def __init__(self) -> None:
        self.found: list[LoadProblem] = []
        self._faulty: set[str] = set()

    def add(self, module: str, file: str, line: int, message: str) -> None:
        """Add a problem."""
        self.found.append(problem_of(module, file, line, message))

    def add_broken(self, module: str, file: str, problem: BaseException) -> None:
        """Add that a module does not load."""
        message, _ = describe_exception(problem, message_bytes=1000)
        place, line = _where(problem, file)
        self.add(module, place, line, f"does not load: {message}")

    def add_fault(self, module: str, fault: Fault) -> None:
        """Add that another OS user could change code, once for each file or folder."""
        if fault.place not in self._faulty:
            self._faulty.add(fault.place)
            self.add(module, fault.place, 0, fault.message)


def problem_of(module: str, file: str, line: int, message: str, about: object = None) -> LoadProblem:
    """Return a problem whose texts can be shown and sent as JSON."""
    return LoadProblem(
        module=sanitize(module, 300), file=sanitize(file, 1000), line=line, message=sanitize(message, 2000), about=about
    )


_MACHINERY = {os.path.join(os.path.dirname(__file__), "importer.py"), inspect.getfile(importlib)}


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
        elif not file and not name.startswith("<frozen") and name not in _MACHINERY:
            place = (name, line)
    return place
