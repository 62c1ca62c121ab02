"""Runs the loop of `top`, which queries twice a second and draws; sets the terminal's modes, reads its keys.

There is one thread and one event loop. A key, a resize and an answer of the database each wake it,
and none waits for another, so keys work while the database is down. Whether `top` ends by `q`,
Ctrl-C, SIGTERM, SIGHUP or an error, the terminal is restored.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import termios
import time
import tty
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final

import psycopg
from rich.console import Console
from rich.live import Live

from jobherd.supervisor.cli.database import why_away
from jobherd.supervisor.cli.top.frame import Frame, Status
from jobherd.supervisor.cli.top.view import View
from jobherd.supervisor.cli.top.watch import Look
from jobherd.workers.database.errors import is_disconnected

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jobherd.supervisor.cli.top.watch import Act, Watch

PERIOD: Final = 0.5
"""Seconds between two queries."""
SLOW: Final = 3.0
"""Seconds without an answer after which the database counts as away.

If a network drops packets, no error reports it.
"""
_NAMED: Final = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left",
    "\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left",
    "\x1b[Z": "backtab", "\x1b[H": "home", "\x1b[F": "end", "\x1b[1~": "home", "\x1b[4~": "end",
    "\x1b[5~": "pageup", "\x1b[6~": "pagedown",
    "\x1b": "escape", "\t": "tab", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace",
}  # fmt: skip
_KEY: Final = re.compile(r"\x1b(?:\[[0-9;]*[ -/]*[@-~]|O[@-~])|.", re.DOTALL)


def keys_of(text: str) -> Iterator[str]:
    r"""Yield the keys that a terminal has sent: characters and key names.

    Escape sequences without a name are skipped.

    >>> list(keys_of("j\x1b[A\x1b[15~q"))
    ['j', 'up', 'q']
    """
    for key in _KEY.findall(text):
        if key in _NAMED or len(key) == 1:
            yield _NAMED.get(key, key)


async def show_once(watch: Watch, where: str) -> None:
    """Print one frame in this terminal's size, or in 80 columns and 24 lines.

    Raises psycopg.Error.
    """
    console = Console(highlight=False)
    try:
        look = await watch.look()
    finally:
        await watch.close()
    width, height = console.size
    if not console.is_terminal and "LINES" not in os.environ:
        height = 24
    console.print(
        Frame(look, View(still=True), Status(where, _clock())),
        height=height,
        width=width,
        crop=True,
        no_wrap=True,
        end="",
    )


@dataclass(slots=True)
class _Database:
    """A database, and what it last answered. Only the one that is shown is queried."""

    watch: Watch
    where: str
    """Its name, in words."""
    look: Look = field(default_factory=Look)
    away: tuple[float, str] | None = None
    """Since when the database has not answered: monotonic time, and time of day."""
    why: str = ""
    asked: tuple[float, str] | None = None
    """Since when a query has been waiting for its answer: monotonic time, and time of day."""
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    """Set if a job was opened or the database was chosen: it is queried at once."""


class Screen:
    """The live view.

    Args:
        databases: what queries each database and runs actions, with the database in words. One is
            shown at a time.
    """

    def __init__(self, databases: Sequence[tuple[Watch, str]]) -> None:
        count = len(databases)
        self._databases = [
            _Database(watch, where if count == 1 else f"{where} ({number} of {count}, d shows the next)")
            for number, (watch, where) in enumerate(databases, 1)
        ]
        self._view = View()
        self._acts: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._input = sys.stdin.fileno()

    @property
    def _shown(self) -> _Database:
        return self._databases[self._view.database % len(self._databases)]

    async def live(self) -> None:
        """Show frames and run actions until the user quits.

        Standard input and output must be a terminal.
        """
        # The size when a shell exported it; the terminal may have been resized.
        for name in ("COLUMNS", "LINES"):
            os.environ.pop(name, None)
        loop = asyncio.get_running_loop()
        modes = termios.tcgetattr(self._input)
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(signum, self._leave)
        loop.add_signal_handler(signal.SIGWINCH, self._news.set)
        loop.add_signal_handler(signal.SIGCONT, self._take_terminal)
        loop.add_reader(self._input, self._read)
        looking = [loop.create_task(self._look_on(database)) for database in self._databases]
        try:
            self._take_terminal()
            with Live(
                self._frame(),
                console=Console(highlight=False),
                screen=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            ) as live:
                while not self._view.done:
                    self._news.clear()
                    live.update(self._frame(), refresh=True)
                    with suppress(TimeoutError):
                        # The clock advances while the database does not answer.
                        await asyncio.wait_for(self._news.wait(), 2 * PERIOD)
                    for task in looking:
                        if task.done():
                            task.result()
        finally:
            loop.remove_reader(self._input)
            for task in (*looking, *self._acts):
                task.cancel()
            await asyncio.gather(*looking, *self._acts, return_exceptions=True)
            for database in self._databases:
                await database.watch.close()
            with suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._input, termios.TCSADRAIN, modes)

    def _take_terminal(self) -> None:
        """Read each key at once and without echo.

        Also called after Ctrl-Z and `fg`, because the shell has changed the modes.
        """
        tty.setcbreak(self._input, termios.TCSANOW)
        self._news.set()

    def _leave(self) -> None:
        self._view.done = True
        self._news.set()

    def _read(self) -> None:
        try:
            data = os.read(self._input, 4096)
        except BlockingIOError:
            return
        except OSError:  # the terminal is gone
            data = b""
        if not data:
            self._leave()
        for key in keys_of(data.decode(errors="replace")):
            before, opened = self._shown, self._view.opened
            act = self._view.on_key(key, before.look)
            if self._shown is not before or self._view.opened not in {None, opened}:
                self._shown.hurry.set()
            if act is not None:
                task = asyncio.get_running_loop().create_task(self._carry_out(act, before.watch))
                self._acts.add(task)
                task.add_done_callback(self._acts.discard)
        self._news.set()

    async def _carry_out(self, act: Act, watch: Watch) -> None:
        try:
            self._view.tell(await watch.act(act))
        except psycopg.Error as problem:
            self._view.tell(f"not done: {why_away(problem)}", bad=True)
        self._news.set()

    async def _look_on(self, at: _Database) -> None:
        """Query twice a second while the database is shown, until canceled; remember since when there is no answer."""
        loop = asyncio.get_running_loop()
        while True:
            if at is not self._shown:
                await at.hurry.wait()
            started = loop.time()
            at.asked = (time.monotonic(), _clock())
            at.hurry.clear()
            try:
                at.look = await at.watch.look(self._view.opened)
                at.away = None
            except psycopg.Error as problem:
                at.why = (
                    why_away(problem) if is_disconnected(problem) else f"the database rejects it: {why_away(problem)}"
                )
                at.away = at.away or (time.monotonic(), _clock())
            at.asked = None
            self._news.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(at.hurry.wait(), max(PERIOD / 5, PERIOD - (loop.time() - started)))

    def _frame(self) -> Frame:
        at = self._shown
        away, why = at.away, at.why
        if away is None and at.asked is not None and time.monotonic() - at.asked[0] > SLOW:
            away, why = at.asked, "no answer"
        if away is None:
            return Frame(at.look, self._view, Status(at.where, _clock()))
        since, clock = away
        return Frame(at.look, self._view, Status(at.where, _clock(), clock, time.monotonic() - since, why))


def _clock() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")
