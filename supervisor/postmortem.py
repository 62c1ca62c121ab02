"""Why a child died, in one sentence, with what is known beside it.

It looks: at the exit status, at the board the child left behind, at the kernel's count of processes killed for memory. It decides nothing;
what follows for the job is `undertaker.py`'s to say.
"""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisor.slot import Death
    from workers.board import Board, Now


@dataclass(frozen=True, slots=True)
class PostMortem:
    """What is kept of a death with the attempt it ended."""

    sentence: str
    cause: str
    exit_code: int | None
    signal: str | None
    core_dumped: bool
    phase: str
    max_rss: int
    """Bytes."""
    cpu_user: float
    cpu_system: float
    oom: bool
    child_age: float
    stack: str
    log_tail: str

    def as_dict(self) -> dict[str, object]:
        """Return it as the database keeps it."""
        return asdict(self)


class OomWatch:
    """The kernel's count of processes it killed for memory in our control group; what it grew by tells whose death that was."""

    def __init__(self) -> None:
        self._path = _oom_file()
        self._seen = self._count()

    def grown(self) -> bool:
        """Return whether it has grown since the last call."""
        count = self._count()
        grown, self._seen = count > self._seen, count
        return grown

    def _count(self) -> int:
        if self._path is None:
            return 0
        with suppress(OSError), open(self._path, encoding="ascii") as file:
            if match := re.search(r"^oom_kill (\d+)", file.read(), re.MULTILINE):
                return int(match[1])
        return 0


def _oom_file() -> str | None:
    with suppress(OSError), open("/proc/self/cgroup", encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            for candidate in (
                [f"/sys/fs/cgroup{path}/memory.events"] if not controllers
                else [f"/sys/fs/cgroup/memory{path}/memory.oom_control"] if "memory" in controllers.split(",") else []
            ):  # fmt: skip
                if os.path.exists(candidate):
                    return candidate
    return None


def examine(death: Death, board: Board, now: Now, kind: str, *, oom: bool) -> PostMortem:
    """Return the post-mortem of a death, from what its board still says."""
    exit_ = death.exit
    name = None
    if exit_.signal is not None:
        name = signal.Signals(exit_.signal).name if exit_.signal in set(signal.Signals) else f"signal {exit_.signal}"
    killed_for_memory = oom and exit_.signal == signal.SIGKILL and death.ladder is None
    stack = board.trace()[-16384:]
    return PostMortem(
        sentence=_sentence(death, now, _job(now, kind, board), name, stack, oom=killed_for_memory),
        cause="oom" if killed_for_memory else death.cause,
        exit_code=exit_.code,
        signal=name,
        core_dumped=exit_.core,
        phase="running" if now.runs else now.phase.name.lower(),
        max_rss=exit_.rss,
        cpu_user=round(exit_.user, 6),
        cpu_system=round(exit_.system, 6),
        oom=killed_for_memory,
        child_age=round(death.age, 3),
        stack=stack,
        log_tail=board.log_tail().decode(errors="replace"),
    )


def _job(now: Now, kind: str, board: Board) -> str:
    """Return what it ran, in words: one job, or several in one call."""
    others = len(board.company(now)) if now.job else 0
    return f"{kind} #{now.job}" + (f" and {others} more in the same call" if others else "")


def _sentence(death: Death, now: Now, job: str, name: str | None, stack: str, *, oom: bool) -> str:
    where = f" while it ran {job}" if now.job else f" while it was {now.phase.name.lower()}"
    size = f" at {death.exit.rss / 2**20:.0f} MiB" if death.exit.rss else ""
    place = _place(stack)
    match death.cause:
        case "timeout":
            seconds = now.deadline - now.started
            return f"It ran past its timeout of {seconds:.4g} s and did not stop when it was told: its process was ended by {name or 'the parent'}."
        case "cancel":
            return f"It was cancelled and did not stop when it was told: its process was ended by {name or 'the parent'}."
        case "drain":
            return f"The supervisor was leaving and it did not stop in time: its process was ended by {name or 'the parent'}."
        case "quit":
            return f"The supervisor was told to leave at once: process {death.pid} was killed{where}."
        case "lost":
            return f"Its claim was lost to another supervisor: process {death.pid} was ended{where}."
        case "handlers":
            return f"Process {death.pid} could not load the handlers."
        case "spawn":
            return f"Process {death.pid} was not ready in time and was killed."
        case "stuck":
            return f"Process {death.pid} was dismissed, held nothing, and did not leave: it was killed."
    if oom:
        return f"The kernel killed process {death.pid} for want of memory{size}{where}{place}."
    if name == "SIGKILL":
        return f"Somebody killed process {death.pid} with SIGKILL{size}{where}{place}."
    if name is not None:
        return f"Process {death.pid} died of {name}{size}{where}{place}."
    return f"Process {death.pid} exited with code {death.exit.code}{where}{place}."


def _place(stack: str) -> str:
    """Where its stack stood, if the C library could still tell: the innermost frame."""
    match = re.search(r'File "([^"]+)", line (\d+) in (\S+)', stack)
    return f", in {match[3]} at {match[1]}:{match[2]}" if match else ""
