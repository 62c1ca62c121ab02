"""Computes the timeline of a job: its phases as positions on a line.

The axis shows the time since the job was created, so it is the same in every time zone. A job may
wait two hours and run for two milliseconds. A phase that would be too thin to see or point at is
drawn wider, and the timeline says so (`to_scale`). Pure: it gets one row and its history. Must not
draw anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from jobherd.workers.dashboard.render import duration
from jobherd.workers.inspect.phrases import moment_or_none

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MOST: Final = 40
"""Phases that are drawn; earlier ones are merged into one."""
THIN: Final = 2.5
"""Minimum width of a phase, in percent of the line."""
APART: Final = 16.0
"""Minimum distance of two times on the axis, in percent: the width of one on a phone."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """One phase of a job. left, width: in percent of the line."""

    tone: str
    """A class of the style sheet: later, waits, runs, past, or the outcome of an attempt."""
    word: str
    """Its label, in a word or two."""
    seconds: float
    number: int | None = None
    """Number of the attempt."""
    left: float = 0.0
    width: float = 0.0

    @property
    def title(self) -> str:
        """The label and the duration."""
        return f"{self.word}: {duration(self.seconds)}"


@dataclass(frozen=True, slots=True)
class Tick:
    """A time on the axis. at: in percent of the line. anchor: alignment of the text."""

    at: float
    text: str
    anchor: str = "middle"


@dataclass(frozen=True, slots=True)
class Timeline:
    """The timeline."""

    stretches: list[Stretch]
    ticks: list[Tick]
    to_scale: bool

    @property
    def tones(self) -> list[str]:
        """The tones that occur, each once, for the legend."""
        return list(dict.fromkeys(stretch.tone for stretch in self.stretches))

    @property
    def sentence(self) -> str:
        """The whole timeline as text, for screen readers."""
        return "; ".join(stretch.title for stretch in self.stretches)


def timeline(job: Mapping[str, Any], history: Sequence[Mapping[str, Any]], now: datetime) -> Timeline:
    """Return the timeline of a job up to `now`.

    job: a row of the view `jobherd.jobs`.
    history: its attempts as in the view, times as text; invalid ones are left out.

    >>> from datetime import UTC
    >>> at = datetime(2026, 5, 1, tzinfo=UTC)
    >>> row = {"created_at": at, "run_at": at, "started_at": None, "finished_at": None, "state": "ready", "attempts": 0}
    >>> timeline(row, [], at + timedelta(seconds=3)).sentence
    'waiting: 3.0 s'
    """
    stretches = _shortened(
        [stretch for stretch in _stretches(job, history, now) if stretch.seconds > 0 or stretch.number is not None]
    )
    return _laid_out(stretches or [Stretch("waits", "waiting", 0.0)])


def _stretches(job: Mapping[str, Any], history: Sequence[Mapping[str, Any]], now: datetime) -> Iterator[Stretch]:
    at = job["created_at"]
    attempts = [one for one in history if moment_or_none(one.get("finished_at")) is not None]
    over = job["finished_at"] is not None
    for place, attempt in enumerate(attempts):
        end = moment_or_none(attempt["finished_at"]) or now
        start = moment_or_none(attempt.get("started_at"))
        last = over and place == len(attempts) - 1
        yield from _wait(at, start or end, job["run_at"] if last else None)
        outcome = str(attempt.get("outcome", "past"))
        number = attempt.get("attempt")
        if start is None:
            yield Stretch(outcome, f"{outcome} before it started", 0.0, number=0)
        else:
            yield Stretch(
                outcome, f"attempt {number}: {outcome}", _seconds(start, end), number if isinstance(number, int) else 0
            )
        at = max(at, end)
    if over:
        return
    if job["state"] == "running":
        yield from _wait(at, job["started_at"], job["run_at"])
        yield Stretch("runs", f"attempt {job['attempts']}: running", _seconds(job["started_at"], now), job["attempts"])
    else:
        yield from _wait(at, max(now, job["run_at"]), job["run_at"])


def _wait(start: datetime, end: datetime, due: datetime | None) -> Iterator[Stretch]:
    """Yield the phases between two timestamps; due: the scheduled time, None if it is unknown."""
    if due is not None and due > start:
        yield Stretch("later", "not due yet", _seconds(start, min(due, end)))
        start = due
    yield Stretch("waits", "waiting", _seconds(start, end))


def _seconds(start: datetime, end: datetime) -> float:
    return max(0.0, (end - start) / timedelta(seconds=1))


def _shortened(stretches: list[Stretch]) -> list[Stretch]:
    if len(stretches) <= MOST:
        return stretches
    early, late = stretches[: 1 - MOST], stretches[1 - MOST :]
    attempts = sum(stretch.number is not None for stretch in early)
    return [Stretch("past", f"{attempts} attempts before", sum(stretch.seconds for stretch in early)), *late]


def _laid_out(stretches: list[Stretch]) -> Timeline:
    total = sum(stretch.seconds for stretch in stretches)
    shares = [100 * stretch.seconds / total if total else 100 / len(stretches) for stretch in stretches]
    thin = min(THIN, 60 / len(stretches))
    to_scale = min(shares) >= thin
    if not to_scale:
        shares = [thin + share * (1 - thin * len(stretches) / 100) for share in shares]
    placed: list[Stretch] = []
    marks = [(0.0, 0.0)]
    for stretch, share in zip(stretches, shares, strict=True):
        left, passed = marks[-1]
        placed.append(
            Stretch(stretch.tone, stretch.word, stretch.seconds, stretch.number, round(left, 3), round(share, 3))
        )
        marks.append((left + share, passed + stretch.seconds))
    return Timeline(placed, _ticks(marks), to_scale)


def _ticks(marks: list[tuple[float, float]]) -> list[Tick]:
    """Return the times that fit on the axis: the first, the last, and as many as fit between."""
    ticks = [Tick(0.0, "0", "start")]
    for at, passed in marks[1:-1]:
        if at - ticks[-1].at >= APART and 100 - at >= APART:
            ticks.append(Tick(round(at, 3), f"+{duration(passed)}"))
    return [*ticks, Tick(100.0, f"+{duration(marks[-1][1])}", "end")]
