"""Sends process deaths and their jobs to the maintenance process, for the `on_death` hooks.

It is a socket pair with message boundaries. Both ends stay open here, so a message waits while the
maintenance process is replaced. The supervisor never waits: if there is no room for a message, it
is dropped, and the log reports that.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jobherd.supervisor.crash.crash_outcome import CrashOutcome
    from jobherd.supervisor.crash.dead_child import DeadChild
    from jobherd.workers.ipc.current_work import CurrentWork

log = logging.getLogger("jobherd.supervisor")

REPORTED: Final = frozenset({"retry", "failed"})
"""Outcomes for which the hooks are called. A process that a drain or a cancel ends is not a failure
of its job."""
_ROOM: Final = 1 << 20
_TEXT: Final = 4000
"""Characters of the stack and of the log that a message carries, so that many messages fit."""


class DeathMessages:
    """Both ends of the socket pair, as file descriptors.

    Attributes:
        reading: for the maintenance process.
        fds: what other child processes must close.
    """

    def __init__(self) -> None:
        reading, writing = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        writing.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
        self.fds = self.reading, self._writing = reading.detach(), writing.detach()

    def send(self, case: DeadChild, record: CurrentWork, outcome: CrashOutcome) -> bool:
        """Send one job that died with its process; return whether the hooks must be called for it."""
        if outcome.outcome not in REPORTED:
            return False
        report = case.post_mortem.as_dict()
        report["stack"] = case.post_mortem.stack[:_TEXT]
        report["log_tail"] = "" if case.policy.sealed else case.post_mortem.log_tail[-_TEXT:]
        message = {
            "job": record.job,
            "kind": case.policy.name,
            "attempt": record.attempts,
            "max_attempts": record.max_attempts,
            "crashes": record.crashes + outcome.crash,
            "token": record.token,
            "payload": not case.policy.sealed and not case.policy.table,
            "post_mortem": report | {"outcome": outcome.outcome},
        }
        try:
            os.write(self._writing, json.dumps(message).encode())
        except OSError as problem:
            log.warning("on_death hooks are not called for a job: %s", problem.strerror, extra={"job": record.job})
            return False
        return True

    def close(self) -> None:
        """Close both ends."""
        for fd in self.fds:
            os.close(fd)
