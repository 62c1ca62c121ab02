"""Describes the parameters of a handler for the form of the dashboard, which loads no handlers."""

from __future__ import annotations

import contextlib
import inspect
import json
import re
from enum import Enum
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, Union, get_args, get_origin

from jobherd.handlers._define.table_store import TableHandler
from jobherd.handlers._values.converters import bare, describe_type
from jobherd.handlers._values.payload import check_payload
from jobherd.handlers._values.scalars import TEXTS

if TYPE_CHECKING:
    from jobherd.handlers._define.handler import AnyHandler

LONGEST: Final = 200
"""Characters of a default or a type that is stored."""
CHOICES: Final = 100
_INPUTS: Final[dict[Any, str]] = {int: "int", float: "float", bool: "bool", str: "text"} | dict.fromkeys(TEXTS, "text")
_ADDRESS: Final = re.compile(" at 0x[0-9a-f]+")


def signature_of(handler: AnyHandler) -> str:
    """Return the parameters of a handler as JSON.

    The text is the same in each process that has loaded the handler. `refused` is the reason why the
    dashboard must not enqueue a job of the kind.
    """
    if reason := _why_not(handler):
        return json.dumps({"refused": reason})
    binding = handler.signature.binding
    given = {one.name: one.default for one in handler.signature.parameters}
    parameters = [
        {"name": name, "type": _ADDRESS.sub("", describe_type(hint))[:LONGEST], "required": required}
        | _input(bare(hint))
        | _default(given.get(name, inspect.Parameter.empty))
        for name, hint, required in binding.parameters
    ]
    return json.dumps({"parameters": parameters, "open": binding.is_open, "whole": handler.signature.whole})


def _why_not(handler: AnyHandler) -> str:
    if isinstance(handler, TableHandler):
        return "Its jobs are the rows of a table: insert a row there."
    if handler.policy.encrypt:
        return "Its payloads are encrypted: enqueue its jobs with a client that has the key."
    if handler.signature.needs_bytes:
        return "Its jobs need payload_bytes: enqueue them with a client, or on the command line with --bytes-file."
    return ""


def _input(hint: Any) -> dict[str, object]:
    """Return the kind of field that an annotation gets: int, float, bool, text or json."""
    members = [bare(one) for one in get_args(hint)] if get_origin(hint) in {Union, UnionType} else [hint]
    others = [one for one in members if one is not type(None)]
    may_be_null = len(others) < len(members)
    one = others[0] if len(others) == 1 else None
    found: dict[str, object] = {"null": may_be_null, "input": "json"}
    if choices := _choices(one):
        found |= {"input": "text", "choices": choices}
    elif isinstance(one, type) and not (one is bool and may_be_null):  # a box has no third state
        found["input"] = _INPUTS.get(one, "json")
    return found


def _choices(hint: Any) -> list[str]:
    """Return the values of an enumeration or a Literal of texts; empty for others."""
    values: list[object] = []
    if get_origin(hint) is Literal:
        values = [value.value if isinstance(value, Enum) else value for value in get_args(hint)]
    elif isinstance(hint, type) and issubclass(hint, Enum):
        values = [member.value for member in hint]
    texts = [value for value in values if type(value) is str]
    return texts if len(texts) == len(values) <= CHOICES else []


def _default(value: object) -> dict[str, str]:
    """Return a short default as JSON. One that JSON cannot express is left out."""
    with contextlib.suppress(Exception):  # a default may be any object, and must not keep the worker from starting
        if value is not inspect.Parameter.empty and len(text := check_payload(value)) <= LONGEST:
            return {"default": text}
    return {}
