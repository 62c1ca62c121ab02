"""The stream of an uplink: that of every remote worker, which also reports the state of its session.

It loads grpc.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobherd.handlers._remote.client import Client
from jobherd.workers.uplink.session_news import SessionNews
from jobherd.workers.uplink.session_state import SessionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from jobherd.handlers._remote import messages
    from jobherd.handlers._remote.channels import Tls
    from jobherd.handlers._remote.errors import RemoteError
    from jobherd.handlers._remote.events import Event, Ref


class GatewayClient(Client):
    """One session. For the other arguments see `Client`.

    on_news: called in the reading thread when the session or its stream has changed.
    """

    _state: SessionState
    make_state = SessionState

    def __init__(
        self,
        addresses: Sequence[str],
        hello: messages.Hello,
        *,
        on_event: Callable[[Event], None],
        on_end: Callable[[RemoteError | None], None],
        on_news: Callable[[SessionNews], None],
        tls: Tls,
    ) -> None:
        super().__init__(addresses, hello, on_event=on_event, on_end=on_end, tls=tls)
        self._on_news = on_news
        self._news = SessionNews()
        self._trouble = ""

    def resume(self, session: str, held: Iterable[Ref]) -> None:
        """Continue the session of a process that has died, before `start`. held: its tasks."""
        self._state.restore(session, held)

    def tell_progress(self, report: messages.Progress) -> None:
        """Report how far an open task is."""
        with self._changed:
            self._state.tell_progress(report)
            self._changed.notify_all()

    def declare(self, kinds: Iterable[messages.KindPolicy]) -> None:
        """Replace what Hello declares about kinds, and resume the session with it."""
        with self._changed:
            self._state.declare(kinds)
            if self._call is not None:
                self._outage = True  # Intended, so not worth a warning.
                self._call.cancel()

    def beat(self) -> None:
        """Find out now how long the session is safe."""
        with self._changed:
            self._state.beat()
            self._changed.notify_all()

    def _deliver(self, events: Sequence[Event]) -> None:
        super()._deliver(events)
        self._tell_news()

    def _after(self, address: str, status: str, details: str, *, resumed: bool, opened_at: float | None) -> float:
        self._trouble = f"{address}: {details or status}"
        self._tell_news()
        return super()._after(address, status, details, resumed=resumed, opened_at=opened_at)

    def _tell_news(self) -> None:
        with self._changed:
            state = self._state
            if state.is_open:
                self._trouble = ""
            news = SessionNews(state.session, state.is_open, state.session_until, self._trouble)
        if news != self._news and (news.is_open or news.trouble):
            self._news = news
            self._on_news(news)
