"""What an uplink remembers of its session, beyond what every remote worker does. Pure.

It can continue the session of an uplink that has died, declare other kinds while it lives, and pass
on how far jobs are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobherd.handlers._remote import messages
from jobherd.handlers._remote.client_state import ClientState
from jobherd.handlers._remote.events import Ref

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jobherd.handlers._remote.events import Event


class SessionState(ClientState):
    """The state of one session. hello: what each Hello contains besides the session."""

    def __init__(self, hello: messages.Hello) -> None:
        super().__init__(hello)
        self._progress: dict[Ref, messages.Progress] = {}
        """The latest reports that are not sent."""

    def restore(self, session: str, held: Iterable[Ref]) -> None:
        """Continue a session, before the first stream. held: its tasks."""
        self.session = session
        for ref in held:
            self._tasks.add(ref)

    def declare(self, kinds: Iterable[messages.KindPolicy]) -> None:
        """Replace what is declared about kinds, from the next stream on."""
        del self._hello.kinds[:]
        self._hello.kinds.extend(kinds)

    def beat(self) -> None:
        """Send a heartbeat soon: its answer tells how long the session is safe."""
        self._upkeep.beat_now()

    def tell_progress(self, report: messages.Progress) -> None:
        """Report how far an open task is. A report that was not sent is lost with the stream."""
        ref = Ref(report.task.task_id, report.task.claim)
        if self._tasks.is_open(ref):
            self._progress[ref] = report

    def on_break(self) -> list[Event]:
        self._progress.clear()
        return super().on_break()

    def next_request(self, now: float) -> messages.WorkRequest | None:
        if self.is_open and self._progress:
            # Order: before the result of the same task, after which the gateway ignores it.
            return messages.WorkRequest(progress=self._progress.pop(next(iter(self._progress))))
        return super().next_request(now)
