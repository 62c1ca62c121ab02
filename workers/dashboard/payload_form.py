"""Fields for the parameters of a handler, and the payload that a user has typed into them.

The parameters are those that workers have declared (`workers/run/signatures.py`). Only the form of
the payload is checked: the handler converts the values when the job runs. Pure: must not query the
database.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._values.payload import PayloadError, check_payload
from jobherd.workers.dashboard.documents import parsed, read_edited
from jobherd.workers.dashboard.json_values import document, known, listed, text
from jobherd.workers.dashboard.redaction import redact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_INPUTS: Final = frozenset({"int", "float", "bool", "text", "json"})
_WHOLE: Final = re.compile("[+-]?[0-9]{1,1000}")


@dataclass(frozen=True, slots=True)
class Field:
    """One parameter. default: as it is shown; empty if there is none."""

    name: str
    type: str
    input: str
    required: bool
    null: bool
    choices: tuple[str, ...]
    default: str

    @property
    def key(self) -> str:
        """The name of its field in the form."""
        return f"field:{self.name}"


@dataclass(frozen=True, slots=True)
class Signature:
    """What a handler takes.

    refused: why the dashboard must not enqueue a job of the kind; empty if it may.
    is_open: whether the payload may have keys that no field has, or is any document.
    """

    fields: tuple[Field, ...] = ()
    refused: str = ""
    is_open: bool = True
    is_known: bool = False

    @property
    def is_document(self) -> bool:
        """Whether there are no fields, so that the payload must be written as JSON."""
        return self.is_open and not self.fields


def read_signature(stored: str | None, hidden: Sequence[str]) -> Signature:
    """Return a signature as a worker of any version has declared it.

    hidden: paths of the payload whose defaults must not be shown.
    """
    found = document(stored)
    given = [one for one in listed(found.get("parameters")) if text(one.get("name"))]
    if not given and "open" not in found:
        return Signature(refused=text(found.get("refused")))
    if found.get("whole"):
        return Signature(is_known=True)
    defaults = {text(one["name"]): parsed(text(one.get("default"))) for one in given if one.get("default")}
    shown = document(redact(json.dumps(defaults), hidden))
    fields = tuple(_field(one, shown.get(one["name"], "")) for one in given)
    return Signature(fields, is_open=bool(found.get("open")), is_known=True)


def _field(one: Mapping[str, Any], default: object) -> Field:
    choices = one.get("choices")
    return Field(
        one["name"],
        text(one.get("type")),
        known(one.get("input"), _INPUTS) or "json",
        bool(one.get("required")),
        bool(one.get("null")),
        tuple(map(str, choices)) if isinstance(choices, list) else (),
        default if isinstance(default, str) else json.dumps(default, ensure_ascii=False),
    )


def payload_of(signature: Signature, given: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the payload that a form has, as JSON, and a message for each invalid field.

    What is written as JSON counts instead of the fields.
    """
    written = given.get("payload", "").strip()
    if not written and signature.is_document:
        return "", {"payload": "payload is missing: write JSON, such as {}."}
    payload: Any = {}
    problems: dict[str, str] = {}
    if written:
        try:
            payload = read_edited(written)
            problem = _misfit(signature, payload)
        except (PayloadError, ValueError) as invalid:
            problem = f"payload: {str(invalid).rstrip('.')}."
        if problem:
            problems["payload"] = problem
    else:
        for field in signature.fields:
            try:
                if (value := _value(field, given.get(field.key, ""))) is not _NOTHING:
                    payload[field.name] = value
            except (PayloadError, ValueError) as invalid:
                problems[field.key] = f"{str(invalid).rstrip('.')}."
    try:
        return check_payload(payload), problems
    except PayloadError as invalid:
        return "", {"payload": f"payload: {invalid}."} | problems


_NOTHING: Final = object()


def _value(field: Field, written: str) -> object:
    """Return the value of a field, or `_NOTHING` if it is left to its default. Raises ValueError."""
    if field.input == "bool":
        return written == "true"
    if not (written if field.input == "text" else written.strip()):
        if not field.required:
            return _NOTHING
        if field.null:
            return None
        message = f"{field.name} is missing: the handler needs it"
        raise ValueError(message)
    wanted = f"invalid {field.name} “{written[:40]}”: expected"
    if field.choices and written not in field.choices:
        message = f"{wanted} one of {', '.join(field.choices)}"
        raise ValueError(message)
    if field.input == "int" and not _WHOLE.fullmatch(written.strip()):
        message = f"{wanted} a whole number"
        raise ValueError(message)
    if field.input == "float" and not _is_finite(written):
        message = f"{wanted} a number"
        raise ValueError(message)
    try:
        return {"int": int, "float": float, "text": str}.get(field.input, read_edited)(written)
    except ValueError as invalid:
        message = f"{field.name}: {invalid}"
        raise ValueError(message) from None


def _is_finite(written: str) -> bool:
    try:
        return math.isfinite(float(written))
    except ValueError:
        return False


def _misfit(signature: Signature, payload: object) -> str:
    """Return why a document does not fit the fields; empty if it does."""
    if signature.is_document:
        return ""
    if not isinstance(payload, dict):
        return "invalid payload: expected an object with the handler's parameters as keys."
    names = {field.name for field in signature.fields}
    missing = [field.name for field in signature.fields if field.required and field.name not in payload]
    unknown = [name for name in payload if name not in names and not signature.is_open]
    if unknown:
        return f"invalid payload: the handler has no parameter {unknown[0][:80]!r}."
    return f"invalid payload: {missing[0]} is missing, and the handler needs it." if missing else ""
