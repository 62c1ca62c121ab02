"""The terminal of `top`: its modes, its keys, and the loop that queries twice a second and draws.

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
    from collections.abc import Iterator

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


class Screen:
    """The live view.

    Args:
        watch: queries the database and runs actions.
        where: the database, in words.
    """

    def __init__(self, watch: Watch, where: str) -> None:
        self._watch = watch
        self._where = where
        self._view = View()
        self._look = Look()
        self._away: tuple[float, str] | None = None
        """Since when the database has not answered: monotonic time, and time of day."""
        self._why = ""
        self._asked: tuple[float, str] | None = None
        """Since when a query has been waiting for its answer: monotonic time, and time of day."""
        self._acts: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._hurry = asyncio.Event()
        """Set if a job was opened: it is queried at once."""
        self._input = sys.stdin.fileno()

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
        looking = loop.create_task(self._look_on())
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
                    if looking.done():
                        looking.result()
        finally:
            loop.remove_reader(self._input)
            for task in (looking, *self._acts):
                task.cancel()
            await asyncio.gather(looking, *self._acts, return_exceptions=True)
            await self._watch.close()
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
            opened = self._view.opened
            act = self._view.on_key(key, self._look)
            if self._view.opened not in {None, opened}:
                self._hurry.set()
            if act is not None:
                task = asyncio.get_running_loop().create_task(self._carry_out(act))
                self._acts.add(task)
                task.add_done_callback(self._acts.discard)
        self._news.set()

    async def _carry_out(self, act: Act) -> None:
        try:
            self._view.tell(await self._watch.act(act))
        except psycopg.Error as problem:
            self._view.tell(f"not done: {why_away(problem)}", bad=True)
        self._news.set()

    async def _look_on(self) -> None:
        """Query twice a second until canceled; remember since when there is no answer."""
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            self._asked = (time.monotonic(), _clock())
            self._hurry.clear()
            try:
                self._look = await self._watch.look(self._view.opened)
                self._away = None
            except psycopg.Error as problem:
                self._why = why_away(problem) if is_disconnected(problem) else f"it refuses: {why_away(problem)}"
                self._away = self._away or (time.monotonic(), _clock())
            self._asked = None
            self._news.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), max(PERIOD / 5, PERIOD - (loop.time() - started)))

    def _frame(self) -> Frame:
        away, why = self._away, self._why
        if away is None and self._asked is not None and time.monotonic() - self._asked[0] > SLOW:
            away, why = self._asked, "no answer"
        if away is None:
            return Frame(self._look, self._view, Status(self._where, _clock()))
        since, clock = away
        return Frame(self._look, self._view, Status(self._where, _clock(), clock, time.monotonic() - since, why))


def _clock() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")
