"""gRPC servers and clients for tests that run in a separate process: see tests/support/apart.py."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from jobherd.handlers._remote.grpc_methods import client_call
from jobherd.handlers._remote.messages import HealthCheckRequest, HealthCheckResponse
from jobherd.handlers._remote.schema import HEALTH
from jobherd.workers.gateway.server import listen, make_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from jobherd.workers.gateway.authentication import Authenticator

ALONE = (("grpc.use_local_subchannel_pool", 1),)
"""Gives each channel its own connection. Otherwise a later channel would need no handshake."""


@contextlib.asynccontextmanager
async def serving(
    *handlers: grpc.GenericRpcHandler,
    address: tuple[str, int] | str = ("127.0.0.1", 0),
    credentials: grpc.ServerCredentials | None = None,
) -> AsyncIterator[str]:
    """Serve, and yield the address."""
    server = make_server(handlers, streams=10)
    where = listen(server, address, credentials)
    await server.start()
    try:
        yield where
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def calling(
    where: str, *, trusts: Path | None = None, shows: tuple[Path, Path] | None = None
) -> AsyncIterator[grpc.aio.Channel]:
    """Yield a channel to that address. `trusts` is an authority for TLS, `shows` a client certificate with its key."""
    if trusts is None:
        channel = grpc.aio.insecure_channel(where, ALONE)
    else:
        channel = grpc.aio.secure_channel(
            where, _trust(trusts, shows), [*ALONE, ("grpc.ssl_target_name_override", "gateway.test")]
        )
    async with channel:
        yield channel


def _trust(authority: Path, shows: tuple[Path, Path] | None) -> grpc.ChannelCredentials:
    key, chain = (None, None) if shows is None else (shows[1].read_bytes(), shows[0].read_bytes())
    return grpc.ssl_channel_credentials(authority.read_bytes(), key, chain)


async def health(where: str, *, service: str = "", **tls: Any) -> str:
    """Return the health, or the code of the error."""
    async with calling(where, **tls) as channel:
        try:
            answer = await client_call(channel, HEALTH.methods["Check"])(
                HealthCheckRequest(service=service), timeout=20
            )
        except grpc.aio.AioRpcError as problem:
            return problem.code().name
        return HealthCheckResponse.ServingStatus.Name(answer.status)


async def watch(where: str) -> None:
    """Print the health as it changes, and the code with which the stream ends."""
    async with calling(where) as channel:
        try:
            async for answer in client_call(channel, HEALTH.methods["Watch"])(HealthCheckRequest()):
                print(HealthCheckResponse.ServingStatus.Name(answer.status), flush=True)
        except grpc.aio.AioRpcError as problem:
            print(problem.code().name, flush=True)


def asking_who(authenticator: Authenticator, **admit: Any) -> grpc.GenericRpcHandler:
    """Return a service that answers with the name of the client's principal."""

    async def who(_request: bytes, context: Any) -> bytes:
        return (await authenticator.admit(context, **admit)).name.encode()

    return grpc.method_handlers_generic_handler("t.Who", {"Who": grpc.unary_unary_rpc_method_handler(who)})


async def who(where: str, *metadata: tuple[str, str], **tls: Any) -> str:
    """Return the name of the principal that the server identifies, or the code of the error."""
    async with calling(where, **tls) as channel:
        try:
            return (await channel.unary_unary("/t.Who/Who")(b"", metadata=metadata, timeout=20)).decode()
        except grpc.aio.AioRpcError as problem:
            return problem.code().name


def authority(folder: Path, name: str) -> tuple[Path, Path]:
    """Create an authority, and return its certificate and key."""
    chain, key = folder / f"{name}.crt", folder / f"{name}.key"
    openssl("req", "-x509", *NEW_KEY, "-days", "2", "-subj", f"/CN={name}", "-keyout", key, "-out", chain)
    return chain, key


def signed(folder: Path, by: tuple[Path, Path], name: str, *alternative: str) -> tuple[Path, Path]:
    """Create a certificate of that name, signed by an authority, and return it and its key."""
    chain, key, request, more = (folder / f"{name}{end}" for end in (".crt", ".key", ".csr", ".ext"))
    openssl("req", *NEW_KEY, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
    more.write_text("subjectAltName=" + ",".join(f"DNS:{each}" for each in alternative or (name,)))
    openssl(
        "x509", "-req", "-in", request, "-CA", by[0], "-CAkey", by[1], "-CAcreateserial", "-days", "2",
        "-extfile", more, "-out", chain,
    )  # fmt: skip
    return chain, key


NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


async def main(what: str, where: str) -> None:
    """Make a call for tests whose process must not load gRPC."""
    if what == "watch":
        await watch(where)
    else:
        print(await health(where))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
