"""`Worker` of `jobherd.remote`: runs jobs in threads, through a gateway and without a database.

It does not fork, so it cannot end a handler that hangs. It does not extend leases automatically
either: a handler that runs for longer than the lease calls `task.extend`.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._policy.durations import Duration, positive
from jobherd.handlers._policy.names import KIND, check_whole
from jobherd.handlers._remote import messages
from jobherd.handlers._remote.channels import Tls
from jobherd.handlers._remote.client import Client
from jobherd.handlers._remote.errors import AccessDeniedError, RemoteError
from jobherd.handlers._remote.events import Event, ReadyRejected, ReleaseRequested, ResultRejected, TaskStopped
from jobherd.handlers._remote.reconnect import read_addresses
from jobherd.handlers._remote.slot import Handler, Slot, report_rejected

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from os import PathLike

log = logging.getLogger("jobherd.remote")

CONFIRM_SECONDS: Final = 30.0
"""Longest wait for the confirmation of results before the worker leaves."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Worker:
    """Runs jobs of remote kinds in threads. The process needs no access to the database.

    Args:
        addr: gateways of one database: "HOST:PORT[,HOST:PORT]", "unix:PATH", or a sequence. The
            worker uses one of them, and another one if it fails.
        token: token that the gateway accepts. Default: none, for a client certificate.
        worker_id: name of the worker for people. Default: the name of the token.
        kinds: kinds to run; default all that the token allows. Choose kinds that the workers of
            the database's own supervisors do not run, or queues that they do not serve.
        queues: queues to serve, the most urgent first; default all that the token allows.
        concurrency: number of slots: tasks that run at the same time, each in a thread.
        lease: time that a handler has before it must call `task.extend`, a duration. After it,
            another worker gets the job.
        batch: tasks that a slot asks for at once and runs one after another, 1 to 500. A larger
            batch gives more throughput for short tasks. The lease counts for the whole batch.
        tls: use TLS with the system's certificate authorities; default False.
        ca: file with the gateway's certificate authority, PEM. Implies `tls`.
        cert: file with the client's certificate, PEM. Implies `tls`.
        key: file with the client's private key, PEM.

    Raises:
        ValueError, TypeError: an argument is invalid.

    Example:
        >>> def handle(task: Task) -> object:
        ...     return {"doubled": 2 * task.payload["number"]}
        >>> Worker("gateway.example:9091", token="...", kinds=["math:double"], tls=True).run(handle)  # doctest: +SKIP
    """

    def __init__(
        self,
        addr: str | Sequence[str],
        *,
        token: str | None = None,
        worker_id: str = "",
        kinds: Sequence[str] = (),
        queues: Sequence[str] | None = None,
        concurrency: int = 4,
        lease: Duration = 60.0,
        batch: int = 1,
        tls: bool = False,
        ca: str | PathLike[str] | None = None,
        cert: str | PathLike[str] | None = None,
        key: str | PathLike[str] | None = None,
    ) -> None:
        self._addresses = read_addresses(addr)
        self._token, self._worker_id = token or "", worker_id
        self._kinds, self._queues = _names(kinds, "kinds"), _names(queues or (), "queues")
        self._concurrency = check_whole(concurrency, least=1, field="concurrency")
        self._lease = positive(lease, field="lease")
        self._batch = check_whole(batch, least=1, field="batch")
        self._tls = Tls(tls=tls, ca=ca, cert=cert, key=key)
        self._slots: list[Slot] = []
        self._client: Client | None = None
        self._error: RemoteError | None = None
        # A pipe and not an Event: `close` may be called by a signal handler while `run` holds the
        # lock of the Event.
        self._wake_reads, self._wake_writes = os.pipe()

    def run(self, handler: Handler) -> None:
        """Run jobs until `close`, SIGTERM or SIGINT, then finish the running ones and return.

        While no gateway answers, running handlers continue, results wait, and the worker keeps trying
        to connect. In the main thread it handles SIGTERM and SIGINT. A second signal has its usual
        effect.

        Args:
            handler: called with each `Task`, in several threads at the same time. What it returns
                or raises decides the outcome, as for a handler of `jobherd`: any JSON value,
                `Completed`, `Failed`, `Nack`, `Retry`, `Snooze`, `Abandon`, `Poison`, or any
                exception, which fails the attempt.

        Raises:
            AccessDeniedError: the gateway rejects the token, the certificate, the kinds or the
                queues.
            RejectedError: the gateway rejects something else.
            RuntimeError: the worker has run before.
        """
        if self._client is not None:
            message = "a Worker runs once: make a new one"
            raise RuntimeError(message)
        # Only names: the policies of the kinds stay as their handlers or other workers declare them.
        kinds = [messages.KindPolicy(kind=kind) for kind in self._kinds if KIND.fullmatch(kind)]
        hello = messages.Hello(token=self._token, worker_id=self._worker_id, client=_client_name(), kinds=kinds)
        client = Client(self._addresses, hello, on_event=self._on_event, on_end=self._on_end, tls=self._tls)
        self._client = client
        self._slots = [
            Slot(
                client,
                handler,
                kinds=self._kinds,
                queues=self._queues,
                count=self._batch,
                lease=self._lease,
                name=f"jobherd-slot-{number}",
            )
            for number in range(self._concurrency)
        ]
        with self._signals():
            client.start()
            for slot in self._slots:
                slot.start()
            os.read(self._wake_reads, 1)
            for slot in self._slots:
                slot.stop()
            for slot in self._slots:
                slot.join()
            if not client.finish(0.0 if self._error else CONFIRM_SECONDS):
                log.warning("exited with results that no gateway has confirmed; their jobs are retried")
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Ask `run` to finish: no more tasks, running ones finish and are reported. Returns at once.

        Tasks of a batch that have not started are released. Safe to call from any thread and from
        a signal handler, and more than once.

        Example:
            >>> threading.Timer(3600, worker.close).start()  # doctest: +SKIP
        """
        os.write(self._wake_writes, b".")

    def __del__(self) -> None:
        for end in ("_wake_reads", "_wake_writes"):
            if end in self.__dict__:
                os.close(self.__dict__.pop(end))

    def _on_event(self, event: Event) -> None:
        match event:
            case TaskStopped(ref=ref, why=why):
                any(slot.stop_task(ref, why) for slot in self._slots)
            case ReleaseRequested():
                for slot in self._slots:
                    slot.release()
            case ResultRejected() if self._client is not None:
                report_rejected(self._client, event)
            case ReadyRejected(message=message):
                self._error = self._error or AccessDeniedError(f"the gateway allows none of these jobs: {message}")
                self.close()

    def _on_end(self, error: RemoteError | None) -> None:
        self._error = self._error or error
        if error is not None:
            for slot in self._slots:
                slot.lose_tasks()
            self.close()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Close the worker at the first signal. The second one has its usual effect."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[int, Any] = {number: signal.getsignal(number) for number in _SIGNALS}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        def stop(number: int, _frame: object) -> None:
            restore()
            log.info("finishing  signal=%s", signal.Signals(number).name)
            self.close()

        for number in _SIGNALS:
            signal.signal(number, stop)
        try:
            yield
        finally:
            restore()


def _names(given: Sequence[str], field: str) -> list[str]:
    if isinstance(given, str):
        message = f"{field} must be a list of names, not a text: write [{given!r}]"
        raise TypeError(message)
    return list(given)


def _client_name() -> str:
    try:
        return f"jobherd {version('jobherd')} (Python)"
    except PackageNotFoundError:  # a checkout
        return "jobherd (Python)"
