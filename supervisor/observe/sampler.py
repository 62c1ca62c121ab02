"""Takes stacks of running jobs: one for a request, many for a profile.

A child is asked by SIGUSR1. faulthandler answers in the signal handler, in C, with the current
stacks. So a job in C code, or one that holds the interpreter lock, answers too, and only system
calls are interrupted, which continue.

The child writes to its status board; the supervisor reads that a few milliseconds later and never
waits. The kernel shows whether the child has finished writing: until then the signal is blocked in
its main thread. The stacks only count if the child ran the same job of the same claim before and
after.
"""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from jobherd.supervisor.database.fleet_commands import Refused
from jobherd.workers.inspect.flamegraph import document
from jobherd.workers.inspect.stacks import read
from jobherd.workers.system.procfs import cpu_seconds
from jobherd.workers.system.threads import blocks_sigusr1, describe_silence, describe_threads, handles_sigusr1

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobherd.supervisor.database.fleet_commands import FleetCommand
    from jobherd.supervisor.policy.fleet import Fleet
    from jobherd.supervisor.policy.slot import Slot
    from jobherd.workers.inspect.stacks import Frame
    from jobherd.workers.ipc.status_board import CurrentWork, StatusBoard

    class Answer(Protocol):
        """Writes the result of a fleet command: an answer or an error."""

        def __call__(
            self, number: int, answer: Mapping[str, Any] | None = None, *, error: str | None = None
        ) -> None: ...

    Key = tuple[str, tuple[Frame, ...]]

NEVER: Final = float("inf")
PATIENCE: Final = 2.0
"""Seconds in which a child must have answered."""
SOONEST: Final = 0.002
"""Seconds until a stack is usually available; doubled after each check, up to `LATEST`."""
LATEST: Final = 0.02
MOST_QUESTIONS: Final = 16
"""Maximum number of open questions about all children: each answer costs the supervisor 0.1 ms."""
LONGEST: Final = 300.0
FASTEST: Final = 100
MOST_STACKS: Final = 1000
"""Different stacks in a profile; all others are counted together."""
MOST_ANSWER: Final = 512 * 1024
"""Approximate maximum of characters in an answer."""
OTHER: Final = ("(other stacks)", ())
_libc: Final = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class Question:
    """A request for the stacks of one running job."""

    order: int
    job: int
    slot: Slot
    incarnation: int
    now: CurrentWork
    """The work on its status board when the request came."""
    kind: str
    began: float
    until: float
    due: float
    every: float = 0.0
    """Seconds between two samples; 0: only one stack is wanted."""
    counts: dict[Key, int] = field(default_factory=dict)
    samples: int = 0
    processor: float = 0.0
    """Processor seconds that its process had used at the start."""


class Sampler:
    """All open questions.

    `step` is called when `at` has come, and does nothing while there are none. `stack` and
    `profile` carry out the fleet commands of that name; `answer` gets their results later.
    """

    def __init__(self, fleet: Fleet, boards: list[StatusBoard], answer: Answer, *, host: str) -> None:
        self.at = NEVER
        self._fleet = fleet
        self._boards = boards
        self._tell = answer
        self._host = host
        self._questions: list[Question] = []
        self._asked: dict[int, tuple[float, float, CurrentWork]] = {}
        """By slot: when its child was asked, when to check for the answer, and its work then."""
        self._known: dict[bytes, list[Key]] = {}
        """Stacks parsed before: most samples of a long loop are equal."""

    # -- questions

    def stack(self, order: FleetCommand, now: float) -> None:
        """Answer with the stacks of the process that runs a job. Raises Refused.

        The command's arguments are `job`, its id, and `child`, which holds it according to the
        database.
        """
        question = self._question(order, now)
        question.until = now + PATIENCE
        self._begin(question)

    def profile(self, order: FleetCommand, now: float) -> None:
        """Answer with how often each stack was seen. Raises Refused.

        The command's arguments are those of `stack`, `seconds` (default 10) and `rate` per second
        (default 50).
        """
        try:
            seconds, rate = float(order.arguments.get("seconds", 10)), float(order.arguments.get("rate", 50))
        except (TypeError, ValueError):
            seconds, rate = 0.0, 0.0
        if not (0 < seconds <= LONGEST and 0 < rate <= FASTEST):
            raise Refused(
                f"a profile takes up to {LONGEST:.0f} seconds, and a rate of up to {FASTEST} samples a second"
            )
        question = self._question(order, now)
        if any(other.every and other.slot is question.slot for other in self._questions):
            raise Refused(f"{question.slot.name} is being profiled already: wait until that is over")
        question.until, question.every = now + seconds, 1 / rate
        question.processor = cpu_seconds(question.slot.pid)
        self._begin(question)

    def asks(self, number: int) -> bool:
        """Return whether a question about the child of a slot is open.

        Its board then belongs to that question: another request would overwrite the answer.
        """
        return any(question.slot.number == number for question in self._questions)

    def _question(self, order: FleetCommand, now: float) -> Question:
        job = order.arguments.get("job")
        if not isinstance(job, int):
            raise Refused(f"job: {job!r} is no job's id")
        if len(self._questions) >= MOST_QUESTIONS:
            raise Refused(
                f"{len(self._questions)} stacks and profiles are being taken here at this moment: try again later"
            )
        for slot, board, record in self._workers():
            if record.runs and (record.job == job or any(other.job == job for other in board.company(record))):
                return Question(
                    order.id,
                    job,
                    slot,
                    slot.incarnation,
                    record,
                    board.tally.policy(record.kind).name,
                    now,
                    until=now,
                    due=now,
                )
        raise Refused(self._not_running(job, order.arguments.get("child")))

    def _workers(self) -> list[tuple[Slot, StatusBoard, CurrentWork]]:
        looks = [(slot, self._boards[slot.number]) for slot in self._fleet.alive() if slot.kind.works]
        return [(slot, board, record) for slot, board in looks if (record := board.now()) is not None]

    def _not_running(self, job: int, child: object) -> str:
        """Return why a job that is claimed here according to the database has no stack."""
        for slot, _, record in self._workers():
            if record.child and record.child == child:
                return f"job {job} has not started, or has just ended: {slot.name} on {self._host} holds it, and {self._doing(slot, record)}"
        return f"no worker on {self._host} runs job {job}: it has just ended"

    def _doing(self, slot: Slot, record: CurrentWork) -> str:
        if record.runs and record.job:
            return f"runs {self._boards[slot.number].tally.policy(record.kind).name} #{record.job} now"
        return f"is {record.phase.name.lower()} now"

    def _begin(self, question: Question) -> None:
        self._questions.append(question)
        self.at = 0.0

    # -- answers

    def step(self, now: float) -> bool:
        """Read answers, ask again, finish questions, as far as each is due.

        Returns:
            Whether a question was finished.
        """
        if now < self.at:
            return False
        before = len(self._questions)
        for number in list(self._asked):
            self._take(number, now)
        for question in self._questions[:]:
            self._end_if_over(question, now)
        for question in self._questions:
            if question.due <= now and question.slot.number not in self._asked:
                self._ask(question, now)
        if not self._questions:
            self._asked.clear()
            self._known.clear()
        self.at = min(
            (
                *(again for _, again, _ in self._asked.values()),
                *(question.due for question in self._questions if question.slot.number not in self._asked),
                *(question.until for question in self._questions),
            ),
            default=NEVER,
        )
        return len(self._questions) < before

    def _ask(self, question: Question, now: float) -> None:
        slot, board = question.slot, self._boards[question.slot.number]
        record = board.now()
        if record is None or not ask_stacks(slot.pid, board):
            question.due = now + LATEST
            return
        self._asked[slot.number] = (now, now + SOONEST, record)

    def _take(self, number: int, now: float) -> None:
        asked, again, record = self._asked[number]
        slot, board = self._fleet.slots[number], self._boards[number]
        if not slot.alive:
            del self._asked[number]
            return
        if now < again:
            return
        written = board.stacks()
        if not written or blocks_sigusr1(slot.pid):
            self._asked[number] = (asked, now + min(max(again - asked, SOONEST), LATEST), record)
            return
        del self._asked[number]
        after = board.now()
        for question in self._questions[:]:
            if question.slot is not slot or question.due > asked or after is None:
                continue
            if not (_claim(record) == _claim(after) == _claim(question.now)):
                continue  # it has continued with another job; `_end_if_over` reports that
            if question.every:
                self._count(question, written, asked)
            else:
                self._answer(question, self._stack(question, written, now), None)

    def _count(self, question: Question, written: bytes, asked: float) -> None:
        keys = self._known.get(written)
        if keys is None:
            keys = [
                (thread.name, thread.frames)
                for thread in read(written.decode(errors="replace")).threads
                if thread.frames
            ]
            if len(self._known) < MOST_STACKS:
                self._known[written] = keys
        for key in keys:
            known = key if key in question.counts or len(question.counts) < MOST_STACKS else OTHER
            question.counts[known] = question.counts.get(known, 0) + 1
        question.samples += 1
        # A missed sample is not repeated: two samples of the same time say no more than one.
        question.due = max(question.due + question.every, asked)

    def _end_if_over(self, question: Question, now: float) -> None:
        slot = question.slot
        if not slot.alive or slot.incarnation != question.incarnation:
            why = f"the process of job {question.job} ended"
        else:
            record = self._boards[slot.number].now()
            if record is None or _claim(record) == _claim(question.now):
                why = ""
            else:
                why = f"job {question.job} ended, and {slot.name} {self._doing(slot, record)}"
        if not why and now < question.until:
            return
        if question.samples:
            self._answer(question, self._profile(question, now, why), None)
        elif why:
            self._answer(question, None, f"{why}: there is no stack of it any more")
        elif question.every:
            self._answer(question, None, describe_silence(slot.pid))
        else:
            known = {"threads": [], "tasks": describe_threads(slot.pid), "silent": describe_silence(slot.pid)}
            self._answer(question, self._about(question, now) | known, None)

    def _answer(self, question: Question, answer: dict[str, Any] | None, error: str | None) -> None:
        self._questions.remove(question)
        self._tell(question.order, answer, error=error)

    def _about(self, question: Question, now: float) -> dict[str, Any]:
        return {
            "job": question.job,
            "token": question.now.token,
            "kind": question.kind,
            "host": self._host,
            "worker": question.slot.number,
            "pid": question.slot.pid,
            "runs_for": round(now - question.now.started, 3),
        }

    def _stack(self, question: Question, written: bytes, now: float) -> dict[str, Any]:
        threads = [thread.document() for thread in read(written.decode(errors="replace")).threads]
        took = round(now - question.began, 4)
        return self._about(question, now) | {
            "took": took,
            "threads": threads,
            "tasks": describe_threads(question.slot.pid),
        }

    def _profile(self, question: Question, now: float, ended: str) -> dict[str, Any]:
        seconds = min(now, question.until) - question.began
        used = cpu_seconds(question.slot.pid) - question.processor
        return {
            **self._about(question, now),
            "rate": round(1 / question.every, 3),
            "seconds": round(seconds, 3),
            "samples": question.samples,
            "missed": max(round(seconds / question.every) - question.samples, 0),
            "processor": None if ended else round(used, 3),
            "ended": ended,
            **document(question.counts, MOST_ANSWER),
        }


def ask_stacks(pid: int, board: StatusBoard) -> bool:
    """Ask a child for its stacks, which it writes to its board; return whether it could be asked.

    Args:
        pid: of a child of this supervisor that is not reaped.
        board: its status board.
    """
    if not handles_sigusr1(pid):
        return False
    board.open_stacks()
    if hasattr(_libc, "tgkill"):
        # Only its main thread shows whether the answer is complete, so send it to that.
        _libc.tgkill(pid, pid, int(signal.SIGUSR1))
    else:  # a C library from before 2019; the kernel prefers the main thread
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGUSR1)
    return True


def _claim(record: CurrentWork) -> tuple[bool, int, int, int]:
    """Return what must be equal before and after: whether it runs, child, claim token and job."""
    return record.runs, record.child, record.token, record.job
