"""Sets up a bare repository that reports its pushes.

That takes the repository, its hook, and a file with the database's address. The file contains the
DSN, so only its owner may read it (mode 0600), and the DSN is never on a command line. The hook
contains the full path of the Python that installed it: the process that runs the hook (sshd,
git-daemon, a web server) may have no PATH.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jobherd.handlers.forge import _git

CONFIG: Final = "jobherd.json"
MARK: Final = "# Written by: jobherd forge init-repo."
_HOOK: Final = """\
#!/bin/sh
{mark} Run again, the command writes this file again.
# It reports each push to Jobherd and cannot reject one. A push that it cannot report is kept here and reported later.
python={python}
if [ ! -x "$python" ]; then
    echo "jobherd: $python is gone, so git stored this push but Jobherd did not record it." \\
        "Run: jobherd forge init-repo $PWD" >&2
    exit 1
fi
{path}exec "$python" -P -m jobherd.handlers.forge._hook
"""


class RepositoryError(Exception):
    """A folder cannot be set up as such a repository. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Place:
    """The database to which a repository's hook reports."""

    dsn: str
    schema: str

    def __repr__(self) -> str:
        return f"Place(schema={self.schema!r})"  # the DSN may contain a password


def init_repository(path: str, *, dsn: str, schema: str) -> str:
    """Create a bare repository with the hook, or install the hook in an existing one.

    Return its path, links resolved.

    path: the folder. A folder with a `.git` in it means that repository.
    dsn, schema: the database. Raises RepositoryError.
    """
    place = os.path.realpath(path)
    if os.path.isdir(os.path.join(place, ".git")):
        place = os.path.join(place, ".git")
    if not os.path.exists(place) or (os.path.isdir(place) and not os.listdir(place)):
        try:
            _git.run("init", "--quiet", "--bare", "--template=", "--initial-branch=main", "--", place)
        except (_git.GitError, OSError) as problem:
            raise RepositoryError(f"{place} cannot be made a repository: {problem}") from None
    elif not (os.path.isdir(place) and _git.is_repository(place)):
        raise RepositoryError(f"{place} is there and is not a git repository: name another folder, or an empty one")
    try:
        _write_hook(place)
        write_place(place, Place(dsn, schema))
    except OSError as problem:
        raise RepositoryError(f"{place}: {problem}") from None
    return place


def write_place(path: str, place: Place) -> None:
    """Write the database to which a repository's hook reports."""
    _write(
        os.path.join(path, CONFIG), json.dumps({"dsn": place.dsn, "schema": place.schema}, indent=1) + "\n", mode=0o600
    )


def read_place(path: str) -> Place:
    """Return the database to which a repository's hook reports. Raises RepositoryError."""
    file = os.path.join(path, CONFIG)
    try:
        with open(file, encoding="utf-8") as stream:
            document = json.load(stream)
        return Place(str(document["dsn"]), str(document["schema"]))
    except OSError as problem:
        raise RepositoryError(
            f"{file} cannot be read ({problem.strerror}): run jobherd forge init-repo {path}"
        ) from None
    except (ValueError, TypeError, KeyError):
        raise RepositoryError(f"{file} does not name a database: run jobherd forge init-repo {path}") from None


def _write_hook(path: str) -> None:
    folder = os.path.join(path, "hooks")
    file = os.path.join(folder, "post-receive")
    os.makedirs(folder, exist_ok=True)
    if os.path.lexists(file):
        with open(file, encoding="utf-8", errors="replace") as stream:
            if MARK not in stream.read():
                raise RepositoryError(
                    f"{file} exists and was not written by Jobherd: rename it, run this again, "
                    "and call both from a script of your own. "
                    "Both read the same lines from standard input."
                )
    if _is_elsewhere(path):  # the host or the user has set another folder for all hooks; this one is in the repository
        _git.run("config", "core.hooksPath", folder, repository=path)
    home = str(Path(__file__).absolute().parents[3])
    inside = any(
        os.path.realpath(home).startswith(os.path.realpath(part) + os.sep) for part in (sys.prefix, sys.base_prefix)
    )
    # In a checkout, that Python does not find the packages by itself.
    lines = "" if inside else f"PYTHONPATH={shlex.quote(home)}\nexport PYTHONPATH\n"
    _write(file, _HOOK.format(mark=MARK, python=shlex.quote(sys.executable), path=lines), mode=0o755)


def _is_elsewhere(path: str) -> bool:
    try:
        _git.run("config", "--get", "core.hooksPath", repository=path, plain=False)
    except _git.GitError:
        return False
    return True


def _write(file: str, text: str, *, mode: int) -> None:
    """Write a file in one step: a push at the same time sees the old file or the new one."""
    fresh = f"{file}.new"
    with open(
        os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode), "w", encoding="utf-8"
    ) as stream:
        os.fchmod(stream.fileno(), mode)
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.rename(fresh, file)
