"""Where a child stands, asked of it while it works: one stack for whoever wants to know, many for a profile.

A child is asked by SIGUSR1. faulthandler answers in the signal handler, in C, with what it is at in that moment, so a job in C code or one
that holds the interpreter's lock answers too, and nothing is interrupted but system calls, which go on. It writes onto the board; the
parent comes back a few milliseconds later and reads, and never waits. Whether it is through with writing, the kernel knows: until then the
signal is blocked in its main thread. What is read counts only if the child was at the same job of the same claim before and after.
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
from jobherd.workers.system.threads import hears, holds_back, processor, silence, tasks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobherd.supervisor.database.fleet_commands import FleetCommand
    from jobherd.supervisor.policy.fleet import Fleet
    from jobherd.supervisor.policy.slot import Slot
    from jobherd.workers.inspect.stacks import Frame
    from jobherd.workers.ipc.status_board import CurrentWork, StatusBoard

    class Answer(Protocol):
        """Writes what became of an order: an answer, or why there is none."""

        def __call__(self, number: int, answer: Mapping[str, Any] | None = None, *, error: str | None = None) -> None: ...

    Key = tuple[str, tuple[Frame, ...]]

NEVER: Final = float("inf")
PATIENCE: Final = 2.0
"""Seconds in which a child must have answered."""
SOONEST: Final = 0.002
"""Seconds until a stack is there, mostly; then twice as long, and so on."""
LATEST: Final = 0.02
MOST_QUESTIONS: Final = 16
"""At a time, of all children: each answer costs the parent a tenth of a millisecond."""
LONGEST: Final = 300.0
FASTEST: Final = 100
MOST_STACKS: Final = 1000
"""Different ones in a profile; what more there is, is counted together."""
MOST_ANSWER: Final = 512 * 1024
"""Characters of an answer, about."""
OTHER: Final = ("(other stacks)", ())
_libc: Final = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class Question:
    """Somebody wants to know where one running job is."""

    order: int
    job: int
    slot: Slot
    incarnation: int
    now: CurrentWork
    """What its board said when the question came."""
    kind: str
    began: float
    until: float
    due: float
    every: float = 0.0
    """Seconds between two samples; 0: one stack is all that is wanted."""
    counts: dict[Key, int] = field(default_factory=dict)
    samples: int = 0
    processor: float = 0.0
    """Seconds that its process had used when it began."""


class Sampler:
    """All questions that are open. `step` is called when `at` has come, and does nothing while there are none.

    `stack` and `profile` are the trades of the orders of that name; `answer` is told later what became of them.
    """

    def __init__(self, fleet: Fleet, boards: list[StatusBoard], answer: Answer, *, host: str) -> None:
        self.at = NEVER
        self._fleet = fleet
        self._boards = boards
        self._tell = answer
        self._host = host
        self._questions: list[Question] = []
        self._asked: dict[int, tuple[float, float, CurrentWork]] = {}
        """By slot: when its child was asked, when to see whether it has answered, and what it was at then."""
        self._known: dict[bytes, list[Key]] = {}
        """What was read before: most samples of a long loop are alike."""

    # -- questions --------------------------------------------------------------------------------------------------

    def stack(self, order: FleetCommand, now: float) -> None:
        """Answer with the stacks of the process that runs a job. arguments: `job`, its id; `child`, who holds it by the database. Raises Refused."""
        question = self._question(order, now)
        question.until = now + PATIENCE
        self._begin(question)

    def profile(self, order: FleetCommand, now: float) -> None:
        """Answer with how often which stack was seen. arguments: as above, `seconds` (default 10), `rate` a second (default 50). Raises Refused."""
        try:
            seconds, rate = float(order.arguments.get("seconds", 10)), float(order.arguments.get("rate", 50))
        except (TypeError, ValueError):
            seconds, rate = 0.0, 0.0
        if not (0 < seconds <= LONGEST and 0 < rate <= FASTEST):
            raise Refused(f"a profile takes up to {LONGEST:.0f} seconds, and a rate of up to {FASTEST} samples a second")
        question = self._question(order, now)
        if any(other.every and other.slot is question.slot for other in self._questions):
            raise Refused(f"{question.slot.name} is being profiled already: wait until that is over")
        question.until, question.every = now + seconds, 1 / rate
        question.processor = processor(question.slot.pid)
        self._begin(question)

    def asks(self, number: int) -> bool:
        """Whether anything is open about the child of a slot: what it writes is for that, and must not begin anew meanwhile."""
        return any(question.slot.number == number for question in self._questions)

    def _question(self, order: FleetCommand, now: float) -> Question:
        job = order.arguments.get("job")
        if not isinstance(job, int):
            raise Refused(f"job: {job!r} is no job's id")
        if len(self._questions) >= MOST_QUESTIONS:
            raise Refused(f"{len(self._questions)} stacks and profiles are being taken here at this moment: try again later")
        for slot, board, record in self._workers():
            if record.runs and (record.job == job or any(other.job == job for other in board.company(record))):
                return Question(
                    order.id, job, slot, slot.incarnation, record, board.tally.policy(record.kind).name, now, until=now, due=now
                )
        raise Refused(self._not_running(job, order.arguments.get("child")))

    def _workers(self) -> list[tuple[Slot, StatusBoard, CurrentWork]]:
        looks = [(slot, self._boards[slot.number]) for slot in self._fleet.alive() if slot.kind.works]
        return [(slot, board, record) for slot, board in looks if (record := board.now()) is not None]

    def _not_running(self, job: int, child: object) -> str:
        """Why a job that the database says is held here has no stack."""
        for slot, _, record in self._workers():
            if record.child and record.child == child:
                return (
                    f"job {job} has not started, or has just ended: {slot.name} on {self._host} holds it, and {self._doing(slot, record)}"
                )
        return f"no worker on {self._host} runs job {job}: it has just ended"

    def _doing(self, slot: Slot, record: CurrentWork) -> str:
        if record.runs and record.job:
            return f"runs {self._boards[slot.number].tally.policy(record.kind).name} #{record.job} now"
        return f"is {record.phase.name.lower()} now"

    def _begin(self, question: Question) -> None:
        self._questions.append(question)
        self.at = 0.0

    # -- answers ----------------------------------------------------------------------------------------------------

    def step(self, now: float) -> bool:
        """Read what was written, ask anew, answer: whatever is due. Return whether somebody was answered."""
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
        if not written or holds_back(slot.pid):
            self._asked[number] = (asked, now + min(max(again - asked, SOONEST), LATEST), record)
            return
        del self._asked[number]
        after = board.now()
        for question in self._questions[:]:
            if question.slot is not slot or question.due > asked or after is None:
                continue
            if not (_claim(record) == _claim(after) == _claim(question.now)):
                continue  # it went on to another job meanwhile, and `_end_if_over` says so
            if question.every:
                self._count(question, written, asked)
            else:
                self._answer(question, self._stack(question, written, now), None)

    def _count(self, question: Question, written: bytes, asked: float) -> None:
        keys = self._known.get(written)
        if keys is None:
            keys = [(thread.name, thread.frames) for thread in read(written.decode(errors="replace")).threads if thread.frames]
            if len(self._known) < MOST_STACKS:
                self._known[written] = keys
        for key in keys:
            known = key if key in question.counts or len(question.counts) < MOST_STACKS else OTHER
            question.counts[known] = question.counts.get(known, 0) + 1
        question.samples += 1
        # A sample that was missed is not made up for: two of one moment say no more than one.
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
            self._answer(question, None, silence(slot.pid))
        else:
            known = {"threads": [], "tasks": tasks(slot.pid), "silent": silence(slot.pid)}
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
        return self._about(question, now) | {"took": took, "threads": threads, "tasks": tasks(question.slot.pid)}

    def _profile(self, question: Question, now: float, ended: str) -> dict[str, Any]:
        seconds = min(now, question.until) - question.began
        used = processor(question.slot.pid) - question.processor
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
    """Ask a child for its stacks, which its board then holds; return whether it could be asked. pid: of a child of ours that is not reaped."""
    if not hears(pid):
        return False
    board.open_stacks()
    if hasattr(_libc, "tgkill"):
        # To its main thread and no other, for there it is seen whether the answer is whole.
        _libc.tgkill(pid, pid, int(signal.SIGUSR1))
    else:  # a C library from before 2019; the kernel takes the main thread if it can
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGUSR1)
    return True


def _claim(record: CurrentWork) -> tuple[bool, int, int, int]:
    """What must be the same before and after: that it runs, who, under which claim, which job."""
    return record.runs, record.child, record.token, record.job
