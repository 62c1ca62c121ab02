"""Holds what the user of `top` has chosen: panel, row, order, filter and open question.

It gets a key and may return an `Act`, which the caller runs. It uses no terminal, database or
clock. It asks for confirmation before an action that cannot be undone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.cli.top.panels import FAILURES, FLEET, PANELS, RUNNING
from jobherd.supervisor.cli.top.watch import Act
from jobherd.workers.web.labels import OTHERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.supervisor.cli.top.panel import Panel
    from jobherd.supervisor.cli.top.watch import Look, Row

HELP: Final = (
    ("tab, shift-tab, 1 to 4", "go to the next panel, to the one before, to that one"),
    ("up, down, j, k", "choose a row; page up and down, home, end go further"),
    ("enter", "open the chosen job; escape goes back"),
    ("s, S", "sort by the next column; reverse the order"),
    ("/", "show only rows with these words; escape shows all"),
    ("p", "pause the queue of the chosen row, or resume it"),
    ("c", "cancel the chosen job, if it runs"),
    ("r", "retry the chosen job, if it has failed"),
    ("d", "show the next database, if there are several"),
    ("?", "this help"),
    ("q", "leave"),
)
KEYS: Final = "q leave  ? help  tab panel  enter open  / filter  p pause  c cancel  r retry"
KEYS_OF_JOB: Final = "escape back  q leave  ? help  jk scroll  space page  p pause  c cancel  r retry"
_PAGE: Final = 10
_SCROLLS: Final = {
    "down": 1, "j": 1, "up": -1, "k": -1, "pagedown": _PAGE, " ": _PAGE, "pageup": -_PAGE,
    "home": -(10**9), "g": -(10**9), "end": 10**9, "G": 10**9,
}  # fmt: skip
"""By how many lines a key scrolls the opened job."""
_MOST_TYPED: Final = 200


@dataclass(frozen=True, slots=True)
class Question:
    """The question that the user answers before an action.

    Args:
        text: the question.
        act: makes the action from what was typed.
        typed: whether text may be typed; enter then means yes.
    """

    text: str
    act: Callable[[str], Act]
    typed: bool = False


@dataclass(slots=True)
class View:
    """The choices. `on_key` changes them for a key; `frame.py` reads them to draw."""

    panel: int = PANELS.index(RUNNING)
    sorts: list[int] = field(default_factory=lambda: [0] * len(PANELS))
    backwards: list[bool] = field(default_factory=lambda: [False] * len(PANELS))
    wanted: str = ""
    """The words of the filter."""
    helps: bool = False
    filters: bool = False
    """Whether the filter is being typed."""
    question: Question | None = None
    typed: str = ""
    said: str = ""
    """The result of the last action."""
    is_bad: bool = False
    database: int = 0
    """How often the user has pressed the key for the next database."""
    opened: int | None = None
    """The job that is shown in full, instead of the panels."""
    scroll: int = 0
    """Its first visible line; `opened.py` moves it back if it is past the end."""
    done: bool = False
    """Whether the user wants to quit."""
    still: bool = False
    """Whether one frame is printed without a user: no row is chosen and no keys are shown."""
    _row: tuple[Panel, Row] = (RUNNING, {})
    """The row of the opened job: it may have left its panel."""
    _chosen: list[tuple[int, object]] = field(default_factory=lambda: [(0, None)] * len(PANELS))
    """For each panel the chosen row: its position, and its name, to find it after it moved."""

    def rows(self, panel: Panel, look: Look) -> list[Row]:
        """Return the rows of a panel as they are to be shown."""
        place = PANELS.index(panel)
        return panel.shown(look, sort=self.sorts[place], backwards=self.backwards[place], wanted=self.wanted)

    def place(self, panel: Panel, rows: list[Row]) -> int:
        """Return the position of the chosen row."""
        place, name = self._chosen[PANELS.index(panel)]
        found = next((at for at, row in enumerate(rows) if row[panel.name] == name), place) if name is not None else 0
        return max(0, min(found, len(rows) - 1))

    def tell(self, text: str, *, bad: bool = False) -> None:
        """Show a sentence until the next key."""
        self.said, self.is_bad = text, bad

    def on_key(self, key: str, look: Look) -> Act | None:
        """Handle a key. Return the action to run, if the key confirms one.

        Args:
            key: a character, or the name of a key such as "up" or "escape".
            look: what is shown now.
        """
        self.said, self.is_bad = "", False
        if self.question is not None:
            return self._answer(self.question, key)
        if self.filters:
            self._filter(key)
        elif self.helps:
            self.helps = False
            self.done = key == "q"
        elif self.opened is not None:
            self._read(key, look)
        else:
            self._command(key, look)
        return None

    def _answer(self, question: Question, key: str) -> Act | None:
        if key == "escape" or (not question.typed and key in {"n", "N", "q"}):
            self.question = None
            self.tell("nothing was done")
        elif key == "enter" if question.typed else key in {"y", "Y"}:
            self.question = None
            return question.act(self.typed.strip())
        elif question.typed:
            self._type(key)
        return None

    def _type(self, key: str) -> None:
        if key == "backspace":
            self.typed = self.typed[:-1]
        elif len(key) == 1 and key.isprintable():
            self.typed = (self.typed + key)[:_MOST_TYPED]

    def _filter(self, key: str) -> None:
        if key in {"enter", "escape"}:
            self.filters = False
            if key == "escape":
                self.typed = ""
        else:
            self._type(key)
        self.wanted = self.typed

    def _command(self, key: str, look: Look) -> None:
        panel = PANELS[self.panel]
        rows = self.rows(panel, look)
        match key:
            case "q":
                self.done = True
            case "?" | "h":
                self.helps = True
            case "tab" | "right" | "l":
                self.panel = (self.panel + 1) % len(PANELS)
            case "backtab" | "left":
                self.panel = (self.panel - 1) % len(PANELS)
            case "1" | "2" | "3" | "4":
                self.panel = int(key) - 1
            case "down" | "j":
                self._go(panel, rows, 1)
            case "up" | "k":
                self._go(panel, rows, -1)
            case "pagedown":
                self._go(panel, rows, _PAGE)
            case "pageup":
                self._go(panel, rows, -_PAGE)
            case "home" | "g":
                self._go(panel, rows, -len(rows))
            case "end" | "G":
                self._go(panel, rows, len(rows))
            case "s":
                self.sorts[self.panel] = (self.sorts[self.panel] + 1) % len(panel.sorts)
                self.backwards[self.panel] = False
                self.tell(f"{panel.title.lower()} by {panel.sorts[self.sorts[self.panel]].name}")
            case "S":
                self.backwards[self.panel] = not self.backwards[self.panel]
            case "/":
                self.filters, self.typed = True, self.wanted
            case "escape":
                self.wanted = ""
            case "d":
                self.database += 1
            case "enter":
                self._open(panel, rows[self.place(panel, rows)] if rows else None)
            case "p" | "c" | "r":
                self._ask(key, panel, rows[self.place(panel, rows)] if rows else None, look)
            case _:
                self.tell("? shows the keys")

    def _open(self, panel: Panel, row: Row | None) -> None:
        if row is None or panel not in {RUNNING, FAILURES}:
            self.tell("choose a job, to open it", bad=True)
            return
        self.opened, self._row, self.scroll = row["id"], (panel, row), 0

    def _read(self, key: str, look: Look) -> None:
        """Handle a key while a job is open."""
        match key:
            case "q":
                self.done = True
            case "?" | "h":
                self.helps = True
            case "escape" | "backspace" | "left":
                self.opened = None
            case "down" | "j" | "up" | "k" | "pagedown" | " " | "pageup" | "home" | "g" | "end" | "G":
                self.scroll = max(0, self.scroll + _SCROLLS[key])
            case "p" | "c" | "r":
                self._ask(key, *self._row, look)
            case _:
                self.tell("? shows the keys")

    def _ask(self, key: str, panel: Panel, row: Row | None, look: Look) -> None:
        self.typed = ""
        {"p": self._pause, "c": self._cancel, "r": self._retry}[key](panel, row, look)

    def _go(self, panel: Panel, rows: list[Row], step: int) -> None:
        if rows:
            place = max(0, min(self.place(panel, rows) + step, len(rows) - 1))
            self._chosen[PANELS.index(panel)] = (place, rows[place][panel.name])

    def _pause(self, panel: Panel, row: Row | None, look: Look) -> None:
        if row is None or panel is FLEET or row["queue"] == OTHERS:
            self.tell("choose a queue, or a job in it, to pause its queue", bad=True)
            return
        queue = row["queue"]
        paused = next((each["paused"] for each in look.queues if each["queue"] == queue), False)
        if paused:
            self.question = Question(f"resume the queue {queue}? y or n", lambda _: _resume(queue))
        else:
            self.question = Question(
                f"pause the queue {queue}: enter to do it, escape not to; reason:",
                lambda why: _pause(queue, why),
                typed=True,
            )

    def _cancel(self, panel: Panel, row: Row | None, _: Look) -> None:
        if row is None or panel is not RUNNING:
            self.tell("choose a job that runs, to cancel it", bad=True)
            return
        job = row["id"]
        self.question = Question(
            f"cancel the job {job} {row['kind']}? y or n", lambda _: _tell_job("control/cancel_job", job, _CANCELLED)
        )

    def _retry(self, panel: Panel, row: Row | None, _: Look) -> None:
        if row is None or panel is not FAILURES:
            self.tell("choose a job that has failed, to run it again", bad=True)
            return
        job = row["id"]
        self.question = Question(
            f"run the job {job} {row['kind']} again? y or n", lambda _: _tell_job("control/retry_job", job, _RETRIED)
        )


_CANCELLED: Final = {
    "cancelled": "is cancelled",
    "cancelling": "is being interrupted",
    "completed": "had completed already",
    "failed": "had failed already",
    "expired": "had expired already",
}
_RETRIED: Final = {
    "ready": "will run again",
    "running": "runs already",
    "conflict": "does not run again: another live job holds its key",
}


def _pause(queue: str, reason: str) -> Act:
    wanted = {"queue": queue, "kind": None, "reason": reason or None, "resume_at": None, "delay": None}
    return Act(
        "control/pause_claims", wanted, lambda row: f"the queue {queue} {'is' if row['changed'] else 'was'} paused"
    )


def _resume(queue: str) -> Act:
    wanted = {"queue": queue, "kind": None, "reason": None}
    return Act(
        "control/resume_claims",
        wanted,
        lambda row: f"the queue {queue} is resumed" if row["changed"] else f"the queue {queue} was not paused",
    )


def _tell_job(statement: str, job: int, words: dict[str, str]) -> Act:
    return Act(
        statement,
        {"id": job, "reason": None},
        lambda row: f"the job {job} {words.get(row['answer'], 'is not there any more')}",
    )
