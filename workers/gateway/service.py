"""What the gateway's process asks of each of its services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import grpc


class Service(Protocol):
    """A service of the protocol, as the process sees it."""

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what gRPC calls."""

    def wake(self) -> None:
        """React to news of the supervisor: there may be jobs, or the database is back."""

    async def drain(self) -> None:
        """Hand out nothing more. Return once no client has anything to finish here."""
