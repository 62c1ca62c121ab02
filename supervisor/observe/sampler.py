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

from typing import TYPE_CHECKING, Any, Final

from jobherd.supervisor.crash.stack_request import ask_stacks
from jobherd.supervisor.database.fleet_commands import CommandRejected
from jobherd.supervisor.observe.stack_question import MOST_STACKS, Question
from jobherd.workers.inspect.stacks import read
from jobherd.workers.system.procfs import cpu_seconds
from jobherd.workers.system.threads import blocks_sigusr1, describe_silence, describe_threads

if TYPE_CHECKING:
    from jobherd.supervisor.database.fleet_commands import FleetCommand, FleetCommands
    from jobherd.supervisor.observe.stack_question import Key
    from jobherd.supervisor.policy.slot import Slot
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.workers.ipc.current_work import CurrentWork
    from jobherd.workers.ipc.status_board import StatusBoard

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


class Sampler:
    """All open questions.

    `stack` and `profile` carry out the fleet commands of that name, and are answered later.
    """

    def __init__(self, slot_table: SlotTable, boards: list[StatusBoard], commands: FleetCommands, *, host: str) -> None:
        self._at = NEVER
        self._slot_table = slot_table
        self._boards = boards
        self._commands = commands
        self._host = host
        self._questions: list[Question] = []
        self._asked: dict[int, tuple[float, float, CurrentWork]] = {}
        """By slot: when its child was asked, when to check for the answer, and its work then."""
        self._known: dict[bytes, list[Key]] = {}
        """Stacks parsed before: most samples of a long loop are equal."""

    # -- questions

    def stack(self, command: FleetCommand, now: float) -> None:
        """Answer with the stacks of the process that runs a job. Raises CommandRejected.

        The command's arguments are `job`, its id, and `child`, which holds it according to the
        database.
        """
        question = self._question(command, now)
        question.until = now + PATIENCE
        self._begin(question)

    def profile(self, command: FleetCommand, now: float) -> None:
        """Answer with how often each stack was seen. Raises CommandRejected.

        The command's arguments are those of `stack`, `seconds` (default 10) and `rate` per second
        (default 50).
        """
        try:
            seconds, rate = float(command.arguments.get("seconds", 10)), float(command.arguments.get("rate", 50))
        except (TypeError, ValueError):
            seconds, rate = 0.0, 0.0
        if not (0 < seconds <= LONGEST and 0 < rate <= FASTEST):
            raise CommandRejected(
                f"a profile takes up to {LONGEST:.0f} seconds, and a rate of up to {FASTEST} samples a second"
            )
        question = self._question(command, now)
        if any(other.every and other.slot is question.slot for other in self._questions):
            raise CommandRejected(f"{question.slot.name} is being profiled already: wait until the profile has ended")
        question.until, question.every = now + seconds, 1 / rate
        question.processor = cpu_seconds(question.slot.process.pid)
        self._begin(question)

    def asks(self, number: int) -> bool:
        """Return whether a question about the child of a slot is open.

        Its board then belongs to that question: another request would overwrite the answer.
        """
        return any(question.slot.number == number for question in self._questions)

    def _question(self, command: FleetCommand, now: float) -> Question:
        job = command.arguments.get("job")
        if not isinstance(job, int):
            raise CommandRejected(f"job: {job!r} is not a job id")
        if len(self._questions) >= MOST_QUESTIONS:
            raise CommandRejected(
                f"{len(self._questions)} stacks and profiles are being taken here at this moment: try again later"
            )
        for slot, board, record in self._workers():
            if record.runs and (record.job == job or any(other.job == job for other in board.company(record))):
                return Question(
                    command.id,
                    job,
                    self._host,
                    slot,
                    slot.process.incarnation,
                    record,
                    board.tally.policy(record.kind).name,
                    now,
                    until=now,
                    due=now,
                )
        raise CommandRejected(self._not_running(job, command.arguments.get("child")))

    def _workers(self) -> list[tuple[Slot, StatusBoard, CurrentWork]]:
        looks = [(slot, self._boards[slot.number]) for slot in self._slot_table.alive() if slot.kind.works]
        return [(slot, board, record) for slot, board in looks if (record := board.now()) is not None]

    def _not_running(self, job: int, child: object) -> str:
        """Return why a job that is claimed here according to the database has no stack."""
        for slot, _, record in self._workers():
            if record.child and record.child == child:
                doing = self._doing(slot, record)
                return (
                    f"job {job} has not started, or has just ended: {slot.name} on {self._host} holds it, and {doing}"
                )
        return f"no worker on {self._host} runs job {job}: it has just ended"

    def _doing(self, slot: Slot, record: CurrentWork) -> str:
        if record.runs and record.job:
            return f"runs {self._boards[slot.number].tally.policy(record.kind).name} #{record.job} now"
        return f"is {record.phase.name.lower()} now"

    def _begin(self, question: Question) -> None:
        self._questions.append(question)
        self._at = 0.0

    # -- answers

    def wake_at(self, _now: float) -> float:
        """Return when `step` must be called at the latest."""
        return self._at

    def step(self, now: float) -> None:
        """Read answers, ask again, finish questions, as far as each is due."""
        if now < self._at:
            return
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
        self._at = min(
            (
                *(again for _, again, _ in self._asked.values()),
                *(question.due for question in self._questions if question.slot.number not in self._asked),
                *(question.until for question in self._questions),
            ),
            default=NEVER,
        )

    def _ask(self, question: Question, now: float) -> None:
        slot, board = question.slot, self._boards[question.slot.number]
        record = board.now()
        if record is None or not ask_stacks(slot.process.pid, board):
            question.due = now + LATEST
            return
        self._asked[slot.number] = (now, now + SOONEST, record)

    def _take(self, number: int, now: float) -> None:
        asked, again, record = self._asked[number]
        slot, board = self._slot_table.slots[number], self._boards[number]
        if not slot.alive:
            del self._asked[number]
            return
        if now < again:
            return
        written = board.stacks()
        if not written or blocks_sigusr1(slot.process.pid):
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
                self._answer(question, question.stack(written, now), None)

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
        question.count(keys, asked)

    def _end_if_over(self, question: Question, now: float) -> None:
        slot = question.slot
        if not slot.alive or slot.process.incarnation != question.incarnation:
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
            self._answer(question, question.profile(now, why), None)
        elif why:
            self._answer(question, None, f"{why}: there is no stack of it any more")
        elif question.every:
            self._answer(question, None, describe_silence(slot.process.pid))
        else:
            known = {
                "threads": [],
                "tasks": describe_threads(slot.process.pid),
                "silent": describe_silence(slot.process.pid),
            }
            self._answer(question, question.about(now) | known, None)

    def _answer(self, question: Question, answer: dict[str, Any] | None, error: str | None) -> None:
        self._questions.remove(question)
        self._commands.answer(question.command, answer, error=error)


def _claim(record: CurrentWork) -> tuple[bool, int, int, int]:
    """Return what must be equal before and after: whether it runs, child, claim token and job."""
    return record.runs, record.child, record.token, record.job
