"""Starts a supervisor in this process, and explains errors of the kernel."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from jobherd.supervisor.assembly import Supervisor
from jobherd.supervisor.process import spawn
from jobherd.supervisor.remote_assembly import RemoteSupervisor

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.supervisor.observe.log_stream import LogStream
    from jobherd.supervisor.process.signals import SignalPipe
    from jobherd.supervisor.settings.definitions import Settings


class RefusedError(Exception):
    """The kernel rejects a resource that the supervisor needs. The text is shown to users."""


def run(
    settings: Settings,
    dsn: str | None,
    *,
    reload: Callable[[], Settings] | None = None,
    signals: SignalPipe | None = None,
    log_stream: LogStream | None = None,
) -> int:
    """Run a supervisor in this process until a signal or command stops it.

    Args:
        settings: the settings.
        dsn: the database. None: the jobs come from a gateway.
        reload: reads the settings again, on SIGHUP.
        signals: a signal pipe that already receives the signals.
        log_stream: the stream that the log is written to.

    Returns:
        The exit code.

    Raises:
        RefusedError: the kernel refuses resources that the start needs.
    """
    try:
        supervisor = (
            RemoteSupervisor(settings, reload=reload, signals=signals, log_stream=log_stream)
            if dsn is None
            else Supervisor(settings, dsn, reload=reload, signals=signals, log_stream=log_stream)
        )
    except OSError as problem:
        if not os.path.exists("/proc/self"):
            message = (
                "/proc is not mounted, and a supervisor reads its processes there: mount it (mount -t proc proc /proc)"
            )
            raise RefusedError(message) from None
        message = (
            f"the system rejects what a supervisor for up to {settings.max_workers} workers needs: "
            f"{problem.strerror}; raise what limits its open files (ulimit -n, LimitNOFILE=), their size (ulimit -f, "
            "LimitFSIZE=) or its memory, or lower max_workers"
        )
        raise RefusedError(message) from None
    spawn.settle_heap()
    try:
        return supervisor.run()
    finally:
        if signals is None:
            supervisor.signal_pipe.close()
