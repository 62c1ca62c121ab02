"""The standard health service `grpc.health.v1.Health`, for load balancers and orchestrators.

It answers without a token, and only says whether the gateway claims jobs now.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import grpc

from jobherd.handlers._remote.grpc_methods import server_handler
from jobherd.handlers._remote.messages import HealthCheckResponse
from jobherd.handlers._remote.schema import HEALTH, SERVICES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from jobherd.handlers._remote.messages import HealthCheckRequest

LOOK: Final = 1.0
"""Seconds between two looks for a client that watches: a lease expires without an event."""
NAMES: Final = frozenset({"", *(service.name for service in SERVICES)})
"""What clients may ask about. All have the same health; "" is the whole gateway."""


class Health:
    """The health service.

    Args:
        may_claim: returns whether the supervisor's jobs may be claimed now.
    """

    def __init__(self, may_claim: Callable[[], bool]) -> None:
        self._may_claim = may_claim
        self._draining = False
        self._news = asyncio.Event()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what gRPC calls."""
        return server_handler(HEALTH, {"Check": self._check, "Watch": self._watch})

    def wake(self) -> None:
        """Let clients that watch know what has changed."""
        # A new event: each watching client waits for the one that it has seen unset.
        self._news.set()
        self._news = asyncio.Event()

    async def drain(self) -> None:
        """Report NOT_SERVING from now on."""
        self._draining = True
        self.wake()

    def _status(self, name: str) -> int:
        if name not in NAMES:
            return HealthCheckResponse.SERVICE_UNKNOWN
        if self._draining or not self._may_claim():
            return HealthCheckResponse.NOT_SERVING
        return HealthCheckResponse.SERVING

    async def _check(
        self, request: HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> HealthCheckResponse:
        if request.service not in NAMES:
            await context.abort(grpc.StatusCode.NOT_FOUND, "this gateway has no such service")
        return HealthCheckResponse(status=self._status(request.service))

    async def _watch(
        self, request: HealthCheckRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[HealthCheckResponse]:
        told = None
        while True:
            news, status = self._news, self._status(request.service)
            if status != told:
                told = status
                yield HealthCheckResponse(status=status)
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), LOOK)
