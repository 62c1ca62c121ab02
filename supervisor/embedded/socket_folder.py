"""Finds a path to the embedded server's socket that libpq accepts: short enough, and valid text."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from jobherd.handlers._enqueue.embedded import fits, is_private, link_folders, link_name
from jobherd.supervisor.embedded.binaries import EmbeddedUnavailable

if TYPE_CHECKING:
    from pathlib import Path

    from jobherd.supervisor.embedded.users import User


def socket_folder(data: Path, user: User) -> Path:
    """Return a path by which libpq reaches the socket: the data folder, or a short link to it.

    The link is in a folder that no other user can write to, so no other user can redirect it. It
    contains nothing but ``data``: each user creates it again, so an emptied /tmp does no harm.
    """
    if fits(data):
        return data
    private = _private_folder(*link_folders())
    user.fds.append(os.open(private, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    # otherwise systemd-tmpfiles removes the link after ten days
    fcntl.flock(user.fds[-1], fcntl.LOCK_SH | fcntl.LOCK_NB)
    link = private / link_name(data)
    if not link.is_symlink() or link.readlink() != data:
        fresh = link.with_suffix(f".{os.getpid()}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(data)
        fresh.replace(link)
    user.link = link
    return link


def _private_folder(*candidates: Path) -> Path:
    for folder in candidates:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        if is_private(folder):
            return folder
    names = " and ".join(map(str, candidates))
    raise EmbeddedUnavailable(
        f"The path of the database is too long for a socket or is not text, and {names} are not private folders of "
        "this user. Work in a folder with another path, or name a database of yours with --dsn or JOBHERD_DSN."
    )
