"""The life of the uplink: it listens, connects to a gateway, passes on, and ends after the workers.

One event loop in the main thread; the threads of the stream only leave functions for it. What the
messages mean is decided in `router.py`.

grpc must not be imported before `run` has set the environment: it reads it when it is loaded.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._remote import messages as m
from jobherd.workers.ipc.current_work import CurrentWork, Phase
from jobherd.workers.ipc.pipes import EXIT_HANDLERS, EXIT_REQUESTED, Problem, Ready, send
from jobherd.workers.process.environment import GRPC_ENVIRONMENT
from jobherd.workers.remote import client as producers
from jobherd.workers.remote import connection as workers
from jobherd.workers.remote.held_file import read_held
from jobherd.workers.uplink.parent_link import ParentLink
from jobherd.workers.uplink.progress import ProgressReports
from jobherd.workers.uplink.router import Router
from jobherd.workers.uplink.sockets import listen
from jobherd.workers.uplink.worker_link import WorkerLink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from jobherd.handlers._remote.errors import RemoteError
    from jobherd.workers.process.context import ChildContext
    from jobherd.workers.process.spec import UplinkSettings
    from jobherd.workers.uplink.session_news import SessionNews

_log = logging.getLogger("jobherd.uplink")

PARENT: Final = "parent"
"""Name of the supervisor's socket in the folder."""
REPORTING: Final = 5.0
"""Seconds to examine a process that was ended and to report its job."""
KINDS: Final = "kinds"
"""Name of the file in the folder with what workers have declared, for the next uplink."""
LAST_WORDS: Final = 0.8
"""Seconds for workers whose supervisor is dead to release their jobs. After a second, each of them
is killed.
"""


def run(context: ChildContext) -> int:
    """Serve until dismissed, and return the exit code."""
    os.environ.update(GRPC_ENVIRONMENT)
    settings = context.spec.settings.uplink
    assert settings is not None, "there is an uplink only if it has its settings"
    return Uplink(context, settings).live()


class Uplink:
    """The process."""

    def __init__(self, context: ChildContext, settings: UplinkSettings) -> None:
        # They load grpc.
        from jobherd.handlers._remote.channels import Tls  # noqa: PLC0415
        from jobherd.workers.uplink.gateway_client import GatewayClient  # noqa: PLC0415
        from jobherd.workers.uplink.producing import Producing  # noqa: PLC0415

        self._spec, self._wake, self._title = context.spec, context.wake, context.title
        self._selector = selectors.DefaultSelector()
        self._posted: deque[Callable[[], None]] = deque()
        self._wake_reads, self._wake_writes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._settings = settings
        self._session: str | None = None
        """The session to resume. None: the supervisor has not said it."""
        self._is_connected = False
        self._told: dict[str, object] = {}
        """What the supervisor knows of the session."""
        self._error: str | None = None
        """Why there can be no stream."""
        self._ended = False
        token = self._read_token(settings.token_file)
        tls = Tls(tls=settings.tls, ca=settings.ca, cert=settings.cert, key=settings.key)
        # The stop sequence has three stages, and the row must say how a job was ended.
        stopping = 3 * self._spec.settings.grace + REPORTING
        hello = m.Hello(token=token, worker_id=settings.worker_id, client="jobherd work", stopping_seconds=stopping)
        self._client = GatewayClient(
            settings.addresses,
            hello,
            on_event=lambda event: self._post(lambda: self._router.on_event(event)),
            on_news=lambda news: self._post(lambda: self._on_news(news)),
            on_end=lambda error: self._post(lambda: self._on_end(error)),
            tls=tls,
        )
        stream = _Stream(self._client, self._post, settings.folder / KINDS)
        self._parent = ParentLink(self._begin, self._carry_out)
        self._router = Router(stream, self._parent.tell, stopping=stopping)
        self._router.kinds = stream.restore()
        self._progress = ProgressReports(context.spec.boards, self._client.tell_progress)
        self._producing = Producing(settings.addresses, token=token, tls=tls, post=self._post)

    def _read_token(self, path: Path | None) -> str:
        try:
            return "" if path is None else path.read_text().strip()
        except (OSError, UnicodeDecodeError) as problem:
            self._error, self._ended = f"cannot read the token in {path}: {problem}", True
            return ""

    def live(self) -> int:
        """Serve until dismissed, and return the exit code."""
        spec, folder = self._spec, self._settings.folder
        for fd in (*self._wake.files[:2], self._wake_reads):
            self._selector.register(fd, selectors.EVENT_READ, self._on_wake)
        listen(self._selector, folder / workers.NAME, lambda connection: WorkerLink(connection, self._router))
        listen(self._selector, folder / producers.NAME, self._producing.accept)
        listen(self._selector, folder / PARENT, self._parent.accept)
        spec.board.say(CurrentWork(Phase.IDLE))
        send(spec.report, Ready(spec.incarnation, 0))
        self._title("connects")
        while not self._wake.dismissed and not self._ended:
            self._turn()
        if self._error is not None:
            return self._give_up(self._error)
        return self._leave()

    def _turn(self, longest: float = float("inf")) -> None:
        now = time.monotonic()
        self._start_stream()
        self._router.extend(now)
        self._progress.step(now, busy=self._router.is_busy)
        if self._router.rejected:
            self._error, self._ended = self._router.rejected, True
            return
        left = min(longest, min(self._router.wake_at(), self._progress.wake_at(busy=self._router.is_busy)) - now)
        for key, events in self._selector.select(None if left == float("inf") else max(0.0, left)):
            key.data(events)
        while self._posted:
            self._posted.popleft()()
        self._spec.board.say_streams("work", int(self._is_connected))
        self._spec.board.say_wanted(self._router.waiting)

    # -- the stream

    def _begin(self, session: str, living: set[int]) -> None:
        if self._session is not None:
            return
        self._session = session
        for child in living - self._router.workers:
            self._router.restore(child, read_held(self._settings.folder, child), time.monotonic())

    def _start_stream(self) -> None:
        """Open the stream once it is known what workers hold: a gateway releases what Hello does not name."""
        router = self._router
        if router.has_started or self._session is None or not router.kinds:
            return
        self._client.resume(self._session, router.held())
        router.start()
        self._client.start()

    def _on_news(self, news: SessionNews) -> None:
        self._spec.control.lease_deadline = news.until
        told = {"event": "session", "connected": news.is_open, "session": news.session, "trouble": news.trouble}
        if told == self._told:
            return
        if news.is_open:
            self._client.beat()  # Its answer is the lease.
        self._told, self._is_connected = told, news.is_open
        self._title("connected" if news.is_open else "connects")
        self._spec.board.set_database(connected=news.is_open)
        self._parent.tell(told)

    def _on_end(self, error: RemoteError | None) -> None:
        self._ended = True
        self._error = None if error is None else str(error)

    # -- the supervisor

    def _carry_out(self, name: str, parameters: Mapping[str, Any], answer: Callable[[Any], None]) -> bool:
        return self._router.carry_out(name, parameters, answer)

    # -- the loop

    def _post(self, function: Callable[[], None]) -> None:
        self._posted.append(function)
        try:
            os.write(self._wake_writes, b".")
        except BlockingIOError:
            pass  # It is woken already.

    def _on_wake(self, _events: int) -> None:
        self._wake.look()
        try:
            os.read(self._wake_reads, 65536)
        except BlockingIOError:
            pass

    # -- the end

    def _leave(self) -> int:
        """Wait until every result is confirmed, and end the session's stream."""
        self._spec.board.say(CurrentWork(Phase.LEAVING))
        self._title("leaves")
        signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_REQUESTED))
        router = self._router
        until = time.monotonic() + (LAST_WORDS if self._wake.orphaned else self._spec.settings.drain_timeout)
        router.stop_asking()
        while not self._ended and (left := until - time.monotonic()) > 0:
            if router.is_settled and not (self._wake.orphaned and router.workers):
                break
            self._turn(left)
        self._producing.close()
        if router.has_started and not self._client.finish(0.0):
            _log.warning("exited with results that no gateway has confirmed; their jobs are retried")
        return EXIT_REQUESTED

    def _give_up(self, error: str) -> int:
        """No stream is possible: say why, and exit."""
        self._parent.tell({"event": "rejected", "error": error})
        send(self._spec.report, Problem(error))
        return EXIT_HANDLERS


class _Stream:
    """The stream as the router uses it: answers are delivered in the event loop. kinds: a file."""

    def __init__(self, client: Any, post: Callable[[Callable[[], None]], None], kinds: Path) -> None:
        self._client, self._post, self._kinds = client, post, kinds
        self.take_back, self.report, self.extend = client.take_back, client.report, client.extend
        self.tell_progress, self.release = client.tell_progress, client.release

    def restore(self) -> dict[str, m.KindPolicy]:
        """Declare what an earlier uplink has declared, and return it."""
        try:
            kinds = m.Hello.FromString(self._kinds.read_bytes()).kinds
        except FileNotFoundError:
            return {}
        self._client.declare(kinds)
        return {policy.kind: policy for policy in kinds}

    def declare(self, kinds: Sequence[m.KindPolicy]) -> None:
        """Replace what is declared about kinds."""
        fresh = self._kinds.with_suffix(".new")
        fresh.write_bytes(m.Hello(kinds=kinds).SerializeToString())
        fresh.replace(self._kinds)
        self._client.declare(kinds)

    def ask(
        self,
        answer: Callable[[Sequence[m.Task], float], None],
        *,
        kinds: Sequence[str],
        queues: Sequence[str],
        count: int,
        lease: float,
    ) -> int:
        """Ask for tasks."""

        def later(tasks: Sequence[m.Task]) -> None:
            self._post(lambda: answer(tasks, time.monotonic()))

        number: int = self._client.ask(later, kinds=kinds, queues=queues, count=count, lease=lease)
        return number
