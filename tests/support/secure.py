"""Starts a PostgreSQL server with TLS and a new certificate. The embedded PostgreSQL has no TLS, but Debian's has."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import make_conninfo

from tests.support.ports import spare_port
from tests.support.postgres import Cluster, programs

if TYPE_CHECKING:
    from collections.abc import Iterator


def can_speak_tls() -> bool:
    """Return whether the PostgreSQL under test was built with TLS."""
    told = programs().bin / "pg_config"
    if not told.exists():
        return False
    return "with-openssl" in subprocess.run([told, "--configure"], capture_output=True, text=True, check=False).stdout


@contextlib.contextmanager
def secured() -> Iterator[tuple[Cluster, str]]:
    """Start a server that accepts TCP only with TLS; yield it with a DSN that verifies its certificate."""
    port = spare_port()
    own = Cluster({"listen_addresses": "127.0.0.1", "port": str(port), "ssl": "on"})
    own.port = port
    folder = own.data
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost", "-keyout", folder / "server.key", "-out", folder / "server.crt",
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    owner = folder.stat()
    for name in ("server.key", "server.crt"):
        os.chown(folder / name, owner.st_uid, owner.st_gid)
    (folder / "server.key").chmod(0o600)
    shutil.copy(folder / "server.crt", folder.parent / "ca.crt")
    (folder.parent / "ca.crt").chmod(0o644)
    hba = folder / "pg_hba.conf"
    hba.write_text("local all all trust\nhostssl all all 127.0.0.1/32 trust\n")
    os.chown(hba, owner.st_uid, owner.st_gid)
    with own:
        name = own.create("template1")
        dsn = make_conninfo(
            host="localhost",
            port=port,
            user="owner",
            dbname=name,
            sslmode="verify-full",
            sslrootcert=str(folder.parent / "ca.crt"),
        )
        with psycopg.connect(dsn) as connection:
            assert connection.pgconn.ssl_in_use
        yield own, dsn
