"""Starts and stops the server of one data folder, and finds out whether it runs.

It must not count users: every caller holds the lock of ``jobherd.supervisor.embedded.lifecycle``,
under which no other process starts or stops the server. It relies on the kernel and not on
``postmaster.pid``, which outlives its writer and may contain a number that now belongs to another
process.

A server holds a lock on its data folder. The lock is taken before it starts and each of its
processes inherits it. So it is held while one of them lives, even an orphan of a killed postmaster
that still runs a query: a second server on the same pages would destroy them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jobherd.handlers._enqueue.embedded import SOCKET
from jobherd.supervisor.embedded.binaries import (
    Account,
    EmbeddedUnavailable,
    Programs,
    data_argument,
    environment,
    identity,
)

LARGEST_LOG = 10_000_000
"""Size of the log in bytes from which a start begins a new file and keeps this one as
``postgres.log.1``."""
GLANCE = 0.005
"""Seconds between two checks of a server that starts or stops."""


@dataclass(frozen=True, slots=True)
class Postmaster:
    """The contents of ``postmaster.pid``, verified against the running processes."""

    pid: int
    state: Literal["starting", "ready", "stopping", "dead"]


def log_of(data: Path) -> Path:
    """Return the path of the log of the server on this data folder."""
    return data.with_name(data.name + ".log")


def locked(fd: int, how: int) -> bool:
    """Take this lock (``fcntl.LOCK_SH`` or ``LOCK_EX``) if it is free; return whether it was."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def postmaster(data: Path) -> Postmaster | None:
    """Return the postmaster's state; None if ``postmaster.pid`` is missing or has no number yet."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
        pid = int(lines[0])
    except (FileNotFoundError, IndexError, ValueError):
        return None
    if not _works_in(pid, data):
        return Postmaster(pid, "dead")
    match lines[7:]:  # the eighth line, which is written last
        case [state] if state.strip() == "ready":
            return Postmaster(pid, "ready")
        case [state] if state.strip() == "stopping":
            return Postmaster(pid, "stopping")
        case _:
            return Postmaster(pid, "starting")


def ready(data: Path, until: float) -> int | None:
    """Wait for a server that starts or stops.

    Returns the postmaster that accepts connections, or None if no process is left.

    Parameters:
        data: the data folder; it need not exist.
        until: the monotonic time at which to give up.

    Raises:
        EmbeddedUnavailable: the folder is locked, and the server was not ready in time.
    """
    while not is_free(data):
        found = postmaster(data)
        if found is not None and found.state == "ready":
            return found.pid
        if found is not None and found.state == "dead":
            end_orphans(data)
        if time.monotonic() > until:
            raise EmbeddedUnavailable(
                f"The database server on {data} is not ready, or is out of sight (another container?). "
                f"See {log_of(data)}, or name a database of yours with --dsn or JOBHERD_DSN."
            )
        time.sleep(GLANCE)
    return None


def launch(programs: Programs, data: Path, *, account: Account | None, until: float) -> int:
    """Start a server where none runs; return its postmaster's pid once it accepts connections.

    The server is not a child of this process. It runs in a separate session, since otherwise Ctrl-C
    in the terminal would stop it. It listens on a socket inside its data folder, which only its
    owner and root can reach. TCP is off.

    Parameters:
        programs: of the version that the data needs; readable for the account.
        data: the data folder.
        account: the account it runs as; None for the current user.
        until: the monotonic time at which to give up.

    Raises:
        EmbeddedUnavailable: it did not start; the text has the last lines of its log.
    """
    found = postmaster(data)
    if found is not None and found.state != "dead":
        raise EmbeddedUnavailable(
            f"Process {found.pid} is a PostgreSQL on {data} that jobherd did not start. Stop it, or name it with --dsn."
        )
    clear(data)
    log = log_of(data)
    if log.exists() and log.stat().st_size > LARGEST_LOG:
        log.replace(log.with_name(log.name + ".1"))
    alive = os.open(data, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    words = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        subprocess.run(
            [
                # the shell exits, so this process has no child
                *("/bin/sh", "-c", '"$@" &', "sh", programs.bin / "postgres"),
                *("-D", data_argument(data, account)),
                *("-k", ".", "-c", "listen_addresses="),  # the data folder again, which is short whatever its path is
            ],
            cwd=data,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            check=True,
            timeout=30,
            umask=0o077,
            pass_fds=(alive,),
            start_new_session=True,
            **identity(account),
        )
    finally:
        os.close(words)
        os.close(alive)  # from here on only the server holds the lock
    pid = ready(data, until)
    if pid is None:
        raise EmbeddedUnavailable(
            f"PostgreSQL did not start: {_last_words(log)} Fix that (the whole log is in {log}), "
            "or name a database of yours with --dsn or JOBHERD_DSN."
        )
    return pid


def clear(data: Path) -> None:
    """Remove files of a killed server: their pid may be reused, and PostgreSQL would not start."""
    for name in ("postmaster.pid", f"{SOCKET}.lock", SOCKET):
        (data / name).unlink(missing_ok=True)


def stop(data: Path, until: float) -> bool:
    """Stop the server, with stronger signals over time; return whether there was one.

    Parameters:
        data: the data folder.
        until: the monotonic time up to which its last checkpoint may take. After that it is stopped
            without one, and its next start recovers.
    """
    soon = time.monotonic() + 2.0
    while (found := postmaster(data)) is None and not is_free(data) and time.monotonic() < soon:
        time.sleep(GLANCE)  # just launched and interrupted: it has not written its pid yet
    if found is None or found.state == "dead":
        return False
    steps = ((signal.SIGINT, max(0.0, until - time.monotonic())), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 5.0))
    for what, patience in steps:
        if _send(found.pid, what, data, patience=patience):
            break
    last = max(until, time.monotonic() + 1.0)
    while not is_free(data) and time.monotonic() < last:
        end_orphans(data)
        time.sleep(GLANCE)
    return True


def is_free(data: Path) -> bool:
    """Return whether no process of a server on this data folder is left."""
    try:
        fd = os.open(data, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        return locked(fd, fcntl.LOCK_EX)
    finally:
        os.close(fd)


def _works_in(pid: int, data: Path) -> bool:
    """Return whether this process is a PostgreSQL that works in the data folder.

    A zombie is not.
    """
    try:
        program = Path(f"/proc/{pid}/exe").readlink().name.removesuffix(" (deleted)")
        return program == "postgres" and Path(f"/proc/{pid}/cwd").samefile(data)
    except OSError:
        return False


def end_orphans(data: Path) -> None:
    """Kill processes of a dead postmaster.

    Recovery follows anyway, so it is no use to wait for their long queries.
    """
    for process in Path("/proc").glob("[0-9]*"):
        if _works_in(int(process.name), data):
            _send(int(process.name), signal.SIGKILL, data, patience=0.0)


def _send(pid: int, what: signal.Signals, data: Path, *, patience: float) -> bool:
    """Signal a process of this server and wait for its end; return False if it is still alive.

    Parameters:
        pid: the process.
        what: the signal.
        data: the data folder of the server.
        patience: seconds to wait.
    """
    with contextlib.suppress(ProcessLookupError):
        fd = os.pidfd_open(pid)
        try:
            if _works_in(pid, data):  # check again: the number may have been reused before the pidfd was opened
                signal.pidfd_send_signal(fd, what)
                watch = select.poll()
                watch.register(fd, select.POLLIN)
                return bool(watch.poll(patience * 1000))
        finally:
            os.close(fd)
    return True


def _last_words(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
        return " / ".join(file.read().decode(errors="replace").splitlines()[-3:])
