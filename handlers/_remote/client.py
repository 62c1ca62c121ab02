"""The stream between a remote worker and its gateway, for a process with threads.

`ClientState` decides what is sent; this module moves the messages. One thread reads, and connects
again after a break. A thread of grpc writes: it takes the next message whenever the stream accepts
one, so messages wait as state and not in a queue. Nothing here runs the handlers of users.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import grpc

from jobherd.handlers._remote import messages
from jobherd.handlers._remote.channels import MESSAGE_BYTES, Tls
from jobherd.handlers._remote.client_state import ClientState
from jobherd.handlers._remote.errors import RemoteError, Verdict, error_of, judge_stream
from jobherd.handlers._remote.events import Event, ReadyAnswered
from jobherd.handlers._remote.grpc_methods import client_call
from jobherd.handlers._remote.reconnect import Reconnect
from jobherd.handlers._remote.schema import WORKER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jobherd.handlers._remote.events import Ref

log = logging.getLogger("jobherd.remote")

HELLO_SECONDS: Final = 10.0
"""Time for the answer to Hello. Then the next gateway is tried."""
LEAVE_SECONDS: Final = 2.0
"""Time for the gateway to end a stream that the client has closed."""


class Client:
    """One session of a worker at the gateways of one database.

    Args:
        addresses: the gateways.
        hello: what each Hello contains besides the session.
        on_event: called in the reading thread for each event except answers to Readys.
        on_end: called in the reading thread when the client has stopped, with the error if it gave
            up.
        tls: TLS and certificates.
    """

    make_state = ClientState

    def __init__(
        self,
        addresses: Sequence[str],
        hello: messages.Hello,
        *,
        on_event: Callable[[Event], None],
        on_end: Callable[[RemoteError | None], None],
        tls: Tls | None = None,
    ) -> None:
        hello.max_message_bytes = MESSAGE_BYTES
        self._state = self.make_state(hello)
        self._reconnect = Reconnect(addresses)
        self._tls = tls or Tls()
        self._on_event, self._on_end = on_event, on_end
        self._answers: dict[int, Callable[[Sequence[messages.Task]], None]] = {}
        self._changed = threading.Condition()
        """Guards everything. Notified when the writer may have something to send."""
        self._call: Any = None
        """The present stream."""
        self._number = 0
        """Number of the present stream. The writer of an earlier one ends."""
        self._sleeps_until = 0.0
        """When the writer checks again without a notification."""
        self._ending = self._ended = False
        self._outage = False
        self._reader = threading.Thread(target=self._run, name="jobherd-gateway", daemon=True)

    def start(self) -> None:
        """Connect, and stay connected."""
        self._reader.start()

    def ask(
        self,
        answer: Callable[[Sequence[messages.Task]], None],
        *,
        kinds: Sequence[str] = (),
        queues: Sequence[str] = (),
        count: int = 1,
        lease: float = 0.0,
        result: messages.Result | None = None,
    ) -> int:
        """Ask for tasks. Returns the number of the Ready.

        Args:
            answer: called once with the tasks, in another thread. Without tasks: the Ready was
                taken back, or the gateway drains.
            kinds: kinds to get. Empty: all that the token allows.
            queues: queues, the most urgent first. Empty: all that the token allows.
            count: most tasks, 1 to 500.
            lease: seconds. 0: as the gateway decides.
            result: a result to report, in the same message if possible.
        """
        with self._changed:
            if result is not None:
                self._report(result)
            number = self._state.ask(kinds=kinds, queues=queues, count=count, lease=lease)
            self._answers[number] = answer
            self._changed.notify_all()
        return number

    def take_back(self, number: int) -> None:
        """Take a Ready back. It is answered all the same."""
        with self._changed:
            events = self._state.take_back(number)
            self._changed.notify_all()
        self._deliver(events)

    def report(self, result: messages.Result) -> None:
        """Report a result. It is discarded if the task is lost."""
        with self._changed:
            self._report(result)
            # Cost: a notification switches threads. In a large batch, most results wait anyway.
            if self._state.has_due_results or self._state.wake_at() < self._sleeps_until:
                self._changed.notify_all()

    def _report(self, result: messages.Result) -> None:
        if not self._state.report(result, time.monotonic()):
            log.warning("result discarded, the task is lost  job=%d", result.task_id)

    def extend(self, ref: Ref, seconds: float) -> bool:
        """Extend the lease of a task. Returns False if the task is lost."""
        with self._changed:
            held = self._state.extend(ref, seconds)
            self._changed.notify_all()
        return held

    def release(self, claim: int, behind: int = 0) -> None:
        """Release the tasks of a claim that have not started: after a task, or all."""
        with self._changed:
            self._state.release(claim, behind)
            self._changed.notify_all()

    def finish(self, timeout: float) -> bool:
        """Wait until no task is held and no Ready waits, then leave.

        Returns False if a result is not confirmed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ended or (self._state.is_settled and not self._answers), timeout)
            settled = self._state.is_settled
            self._ending = True
            self._changed.notify_all()
        self._reader.join(LEAVE_SECONDS)
        with self._changed:
            if self._call is not None:
                self._call.cancel()
        self._reader.join()
        return settled

    # The reading thread.

    def _run(self) -> None:
        error: RemoteError | None = None
        try:
            while not self._ending:
                delay = self._stream()
                with self._changed:
                    self._changed.wait_for(lambda: self._ending, delay)
        except RemoteError as problem:
            error = problem
        finally:
            with self._changed:
                self._ending = self._ended = True
                unanswered, self._answers = self._answers, {}
                self._changed.notify_all()
            for answer in unanswered.values():
                answer(())
            self._on_end(error)

    def _stream(self) -> float:
        """Connect, and read until the stream ends. Returns the delay before the next one.

        Raises:
            RemoteError: no later stream can do better.
        """
        address, resumed = self._reconnect.address, bool(self._state.session)
        opened_at: float | None = None
        status, details = "UNAVAILABLE", "the gateway has ended the stream"
        with self._tls.open_channel(address) as channel:
            with self._changed:
                call = client_call(channel, WORKER.methods["Work"])(self._requests(self._number))
                self._call = call
            try:
                for response in call:
                    now = time.monotonic()
                    with self._changed:
                        events = self._state.on_response(response, now)
                        self._changed.notify_all()
                    if opened_at is None and self._state.is_open:
                        opened_at = now
                        log.info("connected to gateway %s  session=%s", address, self._state.session)
                        self._outage = False
                    self._deliver(events)
            except grpc.RpcError as problem:
                end: Any = problem
                status, details = end.code().name, end.details() or ""
            with self._changed:
                self._call = None
                self._number += 1
                events = self._state.on_break()
                self._changed.notify_all()
        self._deliver(events)
        return self._after(address, status, details, resumed=resumed, opened_at=opened_at)

    def _after(self, address: str, status: str, details: str, *, resumed: bool, opened_at: float | None) -> float:
        if self._ending:
            return 0.0
        verdict = judge_stream(status, resumed=resumed, opened=opened_at is not None)
        if verdict is Verdict.GIVE_UP:
            raise error_of(status, details, address)
        if verdict is Verdict.NEW_SESSION:
            log.warning("gateway %s does not resume the session: %s", address, details)
            with self._changed:
                events = self._state.on_session_over()
            self._deliver(events)
        elif not self._outage:
            # Once for each outage: a gateway can be away for hours.
            log.warning("gateway %s is not connected, trying again: %s %s", address, status, details)
            self._outage = True
        return self._reconnect.failed(0.0 if opened_at is None else time.monotonic() - opened_at)

    def _deliver(self, events: Sequence[Event]) -> None:
        """Pass events on. Not under the lock: what receives them can call this client."""
        for event in events:
            if isinstance(event, ReadyAnswered):
                with self._changed:
                    answer = self._answers.pop(event.number, None)
                if answer is not None:
                    answer(event.tasks)
            else:
                self._on_event(event)

    # The thread of grpc that writes.

    def _requests(self, number: int) -> Iterator[messages.WorkRequest]:
        with self._changed:
            if self._number != number:
                return
            hello = self._state.hello()
        yield messages.WorkRequest(hello=hello)
        hello_until = time.monotonic() + HELLO_SECONDS
        while True:
            with self._changed:
                request = self._next_request(number, hello_until)
            if request is None:
                return
            yield request

    def _next_request(self, number: int, hello_until: float) -> messages.WorkRequest | None:
        """Wait for the next message of a stream. None: there is none any more."""
        state = self._state
        while self._number == number:
            now = time.monotonic()
            if not state.is_open and now >= hello_until:
                self._call.cancel()
                return None
            request = state.next_request(now)
            if request is not None:
                return request
            if self._ending:
                return None
            if state.draining and state.is_settled:
                self._call.cancel()  # the next stream goes to another gateway
                return None
            wake_at = state.wake_at() if state.is_open else hello_until
            self._sleeps_until = wake_at
            self._changed.wait(min(wake_at - now, threading.TIMEOUT_MAX))
        return None
