"""Groups failing attempts by kind, exception class and place: two bugs of one kind are two groups.

The rows are those of observe/list_failing, with the redacted parts already removed. The place is the last
line of the traceback that is not in an installed library. Must not query the database.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._values.outcome import UNHANDLED_ERROR

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    Row = Mapping[str, Any]

_FRAME: Final = re.compile(r'^  File "([^"\n]+)", line (\d+), in (.+)$', re.MULTILINE)
_CLASS: Final = re.compile(r"([A-Za-z_][A-Za-z_0-9.]{0,199}): ")
_LIBRARY: Final = re.compile(r"/(site|dist)-packages/|/lib/python3|^<frozen")
SLOTS: Final = 24
"""Parts of the time for which a group's trend is counted."""


@dataclass(slots=True)
class Group:
    """Jobs whose last attempt failed alike.

    kind, error, place: what they have in common. error: the class, or the code that the handler gave.
    jobs: final failures; retrying: jobs that get another attempt; attempts: of all of them.
    first_at, last_at: when the first and the last of them failed.
    trend: number of jobs in each of `SLOTS` parts of the time, the latest last.
    sample: the row of the newest; ids: all jobs, newest first.
    """

    kind: str
    error: str
    place: str
    sample: Row
    first_at: datetime
    last_at: datetime
    jobs: int = 0
    retrying: int = 0
    attempts: int = 0
    trend: list[int] = field(default_factory=lambda: [0] * SLOTS)
    ids: list[int] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Number of jobs."""
        return self.jobs + self.retrying

    @property
    def key(self) -> tuple[str, str, str]:
        """What the jobs have in common."""
        return self.kind, self.error, self.place


def groups(rows: Iterable[Row], seconds: float) -> list[Group]:
    """Return the groups, the one with most jobs first.

    rows: newest first.
    seconds: the length of the time that they are from.
    """
    found: dict[tuple[str, str, str], Group] = {}
    for row in rows:
        key = (row["kind"], error_name(row["code"], row["class"], row["error"]), place_of(row["traceback"]))
        group = found.get(key) or found.setdefault(key, Group(*key, row, row["at"], row["at"]))
        group.first_at = row["at"]
        group.ids.append(row["id"])
        group.attempts += row["attempts"]
        if row["state"] == "retrying":
            group.retrying += 1
        else:
            group.jobs += 1
        group.trend[max(0, SLOTS - 1 - int(max(row["ago"], 0) * SLOTS / seconds))] += 1
    return sorted(found.values(), key=lambda group: -group.total)


def error_name(code: str | None, path: str | None, error: str | None) -> str:
    """Return what to call an error: the code if the handler gave one, else the class of the exception.

    >>> error_name("UNHANDLED_ERROR", "builtins.ValueError", ""), error_name("DECLINED", "jobherd.Poison", "")
    ('ValueError', 'DECLINED')
    """
    if told := given_code(code):
        return told
    if path:
        return path.removeprefix("builtins.")
    named = _CLASS.match(error or "")
    return named[1] if named else code or "no code"


def given_code(code: str | None) -> str:
    """Return the code of an error, or "" for the one of an exception without a code: its text begins with the class.

    >>> given_code("UNHANDLED_ERROR"), given_code("DECLINED"), given_code(None)
    ('', 'DECLINED', '')
    """
    return code if code and code != UNHANDLED_ERROR else ""


def place_of(traceback: str | None) -> str:
    r"""Return the file, line and function of the last frame outside of libraries, or "" without a traceback.

    >>> place_of('  File "/app/mail.py", line 7, in send\n  File "/x/site-packages/http.py", line 1, in get\n')
    'mail.py:7 in send'
    """
    frames = _FRAME.findall(traceback or "")
    if not frames:
        return ""
    path, line, function = next((frame for frame in reversed(frames) if not _LIBRARY.search(frame[0])), frames[-1])
    return f"{path.rsplit('/', 1)[-1]}:{line} in {function[:100]}"
