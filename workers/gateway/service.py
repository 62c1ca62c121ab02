"""The interface between the gateway's process and its gRPC services: what each service must offer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import grpc


class Service(Protocol):
    """A service of the protocol, as the process sees it."""

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what gRPC calls."""

    def wake(self) -> None:
        """React to a wake-up of the supervisor: there may be jobs, or the database is back."""

    async def drain(self) -> None:
        """Send no more tasks. Return once no client has anything to finish here."""
