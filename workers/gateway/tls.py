"""TLS of the gateway: its certificate and key, and the authorities of client certificates.

gRPC asks for them at each handshake, so files that were replaced are used without a restart. New
files that do not fit together change nothing: a renewal may be between two steps. A warning says so
once for each change.
"""

from __future__ import annotations

import logging
import os
import ssl
from typing import TYPE_CHECKING

import grpc

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger("jobherd.gateway")


class TlsError(Exception):
    """The files cannot be used. The text says which and why."""


class Certificates:
    """The certificate, the key and the authorities as of now.

    Args:
        chain: the file with the gateway's certificate chain.
        key: the file with its private key.
        client_ca: the file with the authorities whose certificates clients must show; None: clients
            show none.

    Raises:
        TlsError: the files cannot be used.
    """

    def __init__(self, chain: Path, key: Path, client_ca: Path | None) -> None:
        self._chain = chain
        self._key = key
        self._client_ca = client_ca
        # Order: the state of the files first. A change in between is then noticed at the next handshake.
        self._seen = self._look()
        self._first = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of one server: a second one would find that nothing has changed."""
        return grpc.dynamic_ssl_server_credentials(
            self._first,
            self._renewed,  # type: ignore[arg-type]  # the stubs do not know that None is allowed
            require_client_authentication=self._client_ca is not None,
        )

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC at each handshake, in its own thread; None: nothing has changed."""
        seen = self._look()
        if seen == self._seen:
            return None
        self._seen = seen
        try:
            configuration = self._read()
        except TlsError as problem:
            _log.warning("the files of TLS have changed, keeping the earlier ones: %s", problem)
            return None
        _log.info("the files of TLS were read again: %s", self._chain)
        return configuration

    def _read(self) -> grpc.ServerCertificateConfiguration:
        try:
            chain, key = self._chain.read_bytes(), self._key.read_bytes()
            authorities = None if self._client_ca is None else self._client_ca.read_bytes()
            # gRPC rejects files that do not fit together too, but as if the address were in use.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._chain, self._key, password=_no_password)
            if authorities is not None:
                context.load_verify_locations(cadata=authorities.decode("ascii"))
        except (OSError, ValueError) as problem:  # an SSLError is an OSError
            raise TlsError(f"{self._chain}, {self._key}, {self._client_ca}: {problem}") from None
        return grpc.ssl_server_certificate_configuration([(key, chain)], authorities)

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Return what changes with the content of the files."""
        return tuple(_state(path) for path in (self._chain, self._key, self._client_ca) if path is not None)


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _no_password() -> str:
    """Raise ValueError: without this function, OpenSSL would ask for a password at the terminal and wait."""
    raise ValueError("the key needs a password")
