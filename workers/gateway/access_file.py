"""Keeps the list of principals current: reads the access file again when it has changed.

A file that is missing or wrong changes nothing: a deployment may be between two steps, and running
remote workers must not lose their access. A warning says so once for each change of the file.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from jobherd.workers.gateway.access import AccessError, AccessList, Principal, access_list

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_log = logging.getLogger("jobherd.gateway")


def read_access(tokens: Sequence[str], path: Path | None, *, certificates: bool) -> AccessList:
    """Return the list of principals.

    Raises:
        AccessError: the file cannot be read or used.
    """
    if path is None:
        return access_list(tokens, "", certificates=certificates)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as problem:
        raise AccessError([f"it cannot be read: {problem.strerror}"]) from None
    except UnicodeDecodeError:
        raise AccessError(["it is not UTF-8"]) from None
    return access_list(tokens, text, certificates=certificates)


class LiveAccess:
    """The principals as of now.

    Raises AccessError if the file is wrong at the start.
    """

    def __init__(self, tokens: Sequence[str], path: Path | None, *, certificates: bool) -> None:
        self._tokens = tokens
        self._path = path
        self._certificates = certificates
        # Order: the state of the file first. A change in between is then noticed at the next call.
        self._seen = self._look()
        self._now = read_access(tokens, path, certificates=certificates)

    def identify(self, token: str, names: Sequence[str]) -> Principal | None:
        """Return the client's principal, see `AccessList.identify`."""
        self.refresh()
        return self._now.identify(token, names)

    def admits(self, principal: Principal) -> bool:
        """Return whether the principal still exists with the same rights, see `AccessList.admits`."""
        self.refresh()
        return self._now.admits(principal)

    def refresh(self) -> None:
        """Read the file again if it has changed. It costs one system call if it has not."""
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._now = read_access(self._tokens, self._path, certificates=self._certificates)
        except AccessError as problem:
            _log.warning("gateway_access %s has changed, keeping the earlier principals: %s", self._path, problem)
        else:
            _log.info("gateway_access %s was read again", self._path)

    def _look(self) -> tuple[int, int, int] | None:
        """Return what changes with the content of the file."""
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
