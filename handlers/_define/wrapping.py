"""Inspects a function below decorators and partials: name, parameters, injected values.

A decorator with `functools.wraps` hides its own parameters behind those of the function. The
function's parameters are the handler's only if the decorator passes on what it receives.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def plain(function: Any) -> Any:
    """Return the function of a static method, and other functions unchanged.

    Raises TypeError for a method, because a job has no object to call it on.

    >>> plain(staticmethod(len)) is len
    True
    """
    if isinstance(function, staticmethod):
        return function.__func__
    name = name_of(function)
    if isinstance(function, classmethod):
        message = f"{name} is a class method, and a job has no class to call it on: use a function or a static method"
        raise TypeError(message)
    holder = name.rpartition(".")[0]
    if isinstance(function, FunctionType) and holder and not holder.endswith("<locals>"):
        first = next(iter(inspect.signature(function).parameters), "")
        if first in {"self", "cls"}:
            message = (
                f"{name} is a method, and a job has no {first!r} to call it with: use a function or a static method"
            )
            raise TypeError(message)
    return function


def name_of(function: object) -> str:
    """Return a function's name for messages.

    A partial never shows its arguments: they may be secret.

    >>> name_of(functools.partial(print, "secret"))
    'partial of print'
    """
    if isinstance(function, functools.partial):
        return f"partial of {name_of(function.func)}"
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a call, in order.

    Uses the outermost wrapper whose parameters are not only *args or **kwargs, else the function.
    """
    return list(inspect.signature(_signing(function), follow_wrapped=False).parameters.values())


def annotated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that holds the annotations of `parameters_of`."""
    function = _signing(function)
    while isinstance(function, functools.partial):
        function = _signing(function.func)
    if isinstance(function, FunctionType) or inspect.isroutine(function):
        return function
    return getattr(type(function), "__call__", function)  # noqa: B004  # the function of a callable object


def _signing(function: Callable[..., Any]) -> Callable[..., Any]:
    while hasattr(function, "__wrapped__"):
        try:
            own = inspect.signature(function, follow_wrapped=False).parameters.values()
        except ValueError:  # written in C, such as the result of functools.lru_cache
            own = None
        if own is not None and not any(parameter.kind in _REST for parameter in own):
            break
        function = function.__wrapped__
    return function


def injected(function: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """Yield each required parameter that a decorator passes itself, with the decorator's position.

    No payload can have such a parameter, and every job without it would be rejected. Only certain
    cases are reported: each call of the wrapped function passes the value, in addition to `*args`
    or `**kwargs`.
    """
    names = {each.name for each in parameters_of(function) if each.default is inspect.Parameter.empty}
    wrapper: Any = function
    last = _signing(function)
    while wrapper is not last:
        wrapped = wrapper.__wrapped__
        if isinstance(wrapper, FunctionType):
            place = f"{wrapper.__code__.co_filename}:{wrapper.__code__.co_firstlineno}"
            yield from ((name, place) for name in sorted(_passed(wrapper, wrapped) & names))
        wrapper = wrapped


def _passed(wrapper: FunctionType, wrapped: Callable[..., Any]) -> set[str]:
    """Return the parameters of `wrapped` that every call fills with a value of its own."""
    cells = zip(wrapper.__code__.co_freevars, wrapper.__closure__ or (), strict=False)
    known = {name for name, cell in cells if _holds(cell, wrapped)}
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(wrapper.__code__)))
        positions = [each.name for each in inspect.signature(wrapped).parameters.values()]
    except (OSError, SyntaxError, ValueError, TypeError):
        return set()
    handed = set(wrapper.__code__.co_varnames[: wrapper.__code__.co_argcount + wrapper.__code__.co_kwonlyargcount])
    found: list[set[str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known:
            before = next(
                (place for place, each in enumerate(node.args) if isinstance(each, ast.Starred)), len(node.args)
            )
            passes_on = before < len(node.args) or any(each.arg is None for each in node.keywords)
            given = {
                **dict(zip(positions, node.args[:before], strict=False)),
                **{each.arg: each.value for each in node.keywords if each.arg},
            }
            found.append({name for name, value in given.items() if passes_on and not handed & _names_in(value)})
    return set.intersection(*found) if found else set()


def _names_in(value: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}


def _holds(cell: Any, value: object) -> bool:
    try:
        return cell.cell_contents is value
    except ValueError:  # empty
        return False
