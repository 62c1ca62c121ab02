"""Checks whether another OS user could change code that is about to be loaded.

Such a user could run code as this process. Trusted users are root, this process's own user, and the
owner of Jobherd's files, who can change them anyway. A trusted user must own each file, its folder,
its bytecode, every folder above it and every symbolic link on the way. None of them may be writable
for all users. Groups are not checked.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import pwd
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ALLOW: Final = "JOBHERD_ALLOW_WRITABLE_HANDLERS"
"""Environment variable: also load what other OS users can change, as in a container without
others."""
_SUFFIXES: Final = tuple(importlib.machinery.all_suffixes())
_CACHE: Final = "__pycache__"
"""Where Python keeps bytecode; checked together with its source file."""
_LINKS: Final = 40
"""Most symbolic links on the way to a file; the kernel follows no more."""
_DEEPEST: Final = 20


@dataclass(frozen=True, slots=True)
class Fault:
    """Why something is not loaded."""

    place: str
    """The file or folder that has to be changed."""
    message: str
    """What is wrong, and how to fix it."""


def find_fault(path: str | os.PathLike[str]) -> Fault | None:
    """Return why another OS user could change this path, or a folder or link that leads to it.

    Returns None if no other user can, or if it does not exist.

    >>> find_fault("/etc/passwd") is None
    True
    """
    text = os.fspath(path)
    return None if _is_allowed() else _fault_of_way(text) or _fault_of(text)


def find_fault_of_module(file: str | os.PathLike[str]) -> Fault | None:
    """Like `find_fault`, for a Python file and the bytecode that Python may load instead."""
    text = os.fspath(file)
    if _is_allowed():
        return None
    return _fault_of_way(text) or _fault_of(text) or _fault_of_cache(text)


def find_faults_below(folder: str | os.PathLike[str]) -> Iterator[Fault]:
    """Yield the faults of all importable code in a folder and its subfolders, public or not."""
    if not _is_allowed():
        yield from _faults_below(os.fspath(folder), frozenset())


def _faults_below(folder: str, above: frozenset[str]) -> Iterator[Fault]:
    real = os.path.realpath(folder)
    if real in above or len(above) > _DEEPEST:
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:  # loading from the folder reports the error
        return
    for entry in entries:
        if entry.name == _CACHE:
            continue
        if entry.name.endswith(_SUFFIXES) and os.path.isfile(entry.path):
            fault = find_fault_of_module(entry.path)
            if fault:
                yield fault
        elif (
            entry.name.isidentifier()
            and os.path.isdir(entry.path)
            and (not entry.name.startswith("_") or _holds_code(entry.path))
        ):
            fault = find_fault(entry.path)
            if fault:
                yield fault
            else:
                yield from _faults_below(entry.path, above | {real})


def _holds_code(folder: str) -> bool:
    try:
        return any(name.endswith(_SUFFIXES) for name in os.listdir(folder))
    except OSError:
        return False


def _fault_of(path: str) -> Fault | None:
    """Check a file or folder itself.

    The sticky bit does not help: it keeps other users from deleting a module, not from adding one.
    """
    path = os.path.realpath(path)
    try:
        found = os.stat(path)
    except OSError:
        return None
    if fault := _fault_of_owner(path, found):
        return fault
    if found.st_mode & stat.S_IWOTH:
        return Fault(
            path,
            f"every OS user may write to it, so nothing is loaded from it: run chmod o-w {path}, "
            f"or set {ALLOW}=1 if you trust all who can",
        )
    return None


def _fault_of_owner(path: str, found: os.stat_result) -> Fault | None:
    if found.st_uid in _trusted():
        return None
    return Fault(
        path,
        f"it belongs to {_name(found.st_uid)}, who could change it, so nothing is loaded from it: "
        f"run chown {_name(os.geteuid())} {path}, or set {ALLOW}=1 if you trust that user",
    )


def _fault_of_way(path: str) -> Fault | None:
    """Check the folders and links that lead to the path: their owners could replace the file."""
    for place in _way(path):
        try:
            found = os.lstat(place)
        except OSError:
            return None
        if fault := _fault_of_owner(place, found):
            return fault
        # In a folder with the sticky bit, such as /tmp, only an entry's owner may rename the entry.
        # The next step of the path checks that owner.
        if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            return Fault(
                place,
                f"every OS user may put something else in the place of {path}, so nothing is loaded from it: "
                f"run chmod o-w {place}, or set {ALLOW}=1 if you trust all who can",
            )
    return None


def _way(path: str) -> Iterator[str]:
    """Yield the real folders that lead to a path, and each link that is followed.

    The path itself is yielded only if it is a link.
    """
    whole = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)  # the working folder may have been removed
    todo = whole.split("/")[::-1]
    here, links = "/", 0
    while todo and links <= _LINKS:
        part = todo.pop()
        if part in {"", "."}:
            continue
        if part == "..":
            here = os.path.dirname(here)
            continue
        yield here
        step = os.path.join(here, part)
        if os.path.islink(step):
            yield step
            links += 1
            target = os.readlink(step)
            todo += target.split("/")[::-1]
            here = "/" if target.startswith("/") else here
        else:
            here = step


def _fault_of_cache(file: str) -> Fault | None:
    if not file.endswith(tuple(importlib.machinery.SOURCE_SUFFIXES)):
        return None
    try:
        cached = importlib.util.cache_from_source(file)
    except (NotImplementedError, ValueError):  # this Python keeps no bytecode, or the name allows none
        return None
    folder = os.path.dirname(cached)
    return _fault_of_way(cached) or _fault_of(folder) or _fault_of(cached)


def _trusted() -> set[int]:
    return {0, os.geteuid(), os.stat(__file__).st_uid}


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _is_allowed() -> bool:
    return os.environ.get(ALLOW, "").strip().lower() in {"1", "true", "yes", "on"}
