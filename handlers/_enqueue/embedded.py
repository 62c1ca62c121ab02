"""Finds the embedded PostgreSQL of a folder: its socket, and whether a server answers there.

`jobherd.supervisor.embedded.lifecycle` starts, counts and stops servers. This module only finds a
running server, for producers. It starts nothing and creates no file.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
from pathlib import Path

from psycopg.conninfo import make_conninfo

FOLDER = ".jobherd"
ROLE = "jobherd"
DATABASE = "postgres"
SOCKET = ".s.PGSQL.5432"
"""Name of the socket in the data folder. PostgreSQL derives it from the port, which is otherwise
unused."""
LONGEST_SOCKET = 107
"""Longest path of a Unix socket in bytes; the kernel accepts no more."""


def find_running(directory: Path) -> str | None:
    """Return the address of a directory's embedded server if this user's server runs there."""
    data = directory.absolute() / FOLDER / "postgres"
    try:
        if data.parent.stat().st_uid != os.geteuid():
            return None  # another user's server would receive the payloads
        place = data if fits(data) else _linked(data)
    except OSError:
        return None
    return address(place) if place is not None and _answers(place / SOCKET) else None


def address(place: Path) -> str:
    """Return the address of the server whose socket is in the folder `place`."""
    return make_conninfo(host=str(place), dbname=DATABASE, user=ROLE)


def fits(data: Path) -> bool:
    """Return whether libpq accepts the data folder's path.

    It must be short enough, be valid text, and contain no comma, which separates hosts in libpq.
    """
    try:
        str(data).encode()
    except UnicodeEncodeError:
        return False
    return len(os.fsencode(data / SOCKET)) <= LONGEST_SOCKET and "," not in str(data)


def link_folders() -> tuple[Path, ...]:
    """Return the folders that may contain short links to data folders whose path does not fit."""
    return Path(f"/tmp/jobherd-{os.geteuid()}"), Path(f"/var/tmp/jobherd-{os.geteuid()}")  # noqa: S108


def is_private(folder: Path) -> bool:
    """Return whether this is a folder of this user that no other user can write to.

    Another user could otherwise point a link elsewhere.
    """
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def link_name(data: Path) -> str:
    """Return the name of the short link to a data folder."""
    return hashlib.sha256(os.fsencode(data)).hexdigest()[:16]


def _linked(data: Path) -> Path | None:
    for folder in link_folders():
        link = folder / link_name(data)
        if folder.is_dir() and is_private(folder) and link.is_symlink() and link.readlink() == data:
            return link
    return None


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return False
        except OSError:
            return True  # a server is there: connecting to it reports the error
    return True
