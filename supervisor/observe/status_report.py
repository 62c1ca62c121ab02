"""Publishes the supervisor's state to dashboard, metrics, service manager, process title and log.

It only reads state. No decision depends on it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import setproctitle

from jobherd.handlers._values.outcome import LABELS
from jobherd.supervisor.policy.run_state import RunState
from jobherd.supervisor.version import VERSION
from jobherd.workers.inspect.phrases import count, duration
from jobherd.workers.ipc.current_work import Phase
from jobherd.workers.system import procfs

if TYPE_CHECKING:
    from jobherd.supervisor.crash.dead_child import Recovered
    from jobherd.supervisor.database.identity import Identity
    from jobherd.supervisor.database.interface import Connection, Registration
    from jobherd.supervisor.observe.log_stream import LogStream
    from jobherd.supervisor.observe.loop_lag import LoopLag
    from jobherd.supervisor.observe.systemd import ServiceManager
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.workers.ipc.control_block import ControlBlock
    from jobherd.workers.ipc.status_board import StatusBoard

TELL: Final = 1.0
"""Seconds between updates for the dashboard and the metrics; a change is published at once."""


def is_busy(board: StatusBoard, *, database: bool) -> bool:
    """Return whether a worker is busy. Without a database, one that waits to claim or settle is not."""
    if database:
        return not board.idle
    work = board.now()
    return work is not None and work.phase in {Phase.RUNNING, Phase.TOGETHER}


class StatusReport:
    """Publishes the state each second, and at once after a change that users wait for.

    Attributes:
        counts: events that other parts count.
    """

    def __init__(
        self,
        slot_table: SlotTable,
        control: ControlBlock,
        boards: list[StatusBoard],
        db: Connection,
        lease: Registration,
        *,
        manager: ServiceManager,
        me: Identity,
        log_stream: LogStream,
        lag: LoopLag,
    ) -> None:
        self.counts = {"notifications": 0, "wakes": 0, "released": 0}
        self._slot_table = slot_table
        self._control = control
        self._boards = boards
        self._db = db
        self._lease = lease
        self._manager = manager
        self._me = me
        self._log_stream = log_stream
        self._lag = lag
        self._settled: dict[str, dict[str, int]] = {}
        self._timeouts: dict[str, int] = {}
        self._errors: dict[str, dict[str, int]] = {}
        self._started = time.monotonic()
        self._at = self._watchdog_at = 0.0
        self._ready_sent = self._reloading = False
        self._title = ""
        self._seen: object = None
        """What was last published that users wait for."""

    def reload_begins(self) -> None:
        """Report the start of a reload, and later its end.

        A reload before READY is a part of the start, and none begins while the supervisor stops.
        """
        if self._ready_sent and self._slot_table.run_state is RunState.SERVING:
            self._reloading = True
            self._manager.reloading()

    def wake_at(self, _now: float) -> float:
        """Return when `step` must be called at the latest. The loop turns once a second in any case."""
        return self._watchdog_at if self._manager.interval else float("inf")

    def count_recovered(self, recovered: Recovered) -> None:
        """Count the outcomes that the supervisor has written for dead children.

        No status board has them.
        """
        case, outcome = recovered.case, recovered.outcome
        self._at = 0.0
        self.counts["released"] += len(recovered.released) + (outcome is not None)
        if outcome is not None:
            by_outcome = self._settled.setdefault(case.policy.name, {})
            by_outcome[outcome.outcome] = by_outcome.get(outcome.outcome, 0) + 1
            if outcome.code is not None:
                by_code = self._errors.setdefault(case.policy.name, {})
                by_code[outcome.code] = by_code.get(outcome.code, 0) + 1
            if outcome.code == "JOB_TIMEOUT":
                self._timeouts[case.policy.name] = self._timeouts.get(case.policy.name, 0) + 1

    def count_failed(self) -> int:
        """Return how many jobs have failed in this run, without those that are retried."""
        failed = [place for place, meaning in enumerate(LABELS.values()) if meaning.state == "failed"]
        counted = sum(
            kind.outcomes[place] for board in self._boards for kind in board.tally.kind_counts() for place in failed
        )
        return counted + sum(by_outcome.get("failed", 0) for by_outcome in self._settled.values())

    def step(self, now: float) -> None:
        """Publish what is due."""
        slot_table, up = self._slot_table, self._slot_table.database_since is not None
        self._manager.flush()
        if slot_table.run_state is RunState.SERVING:
            if not self._ready_sent and slot_table.is_started():
                self._ready_sent = True
                self._manager.tell("READY=1", f"MAINPID={self._me.pid}")
            if self._reloading and not slot_table.reloading:
                self._reloading = False
                self._manager.tell("READY=1")  # otherwise the service manager waits for the end of a finished reload
        if self._manager.interval and now >= self._watchdog_at:
            self._watchdog_at = now + self._manager.interval
            self._manager.tell("WATCHDOG=1")
        seen = (
            slot_table.run_state,
            up,
            self._lease.receives_notifications,
            [(slot.process.pid, slot.state) for slot in slot_table.alive()],
        )
        if now < self._at and seen == self._seen:
            return
        self._at, self._seen = now + TELL, seen
        if slot_table.limits.web:
            for slot in slot_table.alive():
                slot.seen.rss = procfs.rss(slot.process.pid)
        self._control.publish(self.facts(now))
        busy = sum(1 for slot in slot_table.workers() if slot.alive and is_busy(self._boards[slot.number], database=up))
        here = sum(1 for slot in slot_table.workers() if slot.alive)
        text = f"{slot_table.run_state.name.lower()}, {busy} of {here} workers busy" + (
            "" if up else f", no {self._db.peer}"
        )
        self._manager.status(text)
        if text != self._title:
            self._title = text
            setproctitle.setproctitle(f"jobherd: supervisor [{self._me.host}] {text}")

    def facts(self, now: float) -> dict[str, object]:
        """Return the supervisor's state for the dashboard and the metrics."""
        slot_table, up = self._slot_table, self._slot_table.database_since is not None
        return {
            "version": VERSION,
            "database": up,
            "listening": up and self._lease.receives_notifications,
            "polling": up and self._db.polls,
            "draining": slot_table.run_state is not RunState.SERVING,
            "ready_ever": slot_table.ever_ready,
            "deaths": dict(slot_table.deaths),
            "respawns": slot_table.respawns,
            "reclaimed": self._lease.reclaimed,
            "renewals": self._lease.renewals,
            "started": self._started,
            "settled": self._settled,
            "timeouts": self._timeouts,
            "errors": self._errors,
            "at": now,
            "dropped": self._log_stream.dropped,
            "late": self._lag.facts(),
            "late_seconds": self._lag.seconds,
            **self.counts,
            "children": [
                {
                    "slot": slot.number,
                    "kind": slot.kind.name,
                    "pid": slot.process.pid,
                    "state": slot.state.value,
                    "rss": slot.seen.rss or None,
                }
                for slot in slot_table.alive()
            ],
        }

    def describe(self, now: float) -> list[str]:
        """Return the state of the supervisor and its children in lines, for the log."""
        slot_table, up = self._slot_table, self._slot_table.database_since is not None
        peer = self._db.peer
        there = f"the {peer} is there" if up else f"no {peer}: {self._db.write_problem or self._db.trouble}"
        wanted = count(slot_table.wanted, "worker", "workers")
        lines = [f"{slot_table.run_state.name.lower()}, supervisor {slot_table.supervisor}, {wanted} wanted, {there}"]
        for slot in slot_table.alive():
            record = self._boards[slot.number].now()
            doing = "unknown" if record is None else record.phase.name.lower()
            if record is not None and record.job:
                kind = self._boards[slot.number].tally.policy(record.kind).name
                doing = f"{kind} #{record.job} for {duration(now - record.started)}"
            lines.append(
                f"{slot.name}: pid {slot.process.pid}, {slot.state.value} for {duration(now - slot.since)}, {doing}"
            )
        lines.append(f"{self._lag}; {self._log_stream.dropped} lines of the log were dropped")
        return lines
