"""Puts an idle worker to sleep until there may be work, and passes surplus wakes to other workers.

Race: no wake may be lost between an empty claim and the sleep. So the epoch of the control block is
read before the claim, and again in `rest` after this worker shows itself idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobherd.workers.ipc.current_work import Phase
from jobherd.workers.ipc.memory_barrier import barrier
from jobherd.workers.ipc.pipes import MoreWork, OpensIn, WentIdle, send

if TYPE_CHECKING:
    from jobherd.workers.process.context import ChildContext
    from jobherd.workers.process.title import Title
    from jobherd.workers.settle.in_flight import InFlightClaim

LOOK: Final = 0.0002
"""Seconds between two checks of the wake pipe while a claim runs. A check costs a microsecond."""


class Wakes:
    """The wakes of a worker.

    woken: a wake has arrived that has not led to a claim yet.
    checked_at: monotonic time of the last check of the wake pipe.
    opens_in: seconds until a rate limit lets the next job start, by the last claim. None: no job waits for one.
    """

    def __init__(self, context: ChildContext, in_flight: InFlightClaim, title: Title) -> None:
        self.woken = False
        self.checked_at = 0.0
        self.opens_in: float | None = None
        self._report = context.spec.report
        self._board = context.spec.board
        self._control = context.spec.control
        self._wake = context.wake
        self._in_flight = in_flight
        self._title = title

    @property
    def dismissed(self) -> bool:
        """Whether this worker must exit."""
        return self._wake.dismissed

    def check(self, now: float) -> None:
        """Check the wake pipe for a wake or a dismissal, but not after every job of a few microseconds."""
        if now - self.checked_at > LOOK:
            self.checked_at = now
            if self._wake.look():
                self.woken = True

    def wake_another(self) -> None:
        """Report that more jobs are ready than this worker takes.

        If this worker was woken, the supervisor then wakes another worker.
        """
        if self.woken:
            send(self._report, MoreWork())
            self.woken = False

    def report_opening(self) -> None:
        """Let the supervisor wake a worker when a rate limit lets the next job start."""
        if self.opens_in is not None:
            send(self._report, OpensIn(self.opens_in))
            self.opens_in = None

    def rest(self, epoch: int, longest: float) -> bool:
        """Sleep until a wake, at most `longest` seconds, unless the epoch is no longer `epoch`.

        Return whether this worker was woken.
        """
        woken = False
        self._board.set_idle(idle=True)
        barrier()
        # A worker that was dismissed during the claim gets no further wake.
        if self._control.epoch == epoch and not self._wake.dismissed:
            if not self._control.notified:
                # Otherwise no producer would send a notification: the supervisor believes that this
                # worker is busy.
                send(self._report, WentIdle())
            # Race: after this worker shows itself idle. The supervisor might find no idle worker to wake before.
            self.report_opening()
            self._in_flight.ends.flush()
            self._in_flight.show_phase(Phase.IDLE)
            self._title.show("idle")
            woken = self._wake.rest(longest)
        self._board.set_idle(idle=False)
        return woken

    def pause(self, seconds: float) -> None:
        """Sleep while this worker may not claim. It does not count as idle."""
        self._in_flight.ends.flush()
        if self._wake.wait(seconds):
            self.woken = True
