"""Settings about the gateway: remote workers and producers that connect over gRPC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobherd.supervisor.settings import address_readers
from jobherd.supervisor.settings import readers as values
from jobherd.supervisor.settings.field import setting

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class GatewaySettings:
    """Settings about the gateway: remote workers and producers that connect over gRPC."""

    gateway: tuple[str, int] | str | None = setting(
        None,
        address_readers.gateway_address(),
        "Address at which the gateway serves remote workers and producers over gRPC. It needs the extra `grpc`. At an "
        "address that other hosts can reach, it also needs `gateway_cert`, and tokens or `gateway_client_ca`. Only "
        "the OS user of the supervisor can connect to a socket (`unix:PATH`).",
        group="Gateway", metavar="HOST:PORT", says="off", for_good=True,
    )  # fmt: skip
    gateway_token: tuple[str, ...] = setting(
        (),
        values.tokens(),
        "Tokens with which clients may work and enqueue without limits. A name before a token appears as the client's "
        "name: `lab=...`. Give tokens in the environment rather than as a flag, which every OS user on the host can "
        "read. To withdraw a token without a restart, use `gateway_access`.",
        group="Gateway", metavar="TOKEN", says="none", secret=True, for_good=True,
    )  # fmt: skip
    gateway_access: Path | None = setting(  # noqa: RUF009  # a path never changes
        None,
        values.path("a TOML file"),
        "File that names the clients: their tokens or certificates, and the kinds, queues and tenants of each. The "
        "gateway reads it again when it changes.",
        group="Gateway", metavar="PATH", says="none", for_good=True,
    )  # fmt: skip
    gateway_cert: Path | None = setting(  # noqa: RUF009  # a path never changes
        None,
        values.path("a PEM file"),
        "Certificate chain of the gateway, for TLS. The gateway reads it and the key again when they change.",
        group="Gateway", metavar="PATH", says="none: no TLS", for_good=True,
    )  # fmt: skip
    gateway_key: Path | None = setting(  # noqa: RUF009  # a path never changes
        None,
        values.path("a PEM file"),
        "Private key of `gateway_cert`.",
        group="Gateway", metavar="PATH", says="none", for_good=True,
    )  # fmt: skip
    gateway_client_ca: Path | None = setting(  # noqa: RUF009  # a path never changes
        None,
        values.path("a PEM file"),
        "Certificates of the authorities that sign client certificates. With it, every client must show a certificate. "
        "Without tokens and `gateway_access`, each such client may work and enqueue without limits.",
        group="Gateway", metavar="PATH", says="none", for_good=True,
    )  # fmt: skip
    gateway_lease: float = setting(
        30.0,
        values.span(3, 3600),
        "Time without a sign of life after which the jobs of a remote worker may be reclaimed.",
        group="Gateway", metavar="TIME", for_good=True,
    )  # fmt: skip
    gateway_task_lease: float = setting(
        60.0,
        values.span(1, 86400),
        "Time that a remote worker has for a job before it must extend it with a heartbeat, unless the worker "
        "names another time. Then the job is retried.",
        group="Gateway", metavar="TIME", for_good=True,
    )  # fmt: skip
    gateway_linger: float = setting(
        5.0,
        values.span(0, 300),
        "Time that a remote worker has to reconnect after its stream broke, before its jobs are reclaimed.",
        group="Gateway", metavar="TIME", for_good=True,
    )  # fmt: skip
    gateway_streams: int = setting(
        1000,
        values.whole(1, 10_000),
        "The most remote workers that can be connected at a time. The gateway rejects more.",
        group="Gateway", metavar="N", for_good=True,
    )  # fmt: skip
    gateway_max_slots: int = setting(
        1000,
        values.whole(1, 10_000),
        "The most jobs that a remote worker can have or wait for at a time.",
        group="Gateway", metavar="N", for_good=True,
    )  # fmt: skip
    gateway_reflection: bool = setting(
        False,
        values.switch(),
        "Describe the services to clients such as `grpcurl`, if the package `grpcio-reflection` is installed.",
        group="Gateway", for_good=True,
    )  # fmt: skip
