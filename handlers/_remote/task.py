"""One attempt of a job as a remote handler sees it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from jobherd.handlers._policy.durations import Duration, positive
from jobherd.handlers._policy.names import split_trace
from jobherd.handlers._remote.events import Ref, Stop
from jobherd.handlers._values.payload import decode_payload

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobherd.handlers._remote import messages


class Task:
    """One attempt of a job, for a handler of `Worker`.

    Attributes:
        id: id of the job.
        token: fencing token of the claim. An external system can use it to reject late writes.
        kind: kind of the job.
        queue: queue of the job.
        payload: the payload, decoded from JSON.
        payload_bytes: bytes that were enqueued with the payload, unchanged, or None.
        attempt: number of the attempt, from 1.
        max_attempts: attempts before the job fails permanently.
        crashes: worker processes that died while running the job.
        priority: priority of the job. Lower numbers run first.
        timeout: longest duration of the attempt in seconds, extensions included. None: no limit.
        tenant: tenant of the job, or None.
        webhook: URL that is called when the job reaches its final state, or None.
        trace: trace of the job as it is stored, or None: see `Job.trace`. `trace_headers` has its parts.
        parent_id: id of the parent job, or None.

    Example:
        >>> def handle(task: Task) -> object:
        ...     for page in range(task.payload["pages"]):
        ...         if task.cancelled:
        ...             raise Abandon
        ...         task.extend("1m")
        ...     return {"pages": page}
    """

    def __init__(self, task: messages.Task, extend: Callable[[Ref, float], bool]) -> None:
        self.id = task.id
        self.token = task.claim
        self.kind = task.kind
        self.queue = task.queue
        self.payload: object = None
        self.payload_bytes = task.data or None
        self.attempt = task.attempt
        self.max_attempts = task.max_attempts
        self.crashes = task.crashes
        self.priority = task.priority
        self.timeout = task.timeout_seconds or None
        self._created, self._run = task.created_at_micros, task.run_at_micros
        self.tenant = task.tenant or None
        self.webhook = task.webhook or None
        self.trace = task.traceparent or None
        self.parent_id = task.parent_id or None
        self._payload = task.payload
        self._expires_at = time.monotonic() + task.expires_in_seconds if task.expires_in_seconds else None
        self._extend = extend
        self._stop: Stop | None = None

    @property
    def created_at(self) -> datetime:
        """Timestamp at which the job was enqueued."""
        return datetime.fromtimestamp(self._created / 1_000_000, UTC)

    @property
    def run_at(self) -> datetime:
        """Timestamp at which the job was due."""
        return datetime.fromtimestamp(self._run / 1_000_000, UTC)

    @property
    def traceparent(self) -> str | None:
        """Trace of the job in W3C Trace Context format, or None."""
        return self.trace and self.trace.partition(" ")[0]

    @property
    def trace_headers(self) -> dict[str, str]:
        """Headers that continue the job's trace in a request. Empty without a trace."""
        return split_trace(self.trace)

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop.

        A user canceled the job, the attempt has reached its timeout, or the worker has lost the
        task. The handler is not interrupted: it must check this itself. What it raises after that
        counts as the cancellation or the timeout. If the task is lost, its result is discarded.
        """
        return self._stop is not None

    def extend(self, duration: Duration) -> None:
        """Extend the lease of the task to this duration from now.

        Returns at once. If the task turns out to be lost, `cancelled` becomes True. The lease never
        becomes shorter, and never longer than the job's timeout.

        Args:
            duration: more than 0, such as 60 or "1m".

        Raises:
            ValueError, TypeError: the duration is invalid.
        """
        if not self._extend(self.ref, positive(duration, field="extend")):
            self.stop(Stop.LOST)

    @property
    def ref(self) -> Ref:
        """Job and fencing token."""
        return Ref(self.id, self.token)

    @property
    def stopped(self) -> Stop | None:
        """Why the gateway asked to stop the task, if it did. Not for use in handlers."""
        return self._stop

    def stop(self, why: Stop) -> None:
        """Note that the task must stop. A lost task stays lost. Not for use in handlers."""
        if self._stop is not Stop.LOST:
            self._stop = why

    @property
    def expired(self) -> bool:
        """Whether the task must not be started any more. Not for use in handlers."""
        return self._expires_at is not None and time.monotonic() >= self._expires_at

    def decode(self) -> None:
        """Decode the payload. Raises PayloadError. Not for use in handlers."""
        self.payload = decode_payload(self._payload or b"null")

    def __repr__(self) -> str:
        return f"Task(id={self.id}, kind={self.kind!r}, attempt={self.attempt})"
