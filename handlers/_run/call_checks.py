"""Checks what is given to chains, groups, flows and `job.spawn`, and says what to write instead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from jobherd.handlers._values.json_form import with_article

T = TypeVar("T")


def check_calls(calls: Iterable[T], caller: str) -> list[T]:
    """Return calls as a list. Raises TypeError if one is not made by `Handler.call`.

    caller: the function that got them, for messages.
    """
    given: object = calls
    if not isinstance(given, Iterable):
        message = f"{caller} takes a list of calls, not {_called(given)}: put it into a list"
        raise TypeError(message)
    found = list(calls)
    for place, call in enumerate(found, 1):
        check_call(call, f"{caller}: item {place}")
    return found


def check_call(call: object, place: str) -> None:
    """Raise TypeError if `call` is not made by `Handler.call`. place: where it was given."""
    if hasattr(call, "members"):
        return
    if hasattr(call, "enqueue") and hasattr(call, "nodes"):
        fix = "chains and groups cannot be nested, so add the jobs to a Flow"
    elif isinstance(call, list | tuple):
        fix = "give each call as a separate argument, as in chain(*calls)"
    else:
        fix = f"write {_function(call)}.call(...)"
    message = f"{place} is {_called(call)}, not a call: {fix}"
    raise TypeError(message)


def check_handler(handler: object, caller: str) -> None:
    """Raise TypeError if `handler` is not a handler. caller: the function that got it."""
    if hasattr(handler, "call"):
        return
    fix = "use put(call)" if hasattr(handler, "members") else "give the decorated function itself"
    message = f"{caller} takes a handler, not {_called(handler)}: {fix}"
    raise TypeError(message)


def _called(value: object) -> str:
    if hasattr(value, "call"):
        return f"the handler {getattr(value, 'kind', '')!r}"
    return with_article(type(value).__name__)


def _function(value: object) -> str:
    """Return the name of a handler's function as it is called, or "handler" for other values."""
    signature = getattr(value, "signature", None)
    return "handler" if signature is None else str(signature.name).rpartition(".")[2]
