"""Watches Python files for `jobherd run --reload`, in a separate process.

A slow disk must not stop the supervisor's loop. The process compares modification times and sizes
twice a second. It reports once two scans in a row agree, so an editor or a checkout that writes
many files causes one reload. It imports none of the files.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias

import setproctitle

from jobherd.supervisor.process import spawn
from jobherd.workers.ipc import pipes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jobherd.supervisor.settings.definitions import Settings

EVERY: Final = 0.5
"""Seconds between two scans."""
MOST: Final = 10_000
"""Maximum number of files that are watched."""
NAMED: Final = 3
"""Number of changed files that the log names."""
_PASSED_OVER: Final = frozenset({"__pycache__", "node_modules", "site-packages"})

Seen: TypeAlias = "dict[str, tuple[int, int]]"


class Watcher:
    """The watching process.

    Attributes:
        fd: readable when files have changed.
        pid: its process id.
    """

    def __init__(self, places: list[str]) -> None:
        self.fd, write = pipes.open_pipe()

        def life() -> NoReturn:
            spawn.start_helper(keep=write)
            # crash/orphans.py spares titles that begin so
            setproctitle.setproctitle("jobherd: supervisor's watcher of files")
            _watch(places, write)

        try:
            self.pid = spawn.fork(life)
        except OSError:
            os.close(self.fd)
            raise
        finally:
            os.close(write)

    def read(self) -> list[str] | None:
        """Return some of the files that have changed, or None if the process has ended."""
        data = b""
        with suppress(BlockingIOError):
            while chunk := os.read(self.fd, 65536):
                data += chunk
            if not data:
                return None
        return list(dict.fromkeys(data.decode(errors="replace").splitlines()))

    def close(self) -> None:
        """End the process."""
        os.close(self.fd)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def places_of(settings: Settings) -> list[str]:
    """Return what to watch: sources of handlers and hooks, and the application's folder."""
    found = [os.path.abspath(settings.app_dir)]
    for source in (*settings.handlers, *settings.hooks):
        found += (
            [os.path.abspath(source)]
            if os.path.exists(source)
            else _module_places(source.partition(".")[0], str(settings.app_dir))
        )
    return list(dict.fromkeys(found))


def _module_places(name: str, app_dir: str) -> list[str]:
    spec = PathFinder.find_spec(name, [app_dir])
    with suppress(ImportError, ValueError):
        spec = spec or find_spec(name)
    if spec is None:
        return []
    return list(spec.submodule_search_locations or ([spec.origin] if spec.origin else []))


def _watch(places: list[str], write: int) -> NoReturn:
    known = before = look(places)
    while True:
        time.sleep(EVERY)
        now = look(places)
        if now != known and now == before:
            changed = sorted(name for name in known.keys() | now.keys() if known.get(name) != now.get(name))
            known = now
            with suppress(BlockingIOError):  # the supervisor has not read the last changes: they cause a reload anyway
                os.write(write, "".join(f"{name[-1000:]!r}\n" for name in changed[:NAMED]).encode(errors="replace"))
        before = now


def look(places: Iterable[str]) -> Seen:
    """Return modification time and size of every Python file in these places, at most `MOST` files."""
    seen: Seen = {}
    for name in _files(places):
        with suppress(OSError, ValueError):
            found = os.stat(name)
            seen[name] = found.st_mtime_ns, found.st_size
        if len(seen) >= MOST:
            break
    return seen


def _files(places: Iterable[str]) -> Iterator[str]:
    for place in places:
        if not os.path.isdir(place):
            yield place
            continue
        for folder, folders, files in os.walk(place):
            if folder != place and "pyvenv.cfg" in files:
                folders.clear()
                continue
            folders[:] = [each for each in folders if not each.startswith(".") and each not in _PASSED_OVER]
            yield from (os.path.join(folder, file) for file in files if file.endswith(".py"))
