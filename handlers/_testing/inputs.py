"""Results of earlier nodes of jobs that tests run: they come from a dict, as JSON, as from a database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobherd.handlers._run.inputs import InputError, Source
from jobherd.handlers._values.payload import encode_result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobherd.handlers._run.inputs import Inputs


class MemoryInputs:
    """Results of nodes, by name. Of a node with many jobs: a list."""

    def __init__(self, results: Mapping[str, Any] | None) -> None:
        self._results = results or {}

    def sources(self, _job: Inputs, node: str, *, many: bool) -> list[Source]:
        """Return all nodes of the dict."""
        if many and node in self._results and not isinstance(self._results[node], list):
            message = f"inputs[{node!r}] must be a list, of the result of each job"
            raise InputError(message)
        return [
            Source(name, is_many=many, result=None if many else encode_result(result))
            for name, result in self._results.items()
        ]

    def page(self, _job: Inputs, source: Source, past: int) -> list[tuple[int, str | None]]:
        """Return all results behind an item."""
        return [(item, encode_result(one)) for item, one in enumerate(self._results[source.node]) if item > past]
