"""Opens channels of grpc to a gateway: TLS, limits, and how soon a silent peer is noticed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc

from jobherd.handlers._remote.errors import RemoteError

if TYPE_CHECKING:
    from os import PathLike

MESSAGE_BYTES: Final = 8 << 20
"""Largest message that a client accepts."""
OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
    # Retries and reconnects are this package's: grpc's own would send an old Hello again.
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)


@dataclass(frozen=True, slots=True)
class Tls:
    """How a client connects. Without any of these: without TLS.

    Attributes:
        tls: use TLS with the system's certificate authorities.
        ca: file with the certificate authority of the gateway, PEM. Implies `tls`.
        cert: file with the client's certificate, PEM. Implies `tls`.
        key: file with the client's private key, PEM. Required with `cert`.
    """

    tls: bool = False
    ca: str | PathLike[str] | None = None
    cert: str | PathLike[str] | None = None
    key: str | PathLike[str] | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            message = "cert and key belong together: pass both files, or neither"
            raise ValueError(message)

    def open_channel(self, address: str) -> grpc.Channel:
        """Open a channel. The files are read each time, so that certificates can be rotated.

        Raises:
            RemoteError: a file cannot be read.
        """
        if not self.tls and self.ca is None and self.cert is None:
            return grpc.insecure_channel(address, OPTIONS)
        credentials = grpc.ssl_channel_credentials(_read(self.ca), _read(self.key), _read(self.cert))
        return grpc.secure_channel(address, credentials, OPTIONS)


def _read(path: str | PathLike[str] | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as problem:
        message = f"cannot read {path}: {problem.strerror}"
        raise RemoteError(message) from problem
