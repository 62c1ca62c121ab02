"""JSON for `--json` and for clients of the gateway: a job as a document, and values as orjson takes them.

JSON documents of the database are passed on unchanged.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class JsonText(str):
    """A JSON document as text.

    It is printed unchanged: Python would round its numbers or reject it.
    """

    __slots__ = ()


def job_document(
    row: Mapping[str, Any], logs: Sequence[Mapping[str, Any]], key: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return a job as a document.

    It has the columns of the view `jobherd.jobs`, what its attempts have printed and logged, and the
    key of a unique job with its holder.
    """
    return {name: value for name, value in row.items() if name != "asked_at"} | {"logs": logs, "unique": key}


def dumpable(value: Any) -> Any:
    """Return a value as orjson takes it. Timestamps are in UTC; JSON from the database is unchanged."""
    match value:
        case JsonText():
            return orjson.Fragment(value.encode(errors="surrogatepass"))
        case datetime():
            return value.astimezone(UTC)
        case dict():
            return {name: dumpable(inner) for name, inner in value.items()}
        case list() | tuple():
            return [dumpable(inner) for inner in value]
        case _:
            return value
