"""Failpoints: named steps at which a test can kill, stop, hold or delay a process, or make it raise.

`reach("job.started")` does nothing unless JOBHERD_POINTS names a folder. Then a file
`job.started@ANYTHING` in that folder is a token. The first process that reaches the point takes the
token by renaming it to `job.started@ANYTHING:PID`, and executes its content. The content is one
word or two:

    kill        SIGKILL to itself                      stop        SIGSTOP to itself
    exit 3      exits at once with that code           raise       raises PointError
    delay 0.2   sleeps for this many seconds           hold        waits until the renamed file is removed

So a test sets a point at any moment by writing a file, and sees from the new name that it was
reached, and by which process. While a file `seen` exists there, each process writes the names it
reaches, once each, to `seen.PID`. Every statement has points automatically: `claim_jobs.before`
when it is about to be sent, `.sent` when the kernel has it, `.done` when its response was read.
Points of the supervisor begin with `parent:`.

This is for tests only. No other code may depend on it or write such files. If it is off, it must
cost no more than the call of an empty function.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

VARIABLE: Final = "JOBHERD_POINTS"
_GLANCE: Final = 0.002
_noted: set[tuple[int, str]] = set()


class PointError(RuntimeError):
    """A test requested a failure here."""


def _nothing(_name: str, /) -> None:
    """Do nothing: nearly all processes run outside such a test."""


def _armed(name: str, /) -> None:
    folder = Path(os.environ[VARIABLE])
    if (os.getpid(), name) not in _noted and (folder / "seen").exists():
        _noted.add((os.getpid(), name))
        with (folder / f"seen.{os.getpid()}").open("a") as file:
            file.write(name + "\n")
    for token in _tokens(folder, name):
        if ":" in token.name.rpartition("@")[2]:
            continue  # Another process has taken it.
        taken = token.with_name(f"{token.name}:{os.getpid()}")
        try:
            # Order: before the rename. A test that waits for the new name may remove it at once.
            order = token.read_text()
            token.rename(taken)
        except FileNotFoundError:
            continue  # Another process was faster.
        _act(name, order, taken)
        return


def _tokens(folder: Path, name: str) -> list[Path]:
    try:
        # As a list: a job may be interrupted right here, and an iterator over the folder would be
        # left open.
        entries = os.listdir(folder)
    except FileNotFoundError:
        return []  # The test is over.
    return [folder / entry for entry in sorted(entries) if entry.startswith(f"{name}@")]


def _act(name: str, order: str, taken: Path) -> None:
    what, _, how = order.strip().partition(" ")
    match what:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "exit":
            os._exit(int(how))
        case "raise":
            raise PointError(name)
        case "delay":
            time.sleep(float(how))
        case "hold":
            while taken.exists():
                time.sleep(_GLANCE)
        case _:
            message = (
                f"a token at the point {name} says {what!r}: say kill, stop, exit CODE, raise, delay SECONDS or hold"
            )
            raise ValueError(message)


armed: Final = VARIABLE in os.environ
"""Whether this process and its child processes run under such a test."""
reach: Final = _armed if armed else _nothing
"""Report that the step `name` was reached."""
