"""Parses stacks written by the interpreter's faulthandler.

Of a crash, of a running job, of a profile.

A signal handler wrote them while the process was in any state, so they may be cut off anywhere.
Text that does not look like a stack is skipped. Frames of the supervisor, below which every child
process runs, and frames of Jobherd that lead to a handler are left out. This module parses text and
accesses no process.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MAIN: Final = "main thread"
_THREAD: Final = re.compile(r"(Current thread|Thread) (0x[0-9a-f]+)(?: \[(.*)\])? \(most recent call first\):")
_FRAME: Final = re.compile(r'  File (?:"(.*)"|\?\?\?), line (\d+|\?\?\?) in (.*)')
_NATIVE: Final = "Current thread's C stack trace"
_ROOT: Final = str(Path(__file__).parents[2])
_FIRST: Final = ("workers/main.py", "main")
"""The outermost frame that belongs to the child process: file and function."""
_OURS: Final = tuple(f"{_ROOT}/{place}" for place in ("workers/", "supervisor/", "sql/", "handlers/_"))
_LIBRARY: Final = f"{Path(os.__file__).parent}/"
_DEEP: Final = 100
"""Number of frames that faulthandler writes of a thread, the innermost ones. Then the stack is cut.

Python 3.13 writes no "  ..." below a cut stack, so a stack of this depth counts as cut.
"""
_OFTEN: Final = 20
"""Number of times a function must be in a cut stack to count as endless recursion."""


class Frame(NamedTuple):
    """A call: its function and its place in the code."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"

    @property
    def place(self) -> str:
        """The frame in words: `f at mail.py:7`."""
        return f"{self.function} at {self.file}:{self.line}"

    @property
    def is_users(self) -> bool:
        """Whether it is the handler author's code.

        Not Python's, an installed package's or Jobherd's.
        """
        return not (
            self.file.startswith((*_OURS, _LIBRARY, "<", "???"))
            or "/site-packages/" in self.file
            or "/dist-packages/" in self.file
        )


@dataclass(frozen=True, slots=True)
class Thread:
    """A Python thread.

    frames: outermost first. current: whether the signal had interrupted this thread.
    """

    name: str
    frames: tuple[Frame, ...]
    current: bool = False
    cut: bool = False
    """Whether the stack is deeper than what was written: the outermost frames are missing."""

    def document(self) -> dict[str, Any]:
        """Return the thread as a JSON document."""
        return {
            "name": self.name,
            "current": self.current,
            "cut": self.cut,
            "frames": [list(frame) for frame in self.frames],
        }

    def __str__(self) -> str:
        lines = [f"{self.name} (most recent call last):"]
        lines += ["  ..."] if self.cut else []
        lines += [f'  File "{frame.file}", line {frame.line}, in {frame.function}' for frame in self.frames]
        return "\n".join(lines if self.frames else [*lines, "  no Python frame"])


@dataclass(frozen=True, slots=True)
class Stacks:
    r"""The parsed stacks. threads: the main one first.

    >>> text = 'Current thread 0x01 (most recent call first):\n  File "/srv/mail.py", line 7 in send\n'
    >>> read(text).threads[0].frames[0].place
    'send at /srv/mail.py:7'
    """

    said: str = ""
    """The text before the stacks: `Fatal Python error: Aborted`, or a traceback."""
    threads: tuple[Thread, ...] = ()
    native: tuple[str, ...] = ()
    """Frames of the C code, innermost first, if the interpreter writes them (3.14 and newer)."""

    @property
    def current(self) -> Thread | None:
        """The thread that the signal had interrupted."""
        return next((thread for thread in self.threads if thread.current), None)

    def place(self) -> str:
        """Return the current place in words: the innermost frame.

        If that is not in the user's code, the user's frame that led there is added.
        """
        thread = self.current
        if thread is None or not thread.frames:
            return ""
        innermost = thread.frames[-1]
        if innermost.is_users:
            return innermost.place
        called = next((frame for frame in reversed(thread.frames) if frame.is_users), None)
        return innermost.place + (f", called from {called.place}" if called is not None else "")

    def endless(self) -> str:
        """Return the function that seems to call itself without end, or an empty string."""
        thread = self.current
        if thread is None or not thread.cut:
            return ""
        names = [(frame.function, frame.file) for frame in thread.frames]
        most = max(set(names), key=names.count)
        return most[0] if names.count(most) >= _OFTEN else ""

    def show(self, most: int) -> str:
        """Return the text of the stacks in at most `most` characters, the interrupted thread last.

        Whole threads are left out if necessary, never the end of the text.
        """
        last = [str(thread) for thread in self.threads if thread.current]
        if self.native:
            last.append("\n".join(["C code, where it happened (most recent call first):", *self.native]))
        text = "\n\n".join(([self.said] if self.said else []) + last)[-most:]
        others = [str(thread) for thread in self.threads if not thread.current]
        shown: list[str] = []
        room = most - len(text) - 40
        for other in others:
            if len(other) + 2 > room:
                break
            shown.append(other)
            room -= len(other) + 2
        if len(shown) < len(others):
            shown.insert(0, f"({len(others) - len(shown)} more threads)")
        return "\n\n".join([*shown, *([text] if text else [])])


def thread_of(document: Mapping[str, Any]) -> Thread:
    """Return the thread that `Thread.document` was made of."""
    return Thread(
        document["name"], tuple(Frame(*frame) for frame in document["frames"]), document["current"], document["cut"]
    )


def read(text: str) -> Stacks:
    """Parse the stacks in a text of faulthandler.

    Text in front of all stacks is kept as `said`.
    """
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if _THREAD.fullmatch(line)]
    if not starts:
        return Stacks(text.strip())
    # Python lists its newest thread first, and the main one last.
    threads = [
        _thread(lines[start:end], main=end == len(lines))
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)
    ]
    return Stacks("\n".join(lines[: starts[0]]).strip(), tuple(reversed(threads)), tuple(_native(lines[starts[-1] :])))


def _thread(lines: Sequence[str], *, main: bool) -> Thread:
    head = _THREAD.fullmatch(lines[0])
    assert head is not None, "the caller has found it"
    frames: list[Frame] = []
    cut = False
    for line in lines[1:]:
        if line == "  ...":
            cut = True
        if (found := _FRAME.fullmatch(line)) is None:
            if frames:
                break
            continue  # "Garbage-collecting", "<no Python frame>"
        frames.append(
            Frame(found[3], found[1] or "???", int(found[2]) if found[2].isdecimal() and len(found[2]) < 10 else 0)
        )
    name = MAIN if main else f"thread {head[3] or head[2]}"
    return Thread(name, tuple(_own(frames[::-1])), head[1] == "Current thread", cut or len(frames) >= _DEEP)


def _own(frames: Sequence[Frame]) -> Sequence[Frame]:
    """Leave out the supervisor's frames, and Jobherd's frames that lead to other code."""
    first = next(
        (
            number + 1
            for number, frame in enumerate(frames)
            if frame.function == _FIRST[1] and frame.file.endswith(_FIRST[0])
        ),
        0,
    )
    others = next((number for number in range(first, len(frames)) if not frames[number].file.startswith(_OURS)), first)
    return frames[others:]


def _native(lines: Sequence[str]) -> Iterator[str]:
    begun = False
    for line in lines:
        if line.startswith(_NATIVE):
            begun = True
        elif begun and line.startswith("  "):
            yield line
        elif begun:
            return
