"""Settings of `jobherd work`: where the gateways are, and what this host shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobherd.supervisor.settings import address_readers
from jobherd.supervisor.settings import readers as values
from jobherd.supervisor.settings.field import setting

if TYPE_CHECKING:
    from pathlib import Path

GROUP = "Remote work"
"""Only `jobherd work` has the flags of this group."""


@dataclass(frozen=True)
class RemoteWorkSettings:
    """Settings of `jobherd work`: where the gateways are, and what this host shows them."""

    gateway_addresses: tuple[str, ...] = setting(
        (),
        address_readers.gateway_addresses(),
        "Addresses of the gateways from which `jobherd work` gets jobs, all of one database. It connects to one of "
        "them, and to the next if the connection is lost.",
        group=GROUP, metavar="HOST:PORT", says="none", for_good=True,
    )  # fmt: skip
    gateway_token_file: Path | None = setting(  # noqa: RUF009  # a path never changes
        None,
        values.path("a file"),
        "File that contains the token for the gateways.",
        group=GROUP, metavar="PATH", says="none", for_good=True,
    )  # fmt: skip
    gateway_tls: bool = setting(
        False,
        values.switch(),
        "Connect to the gateways with TLS, and trust the certificate authorities of the system.",
        group=GROUP, for_good=True,
    )  # fmt: skip
    gateway_ca: Path | None = setting(  # noqa: RUF009  # a path never changes
        None,
        values.path("a PEM file"),
        "Certificates of the authorities that sign the certificates of the gateways. With it, the connection uses TLS.",
        group=GROUP, metavar="PATH", says="none", for_good=True,
    )  # fmt: skip
    gateway_client_cert: Path | None = setting(  # noqa: RUF009  # a path never changes
        None,
        values.path("a PEM file"),
        "Certificate of this host, for gateways that require one. With it, the connection uses TLS.",
        group=GROUP, metavar="PATH", says="none", for_good=True,
    )  # fmt: skip
    gateway_client_key: Path | None = setting(  # noqa: RUF009  # a path never changes
        None,
        values.path("a PEM file"),
        "Private key of `gateway_client_cert`.",
        group=GROUP, metavar="PATH", says="none", for_good=True,
    )  # fmt: skip
    worker_id: str = setting(
        "",
        values.label(),
        "Name of this host in the fleet, and in the jobs that ran here.",
        group=GROUP, metavar="NAME", says="the host name", for_good=True,
    )  # fmt: skip
    task_lease: float = setting(
        0.0,
        values.span(1, 86400, zero="as the gateway decides"),
        "Time after which the gateway retries a job of this host without a sign of life. While the job's process "
        "lives, this host extends it, up to the job's timeout.",
        group=GROUP, metavar="TIME", says="0: as the gateway decides", for_good=True,
    )  # fmt: skip
