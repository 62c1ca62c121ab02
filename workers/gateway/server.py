"""Makes the gRPC server of the gateway on its address, with limits against any client.

A port or socket that another process uses is an error here, and never shared or taken away. What is
served is decided by `gateway.py`.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from typing import TYPE_CHECKING, Final

import grpc.aio

from jobherd.handlers._remote.schema import POOL, SERVICES

if TYPE_CHECKING:
    from collections.abc import Iterable

UNARY: Final = 1000
"""Calls at a time in addition to the streams of remote workers. The gateway rejects more."""
OPTIONS: Final = (
    # By default gRPC reads megabytes ahead of each stream, which no limit of this process counts.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 256 << 10),
    # By default a second process shares the port, and each gets a part of the connections.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 8 << 20),
    ("grpc.max_metadata_size", 8 << 10),
    ("grpc.absolute_max_metadata_size", 8 << 10),
    ("grpc.max_concurrent_streams", 100),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Without both, a peer whose host is cut off or whose process is stopped is not noticed.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # The keepalive of a client must not end its connection with ENHANCE_YOUR_CALM.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)
"""Limits of each connection, and how soon a peer that is gone is noticed."""


class CannotListenError(Exception):
    """The address cannot be used. The text says why."""


def make_server(handlers: Iterable[grpc.GenericRpcHandler], *, streams: int) -> grpc.aio.Server:
    """Return a server that does not listen yet. Call it in the event loop that serves.

    Args:
        handlers: the services.
        streams: the most streams at a time.
    """
    server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=streams + UNARY)
    server.add_generic_rpc_handlers(tuple(handlers))
    return server


def describe(server: grpc.aio.Server) -> bool:
    """Let clients ask for the services and messages. Return False if `grpcio-reflection` is not installed."""
    try:
        from grpc_reflection.v1alpha import reflection  # noqa: PLC0415 - optional
    except Exception:  # it is not installed, or not for this version of protobuf, which raises an error that it defines
        return False
    reflection.enable_server_reflection([service.name for service in SERVICES], server, POOL)
    return True


def listen(server: grpc.aio.Server, address: tuple[str, int] | str, credentials: grpc.ServerCredentials | None) -> str:
    """Bind the server to its address, before it is started.

    Args:
        server: the server.
        address: host and port, or `unix:PATH`. Only this OS user can connect to the socket.
        credentials: for TLS; None: none.

    Returns:
        The address for people, with the port that the kernel chose for port 0.

    Raises:
        CannotListenError: another process uses the address, or the host does not have it.
    """
    if isinstance(address, str):
        _make_place(address.removeprefix("unix:"))
        before = os.umask(0o177)
        try:
            _bind(server, address, credentials)
        finally:
            os.umask(before)
        return address
    host, port = address
    shown = f"[{host}]" if ":" in host else host
    try:
        return f"{shown}:{_bind(server, f'{shown}:{port}', credentials)}"
    except CannotListenError:
        raise CannotListenError(_why(host, port)) from None


def _bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    try:
        port = (
            server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
        )
    except RuntimeError as problem:
        raise CannotListenError(str(problem)) from None
    if not port:  # before 1.63, gRPC returned 0
        raise CannotListenError(f"gRPC cannot bind {address}")
    return port


def _why(host: str, port: int) -> str:
    """Return why the address cannot be bound: gRPC does not say it."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as problem:
        return problem.strerror or str(problem)
    return "Address already in use a moment ago"


def _make_place(path: str) -> None:
    """Remove a socket that a dead process has left. gRPC would also remove one that is in use."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as problem:
        raise CannotListenError(problem.strerror) from None
    if not stat.S_ISSOCK(found.st_mode):
        raise CannotListenError("there is a file that is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError as problem:
            raise CannotListenError(problem.strerror) from None
    raise CannotListenError(os.strerror(errno.EADDRINUSE))
