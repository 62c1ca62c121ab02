"""Checks the payload fields that options name: `unique`, `collect`, `partition`, `redact`.

The database reads an unknown field as null. So with a misspelt name, all jobs would have one key or
one partition. A path of `redact` may be right without a parameter: it can name a part of a result, or
of the payload of an older job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_origin

from jobherd.handlers._define.binding import WHOLE, known_names
from jobherd.handlers._policy.names import did_you_mean
from jobherd.handlers._policy.redact import steps_of
from jobherd.handlers._values.models import library_of
from jobherd.handlers._values.shapes import fields_of, has_fields, is_named_tuple, is_typed_dict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.handlers._define.signature import Signature
    from jobherd.handlers._enqueue.options import Options


def check_field_names(signature: Signature, options: Options, partition: tuple[str, ...] = ()) -> None:
    """Raise ValueError for a field that no payload of the handler can have.

    Only the first name of a path is checked.

    Args:
        signature: the handler's parameters.
        options: options of its jobs.
        partition: path to the field that names a job's partition. Default: none.
    """
    named: list[tuple[str, str, str]] = [("partition", partition[0], partition[0])] if partition else []
    if unique := options.unique:
        named += [("unique", written, path[0]) for written, path in unique.paths.items()]
        named += [("collect", unique.collect, unique.collect)] if unique.collect is not None else []
    if not named or (known := _known(signature)) is None:
        return
    owner, names = known
    for option, written, name in named:
        if name not in names:
            message = f"{option} names {written!r}, and {owner} {name!r}{known_names(names)}{did_you_mean(name, names)}"
            raise ValueError(message)


def doubtful_redact(handler: AnyHandler) -> Iterator[str]:
    """Yield a sentence for each path of `redact` that looks like a misspelt parameter, for `jobherd check`."""
    first = {path: steps_of(path)[0] for path in handler.policy.redact}
    known = _known(handler.signature) if first else None
    for path, step in first.items():
        if known is None or step.name is None or step.deep or step.name in known[1]:
            continue
        left = known[1] - {one.name for one in first.values() if one.name is not None}
        if likely := did_you_mean(step.name, left):
            yield f"redact names {path!r} of {handler.kind}, and {known[0]} {step.name!r}{likely}"


def _known(signature: Signature) -> tuple[str, frozenset[str]] | None:
    """Return the beginning of a message and all fields that a payload can have, or None if any can be there."""
    if signature.open:
        return None
    if not signature.whole:
        return f"{signature.name} has no parameter", signature.names
    hint = signature.hints()[0].get(WHOLE)
    kind: Any = get_origin(hint) or hint
    if library_of(hint) is None and (is_typed_dict(kind) or (has_fields(kind) and not is_named_tuple(kind))):
        return f"{kind.__name__} has no field", frozenset(field.name for field in fields_of(hint))
    return None
