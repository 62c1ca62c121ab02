"""Tests the server of the gateway: address, limits, TLS, authentication and health."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import logging
import os
import re
import shutil
import socket
import stat
from pathlib import Path

import pytest

from tests.support.apart import apart
from tests.support.herd import ROOT


@apart
async def test_health_is_that_of_the_supervisor_and_watching_clients_receive_changes(_folder):
    from jobherd.handlers._remote.grpc_methods import client_call
    from jobherd.handlers._remote.messages import HealthCheckRequest, HealthCheckResponse
    from jobherd.handlers._remote.schema import HEALTH
    from jobherd.workers.gateway.health import Health
    from tests.workers.gateway.calls import calling, health, serving

    may_claim = True
    service = Health(lambda: may_claim)
    async with serving(service.handler()) as where, calling(where) as channel:
        assert await health(where) == "SERVING"
        assert await health(where, service="jobherd.worker.v1.WorkerService") == "SERVING"
        assert await health(where, service="another.Service") == "NOT_FOUND"
        watch = client_call(channel, HEALTH.methods["Watch"])
        unknown, known = watch(HealthCheckRequest(service="another.Service")), watch(HealthCheckRequest())
        assert (await unknown.read()).status == HealthCheckResponse.SERVICE_UNKNOWN
        assert (await known.read()).status == HealthCheckResponse.SERVING
        may_claim = False
        assert await health(where) == "NOT_SERVING"
        service.wake()
        assert (await known.read()).status == HealthCheckResponse.NOT_SERVING
        may_claim = True
        assert (await known.read()).status == HealthCheckResponse.SERVING, "without an event too"
        await service.drain()
        assert (await known.read()).status == HealthCheckResponse.NOT_SERVING
        assert await health(where) == "NOT_SERVING"
        known.cancel()
        unknown.cancel()


def test_grpc_supports_each_option_that_server_and_clients_set():
    """gRPC ignores unknown options. Idle streams then end after 30 s with ENHANCE_YOUR_CALM."""
    [place] = importlib.util.find_spec("grpc").submodule_search_locations
    library = next(Path(place, "_cython").glob("cygrpc*.so")).read_bytes()
    for module in ("workers/gateway/server.py", "handlers/_remote/channels.py"):
        options = re.findall(r'\("(grpc\.[a-z0-9_.]+)", ', (ROOT / module).read_text())
        assert len(options) > 5
        assert [each for each in options if each.encode() + b"\0" not in library] == []


@apart
async def test_server_reflection_works_if_grpc_reflection_is_installed(_folder):
    import grpc

    from jobherd.workers.gateway.server import describe, listen, make_server

    server = make_server([], streams=1)
    assert describe(server) is (importlib.util.find_spec("grpc_reflection") is not None)
    if importlib.util.find_spec("grpc_reflection") is None:
        return
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    where = listen(server, ("127.0.0.1", 0), None)
    await server.start()
    with grpc.insecure_channel(where) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "jobherd.worker.v1.WorkerService" in await asyncio.to_thread(database.get_services)
        file = await asyncio.to_thread(database.FindFileContainingSymbol, "jobherd.worker.v1.Hello")
        assert file.name == "jobherd/worker/v1/worker.proto"
    await server.stop(None)


@apart
async def test_port_is_never_shared_with_another_process_or_server(_folder):
    from jobherd.workers.gateway.server import CannotListenError
    from tests.workers.gateway.calls import serving

    async with serving() as where:
        with pytest.raises(CannotListenError, match="^Address already in use$"):
            async with serving(address=("127.0.0.1", int(where.rpartition(":")[2]))):
                pass
    with socket.create_server(("127.0.0.1", 0)) as other:
        with pytest.raises(CannotListenError, match="^Address already in use$"):
            async with serving(address=other.getsockname()):
                pass
    with pytest.raises(CannotListenError, match="Cannot assign requested address"):
        async with serving(address=("203.0.113.1", 9091)):
            pass


@apart
async def test_unix_socket_has_mode_600_and_replaces_only_the_socket_of_a_dead_process(folder):
    from jobherd.workers.gateway.health import Health
    from jobherd.workers.gateway.server import CannotListenError
    from tests.workers.gateway.calls import health, serving

    path = folder / "jobs.sock"
    handler = Health(lambda: True).handler()
    async with serving(handler, address=f"unix:{path}") as where:
        assert where == f"unix:{path}"
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert await health(where) == "SERVING"
        with pytest.raises(CannotListenError, match="in use"):
            async with serving(address=where):
                pass
        assert await health(where) == "SERVING"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with serving(handler, address=where):
        assert await health(where) == "SERVING", "the socket of a dead process does not prevent the start"
    path.unlink(missing_ok=True)
    path.write_text("precious")
    with pytest.raises(CannotListenError, match="not a socket"):
        async with serving(address=where):
            pass
    assert path.read_text() == "precious"
    with pytest.raises(CannotListenError):
        async with serving(address=f"unix:{folder}/missing/jobs.sock"):
            pass


@apart
async def test_only_messages_and_headers_over_their_limits_are_rejected(_folder):
    import grpc

    from tests.workers.gateway.calls import calling, serving

    async def size(request: bytes, _context: object) -> bytes:
        return str(len(request)).encode()

    handler = grpc.method_handlers_generic_handler("t.T", {"Size": grpc.unary_unary_rpc_method_handler(size)})
    async with serving(handler) as where, calling(where) as channel:
        call = channel.unary_unary("/t.T/Size")
        assert await call(bytes(8 << 20)) == str(8 << 20).encode()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(bytes((8 << 20) + 1))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(b"", metadata=(("x", "y" * (9 << 10)),))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await call(b"123") == b"3"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary("/t.T/Nothing")(b"")
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


@apart
async def test_grpc_buffers_less_than_2_mib_of_a_stream_that_is_not_read(_folder):
    """The limits of the gateway count only what it has read. gRPC must not read far ahead of it."""
    import grpc

    from tests.workers.gateway.calls import calling, serving

    piece, most = bytes(64 << 10), 2 << 20
    may_read = asyncio.Event()

    async def take(requests, _context):
        size = 0
        async for request in requests:
            size += len(request)
            if size == 8 << 20:  # Until then, gRPC measures the speed of the client.
                await may_read.wait()
        return str(size).encode()

    async def echo(request: bytes, _context: object) -> bytes:
        return request

    methods = {"Take": grpc.stream_unary_rpc_method_handler(take), "Echo": grpc.unary_unary_rpc_method_handler(echo)}
    handler = grpc.method_handlers_generic_handler("t.T", methods)
    async with serving(handler) as where, calling(where) as channel, calling(where) as other:
        call, round_trip = channel.stream_unary("/t.T/Take")(), other.unary_unary("/t.T/Echo")
        for _ in range(128):
            await call.write(piece)
        sent = 0
        while sent < 64 << 20:
            writing = asyncio.ensure_future(call.write(piece))
            sent += len(piece)
            for _ in range(200):
                if writing.done():
                    break
                await round_trip(b"")
            else:
                break
        may_read.set()
        await writing
        await call.done_writing()
        assert await call == str((8 << 20) + sent).encode()
        assert sent < most, sent


@pytest.mark.promise("D7")
@apart
async def test_metadata_token_admits_a_client_and_a_wrong_token_is_rejected_after_a_delay(_folder):
    from jobherd.workers.gateway import authentication
    from jobherd.workers.gateway.access import Role
    from jobherd.workers.gateway.access_file import LiveAccess
    from tests.workers.gateway.calls import asking_who, serving, who

    right = "a-token-of-this-test"
    delays, lines = [], []
    real = asyncio.sleep
    authentication.asyncio.sleep = lambda delay: delays.append(delay) or real(0)
    logger = logging.getLogger("jobherd.gateway")
    logger.addFilter(lambda record: lines.append(record) or True)
    authenticator = authentication.Authenticator(LiveAccess([f"lab={right}"], None, certificates=False))
    async with serving(asking_who(authenticator)) as where:
        assert await who(where, ("authorization", f"Bearer {right}")) == "lab"
        assert (delays, authenticator.rejections.count) == ([], 0)
        for metadata in ([("authorization", "Bearer wrong-token-of-this-test")], [], [("authorization", right)]):
            assert await who(where, *metadata) == "UNAUTHENTICATED"
        assert delays == [authentication.DELAY] * 3
        assert authenticator.rejections.count == 3
        assert len(lines) == 1, "once a minute"
        assert "wrong-token" not in str(lines[0].__dict__)
    async with serving(asking_who(authenticator, token="wrong-token-of-this-test")) as where:
        assert await who(where, ("authorization", f"Bearer {right}")) == "UNAUTHENTICATED", (
            "the token of the Hello takes precedence"
        )
    async with serving(asking_who(authenticator, token=right, role=Role.WORK)) as where:
        assert await who(where) == "lab"


@apart
async def test_role_permits_only_its_own_calls(folder):
    from jobherd.workers.gateway.access import Role
    from jobherd.workers.gateway.access_file import LiveAccess
    from jobherd.workers.gateway.authentication import Authenticator
    from tests.workers.gateway.calls import asking_who, serving, who

    tokens = {role: f"{role}-token-of-this-test" for role in ("work", "enqueue", "both")}
    (folder / "access.toml").write_text(
        "\n".join(
            f'[principals.{role}]\ntoken_sha256 = "{hashlib.sha256(token.encode()).hexdigest()}"\nrole = "{role}"'
            for role, token in tokens.items()
        )
    )
    authenticator = Authenticator(LiveAccess([], folder / "access.toml", certificates=False))
    found = {}
    for needed in Role:
        async with serving(asking_who(authenticator, role=needed)) as where:
            found[needed.value] = [await who(where, ("authorization", f"Bearer {token}")) for token in tokens.values()]
    denied = "PERMISSION_DENIED"
    assert found == {
        "work": ["work", denied, "both"],
        "enqueue": [denied, "enqueue", "both"],
        "both": ["work", "enqueue", "both"],
    }


@apart
async def test_server_certificate_is_reloaded_without_a_restart_once_it_matches_its_key(folder):
    from jobherd.workers.gateway.health import Health
    from jobherd.workers.gateway.tls import Certificates, TlsError
    from tests.workers.gateway.calls import authority, health, serving, signed

    old, new = authority(folder, "old"), authority(folder, "new")
    chain, key = signed(folder, old, "first", "gateway.test")
    second = signed(folder, new, "second", "gateway.test")
    certificates = Certificates(chain, key, None)
    async with serving(Health(lambda: True).handler(), credentials=certificates.credentials()) as where:
        assert await health(where, trusts=old[0]) == "SERVING"
        assert await health(where, trusts=new[0]) == "UNAVAILABLE"
        assert await health(where) == "UNAVAILABLE", "the client uses no TLS"
        shutil.copy(second[0], chain)
        assert await health(where, trusts=old[0]) == "SERVING", "the key still belongs to the first certificate"
        shutil.copy(second[1], key)
        assert await health(where, trusts=new[0]) == "SERVING"
        assert await health(where, trusts=old[0]) == "UNAVAILABLE"
    with pytest.raises(TlsError):
        Certificates(chain, folder / "missing", None)
    with pytest.raises(TlsError, match="(?i)key.values.mismatch"):
        Certificates(chain, old[1], None)


@pytest.mark.promise("D7")
@apart
async def test_client_certificate_identifies_its_principal(folder):
    from jobherd.workers.gateway.access_file import LiveAccess
    from jobherd.workers.gateway.authentication import Authenticator
    from jobherd.workers.gateway.tls import Certificates
    from tests.workers.gateway.calls import asking_who, authority, serving, signed, who

    ours, other = authority(folder, "ours"), authority(folder, "other")
    chain, key = signed(folder, ours, "server", "gateway.test")
    lab = signed(folder, ours, "lab", "lab.example.com", "lab-2")
    guest = signed(folder, ours, "guest")
    (folder / "elsewhere").mkdir()
    stranger = signed(folder / "elsewhere", other, "lab", "lab-2")
    access = folder / "access.toml"
    access.write_text('[principals.laboratory]\ncertificate = "lab-2"\n')
    certificates = Certificates(chain, key, ours[0])
    named = asking_who(Authenticator(LiveAccess([], access, certificates=True)))
    async with serving(named, credentials=certificates.credentials()) as where:
        assert await who(where, trusts=ours[0], shows=lab) == "laboratory"
        assert await who(where, trusts=ours[0], shows=guest) == "UNAUTHENTICATED"
        assert await who(where, trusts=ours[0], shows=stranger) == "UNAVAILABLE"
        assert await who(where, trusts=ours[0]) == "UNAVAILABLE", "the client presents no certificate"
        access.write_text('[principals.laboratory]\ncertificate = ["lab", "guest"]\n')
        assert await who(where, trusts=ours[0], shows=guest) == "laboratory"
        assert await who(where, trusts=ours[0], shows=lab) == "laboratory", "the common name also identifies the client"
    every = asking_who(Authenticator(LiveAccess([], None, certificates=True)))
    async with serving(every, credentials=Certificates(chain, key, ours[0]).credentials()) as where:
        assert await who(where, trusts=ours[0], shows=lab) == "lab.example.com"
