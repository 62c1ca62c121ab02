"""Finds the handlers and hooks that belong to a module.

It reads names of the module only, and calls no code of it.
"""

from __future__ import annotations

from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar

from jobherd.handlers._define.handler import USUAL, AnyHandler, Handler, handler
from jobherd.handlers._define.hooks import Hook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_T = TypeVar("_T")


def _is_a(kind: type[_T], value: object) -> TypeGuard[_T]:
    """Like isinstance, but does not read `value.__class__`.

    A lazy proxy in a module would load or raise.
    """
    return issubclass(type(value), kind)


def handlers_of(module: ModuleType) -> list[AnyHandler]:
    """Return the module's own handlers, by line, and the imported ones that it lists in `__all__`.

    Of a module without any, the function `handle` becomes one.
    """
    listed = _listed(module)
    found: dict[int, AnyHandler] = {}
    for name, value in _values(module):
        if _is_a(Handler, value) and (value.made.module == module.__name__ or name in listed):
            found.setdefault(id(value), value)
    usual = vars(module).get(USUAL)
    if not found and isinstance(usual, FunctionType) and usual.__module__ == module.__name__:
        return [handler(usual)]
    return sorted(found.values(), key=lambda one: (one.line, one.kind))


def hooks_of(module: ModuleType) -> list[Hook]:
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
