"""Decides when the gateway may claim, and shows the supervisor whether it waits for jobs.

It reads the control block and writes the status board. `assignment.py` decides for which
Readys a claim is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobherd.workers.gateway import assignment
from jobherd.workers.ipc.memory_barrier import barrier
from jobherd.workers.ipc.pipes import WentIdle, send

if TYPE_CHECKING:
    from jobherd.workers.gateway.actions import Claim
    from jobherd.workers.gateway.claims import Claimed
    from jobherd.workers.gateway.state import State
    from jobherd.workers.process.spec import ChildSpec

PAUSE: Final = (0.2, 5.0)
"""Seconds before the next claim after one without an answer: the first, doubled up to the second."""
RECHECK: Final = 0.2
"""Seconds before a gateway whose supervisor's lease ends soon checks again."""
NEVER: Final = float("inf")


class ClaimTiming:
    """The times of a gateway's claims."""

    def __init__(self, spec: ChildSpec) -> None:
        self._board = spec.board
        self._control = spec.control
        self._report = spec.report
        self._margin = spec.settings.lease / 5
        self._epoch = 0
        """Epoch of the control block before the last claim."""
        self._pause = 0.0
        self._claim_at = 0.0

    def next_claim(self, state: State, unsent: int, now: float) -> Claim | None:
        """Return the claim to make now, or None. Not without a lease of the supervisor: it could be a zombie."""
        if now < self._claim_at:
            return None
        if now >= self._control.lease_deadline - self._margin:
            self._claim_at = now + RECHECK
            return None
        claim = assignment.next_claim(state, unsent, now)
        if claim is not None:
            self._board.set_idle(idle=False)
            self._epoch = self._control.epoch
        return claim

    def note(self, answer: Claimed | None, now: float) -> None:
        """Note the answer to a claim. None: there was none."""
        self._board.count_claim(empty=answer is None or not answer.tasks)
        self._pause = min(self._pause * 2 or PAUSE[0], PAUSE[1]) if answer is None else 0.0
        self._claim_at = now + self._pause

    def note_no_claim(self) -> None:
        """Let the next wake come although no claim follows this one."""
        self._board.count_claim(empty=True)

    def again_at(self, now: float) -> float:
        """Return when to look for a claim that may not be made now."""
        return self._claim_at if self._claim_at > now else NEVER

    def rest(self, state: State, now: float) -> bool:
        """Show whether the gateway waits for jobs. Return whether a wake has come meanwhile.

        Race: no wake may be lost between an empty claim and the rest, as in `claim/wakes.py`.
        """
        self._board.set_held(sum(session.out for session in state.sessions.values()))
        self._board.say_wanted(sum(stream.asked for stream in state.streams.values()))
        idle = assignment.is_idle(state, now)
        self._board.set_idle(idle=idle)
        if not idle:
            return False
        barrier()
        if self._control.epoch != self._epoch:
            self._epoch = self._control.epoch
            return True
        if not self._control.notified:
            # Otherwise no producer would send a notification.
            send(self._report, WentIdle())
        return False
