# ruff: noqa: INP001  # a script, no package
"""Records `docs/pictures/terminal.svg` and `docs/pictures/top.svg`, pictures of real terminals.

`terminal.svg` shows a supervisor in one terminal and a shell session in another. `top.svg` shows one
frame of `jobherd top` while a supervisor works.

    python docs/record.py [terminal] [top]

Nothing shown is written by hand. The commands run on pseudo-terminals against the embedded
PostgreSQL, in a folder that is removed afterwards, and `terminal_svg.py` draws the bytes they wrote.
It needs the extra `embedded`. It takes some seconds, because it kills a process while a job runs.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass, field
from fcntl import ioctl
from pathlib import Path
from typing import Final

from terminal_svg import COLUMNS, Screen, draw

from jobherd.supervisor.embedded import lifecycle

ROOT: Final = Path(__file__).resolve().parents[1]
PATIENCE: Final = 60.0
"""Seconds after which something has gone wrong."""
HANDLER: Final = """\
import time
from jobherd import Job, handler

@handler("report:build", timeout="2m")
def build(job: Job, year: int) -> str:
    for month in range(1, 13):
        time.sleep(0.25)
        job.progress(month / 12, f"month {month}")
    return f"the report of {year}"
"""
TOP_HANDLERS: Final = """\
import time
from jobherd import Job, handler

@handler("report:build", timeout="5m")
def build(job: Job, year: int) -> str:
    for month in range(1, 13):
        time.sleep(year - 2029)
        job.progress(month / 12, f"month {month} of {year}")
    return f"the report of {year}"

@handler("image:resize", queue="media", max_attempts=1)
def resize(path: str) -> None:
    raise FileNotFoundError(f"{path} is not there any more")

@handler("mail:receipt", queue="mail")
def receipt(order_id: int) -> None:
    time.sleep(0.02)
"""

# -- the terminal


@dataclass(slots=True)
class Terminal:
    """Runs commands on pseudo-terminals and shows them on one screen."""

    folder: Path
    environment: dict[str, str]
    screen: Screen = field(default_factory=Screen)

    def start(self, command: str) -> tuple[subprocess.Popen[bytes], int]:
        """Type a command and start it. Return its process and the controlling end of its terminal."""
        self.screen.type(command)
        ours, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"] if not re.search("[|;&]", command) else ["bash", "-c", command],
            cwd=self.folder, env=self.environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        return process, ours

    def run(self, command: str) -> str:
        """Run a command to its end and return what it showed."""
        process, fd = self.start(command)
        said = ""
        while text := read(fd, PATIENCE):
            said += text
        process.wait(PATIENCE)
        os.close(fd)
        self.screen.take(said)
        return said

    def note(self, text: str) -> None:
        """Show a comment that a user typed."""
        self.screen.take(f"\x1b[2m# {text}\x1b[0m\n")


def read(fd: int, seconds: float) -> str:
    """Return the next output, or "" at its end or after `seconds` without any."""
    try:
        return os.read(fd, 65536).decode(errors="replace") if select.select([fd], [], [], seconds)[0] else ""
    except OSError:  # so a terminal reports that its other side is closed
        return ""


def read_until(fd: int, screen: Screen, *words: str) -> str:
    """Show and return the output until it has all these words."""
    said, until = "", time.monotonic() + PATIENCE
    while not all(word in said for word in words):
        text = read(fd, until - time.monotonic())
        if not text:
            message = f"waited in vain for {words}; it said:\n{said}"
            raise RuntimeError(message)
        said += text
        screen.take(text)
    return said


# -- the scene


def furnish(folder: Path, handlers: str) -> dict[str, str]:
    """Put handlers and a `jobherd` into a folder; return the environment to use them in."""
    (folder / "my_handlers").mkdir()
    (folder / "my_handlers" / "report.py").write_text(handlers)
    tools = folder / ".bin"
    tools.mkdir()
    (tools / "jobherd").write_text(
        f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} -P -m "
        'jobherd.supervisor "$@"\n'
    )
    (tools / "jobherd").chmod(0o755)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("JOBHERD_") and name not in {"DATABASE_URL", "NO_COLOR"}
    }
    return kept | {"PATH": f"{tools}:{os.environ['PATH']}", "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}


def play(folder: Path) -> list[tuple[str, Screen]]:
    """Run everything and return the two screens: the supervisor's, and the shell's."""
    environment = furnish(folder, HANDLER)
    top = Terminal(folder, environment)
    supervisor, fd = top.start("jobherd run --handlers ./my_handlers --workers 2")
    try:
        read_until(fd, top.screen, "worker 0 is ready", "worker 1 is ready", "metrics and health")
        server = lifecycle.find(folder)
        assert server is not None, "the supervisor has started it"
        with server:
            # Named here, so that each command does not say again that none was named.
            shell = Terminal(folder, environment | {"JOBHERD_DSN": server.dsn})
            follow(shell, top, fd, session=supervisor.pid)
        supervisor.send_signal(signal.SIGINT)
        top.screen.take("^C")
        read_until(fd, top.screen, "supervisor exits", "exit_code=0")
    finally:
        supervisor.terminate()
        supervisor.wait(PATIENCE)
        os.close(fd)
    return [("jobherd run", top.screen), ("another terminal", shell.screen)]


def play_top(folder: Path) -> list[tuple[str, Screen]]:
    """Give a supervisor things to do, and return what `jobherd top` shows of it."""
    environment = furnish(folder, TOP_HANDLERS)
    aside = Terminal(folder, environment)
    supervisor, fd = aside.start("jobherd run --handlers ./my_handlers --workers 4 --http off")
    try:
        read_until(fd, aside.screen, "worker 3 is ready")
        server = lifecycle.find(folder)
        assert server is not None, "the supervisor has started it"
        with server:
            shell = Terminal(folder, environment | {"JOBHERD_DSN": server.dsn, "LINES": "26"})
            for path in ("cat.png", "dog.png"):
                shell.run(f"""jobherd enqueue image:resize '{{"path": "{path}"}}'""")
            shell.run("jobherd wait 1 2")
            shell.run("jobherd pause media --by ann --reason 'the disk is full'")
            shell.run("""seq 1204 | jq -c '{path: "\\(.).png"}' | jobherd enqueue image:resize - | tail -n 1""")
            for year in (2030, 2031, 2032):
                shell.run(f"""jobherd enqueue report:build '{{"year": {year}}}'""")
            shell.run("jobherd limit mail 1")
            shell.run("""seq 900 | jq -c '{order_id: .}' | jobherd enqueue mail:receipt - | tail -n 1""")
            time.sleep(3.5)  # so that it has something to show
            shell.screen = Screen()
            shell.run("jobherd top --once")
        supervisor.send_signal(signal.SIGQUIT)
    finally:
        supervisor.kill()
        supervisor.wait(PATIENCE)
        os.close(fd)
    return [("jobherd top", shell.screen)]


def follow(shell: Terminal, top: Terminal, fd: int, *, session: int) -> None:
    """Play the session in the other terminal.

    session: that of the supervisor. The picture shows only its processes, not others of the host.
    """
    shell.run("""jobherd enqueue report:build '{"year": 2030}'""")
    time.sleep(1.2)  # so that it has something to show
    shown = shell.run(f"ps -s {session} -o pid,args")
    busy = re.search(r"(\d+) jobherd: worker \d+ report:build", re.sub(r"\x1b\[[0-9;]*m", "", shown))
    assert busy is not None, shown
    shell.run(f"kill -9 {busy[1]}")
    read_until(fd, top.screen, "attempt failed, runs again", "incarnation=5")
    shell.run("jobherd wait 1")
    shell.run("jobherd job 1")


SCENES: Final = {"terminal": play, "top": play_top}


def main() -> None:
    """Play the scenes and write the pictures."""
    for name in sys.argv[1:] or SCENES:
        with tempfile.TemporaryDirectory(prefix="jobs-", dir="/tmp") as folder:  # a short name: it is in the picture
            screens = SCENES[name](Path(folder))
        picture = ROOT / "docs" / "pictures" / f"{name}.svg"
        picture.write_text(draw(screens))
        print(f"wrote {picture.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
