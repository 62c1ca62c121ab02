"""Decides which heartbeats a remote worker sends, and until when its session cannot have expired. No I/O.

A heartbeat extends the tasks for which the worker has asked. If there are none, a heartbeat without
tasks goes out each third of the session's lease: it shows that the worker is alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobherd.handlers._remote import messages

if TYPE_CHECKING:
    from jobherd.handlers._remote.events import Ref
    from jobherd.handlers._remote.held_tasks import HeldTasks

LEAST_SECONDS: Final = 0.1
"""Shortest time between two heartbeats without tasks. With a lease near 0, a client would send them without end."""


class LeaseUpkeep:
    """Extensions that are not confirmed, and the session's lease."""

    def __init__(self) -> None:
        self.beat_at = float("inf")
        """When the next heartbeat without tasks is due."""
        self.session_until = 0.0
        self._every = float("inf")
        self._extensions: dict[Ref, float] = {}
        self._unanswered: dict[int, tuple[float, dict[Ref, float]]] = {}
        """By number: when a heartbeat was sent, and its extensions."""
        self._number = 0

    def extend(self, ref: Ref, seconds: float) -> None:
        """Extend a task with the next heartbeat. The last extension counts."""
        self._extensions[ref] = seconds

    def beat_now(self) -> None:
        """Make a heartbeat due."""
        self.beat_at = float("-inf")

    def on_open(self, session_seconds: float, now: float) -> None:
        """A stream is open. Its gateway has just renewed the session."""
        self._every = max(session_seconds / 3, LEAST_SECONDS) if session_seconds > 0 else float("inf")
        self.beat_at = now + self._every

    def on_break(self, tasks: HeldTasks) -> None:
        """Keep the extensions without an answer for the next stream."""
        kept = {ref: seconds for _, part in self._unanswered.values() for ref, seconds in part.items()}
        self._extensions = {ref: sec for ref, sec in (kept | self._extensions).items() if tasks.is_open(ref)}
        self._unanswered.clear()

    def on_ack(self, number: int, session_seconds: float) -> None:
        """A heartbeat is answered. The session's lease counts from when the heartbeat was sent."""
        answered = self._unanswered.pop(number, None)
        if answered is not None:
            self.session_until = max(self.session_until, answered[0] + session_seconds)

    def next_heartbeat(self, now: float) -> messages.Heartbeat | None:
        """Return the heartbeat to send now. All tasks of one heartbeat get the same extension."""
        if not self._extensions and now < self.beat_at:
            return None
        seconds = next(iter(self._extensions.values()), 0.0)
        part = {ref: each for ref, each in self._extensions.items() if each == seconds}
        for ref in part:
            del self._extensions[ref]
        self._number += 1
        self._unanswered[self._number] = (now, part)
        self.beat_at = now + self._every
        tasks = [messages.TaskRef(task_id=ref.task, claim=ref.claim) for ref in part]
        return messages.Heartbeat(number=self._number, tasks=tasks, extend_seconds=seconds)
