"""Payload types of Pydantic 2 and msgspec: their own library dumps and validates the values.

Neither library is imported here: a process can have their objects only if it has imported the
library. A library's error becomes a Misfit with the place in the document. The message must not
show the value, so messages of the libraries that quote it are replaced.
"""

from __future__ import annotations

import json
import re
import sys
import typing
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

from jobherd.handlers._values.misfit import Misfit, path_step
from jobherd.handlers._values.sanitize import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable

_LIBRARIES: Final = {"pydantic": "pydantic", "annotated_types": "pydantic", "msgspec": "msgspec"}
"""The library that applies a piece of an annotation's metadata, by the metadata's package."""
_QUOTES: Final = {"union_tag_invalid": "has a tag that is not one of its union's", "uuid_parsing": "must be a UUID"}
"""Pydantic's errors whose text quotes the value."""
_QUOTED: Final = re.compile(r"(Invalid (?:enum )?value) .*", re.DOTALL)
_PLACE: Final = re.compile(r"(.*) - at `\$(.*)`", re.DOTALL)


def is_model(kind: object) -> bool:
    """Return whether it is a class that Pydantic or msgspec validates."""
    return isinstance(kind, type) and (hasattr(kind, "__pydantic_validator__") or hasattr(kind, "__struct_fields__"))


def library_of(hint: Any) -> str | None:
    """Return "pydantic" or "msgspec" if that library validates this annotation and is imported.

    A library validates its own classes, and `Annotated[...]` with its own constraints, such as
    `Field(gt=0)` or `Meta(gt=0)`.
    """
    kind = typing.get_origin(hint) or hint
    if kind is typing.Annotated:
        names = {_LIBRARIES.get(type(one).__module__.partition(".")[0]) for one in hint.__metadata__}
        return next((name for name in names if name is not None and name in sys.modules), None)
    if not is_model(kind):
        return None
    return "pydantic" if hasattr(kind, "__pydantic_validator__") else "msgspec"


def dump_model(value: Any) -> object:
    """Return a model's value as JSON types.

    Datetimes may be left for the caller to convert to text.
    Raises TypeError if the model cannot be dumped.
    """
    kind = type(value)
    try:
        if hasattr(kind, "__pydantic_serializer__"):
            return kind.__pydantic_serializer__.to_python(
                value, mode="json", by_alias=True, round_trip=True, warnings=False
            )
        return sys.modules["msgspec"].to_builtins(value, builtin_types=(datetime,), str_keys=True)
    except Exception as problem:  # serializers are user code
        message = f"cannot be dumped by {library_of(kind)}: {type(problem).__name__}"
        raise TypeError(message) from None


def naive_in(value: Any) -> str | None:
    """Return the path to the first datetime without a zone in a Pydantic value, or None.

    Its JSON form hides it.
    """
    kind = type(value)
    if not hasattr(kind, "__pydantic_serializer__"):
        return None
    try:
        return _naive_in(kind.__pydantic_serializer__.to_python(value, round_trip=True, warnings=False), "")
    except Exception:  # serializers are user code; dumping the value reports the error
        return None


def _naive_in(value: object, path: str) -> str | None:
    if isinstance(value, datetime):
        return path if value.utcoffset() is None else None
    if isinstance(value, dict):
        inside = ((path + path_step(key), part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        inside = ((f"{path}[{place}]", part) for place, part in enumerate(value))
    else:
        return None
    return next((found for step, part in inside if (found := _naive_in(part, step)) is not None), None)


def model_converter(hint: Any, library: str) -> Callable[[Any], Any]:
    """Return a function that builds a value of the annotation from a decoded document.

    Raises TypeError for an annotation that the library rejects.
    """
    if library == "msgspec":
        return lambda value: _by_msgspec(value, hint)
    try:
        validate = sys.modules["pydantic"].TypeAdapter(hint).validator.validate_json
    except Exception as problem:  # the schema cannot be built, or a name does not exist yet
        message = f"pydantic cannot validate {hint!r}: {type(problem).__name__}"
        raise TypeError(message) from problem

    def convert(value: Any) -> Any:
        try:
            return validate(_text(value))
        except Exception as problem:
            raise _pydantic_misfit(problem, value) from None

    return convert


def _by_msgspec(value: Any, hint: Any) -> Any:
    try:
        return sys.modules["msgspec"].convert(value, hint, strict=True, str_keys=True)
    except Exception as problem:
        text = str(problem)
        place = _PLACE.fullmatch(text)
        reason = _QUOTED.sub(r"\1", place[1] if place else text)
        misfit = Misfit(f"does not fit: {sanitize(reason, 500)}")
        if place:
            misfit.steps.append(sanitize(place[2], 500))
        raise misfit from None


def _text(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits
        return json.dumps(value, ensure_ascii=False).encode()


def _pydantic_misfit(problem: Any, document: Any) -> Misfit:
    errors = getattr(problem, "errors", None)
    if errors is None:  # a validator raised an exception that pydantic does not handle
        return Misfit(f"does not fit: {type(problem).__name__}")
    first = errors(include_url=False, include_input=False, include_context=False)[0]
    misfit = Misfit(f"does not fit: {sanitize(_QUOTES.get(first['type'], first['msg']), 500)}")
    # Pydantic's location also names union members and kinds of validators. Only steps that exist in
    # the document belong to the path.
    for step in first["loc"]:
        if isinstance(step, int) and isinstance(document, list) and step < len(document):
            misfit.steps.insert(0, f"[{step}]")
            document = document[step]
        elif isinstance(document, dict) and (
            step in document or (first["type"] == "missing" and step == first["loc"][-1])
        ):
            misfit.steps.insert(0, path_step(step))
            document = document.get(step)
    return misfit
