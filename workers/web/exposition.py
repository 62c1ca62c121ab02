"""Serves `/metrics`: requests a measurement, chooses the format and renders. Counts nothing."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from jobherd.workers.web.http_message import Answer
from jobherd.workers.web.queue_depth import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from prometheus_client.registry import Collector

    from jobherd.workers.web.cpu_budget import CpuBudget
    from jobherd.workers.web.http_message import Request
    from jobherd.workers.web.queue_depth import Measurer

REUSED: Final = 1.0
"""Seconds for which a rendering is reused while the process is over half of its CPU budget."""
_OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0"


def wants_openmetrics(accept: str) -> bool:
    """Whether this Accept header accepts OpenMetrics 1.

    The header itself is never passed to the library, which raises on an odd version in it.

    >>> wants_openmetrics("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2"), wants_openmetrics("*/*")
    (True, False)
    """
    for part in accept.split(","):
        media, *words = (word.strip().lower() for word in part.split(";"))
        if media == "application/openmetrics-text":
            asked = dict(word.split("=", 1) for word in words if "=" in word)
            if asked.get("version", "1").startswith("1") and asked.get("q") not in {"0", "0.0", "0.00", "0.000"}:
                return True
    return False


class Exposition:
    """The route `/metrics`."""

    def __init__(
        self,
        collector: Collector,
        measurers: Sequence[Measurer],
        budget: CpuBudget,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(collector)
        self._measurers = measurers
        self._budget = budget
        self._clock = clock
        self._rendered: dict[str, tuple[float, bytes]] = {}

    async def answer(self, request: Request) -> Answer:
        """Return the metrics in the format that the Accept header prefers."""
        await asyncio.gather(*(measurer.refresh(PATIENCE) for measurer in self._measurers))
        encode, content_type = choose_encoder(
            _OPENMETRICS if wants_openmetrics(request.headers.get("accept", "")) else ""
        )
        at, body = self._rendered.get(content_type, (-float("inf"), b""))
        now = self._clock()
        if now - at > REUSED or not self._budget.is_strained():
            body = encode(self._registry)
            self._rendered[content_type] = (now, body)
        return Answer(200, body, content_type)
