"""Explains in one sentence why a child died, and collects the known facts.

It reads the exit status, the child's status board, and the kernel's memory counters. It decides
nothing: `recovery.py` decides the outcome of the job. It claims nothing that the kernel does not
report: of a SIGKILL that the supervisor did not send, the sender is unknown.
"""

from __future__ import annotations

import re
import signal
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import isfinite
from typing import TYPE_CHECKING, Final

from jobherd.workers.inspect.phrases import duration
from jobherd.workers.inspect.stacks import Stacks, read

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobherd.supervisor.crash.memory_growth import Seen
    from jobherd.supervisor.policy.child_exit import Death
    from jobherd.workers.ipc.current_work import CurrentWork
    from jobherd.workers.ipc.status_board import StatusBoard

_JOB: Final = re.compile(r" (?:job|record)=(\d+)\b")
"""The job or record of a log line."""
_LONGEST: Final = 16384
"""Maximum characters of stacks that are kept."""
_HINTS: Final = {
    "SIGKILL": "not sent by the supervisor",
    "SIGXCPU": "it had used all its processor time, RLIMIT_CPU",
    "SIGXFSZ": "one of its files exceeded RLIMIT_FSIZE",
    "SIGSYS": "a filter rejected a system call",
    "SIGBUS": "mapped memory is missing: a file was truncated, or /dev/shm is full",
    "SIGILL": "code for another processor",
    "SIGFPE": "a division by zero in C code",
    "SIGTERM": "from outside",
    "SIGINT": "from outside",
}


@dataclass(frozen=True, slots=True)
class PostMortem:
    """What is stored about a death, with the attempt it ended. Times in seconds, sizes in bytes."""

    sentence: str
    cause: str
    exit_code: int | None
    signal: str | None
    core_dumped: bool
    core: str | None
    """The kernel's core pattern, if it wrote a core: that file has the C-level stacks."""
    phase: str
    max_rss: int
    cpu_user: float
    cpu_system: float
    oom: bool
    memory: Mapping[str, object] | None
    """The kernel's memory facts (`oom.py`), for a death by SIGKILL."""
    child_age: float
    job_age: float | None
    """How long the job had run."""
    lease_age: float | None
    """Time since the last renewal of the supervisor's lease."""
    code_version: str | None
    stack: str
    """Of all threads. Written by the interpreter during the crash, or just before the supervisor
    ended a job that did not stop, or when the memory of a killed job had last grown much."""
    log_tail: str
    """The last lines that the process logged, without those about other jobs."""

    def as_dict(self) -> dict[str, object]:
        """Return it as the database stores it, without unknown values."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def examine(
    death: Death,
    board: StatusBoard,
    now: CurrentWork,
    kind: str,
    *,
    asked: bytes = b"",
    grown: Seen | None = None,
    memory: Mapping[str, object] | None = None,
    lease_age: float | None = None,
    code_version: str = "",
) -> PostMortem:
    """Return the post-mortem of a death, from its status board.

    Args:
        death: the facts about the death.
        board: the status board of the dead child.
        now: its last work.
        kind: the kind of the job.
        asked: stacks that it wrote just before it was ended.
        grown: the last observation while its memory grew.
        memory: the kernel's facts about memory.
        lease_age: seconds since the last renewal of the lease.
        code_version: version of the application's code.
    """
    exit_ = death.exit
    stacks = read(board.trace() or asked.decode(errors="replace"))
    sentence = _sentence(death, now, _job(now, kind, board), stacks, memory)
    stack = stacks.show(_LONGEST)
    if grown is not None and not stack and exit_.signal == signal.SIGKILL:
        last = read(grown.stacks.decode(errors="replace"))
        if place := last.place():
            when = f"{duration(max(death.at - grown.at, 0.0))} before, at {grown.rss / 2**20:.0f} MiB,"
            sentence = f"{sentence} {when} it was executing {place}."
            stack = f"{when} it was executing:\n\n{last.show(_LONGEST)}"
    return PostMortem(
        sentence=sentence,
        cause=death.cause,
        exit_code=exit_.code,
        signal=_name(exit_.signal),
        core_dumped=exit_.core,
        core=_core_pattern() if exit_.core else None,
        phase="running" if now.runs else now.phase.name.lower(),
        max_rss=exit_.rss,
        cpu_user=round(exit_.user, 6),
        cpu_system=round(exit_.system, 6),
        oom=death.cause == "oom",
        memory=memory,
        child_age=round(death.age, 3),
        job_age=round(max(death.at - now.started, 0.0), 3) if now.job else None,
        lease_age=None if lease_age is None else round(lease_age, 3),
        code_version=code_version or None,
        stack=stack,
        log_tail=_lines_of(now.job, board.log_tail().decode(errors="replace")),
    )


def _name(signum: int | None) -> str | None:
    if signum is None:
        return None
    return signal.Signals(signum).name if signum in set(signal.Signals) else f"signal {signum}"


def _lines_of(job: int, tail: str) -> str:
    """Return the log lines about this job and those without a job.

    Lines about other jobs may quote their payloads, which readers of this job may not see.
    """
    kept, own = [], False  # the first lines may be the end of a traceback
    for line in tail.splitlines(keepends=True):
        if not line.startswith("    "):  # otherwise it continues the entry above
            ids = _JOB.findall(line)
            own = not ids or str(job) in ids
        if own:
            kept.append(line)
    return "".join(kept)


def _core_pattern() -> str | None:
    with suppress(OSError), open("/proc/sys/kernel/core_pattern", encoding="utf-8") as file:
        return file.read().strip()
    return None


def _job(now: CurrentWork, kind: str, board: StatusBoard) -> str:
    """Return what it ran, in words: one job, or several in one call."""
    others = len(board.company(now)) if now.job else 0
    return f"{kind} #{now.job}" + (f" and {others} more in the same call" if others else "")


def _sentence(death: Death, now: CurrentWork, job: str, stacks: Stacks, memory: Mapping[str, object] | None) -> str:
    doing = "before it started" if now.unstarted else "while it ran"
    where = f" {doing} {job}" if now.job else f" while it was {now.phase.name.lower()}"
    size = f" at {death.exit.rss / 2**20:.0f} MiB" if death.exit.rss else ""
    place = stacks.place()
    stood = f" It was executing {place}." if place else ""
    place = f", in {place}" if place else ""
    name = _name(death.exit.signal)
    ended = f"its process was ended by {name or 'the supervisor'}."
    match death.cause:
        case "timeout":
            # No time if the job had ended by then: the job stopped, but not its process.
            timeout = f" of {now.deadline - now.started:.4g} s" if isfinite(now.deadline) else ""
            return f"It ran past its timeout{timeout} and did not stop when it was interrupted: {ended}{stood}"
        case "cancel":
            return f"It was cancelled and did not stop when it was interrupted: {ended}{stood}"
        case "drain":
            return f"The supervisor was draining and it did not stop in time: {ended}{stood}"
        case "quit":
            return f"The supervisor exited at once: process {death.pid} was killed{where}."
        case "claim_lost":
            return f"Its claim was lost to another supervisor: process {death.pid} was ended{where}.{stood}"
        case "handlers":
            return f"Process {death.pid} could not load the handlers."
        case "spawn":
            return (
                f"Process {death.pid} was not ready in time and was killed. The setting spawn_timeout limits the "
                f"start, and importing the handlers is part of it.{stood}"
            )
        case "hook":
            return f"A hook exceeded its time limit and did not stop when it was interrupted{where}: {ended}{stood}"
        case "stuck":
            return f"Process {death.pid} had no jobs and did not exit when requested: the supervisor killed it."
        case "stopped":
            return f"Process {death.pid} was stopped by a signal and not continued: the supervisor killed it{where}."
        case "oom":
            return f"The out-of-memory killer killed process {death.pid}{size}{_allowed(memory)}{where}{place}."
    if name is not None:
        recursion = stacks.endless()
        hint = f"its stack overflowed, {recursion} called itself endlessly" if recursion else _HINTS.get(name, "")
        return f"Process {death.pid} died of {name}{f' ({hint})' if hint else ''}{size}{where}{place}."
    return f"Process {death.pid} exited with code {death.exit.code}{where}{place}."


def _allowed(memory: Mapping[str, object] | None) -> str:
    limit = memory.get("limit") if memory else None
    return f", of {limit / 2**20:.0f} MiB allowed by its control group," if isinstance(limit, int) else ""
