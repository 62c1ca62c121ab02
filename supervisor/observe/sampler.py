"""Takes stacks of running jobs: one for a request, many for a profile.

The supervisor sends SIGUSR1 to the child. faulthandler writes the current stacks in the signal
handler, in C. So a job in C code, or one that holds the interpreter lock, answers too, and only
system calls are interrupted, which continue.

The child writes to its status board; the supervisor reads it a few milliseconds later and never
waits. The kernel shows whether the child has finished writing: until then the signal is blocked in
its main thread. The stacks only count if the child ran the same job of the same claim before and
after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from jobherd.supervisor.crash.stack_signal import signal_for_stacks
from jobherd.supervisor.database.fleet_commands import CommandRejected
from jobherd.supervisor.observe.stack_request import MOST_STACKS, StackRequest
from jobherd.workers.inspect.stacks import read
from jobherd.workers.system.procfs import cpu_seconds
from jobherd.workers.system.threads import blocks_sigusr1, describe_silence, describe_threads

if TYPE_CHECKING:
    from jobherd.supervisor.database.fleet_commands import FleetCommand, FleetCommands
    from jobherd.supervisor.observe.stack_request import Key
    from jobherd.supervisor.policy.slot import Slot
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.workers.ipc.current_work import CurrentWork
    from jobherd.workers.ipc.status_board import StatusBoard

NEVER: Final = float("inf")
PATIENCE: Final = 2.0
"""Seconds in which a child must write its stacks."""
SOONEST: Final = 0.002
"""Seconds until a stack is usually available; doubled after each check, up to `LATEST`."""
LATEST: Final = 0.02
MOST_REQUESTS: Final = 16
"""Maximum number of open requests about all children: each answer costs the supervisor 0.1 ms."""
LONGEST: Final = 300.0
FASTEST: Final = 100


class Sampler:
    """Takes the stacks for all open requests.

    `stack` and `profile` carry out the fleet commands of that name, and are answered later.
    """

    def __init__(self, slot_table: SlotTable, boards: list[StatusBoard], commands: FleetCommands, *, host: str) -> None:
        self._at = NEVER
        self._slot_table = slot_table
        self._boards = boards
        self._commands = commands
        self._host = host
        self._requests: list[StackRequest] = []
        self._asked: dict[int, tuple[float, float, CurrentWork]] = {}
        """By slot: when its child was signaled, when to check for the stacks, and its work then."""
        self._known: dict[bytes, list[Key]] = {}
        """Stacks parsed before: most samples of a long loop are equal."""

    # -- requests

    def stack(self, command: FleetCommand, now: float) -> None:
        """Answer with the stacks of the process that runs a job. Raises CommandRejected.

        The command's arguments are `job`, its id, and `child`, which holds it according to the
        database.
        """
        request = self._new_request(command, now)
        request.until = now + PATIENCE
        self._begin(request)

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
        request = self._new_request(command, now)
        if any(other.every and other.slot is request.slot for other in self._requests):
            raise CommandRejected(f"{request.slot.name} is being profiled already: wait until the profile has ended")
        request.until, request.every = now + seconds, 1 / rate
        request.processor = cpu_seconds(request.slot.process.pid)
        self._begin(request)

    def has_open_request(self, number: int) -> bool:
        """Return whether a request about the child of a slot is open.

        Its status board then belongs to that request: another signal would overwrite the answer.
        """
        return any(request.slot.number == number for request in self._requests)

    def _new_request(self, command: FleetCommand, now: float) -> StackRequest:
        job = command.arguments.get("job")
        if not isinstance(job, int):
            raise CommandRejected(f"job: {job!r} is not a job id")
        if len(self._requests) >= MOST_REQUESTS:
            raise CommandRejected(
                f"{len(self._requests)} stacks and profiles are being taken here now: try again later"
            )
        for slot, board, record in self._workers():
            if record.runs and (record.job == job or any(other.job == job for other in board.company(record))):
                return StackRequest(
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

    def _begin(self, request: StackRequest) -> None:
        self._requests.append(request)
        self._at = 0.0

    # -- answers

    def wake_at(self, _now: float) -> float:
        """Return when `step` must be called at the latest."""
        return self._at

    def step(self, now: float) -> None:
        """Read stacks, send signals and finish requests, as far as each is due."""
        if now < self._at:
            return
        for number in list(self._asked):
            self._take(number, now)
        for request in self._requests[:]:
            self._end_if_over(request, now)
        for request in self._requests:
            if request.due <= now and request.slot.number not in self._asked:
                self._send_signal(request, now)
        if not self._requests:
            self._asked.clear()
            self._known.clear()
        self._at = min(
            (
                *(again for _, again, _ in self._asked.values()),
                *(request.due for request in self._requests if request.slot.number not in self._asked),
                *(request.until for request in self._requests),
            ),
            default=NEVER,
        )

    def _send_signal(self, request: StackRequest, now: float) -> None:
        slot, board = request.slot, self._boards[request.slot.number]
        record = board.now()
        if record is None or not signal_for_stacks(slot.process.pid, board):
            request.due = now + LATEST
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
        for request in self._requests[:]:
            if request.slot is not slot or request.due > asked or after is None:
                continue
            if not (_claim(record) == _claim(after) == _claim(request.now)):
                continue  # it has continued with another job; `_end_if_over` reports that
            if request.every:
                self._count(request, written, asked)
            else:
                self._answer(request, request.stack(written, now), None)

    def _count(self, request: StackRequest, written: bytes, asked: float) -> None:
        keys = self._known.get(written)
        if keys is None:
            keys = [
                (thread.name, thread.frames)
                for thread in read(written.decode(errors="replace")).threads
                if thread.frames
            ]
            if len(self._known) < MOST_STACKS:
                self._known[written] = keys
        request.count(keys, asked)

    def _end_if_over(self, request: StackRequest, now: float) -> None:
        slot = request.slot
        if not slot.alive or slot.process.incarnation != request.incarnation:
            why = f"the process of job {request.job} ended"
        else:
            record = self._boards[slot.number].now()
            if record is None or _claim(record) == _claim(request.now):
                why = ""
            else:
                why = f"job {request.job} ended, and {slot.name} {self._doing(slot, record)}"
        if not why and now < request.until:
            return
        if request.samples:
            self._answer(request, request.profile(now, why), None)
        elif why:
            self._answer(request, None, f"{why}: there is no stack of it any more")
        elif request.every:
            self._answer(request, None, describe_silence(slot.process.pid))
        else:
            known = {
                "threads": [],
                "tasks": describe_threads(slot.process.pid),
                "silent": describe_silence(slot.process.pid),
            }
            self._answer(request, request.about(now) | known, None)

    def _answer(self, request: StackRequest, answer: dict[str, Any] | None, error: str | None) -> None:
        self._requests.remove(request)
        self._commands.answer(request.command, answer, error=error)


def _claim(record: CurrentWork) -> tuple[bool, int, int, int]:
    """Return what must be equal before and after: whether it runs, child, claim token and job."""
    return record.runs, record.child, record.token, record.job
