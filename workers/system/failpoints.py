"""Named points: the steps of the protocol at which a test can kill a process, stop it, hold it, delay it or make it raise.

`reach("job.started")` does nothing, unless JOBHERD_POINTS names a folder; then a file `job.started@ANYTHING` in that folder is a token: the first
process that reaches the point takes it, by renaming it to `job.started@ANYTHING:PID`, and does what stands in it. One word, or two:

    kill        SIGKILL to itself                      stop        SIGSTOP to itself
    exit 3      leaves at once with that code          raise       raises PointError
    delay 0.2   sleeps for so many seconds             hold        waits until the file that it has renamed is removed

So a test arms a point by writing a file, at any moment, and knows by the new name that it was reached, and by whom. While a file `seen` stands there,
each process notes the names it reaches, once each, in `seen.PID`. Every statement has its points by itself: `claim_jobs.before` when it is about to be
sent, `.sent` when it is with the kernel, `.done` when its answer was read; those of the parent begin with `parent:`.

This is for tests only: nothing may depend on it, and no product code may write such files. It must stay free where it is off: a call of an empty function.
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
    """A test wanted a failure here."""


def _nothing(_name: str, /) -> None:
    """Most of all processes are under no test."""


def _armed(name: str, /) -> None:
    folder = Path(os.environ[VARIABLE])
    if (os.getpid(), name) not in _noted and (folder / "seen").exists():
        _noted.add((os.getpid(), name))
        with (folder / f"seen.{os.getpid()}").open("a") as file:
            file.write(name + "\n")
    for token in _tokens(folder, name):
        if ":" in token.name.rpartition("@")[2]:
            continue  # somebody else's already
        taken = token.with_name(f"{token.name}:{os.getpid()}")
        try:
            order = token.read_text()  # first: whoever waits for the new name may remove it at once
            token.rename(taken)
        except FileNotFoundError:
            continue  # somebody was faster
        _act(name, order, taken)
        return


def _tokens(folder: Path, name: str) -> list[Path]:
    try:
        entries = os.listdir(folder)  # whole: a job may be interrupted right here, and an iterator over the folder would be left open
    except FileNotFoundError:
        return []  # the test is over
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
            message = f"a token at the point {name} says {what!r}: say kill, stop, exit CODE, raise, delay SECONDS or hold"
            raise ValueError(message)


armed: Final = VARIABLE in os.environ
"""Whether this process and its children are under such a test."""
reach: Final = _armed if armed else _nothing
"""Say that a step was reached. name: which."""
