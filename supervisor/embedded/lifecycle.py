"""Starts the embedded PostgreSQL for its first user, shares it, and stops it after the last.

It lives in ``.jobherd/`` of the working directory and needs nothing installed but the extra
``embedded``:

    postgres/          the data and the server's socket: only its owner and root can connect; no TCP
    postgres.log       the server's log: without failed statements, because they contain payloads
    postgres.lock      locked while a user joins or leaves, so that no two of them overlap
    postgres.users     every user holds a shared lock on it

The list of users is never stored, because a file outlives a ``kill -9``. The kernel releases a lock
with its holder. A user that leaves and can turn its shared lock into an exclusive one was the last,
and stops the server. A killed user leaves the server running; the next user finds it.

This module leaves no thread, exit hook or child process behind. It must not be used after a fork:
the child shares its parent's registration as a user, and ``Server.leave`` does nothing in it.
``jobherd.supervisor.embedded.server`` manages the server's processes,
``jobherd.supervisor.embedded.binaries`` its programs.
"""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from jobherd.handlers._enqueue.embedded import FOLDER, ROLE, address
from jobherd.supervisor.embedded import binaries
from jobherd.supervisor.embedded import server as process
from jobherd.supervisor.embedded.binaries import EmbeddedUnavailable
from jobherd.supervisor.embedded.server import locked, log_of
from jobherd.supervisor.embedded.socket_folder import socket_folder
from jobherd.supervisor.embedded.users import User, alone, lock, open_private

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

__all__ = ["FOLDER", "EmbeddedUnavailable", "Server", "find", "start"]

SETTINGS = (
    "max_connections=200",  # 64 workers, the other processes, and users
    "shared_buffers=128MB",
    "fsync=on",
    "synchronous_commit=on",
    "io_method=sync",  # a queue is read from memory: saves three processes
    "jit=off",  # the plans of a queue are never worth compiling
    "unix_socket_permissions=0700",
    "log_min_error_statement=panic",  # a failed statement contains the payload,
    "log_error_verbosity=terse",  # and the detail of a constraint error contains the row
    "log_checkpoints=off",
)
"""Written to ``postgresql.conf`` when the data folder is created; after that the file is the
user's."""
INITDB = (
    *("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
    *(f"--set={setting}" for setting in SETTINGS),
)


@dataclass(frozen=True, slots=True)
class Server:
    """A running server that this process is registered for as a user."""

    dsn: str
    """The connection string. A restart of the server does not change it."""
    data: Path
    log: Path
    version: int
    """The major version: 18."""
    pid: int
    """The postmaster's pid when this process joined.

    Code that ends stray processes must spare it.
    """
    started: bool
    """Whether this call started the server; otherwise it was running."""
    _user: User = field(repr=False, compare=False)

    def leave(self, *, timeout: float = 60.0) -> bool:
        """Stop using the server; the last user stops it (fast: open transactions are rolled back).

        A second call does nothing, and neither does a call in a forked child.

        Parameters:
            timeout: seconds for the server's last checkpoint. Then it is stopped without one, and
                its next start recovers.

        Returns:
            Whether the server was stopped.

        Raises:
            EmbeddedUnavailable: another process joins or leaves, and did not finish in time.

        Example:
            server = start(Path.cwd())
            try:
                work(server.dsn)
            finally:
                server.leave()
        """
        if not self._user.is_ours():
            return False
        until = time.monotonic() + timeout
        folder = self.data.parent
        if not folder.is_dir():  # the folder was removed; PostgreSQL notices that itself
            self._user.close()
            return False
        with alone(folder, until):
            return _leave(self._user, self.data, until)

    def __enter__(self) -> Self:
        """Return the server; ``start`` or ``find`` has joined it."""
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, trace: TracebackType | None) -> None:
        """Stop using the server."""
        self.leave()


def start(directory: Path, *, timeout: float = 60.0) -> Server:
    """Join the server of a working directory; create its data and start it if necessary.

    Parameters:
        directory: the working directory; everything is in its ``.jobherd/``.
        timeout: seconds that a start may take, including recovery after a crash.

    Raises:
        EmbeddedUnavailable: the extra is not installed, or the server does not start; the text says
            what to do.

    Example:
        with start(Path.cwd()) as server, psycopg.connect(server.dsn) as conn:
            work(conn)
    """
    folder = _folder_of(directory)
    with _explained(folder):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
            (folder / ".gitignore").write_text("*\n")
        server = _join(folder, may_start=True, until=time.monotonic() + timeout)
    assert server is not None  # only a call with may_start=False returns None
    return server


def find(directory: Path, *, timeout: float = 60.0) -> Server | None:
    """Join the server of a working directory if it runs; otherwise start and create nothing.

    Parameters:
        directory: the working directory.
        timeout: seconds to wait for a server that is just starting.

    Raises:
        EmbeddedUnavailable: the server exists, and it cannot be used.

    Example:
        server = find(Path.cwd())
    """
    folder = _folder_of(directory)
    with _explained(folder):
        if not (folder / "postgres").exists():
            return None
        return _join(folder, may_start=False, until=time.monotonic() + timeout)


def _folder_of(directory: Path) -> Path:
    try:
        return directory.absolute() / FOLDER
    except FileNotFoundError:
        raise EmbeddedUnavailable(
            "The working directory was removed, so there is no place for a database. Go to another one, or name a "
            "database of yours with --dsn or JOBHERD_DSN."
        ) from None


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedUnavailable(
            f"The database in {folder} cannot be used: {error}. Fix that, or name a database of yours with --dsn or "
            "JOBHERD_DSN."
        ) from error


def _join(folder: Path, *, may_start: bool, until: float) -> Server | None:
    data = folder / "postgres"
    with alone(folder, until) as held:
        user = User()
        users = folder / "postgres.users"
        user.fds.append(open_private(users))
        try:
            lock(user.fds[0], fcntl.LOCK_SH, users, until)
            found = process.ready(data, until)
            if found is None and not may_start:
                user.close()
                return None
            pid = found or _start(data, held, until)
            dsn = address(socket_folder(data, user))
            return Server(dsn, data, log_of(data), _major(data), pid, started=found is None, _user=user)
        except BaseException:
            _leave(user, data, until)  # otherwise a Ctrl-C during the start would leave a server without users
            raise


def _leave(user: User, data: Path, until: float) -> bool:
    """Release the user's locks; stop the server after the last user. The caller holds the lock."""
    try:
        if not locked(user.fds[0], fcntl.LOCK_EX):
            return False
        if user.link is not None:
            user.link.unlink(missing_ok=True)
        return process.stop(data, until)
    finally:
        user.close()


# -- helpers


def _major(data: Path) -> int:
    said = (data / "PG_VERSION").read_bytes()[:20]
    try:
        return int(said)
    except ValueError:
        raise EmbeddedUnavailable(
            f"{data / 'PG_VERSION'} does not name the version of PostgreSQL that created the data: {said!r}. "
            "Fix that, or name a database of yours with --dsn or JOBHERD_DSN."
        ) from None


def _start(data: Path, held: int, until: float) -> int:
    """Start the server, creating its data if there is none; return its postmaster's pid."""
    major = _major(data) if data.exists() else None
    account = binaries.server_account(data)
    programs = binaries.readable(binaries.carried(major=major), account)
    if major is None:
        binaries.initialise(programs, data, account=account, superuser=ROLE, options=INITDB, hold=(held,))
    return process.launch(programs, data, account=account, until=until)
