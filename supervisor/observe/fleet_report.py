"""Writes facts about the supervisor and its children to its row of `jobherd.supervisors`.

Every host can read them. They are written on request (the fleet command `report`), at most once a
second whatever the number of requests, and otherwise with every third renewal of the lease. A
child's work is read from its status board, its process from /proc, for a few children in each turn
of the loop, so that 64 of them never delay a wake-up. No decision depends on these facts.

The document has these keys. All times are durations in seconds up to `facts_at`:

* `course`, `wanted`, `most`, `reloading`, `respawns`, `deaths` by cause, `reclaimed`, `beats`,
  `queues`, `rss`, `cpu`
* `leaving_for`: how long the current run state lasts; null while serving
* `watched`: for how long these facts are still written each second
* `turns`: whether workers alternate between the queues; `tiers`: the tier of each queue
* `ends`: recent unexpected ends of children
* `children`: `slot`, `name`, `kind`, `pid`, `state` (`computing`, `waiting`, `idle`, `booting`,
  `leaving`, `stopped` by a signal, `resting` after a crash), `waits_on`, `since`, `up`, `phase`,
  `job` or `record` with `job_kind`, `attempt`, `most_attempts`, `elapsed`, `left`, `progress`,
  `rss` in bytes, `cpu` in parts of one core, `cpu_seconds`, `jobs`, `held` (jobs of its claim
  besides the first), `together` (other jobs of the same call), `restarts`, `queue`, and
  `last_end`: `cause`, `sentence`, `ago`
* `said`: of jobs that a user watches, by id: `text`, the latest lines that the job has printed or
  logged, and `for`, how long this is still reported
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jobherd.supervisor.database.connection import Link
from jobherd.supervisor.database.fleet_commands import Refused, as_json
from jobherd.supervisor.policy.fleet import RunState
from jobherd.supervisor.policy.slot import State
from jobherd.workers.inspect.live_output import tail_of
from jobherd.workers.ipc.status_board import Phase
from jobherd.workers.system import procfs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jobherd.supervisor.database.connection import Answer, DatabaseConnection
    from jobherd.supervisor.database.fleet_commands import FleetCommand, FleetCommands
    from jobherd.supervisor.database.lease import Lease
    from jobherd.supervisor.policy.fleet import Fleet
    from jobherd.supervisor.policy.slot import End, Slot
    from jobherd.workers.ipc.status_board import CurrentWork, StatusBoard

SLICE: Final = 8
"""Children read in one turn of the loop: some tenths of a millisecond."""
SOONEST: Final = 1.0
"""Seconds between two writes while a user watches."""
SELDOM: Final = 14.0
"""Seconds between two writes otherwise; the next renewal after that writes."""
LONGEST_WATCH: Final = 60.0
LONGEST_TEXT: Final = 500
LONGEST_TAIL: Final = 8192
"""Characters of a job's output."""
MOST_TAILS: Final = 8
"""Jobs whose output is reported at a time: everyone who looks at the fleet reads this row."""

_CHANNELS: Final = (
    ("a lock", ("futex",)),
    ("a sleep", ("nanosleep",)),
    ("a pipe", ("pipe_",)),
    ("a process", ("do_wait", "wait4")),
    ("a disk", ("io_schedule", "folio_wait", "wait_on_page", "rq_qos", "jbd2", "ext4", "xfs", "btrfs")),
    ("the network", ("poll", "select", "sk_", "skb", "recv", "inet_", "tcp_", "unix_", "sock")),
)
"""What a sleeping process waits for, by the name of the kernel function that it sleeps in."""


class Look(NamedTuple):
    """The facts of /proc about a process."""

    at: float
    letter: str
    """R: it runs, or waits for a processor; S: it sleeps; D: it waits for a disk."""
    ticks: int
    rss: int


@dataclass(slots=True)
class _Round:
    """A report that is being put together."""

    left: list[Slot]
    children: list[dict[str, Any]]


class Facts:
    """Puts the facts together and writes them.

    `step` is called each turn, `beaten` after each renewal; `report` carries out that fleet
    command.
    """

    def __init__(
        self,
        db: DatabaseConnection,
        fleet: Fleet,
        registration: Lease,
        boards: Sequence[StatusBoard],
        orders: FleetCommands,
        *,
        queues: Callable[[], Sequence[str]],
        tiers: Callable[[], tuple[bool, Sequence[int]]],
    ) -> None:
        self._orders = orders
        self._db = db
        self._fleet = fleet
        self._registration = registration
        self._boards = boards
        self._queues = queues
        self._tiers = tiers
        self._looks: dict[int, Look] = {}
        """The latest look at each process, by pid."""
        self._due_at = float("inf")
        self._watched_until = float("-inf")
        self._written_at = float("-inf")
        self._round: _Round | None = None
        self._asked: list[int] = []
        self._heard: dict[int, float] = {}
        """Jobs whose output is reported, and until when."""

    def report(self, order: FleetCommand, now: float) -> None:
        """Write the facts now, and each second for a while; answer once they are written.

        The command's arguments are `for`, the number of seconds (default 0), and `tail`, the id of
        a job whose output is reported for that time.
        """
        span = order.arguments.get("for", 0)
        if isinstance(span, bool) or not isinstance(span, int | float) or not 0 <= span <= LONGEST_WATCH:
            raise Refused(f'"for" must be a number of seconds from 0 to {LONGEST_WATCH:.0f}')
        if (job := order.arguments.get("tail")) is not None:
            if isinstance(job, bool) or not isinstance(job, int):
                raise Refused('"tail" must be the id of a job')
            self._heard = {each: until for each, until in self._heard.items() if until > now}
            if job not in self._heard and len(self._heard) >= MOST_TAILS:
                raise Refused(f"{MOST_TAILS} jobs are being watched here at this moment: try again later")
            self._heard[job] = max(self._heard.get(job, now), now + span)
        self._watched_until = max(self._watched_until, now + span)
        self._asked.append(order.id)
        self._due_at = min(self._due_at, self._written_at + SOONEST)

    def beaten(self, now: float) -> None:
        """The lease was renewed: write the facts if they are due."""
        if now >= self._written_at + SELDOM:
            self._due_at = min(self._due_at, now)

    def wake_at(self) -> float:
        """Return when `step` must be called at the latest."""
        if self._db.link is not Link.UP or not self._fleet.supervisor:
            return float("inf")
        return 0.0 if self._round is not None else self._due_at

    def step(self, now: float) -> None:
        """Read the next few children; write the report once all were read."""
        if self._db.link is not Link.UP or not self._fleet.supervisor:
            self._round = None
            return
        if self._round is None:
            if now < self._due_at:
                return
            self._round = _Round(list(self._fleet.slots), [])
            self._due_at = float("inf")
        for _ in range(SLICE):
            while self._round.left:
                slot = self._round.left.pop(0)
                if slot.alive or slot.rest_until > now:
                    self._round.children.append(self._child(slot, now))
                    break
        if not self._round.left:
            self._write(self._round.children, now)
            self._round = None

    # -- helpers

    def _write(self, children: list[dict[str, Any]], now: float) -> None:
        self._written_at = now
        if now < self._watched_until:
            self._due_at = now + SOONEST
        asked, self._asked = self._asked, []
        me = look(os.getpid(), now)
        document = self._of_the_whole(me, now) | {"children": children}
        known = {slot.pid for slot in self._fleet.alive()} | {os.getpid()}
        self._looks = {pid: seen for pid, seen in self._looks.items() if pid in known}
        if me is not None:
            self._looks[os.getpid()] = me
        self._db.ask(
            "lease/store_report",
            {"supervisor": self._fleet.supervisor, "facts": as_json(document)},
            lambda answer: self._written(asked, answer),
            lambda: self._written(asked, None),
        )

    def _written(self, asked: list[int], answer: Answer) -> None:
        for number in asked:
            self._orders.answer(number, {}, error="the facts could not be written down" if answer is None else None)

    def _of_the_whole(self, me: Look | None, now: float) -> dict[str, Any]:
        fleet = self._fleet
        turns, tiers = self._tiers()
        return {
            "course": fleet.run_state.name.lower().replace("_", " "),
            "leaving_for": None if fleet.run_state is RunState.SERVING else now - fleet.course_since,
            "wanted": fleet.wanted,
            "most": fleet.limits.max_workers,
            "reloading": fleet.reloading,
            "watched": max(0.0, self._watched_until - now),
            "respawns": fleet.respawns,
            "deaths": dict(fleet.deaths),
            "reclaimed": self._registration.reclaimed,
            "beats": self._registration.beats,
            "queues": list(self._queues()),
            "turns": turns,
            "tiers": list(tiers),
            "rss": me.rss if me is not None else None,
            "cpu": share(self._looks.get(os.getpid()), me),
            "said": {
                str(job): self._said(job) | {"for": until - now} for job, until in self._heard.items() if until > now
            },
            "ends": [
                _told(end, now) | {"name": end.name, "pid": end.pid, "job": end.job, "job_kind": end.job_kind}
                for end in fleet.ends
            ],
        }

    def _said(self, job: int) -> dict[str, Any]:
        """Return a job's output, unless the job does not run here or its data is encrypted."""
        for slot in self._fleet.alive():
            board = self._boards[slot.number]
            if not slot.kind.works or (record := board.now()) is None:
                continue
            policy = board.tally.policy(record.kind)
            if not policy.sealed and not policy.table and (text := tail_of((board,), job, None)) is not None:
                return {"text": text[-LONGEST_TAIL:]}
        return {"text": None}

    def _child(self, slot: Slot, now: float) -> dict[str, Any]:
        said: dict[str, Any] = {
            "slot": slot.number,
            "name": slot.name,
            "kind": slot.kind.name,
            "queue": slot.reserved or None,
            "restarts": slot.restarts,
            "last_end": None if slot.last_end is None else _told(slot.last_end, now),
            "since": now - slot.since,
        }
        if not slot.alive:
            return said | {"state": "resting", "left": slot.rest_until - now}
        board, before = self._boards[slot.number], self._looks.get(slot.pid)
        record, seen = board.now(), look(slot.pid, now)
        if seen is not None:
            self._looks[slot.pid] = seen
        cpu = share(before, seen)
        state, waits_on = _state(slot, board, record, seen, cpu)
        said |= {
            "pid": slot.pid,
            "state": state,
            "waits_on": waits_on,
            "up": now - slot.forked_at,
            "rss": seen.rss if seen is not None else None,
            "cpu": cpu,
            "cpu_seconds": seen.ticks / procfs.TICKS_PER_SECOND if seen is not None else None,
            "jobs": board.jobs_started - slot.started_at_fork,
            "held": board.held,
        }
        return said if record is None else said | self._work(board, record, now)

    def _work(self, board: StatusBoard, record: CurrentWork, now: float) -> dict[str, Any]:
        said: dict[str, Any] = {"phase": record.phase.name.lower()}
        if not record.job or not record.runs:
            return said
        policy = board.tally.policy(record.kind)
        others = len(board.company(record)) if record.phase is Phase.TOGETHER else 0
        return said | {
            "record" if policy.table else "job": record.job,
            "job_kind": policy.name,
            "together": others or None,
            "attempt": record.attempts,
            "most_attempts": record.max_attempts,
            "elapsed": now - record.started,
            "left": record.deadline - now,  # infinite without a timeout, which becomes null
            "progress": _progress(board.progress()) if record.phase is Phase.RUNNING else None,
        }


def look(pid: int, now: float) -> Look | None:
    """Return the state of a process, from one file of /proc; None if it is gone."""
    with suppress(OSError):
        found = procfs.stat(pid)
        return None if found is None else Look(now, found.state, found.ticks, found.rss)
    return None


def share(before: Look | None, after: Look | None) -> float | None:
    """Return the part of one core that a process has used between two looks.

    None if a look is missing, or they are too close together.
    """
    if before is None or after is None or after.at - before.at < 2 / procfs.TICKS_PER_SECOND:
        return None
    return max(0.0, (after.ticks - before.ticks) / procfs.TICKS_PER_SECOND / (after.at - before.at))


def channel(pid: int) -> str | None:
    """Return what a sleeping process waits for, in words; None if that is not known."""
    name = procfs.wait_channel(pid) or ""
    return next((words for words, parts in _CHANNELS if any(part in name for part in parts)), None)


def _state(
    slot: Slot, board: StatusBoard, record: CurrentWork | None, seen: Look | None, cpu: float | None
) -> tuple[str, str | None]:
    """Return the state, and what it waits for.

    A single look may fall into a pause of a busy process, so half a core also counts as computing.
    """
    if slot.state in (State.BOOTING, State.LEAVING):
        return slot.state.value, None
    if slot.stopped_at:
        return "stopped", None
    computes = seen is not None and (seen.letter == "R" or (cpu or 0.0) >= 0.5)
    if slot.kind.works and (board.idle or record is None or record.phase is Phase.IDLE):
        return "idle", None
    if computes:
        return "computing", None
    if not slot.kind.works:
        return "idle", None
    if record is not None and record.phase in (Phase.CLAIMING, Phase.SETTLING):
        return "waiting", "the database"
    return "waiting", "a disk" if seen is not None and seen.letter == "D" else channel(slot.pid)


def _told(end: End, now: float) -> dict[str, Any]:
    return {"cause": end.cause, "sentence": end.sentence[:LONGEST_TEXT], "ago": now - end.at}


def _progress(text: bytes) -> Mapping[str, Any] | None:
    """Return a handler's progress, or None if the data, which a child has written, is not valid."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    fraction, note = found.get("fraction"), found.get("note")
    return {
        "fraction": fraction if isinstance(fraction, int | float) and 0 <= fraction <= 1 else None,
        "note": note[:LONGEST_TEXT] if isinstance(note, str) else None,
    }
