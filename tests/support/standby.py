"""Starts a standby of a temporary server: a copy by pg_basebackup that replicates and can be promoted.
with Standby(cluster) as standby:     # runs as a hot standby
        standby.promote()

Both servers listen on a socket with the same port, each in its own folder, so a DSN can name both.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import psycopg

from jobherd.supervisor.embedded import binaries
from tests.support.postgres import DISK, LIMIT, USER, Cluster, programs, tool

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NAME = "standby"
SETTINGS = {"hot_standby": "on", "wal_receiver_status_interval": "1s", "wal_retrieve_retry_interval": "100ms"}


class Standby(Cluster):
    """A standby of `primary`, which must run. Use it as a context manager, which starts it."""

    def __init__(self, primary: Cluster, settings: Mapping[str, str] | None = None, *, place: Path = DISK) -> None:
        self._primary = primary
        super().__init__({**SETTINGS, **(settings or {})}, place=place)

    def _initialise(self) -> None:
        found = programs()
        self.version = found.major
        self._account = binaries.server_account(self._primary.data)
        self._programs = binaries.readable(found, self._account)
        self.data.mkdir(mode=0o700)
        if self._account is not None:
            import os

            os.chown(self.data, self._account.uid, self._account.gid)
        done = subprocess.run(
            [
                tool("pg_basebackup", self._programs.bin),
                "-D",
                binaries.data_argument(self.data, self._account),
                "-h",
                self._primary.data,
                "-p",
                str(self.port),
            ]
            + ["-U", USER, "--wal-method=stream", "--checkpoint=fast", "--no-sync", "--write-recovery-conf"],
            cwd=self.data,
            env=binaries.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT * 4,
            **binaries.identity(self._account),
        )
        if done.returncode:
            raise RuntimeError(f"pg_basebackup failed: {done.stderr}")
        follow = f"host={self._primary.data} port={self._primary.port} user={USER} application_name={NAME}"
        # not a setting on the command line: those cannot be changed while the server runs
        with (self.data / "postgresql.auto.conf").open("a") as file:
            file.write(f"primary_conninfo = '{follow}'\n")

    def promote(self) -> None:
        """Promote the standby and wait until it accepts writes."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            assert connection.execute("SELECT pg_promote(true, 60)").fetchone() == (True,), (
                "the standby was not promoted"
            )
