"""Mirrors foreign repositories in a folder.

A mirror is created completely or not at all, and updated by one worker at a time. `clone` and
`update` work on `FOLDER/ORG/NAME.git`. Names come from the network: a name that could lead out of
the folder is rejected before it becomes a path. A lock on a file next to the mirror keeps two
workers of one host apart; the kernel releases it when its holder ends. A new mirror is cloned under
another name and then renamed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from jobherd.handlers.forge import _git

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FOLDER: Final = "JOBHERD_IMPORT_FOLDER"
"""Environment variable with the folder for mirrors; default .jobherd/imports in the working
directory."""
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_SAFE: Final = {
    # Only these transports, whatever the configuration says: "ext::" runs commands.
    "GIT_ALLOW_PROTOCOL": "http:https",
    "GIT_LFS_SKIP_SMUDGE": "1",
}


class BusyError(Exception):
    """Another worker has locked this mirror."""


class NameRefusedError(ValueError):
    """A name or address that cannot be used for a mirror."""


def check_name(name: str) -> str:
    """Return a repository's or organization's name if it can be part of a path.

    Raises NameRefusedError.
    """
    if not _NAME.fullmatch(name) or name in {".", ".."}:
        message = f"{name[:100]!a} cannot be a repository's name: letters, digits and _ . - only, and not . or .."
        raise NameRefusedError(message)
    return name


def check_address(url: str, *, scheme: str, host: str) -> str:
    """Return a clone URL if the API may return such a URL. Raises NameRefusedError.

    scheme: scheme of the API; https is always allowed. host: the only allowed host.
    """
    try:
        parts = urlsplit(url)
        good = (
            parts.scheme in {"https", scheme} and parts.hostname == host and parts.username is None and parts.port != 0
        )
    except ValueError:
        good = False
    if not good or not url.isascii() or not url.isprintable() or " " in url:
        message = f"{url[:200]!a} is not an address to clone from: it must be on {host}, over https, without a user"
        raise NameRefusedError(message)
    return url


def path_of(org: str, name: str) -> str:
    """Return the path of a repository's mirror. Raises NameRefusedError."""
    folder = os.path.realpath(os.environ.get(FOLDER) or os.path.join(".jobherd", "imports"))
    return os.path.join(folder, check_name(org), f"{check_name(name)}.git")


@contextlib.contextmanager
def alone(path: str) -> Iterator[None]:
    """Lock a mirror. Raises BusyError at once if another process has locked it."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"another worker uses {path}"
            raise BusyError(message) from None
        yield
    finally:
        os.close(fd)


def mirror(url: str, path: str, *, timeout: float, more: Mapping[str, str]) -> str:
    """Create or update the mirror; return "cloned" or "updated". The caller holds its lock.

    url: address to clone. path: path of the mirror. timeout: seconds for git. more: variables for
    git, with the token. Raises GitError, TimeoutError.
    """
    variables = _SAFE | dict(more)
    if os.path.isdir(path) and _git.is_repository(path):
        _update(url, path, timeout=timeout, more=variables)
        return "updated"
    fresh = f"{path}.new"
    shutil.rmtree(fresh, ignore_errors=True)  # left by a killed clone
    try:
        _git.run(
            *("clone", "--quiet", "--mirror", "--no-hardlinks", "--template=", "--", url, fresh),
            timeout=timeout,
            more=variables,
            plain=False,
        )
        if os.path.lexists(path):  # not a repository: left half done
            shutil.rmtree(path)
        os.rename(fresh, path)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return "cloned"


def _update(url: str, path: str, *, timeout: float, more: Mapping[str, str]) -> None:
    for left in _lock_files(path):  # the caller holds the lock: these are locks of a killed git and would block forever
        with contextlib.suppress(FileNotFoundError):
            os.unlink(left)
    _git.run("remote", "set-url", "--", "origin", url, repository=path)  # it may have been renamed
    _git.run("remote", "update", "--prune", repository=path, timeout=timeout, more=more, plain=False)


def _lock_files(path: str) -> Iterator[str]:
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if folder != path or name != "objects"]
        yield from (os.path.join(folder, name) for name in names if name.endswith(".lock"))
