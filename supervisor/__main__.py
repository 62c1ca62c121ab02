"""Runs the command line: the console script `jobherd`, and `python -m jobherd.supervisor`.

It sets up standard streams and signals first, then loads the command line, which takes a while.
"""

from __future__ import annotations

import os
import signal
import sys

from jobherd.supervisor.process.signals import hold


def main() -> int:
    """Run the command of this process and return its exit code."""
    _open_streams()
    signal.signal(
        signal.SIGCHLD,
        signal.SIG_DFL,
        # Some programs start others with SIGCHLD ignored. Then a failed program, such as initdb,
        # would look as if it had succeeded.
    )
    if sys.argv[1:2] == ["run"]:
        hold()  # during the import, SIGTERM would kill the process and SIGTTIN stop it indefinitely
    try:
        from jobherd.supervisor.cli import main as command  # noqa: PLC0415 - it loads most of the modules
    except KeyboardInterrupt:
        return 130  # same as `ExitCode.INTERRUPTED`, which is not loaded yet

    return command()


def _open_streams() -> None:
    """Open /dev/null in place of missing standard streams.

    Otherwise the next file, such as a database session, would get that number, and printed text
    would go to it. `sys.stdin` stays None if it was closed: a list that should be read from it is
    missing, not empty.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number is this one
        if fd and getattr(sys, name) is None:
            stream = open(fd, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - open until the process ends
            setattr(sys, name, stream)


if __name__ == "__main__":
    raise SystemExit(main())
