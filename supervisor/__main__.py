"""The console script `jobherd`, and `python -m jobherd.supervisor`: standard streams and signals first, then the command line, which takes a while to load."""

from __future__ import annotations

import os
import signal
import sys

from jobherd.supervisor.process.signals import hold


def main() -> int:
    """Run the command of this process and return its exit code."""
    _open_streams()
    signal.signal(
        signal.SIGCHLD, signal.SIG_DFL
    )  # ignored, as some start others, a program that has failed, initdb, looks like one that has not
    if sys.argv[1:2] == ["run"]:
        hold()  # a TERM while the rest is loaded would end us as if we had died of it, a TTIN would stop us for ever
    try:
        from jobherd.supervisor.cli import main as command  # noqa: PLC0415 - it loads most of what there is
    except KeyboardInterrupt:
        return 130  # as `ExitCode.INTERRUPTED`, which is not loaded yet

    return command()


def _open_streams() -> None:
    """Open /dev/null where we were started without a standard stream: the next file, a session, would get its number, and what is printed.

    `sys.stdin` stays None where it was closed: a list that was to be read there is missing, and not empty.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free is this one
        if fd and getattr(sys, name) is None:
            setattr(sys, name, open(fd, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - for life


if __name__ == "__main__":
    raise SystemExit(main())
