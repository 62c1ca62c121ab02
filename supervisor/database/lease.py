"""Registers the supervisor and renews its lease.

There is one row with one lease, whatever the number of children. This process renews it: it never
runs user code, so that code cannot delay a renewal. The deadline in the control block counts from
before the renewal was sent. A child that claims nothing after it claims nothing that another
supervisor may have reclaimed. Nothing here blocks; each step is a request.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.database.connection import DatabaseConnection, Link
from jobherd.supervisor.version import VERSION

if TYPE_CHECKING:
    from jobherd.supervisor.database.cancels import Cancels
    from jobherd.supervisor.database.ended_children import EndedChildren
    from jobherd.supervisor.database.identity import Identity
    from jobherd.supervisor.database.reclaim import Reclaim
    from jobherd.supervisor.database.requests import Answer
    from jobherd.supervisor.policy.slot_table import SlotTable
    from jobherd.workers.ipc.control_block import ControlBlock

log = logging.getLogger("jobherd.supervisor")

RENEWALS_PER_LEASE: Final = 3
"""Renewals per lease: two may be lost before it expires."""
AGAIN: Final = 0.5
"""Seconds before a rejected renewal is repeated.

A deadlock or a full disk must not cost the lease.
"""
ECHO_PATIENCE: Final = 3.0
"""Seconds within which a renewal's notification must arrive. Otherwise the session does not receive
any: a half-open connection reports no error. The time restarts with each answer until the renewal
has its own: on a slow line that waits for earlier ones. Giving up the session for that would only
lead to one that is as slow, until the lease expires."""


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lease was renewed."""

    commands: bool
    """There are fleet commands for this supervisor."""


class Lease:
    """Registers the supervisor, and renews its lease three times per lease.

    Attributes:
        renewed: the renewals since the owner last took them.
    """

    def __init__(
        self,
        db: DatabaseConnection,
        slot_table: SlotTable,
        control: ControlBlock,
        *,
        cancels: Cancels,
        reclaim: Reclaim,
        ended_children: EndedChildren,
        me: Identity,
        lease: float,
    ) -> None:
        self.renewed: list[Renewed] = []
        self._db = db
        self._slot_table = slot_table
        self._control = control
        self._me = me
        self._lease = lease
        self._cancels = cancels
        self._reclaim = reclaim
        self._ended_children = ended_children
        self._epoch = -1
        self._registering = False
        self._renew_at = 0.0
        self._echo_by = float("inf")
        self._in_flight = False
        """The renewal whose echo is expected has no answer yet."""
        self._unanswered = False
        """A renewal has no answer yet. Another one would wait behind it, and one more for each that
        is rejected."""
        self._renewed_at = float("-inf")
        self._mute = False
        """The server's notification queue is full."""
        self.receives_notifications = False
        """The notification of the latest renewal arrived here."""
        self.renewals = 0

    @property
    def reclaimed(self) -> int:
        """Number of jobs that were reclaimed from dead supervisors."""
        return self._reclaim.reclaimed

    def wake_at(self, _now: float) -> float:
        """Return when `step` must be called at the latest."""
        if self._db.link is not Link.UP:
            return float("inf")
        if not self._slot_table.supervisor:
            return self._renew_at  # everything else waits for the registration; `step` ignores it too
        return self._echo_due() if self._unanswered else min(self._renewal_due(), self._echo_due())

    def step(self, now: float) -> None:
        """Register, renew, and check that notifications arrive, as far as each is due."""
        if self._db.link is not Link.UP:
            self.receives_notifications = False
            return
        if self._epoch != self._db.epoch:
            self._epoch = self._db.epoch
            self._registering = False
            self._connected(now)
            self._renew_at, self._echo_by = now, float("inf")
        if not self._slot_table.supervisor:
            if not self._registering and now >= self._renew_at:
                self._register(now)
            return
        if self._db.setup.listen_error:
            # no echo can arrive, and the server would reject LISTEN in the next session too
            self.receives_notifications, self._echo_by = False, float("inf")
        if now >= self._echo_due():
            self._echo_by = float("inf")
            if self._db.setup.pooled and self._renewed_at >= now - self._lease:
                # Answers arrive, notifications do not, and the next session would be the same.
                self.receives_notifications = False
                return
            self._db.lose("the session does not receive its own notifications", now)
            return
        if now >= self._renewal_due() and not self._unanswered:
            self._renew(now)

    @property
    def underway(self) -> bool:
        """Whether the registration was requested and has no answer yet."""
        return self._registering

    def change_lease(self, lease: float) -> None:
        """Use this duration of the lease from the next renewal on, and renew now."""
        if lease != self._lease:
            self._lease = lease
            if self._slot_table.supervisor:
                self._renew_at = min(self._renew_at, time.monotonic())

    def echoed(self, supervisor: str) -> None:
        """Record the notification of a renewal; this supervisor's own one proves that notifications arrive."""
        if supervisor == str(self._slot_table.supervisor):
            self.receives_notifications = True
            self._echo_by = float("inf")

    def _renewal_due(self) -> float:
        return 0.0 if self._reclaim.urgent else self._renew_at

    def _echo_due(self) -> float:
        return max(self._echo_by, self._db.answered_at + ECHO_PATIENCE) if self._in_flight else self._echo_by

    # -- requests

    def _register(self, now: float) -> None:
        self._registering = True
        self._renew_at = float("inf")  # until the answer, nothing is due
        me, asked = self._me, time.monotonic()
        self._db.ask(
            "lease/register_supervisor",
            {
                "host": me.host,
                "machine": me.machine,
                "pid": me.pid,
                "pid_started": me.pid_started,
                "version": VERSION,
                "lease": self._lease,
            },
            lambda answer: self._registered(answer, sent=now, asked=asked),
        )

    def _registered(self, answer: Answer, *, sent: float, asked: float) -> None:
        self._registering = False
        if not answer:
            self._renew_at = sent + 0.5
            return
        self._admitted(sent, after_a_gap=True)  # this start may come at the end of an outage for all supervisors
        number = int(answer[0][0] or 0)
        self._note_clock(answer[0][1], asked)
        self._slot_table.on_registered(number)
        self._set_deadline(sent + self._lease)
        self._renew_at = sent + 0.2
        self._reclaim.registered(sent)
        log.info("registered as supervisor %d", number, extra={"supervisor": number, "host": self._me.host})

    def _renew(self, now: float) -> None:
        self._renew_at, self._reclaim.urgent = now + self._lease / RENEWALS_PER_LEASE, False
        if self._echo_by == float("inf"):
            self._echo_by, self._in_flight = now + ECHO_PATIENCE, True
        number, asked, self._unanswered = self._slot_table.supervisor, time.monotonic(), True
        self._db.ask(
            "lease/renew_lease",
            {"supervisor": number, "lease": self._lease},
            lambda answer: self._renewed(answer, number, sent=now, asked=asked),
        )
        self._cancels.query()

    def _renewed(self, answer: Answer, number: int, *, sent: float, asked: float) -> None:
        self._unanswered = False
        if number != self._slot_table.supervisor:
            return
        self._echo_by, self._in_flight = self._echo_due(), False
        if answer is None:
            # Rejected, or the session is lost. The renewal notified nothing, so a missing echo
            # proves nothing.
            self._echo_by = float("inf")
            self._renew_at = min(self._renew_at, sent + AGAIN)
            return
        # Another supervisor's last renewal may have been a third of the lease before this one's.
        self._admitted(sent, after_a_gap=sent - self._renewed_at >= self._lease - self._lease / RENEWALS_PER_LEASE)
        self.renewals += 1
        if answer:
            self._set_deadline(sent + self._lease)
            self._note_room(notified=answer[0][1] == "t")
            self.renewed.append(Renewed(answer[0][2] == "t"))
            self._note_clock(answer[0][3], asked)
            self._reclaim.reclaim(sent, clock=answer[0][3], lease=self._lease)
            return
        self._control.lease_deadline, self._slot_table.lease_deadline = 0.0, float("inf")
        self._renew_at, self._echo_by = sent, float("inf")
        self._slot_table.on_lease_lost(time.monotonic())

    def _set_deadline(self, deadline: float) -> None:
        self._control.lease_deadline = self._slot_table.lease_deadline = deadline

    def _admitted(self, now: float, *, after_a_gap: bool) -> None:
        """Record that a write has succeeded.

        After a time without possible writes, leases of living supervisors may have expired, as in
        an outage, even if the session did not break.

        Args:
            now: when the write was sent.
            after_a_gap: perhaps no supervisor could write. For example, the table was locked, or
                commits waited for an unreachable standby.
        """
        if self._db.write_problem or after_a_gap:
            self._db.write_problem = ""
            self._connected(now)
        self._renewed_at = now

    def _connected(self, now: float) -> None:
        """Notify the parts that there is a session (again), or one that accepts writes again."""
        self._reclaim.connected(now)
        if self.renewals:
            self._ended_children.connected(now)

    def _note_clock(self, clock: str | None, asked: float) -> None:
        least = self._lease / (2 * RENEWALS_PER_LEASE)
        self._reclaim.note_clock(float(clock or 0.0), asked=asked, now=time.monotonic(), least=least)

    def _note_room(self, *, notified: bool) -> None:
        """Record whether the server has room for notifications.

        Without room a renewal is not notified, so a missing echo proves nothing.
        """
        if not notified:
            self._echo_by, self.receives_notifications = float("inf"), False
        if notified is not self._mute:
            return
        self._mute = not notified
        if self._mute:
            log.warning(
                "the server's notification queue is full: jobs are enqueued without a notification and wait for the "
                "poll; see jobherd doctor"
            )
        else:
            log.info("the server's notification queue has space again")
