"""Finds where a handler or hook was created: the module whose import creates it, and the line.

The registry needs that module to decide which handlers belong to which module. The function's own
`__module__` is not enough: `functools.partial` and factories in other files do not name the module
that calls them. The registry also records each handler and hook created while it loads modules, so
that it can report the ones it would not use.
"""

from __future__ import annotations

import functools
import inspect
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

_watched: list[object] | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """Where a handler or hook was created."""

    module: str
    """The module whose import created it. If no import did: the function's module."""
    file: str
    line: int


@contextmanager
def watching() -> Iterator[list[object]]:
    """Yield a list that receives each handler and hook created in the block."""
    global _watched  # the one list of this process
    before, _watched = _watched, []
    try:
        yield _watched
    finally:
        _watched = before


def note_made(thing: object) -> None:
    """Add a new handler or hook to the registry's list, if the registry is loading."""
    if _watched is not None:
        _watched.append(thing)


def where_made(function: Callable[..., object]) -> Made:
    """Return where the handler or hook around `function` is created.

    Call it while the decorator runs.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    importing = frame is not None and frame.f_globals.get("__name__") != "__main__"
    module = (
        frame.f_globals.get("__name__") if frame is not None and importing else getattr(function, "__module__", None)
    )
    code = code_of(function)
    file = os.path.abspath(code.co_filename) if code is not None else "<unknown>"
    if frame is not None and importing:
        here = os.path.abspath(frame.f_code.co_filename)
        # A function made by a factory or decorator has the same position each time. Only the line
        # that called the factory tells its handlers apart.
        if here != file or (code is not None and "<locals>" in code.co_qualname):
            return Made(str(module), here, frame.f_lineno)
    return Made(str(module), file, code.co_firstlineno if code is not None else 0)


def code_of(function: Callable[..., object]) -> CodeType | None:
    """Return the code object below wrappers and partials; None if the function is not in Python."""
    while True:
        function = inspect.unwrap(function)
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, staticmethod):
            function = function.__func__
        else:
            break
    called = getattr(type(function), "__call__", None)  # noqa: B004  # the function of a callable object
    return getattr(function, "__code__", None) or getattr(called, "__code__", None)
