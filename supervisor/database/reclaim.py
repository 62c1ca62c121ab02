"""Reclaims the jobs of dead supervisors.

After each renewal of the lease, the database reclaims from supervisors whose leases have expired
and from those that this process has found dead on its host. Leases are compared by the server's
clock only after a time in which every living supervisor could renew.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.database.connection import DatabaseConnection, Link
from jobherd.supervisor.database.dead_on_host import HostSupervisor, kill_children_of_dead_supervisors
from jobherd.supervisor.database.server_clock import ServerClock
from jobherd.supervisor.policy.child_kinds import MAINTENANCE
from jobherd.workers.inspect.phrases import count
from jobherd.workers.system.procfs import alive

if TYPE_CHECKING:
    from jobherd.supervisor.database.identity import Identity
    from jobherd.supervisor.database.requests import Answer
    from jobherd.supervisor.policy.slot_table import SlotTable

log = logging.getLogger("jobherd.supervisor")

AGAIN: Final = 0.5
"""Seconds before a rejected query for supervisors on this host is repeated."""
ENDING: Final = 0.05
"""Seconds before the next query while a dead supervisor's children still live: what they run must
have ended first."""
LEAST_JUMP: Final = 1.0
"""Seconds by which the server's clock must jump before that counts."""


class Reclaim:
    """Finds dead supervisors on this host, and has their jobs reclaimed.

    Attributes:
        urgent: a dead supervisor was found, so the lease should be renewed at once.
        reclaimed: number of jobs that were reclaimed.
    """

    def __init__(self, db: DatabaseConnection, slot_table: SlotTable, me: Identity) -> None:
        self.urgent = False
        self.reclaimed = 0
        self._db = db
        self._slot_table = slot_table
        self._me = me
        self._at = float("inf")
        self._dead: list[int] = []
        self._open_since = 0.0
        """Since when this supervisor can write without a gap. Before that, perhaps no supervisor
        could, and leases of living ones may have expired."""
        self._clock = ServerClock()
        self._steady_at = 0.0

    def wake_at(self, _now: float) -> float:
        """Return when `step` must be called at the latest."""
        return self._at if self._db.link is Link.UP and self._slot_table.supervisor else float("inf")

    def step(self, now: float) -> None:
        """Query for supervisors that were registered from this host, if that is due."""
        if self._db.link is Link.UP and self._slot_table.supervisor and now >= self._at:
            self._at = float("inf")
            wanted = {"machine": self._me.machine, "supervisor": self._slot_table.supervisor}
            self._db.ask("lease/find_host_supervisors", wanted, self._found)

    def registered(self, now: float) -> None:
        """Query at the next step: this supervisor is registered, and an earlier one on this host may have died."""
        self._at = now

    def connected(self, now: float) -> None:
        """Record when a session began, or when one accepts writes again."""
        self._open_since = now

    def note_clock(self, server: float, *, asked: float, now: float, least: float) -> None:
        """Check the server's clock for a jump.

        After a jump, leases of living supervisors may look expired until their next renewal, and
        scheduled jobs may be due.

        Args:
            server: the server's clock.
            asked: when the request was sent that returned it.
            now: when the answer arrived.
            least: seconds by which the clock may differ: half the time between two renewals.
        """
        jump = self._clock.jump(server, asked=asked, now=now)
        if abs(jump) > max(least, LEAST_JUMP):
            self._steady_at = now + self._slot_table.limits.lease
            self._slot_table.kinds_to_wake.add(MAINTENANCE)
            log.warning(
                "the database's clock has jumped by %+.0f s against this host's: every supervisor gets one whole "
                "lease to renew before its jobs may be taken",
                jump,
            )

    def reclaim(self, now: float, *, clock: object, lease: float) -> None:
        """Reclaim jobs of dead supervisors, after a renewal.

        Args:
            now: when the renewal was sent.
            clock: the server's clock then. If it jumps before this is executed, leases are compared
                with the time before the jump.
            lease: the duration of the lease.
        """
        # After an outage, too, each supervisor gets one whole lease to renew before any is
        # reclaimed.
        patient = now - self._open_since >= lease and time.monotonic() >= self._steady_at
        dead = list(self._dead)  # dead supervisors found before the answer are not in this request
        self._db.ask(
            "recover/reclaim_supervisors",
            {
                "supervisor": self._slot_table.supervisor,
                "dead": dead,
                "lease": lease,
                "clock": clock,
                "patient": patient,
            },
            lambda answer: self._reclaimed(answer, dead),
        )

    def _reclaimed(self, answer: Answer, dead: list[int]) -> None:
        if answer is None:
            return
        self._dead = [number for number in self._dead if number not in dead]
        supervisors, jobs, sessions = (int(answer[0][place] or 0) for place in (0, 1, 3))
        self.reclaimed += jobs
        if not supervisors and not jobs:  # a remote worker that exits leaves its session to expire, without jobs
            return
        owners = [count(supervisors, "supervisor", "supervisors")] if supervisors else []
        owners += [count(sessions, "remote worker", "remote workers")] if sessions else []
        log.warning("%d jobs were reclaimed from %s", jobs, " and ".join(owners), extra={"hosts": answer[0][2]})

    def _found(self, answer: Answer) -> None:
        now = time.monotonic()
        if answer is None:
            self._at = now + AGAIN
            return
        others = [
            HostSupervisor(int(row[0] or 0), int(row[1] or 0), int(row[2] or 0), _number(row[3]), _number(row[4]))
            for row in answer
        ]
        self._dead = kill_children_of_dead_supervisors(others)
        self.urgent = self.urgent or bool(self._dead)
        ended = {each.supervisor for each in others if not alive(each.pid, each.pid_started)}
        if ended - set(self._dead):
            self._at = now + ENDING


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
