"""Unary calls to the gateways of one database, repeated until one of them answers.

Each call must be safe to repeat: after a break, it is not known whether the gateway has done it.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc

from jobherd.handlers._remote.errors import UnreachableError, error_of
from jobherd.handlers._remote.grpc_methods import client_call
from jobherd.handlers._remote.reconnect import Reconnect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.message import Message

    from jobherd.handlers._remote.channels import Tls
    from jobherd.handlers._remote.schema import Method

M = TypeVar("M", bound="Message")

ANSWER_SECONDS: Final = 10.0
"""Time for one gateway to answer. Then the next one is tried."""
REPEATED: Final = {
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "CANCELLED",
    "ABORTED",
    "INTERNAL",
    "UNKNOWN",
    "RESOURCE_EXHAUSTED",
}


class NotFoundError(LookupError):
    """The gateway does not have what was asked for."""


class UnaryCalls:
    """Calls one gateway, and another one if it fails. Safe to use from several threads.

    Args:
        addresses: the gateways.
        token: sent with each call. Empty: none.
        tls: TLS and certificates.
        timeout: seconds after which a call without an answer fails.
    """

    def __init__(self, addresses: Sequence[str], *, token: str, tls: Tls, timeout: float) -> None:
        self._tls, self._timeout = tls, timeout
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._reconnect = Reconnect(addresses)
        self._lock = threading.Lock()
        """Guards the channel and the choice of the gateway."""
        self._channel: grpc.Channel | None = None

    def call(self, method: Method, request: Message, answer: type[M], *, wait: float = 0.0) -> M:
        """Return the answer of a gateway.

        wait: seconds for which the gateway can wait before it answers.

        Raises:
            AccessDeniedError, RejectedError, NotFoundError: the gateway rejects the request.
            UnreachableError: no gateway has answered in time.
        """
        until = time.monotonic() + self._timeout + wait
        while True:
            channel, address = self._connected()
            rest = until - time.monotonic()
            try:
                found = client_call(channel, method)(
                    request, timeout=max(0.001, min(rest, ANSWER_SECONDS + wait)), metadata=self._metadata
                )
            except grpc.RpcError as problem:
                end: Any = problem
                status, details = end.code().name, end.details() or ""
            except ValueError:
                # Race: another thread has closed the channel because its call failed.
                status, details = "UNAVAILABLE", "the connection was closed"
            else:
                assert isinstance(found, answer)
                return found
            if status == "NOT_FOUND":
                raise NotFoundError(details)
            if status not in REPEATED:
                raise error_of(status, details, address) from None
            delay = self._failed(channel)
            if time.monotonic() + delay >= until:
                message = f"no gateway has answered within {self._timeout + wait:g} s; {address}: {details or status}"
                raise UnreachableError(message) from None
            time.sleep(delay)

    def close(self) -> None:
        """Close the connection. The next call opens another one."""
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _connected(self) -> tuple[grpc.Channel, str]:
        with self._lock:
            if self._channel is None:
                self._channel = self._tls.open_channel(self._reconnect.address)
            return self._channel, self._reconnect.address

    def _failed(self, channel: grpc.Channel) -> float:
        """Leave a gateway that failed. Returns the delay before the next one is tried."""
        with self._lock:
            if self._channel is not channel:
                return 0.0  # another thread has left it before
            self._channel = None
            delay = self._reconnect.failed()
        channel.close()
        return delay
