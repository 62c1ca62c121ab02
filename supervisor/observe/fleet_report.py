"""Writes facts about the supervisor and its children to its row of `jobherd.supervisors`.

Every host can read them. They are written on request (the fleet command `report`), at most once a
second whatever the number of requests, and otherwise with every third renewal of the lease. A
child's work is read from its status board, its process from /proc, for a few children in each turn
of the loop, so that 64 of them never delay a wake-up. No decision depends on these facts.

The document has these keys. All times are durations in seconds up to `facts_at`:

* `run_state`, `wanted`, `most`, `reloading`, `respawns`, `deaths` by cause, `reclaimed`,
  `renewals`, `queues`, `rss`, `cpu`
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

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from jobherd.supervisor.database.connection import Link
from jobherd.supervisor.database.fleet_commands import CommandRejected, as_json
from jobherd.supervisor.observe.child_report import describe_child, describe_end
from jobherd.supervisor.observe.process_use import Look, look, share
from jobherd.supervisor.policy.run_state import RunState
from jobherd.workers.inspect.live_output import tail_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.supervisor.database.connection import DatabaseConnection
    from jobherd.supervisor.database.fleet_commands import FleetCommand, FleetCommands
    from jobherd.supervisor.database.lease import Lease
    from jobherd.supervisor.database.requests import Answer
    from jobherd.supervisor.policy.slot import Slot
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.supervisor.settings.live import LiveSettings
    from jobherd.workers.ipc.status_board import StatusBoard

SLICE: Final = 8
"""Children read in one turn of the loop: some tenths of a millisecond."""
SOONEST: Final = 1.0
"""Seconds between two writes while a user watches."""
SELDOM: Final = 14.0
"""Seconds between two writes otherwise; the next renewal after that writes."""
LONGEST_WATCH: Final = 60.0
LONGEST_TAIL: Final = 8192
"""Characters of a job's output."""
MOST_TAILS: Final = 8
"""Jobs whose output is reported at a time: every list of the fleet reads this row."""


@dataclass(slots=True)
class _Round:
    """A report that is being put together."""

    left: list[Slot]
    children: list[dict[str, Any]]


class FleetReport:
    """Composes the report and writes it. `report` carries out the fleet command of that name."""

    def __init__(
        self,
        db: DatabaseConnection,
        slot_table: SlotTable,
        lease: Lease,
        boards: Sequence[StatusBoard],
        *,
        commands: FleetCommands,
        settings: LiveSettings,
    ) -> None:
        self._commands = commands
        self._db = db
        self._slot_table = slot_table
        self._lease = lease
        self._boards = boards
        self._settings = settings
        self._looks: dict[int, Look] = {}
        """The latest look at each process, by pid."""
        self._due_at = float("inf")
        self._watched_until = float("-inf")
        self._written_at = float("-inf")
        self._round: _Round | None = None
        self._asked: list[int] = []
        self._tails: dict[int, float] = {}
        """Jobs whose output is reported, and until when."""

    def report(self, command: FleetCommand, now: float) -> None:
        """Write the facts now, and each second for a while; answer once they are written.

        The command's arguments are `for`, the number of seconds (default 0), and `tail`, the id of
        a job whose output is reported for that time.
        """
        span = command.arguments.get("for", 0)
        if isinstance(span, bool) or not isinstance(span, int | float) or not 0 <= span <= LONGEST_WATCH:
            raise CommandRejected(f'"for" must be a number of seconds from 0 to {LONGEST_WATCH:.0f}')
        if (job := command.arguments.get("tail")) is not None:
            if isinstance(job, bool) or not isinstance(job, int):
                raise CommandRejected('"tail" must be the id of a job')
            self._tails = {each: until for each, until in self._tails.items() if until > now}
            if job not in self._tails and len(self._tails) >= MOST_TAILS:
                raise CommandRejected(f"{MOST_TAILS} jobs are being watched here now: try again later")
            self._tails[job] = max(self._tails.get(job, now), now + span)
        self._watched_until = max(self._watched_until, now + span)
        self._asked.append(command.id)
        self._due_at = min(self._due_at, self._written_at + SOONEST)

    def renewed(self, now: float) -> None:
        """Write the facts if they are due, after a renewal of the lease."""
        if now >= self._written_at + SELDOM:
            self._due_at = min(self._due_at, now)

    def wake_at(self, _now: float) -> float:
        """Return when `step` must be called at the latest."""
        if self._db.link is not Link.UP or not self._slot_table.supervisor:
            return float("inf")
        return 0.0 if self._round is not None else self._due_at

    def step(self, now: float) -> None:
        """Read the next few children; write the report once all were read."""
        if self._db.link is not Link.UP or not self._slot_table.supervisor:
            self._round = None
            return
        if self._round is None:
            if now < self._due_at:
                return
            self._round = _Round(list(self._slot_table.slots), [])
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
        known = {slot.process.pid for slot in self._slot_table.alive()} | {os.getpid()}
        self._looks = {pid: seen for pid, seen in self._looks.items() if pid in known}
        if me is not None:
            self._looks[os.getpid()] = me
        self._db.ask(
            "lease/store_report",
            {"supervisor": self._slot_table.supervisor, "facts": as_json(document)},
            lambda answer: self._written(asked, answer),
            lambda: self._written(asked, None),
        )

    def _written(self, asked: list[int], answer: Answer) -> None:
        for number in asked:
            self._commands.answer(number, {}, error="the facts could not be written down" if answer is None else None)

    def _of_the_whole(self, me: Look | None, now: float) -> dict[str, Any]:
        slot_table = self._slot_table
        settings = self._settings.now
        return {
            "run_state": slot_table.run_state.name.lower().replace("_", " "),
            "leaving_for": None if slot_table.run_state is RunState.SERVING else now - slot_table.state_since,
            "wanted": slot_table.wanted,
            "most": slot_table.limits.max_workers,
            "reloading": slot_table.reloading,
            "watched": max(0.0, self._watched_until - now),
            "respawns": slot_table.respawns,
            "deaths": dict(slot_table.deaths),
            "reclaimed": self._lease.reclaimed,
            "renewals": self._lease.renewals,
            "queues": list(settings.served),
            "turns": settings.queue_order == "turns",
            "tiers": list(settings.tiers),
            "rss": me.rss if me is not None else None,
            "cpu": share(self._looks.get(os.getpid()), me),
            "said": {
                str(job): self._tail(job) | {"for": until - now} for job, until in self._tails.items() if until > now
            },
            "ends": [
                describe_end(end, now) | {"name": end.name, "pid": end.pid, "job": end.job, "job_kind": end.job_kind}
                for end in slot_table.ends
            ],
        }

    def _tail(self, job: int) -> dict[str, Any]:
        """Return a job's output, unless the job does not run here or its data is encrypted."""
        for slot in self._slot_table.alive():
            board = self._boards[slot.number]
            if not slot.kind.works or (record := board.now()) is None:
                continue
            policy = board.tally.policy(record.kind)
            if not policy.sealed and not policy.table and (text := tail_of((board,), job, None)) is not None:
                return {"text": text[-LONGEST_TAIL:]}
        return {"text": None}

    def _child(self, slot: Slot, now: float) -> dict[str, Any]:
        before = self._looks.get(slot.process.pid)
        seen = look(slot.process.pid, now) if slot.alive else None
        if seen is not None:
            self._looks[slot.process.pid] = seen
        return describe_child(slot, self._boards[slot.number], before, seen, now)
