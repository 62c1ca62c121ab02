"""Identifies the running job: fields of its log lines, and the parent of the jobs that it enqueues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobherd.handlers._enqueue.origin import Origin
from jobherd.handlers._enqueue.tracing import ids_of

if TYPE_CHECKING:
    from collections.abc import Container

    from jobherd.workers.database.connection import Session
    from jobherd.workers.run.executor import Executor
    from jobherd.workers.run.hooks import HookCaller


class RunningJob:
    """The running job of a worker. kinds: of queue jobs, without table stores."""

    def __init__(
        self, executor: Executor, session: Session, hooks: HookCaller, schema: str, kinds: Container[str]
    ) -> None:
        self._executor = executor
        self._session = session
        self._hooks = hooks
        self._schema = schema
        self._kinds = kinds
        self._known: Origin | None = None

    def ids(self) -> dict[str, object]:
        """Return the fields that identify the running job in a log line."""
        running = self._executor.running
        if running is None:
            return {}
        ids: dict[str, object] = {"job": running.id, "kind": running.kind, "attempt": running.attempts}
        spans = self._hooks.spans
        if spans is not None and (own := spans.ids(running.id)):
            return ids | own
        origin = None if running.extras is None else self.origin()
        return ids if origin is None else ids | ids_of(origin.traceparent)

    def origin(self) -> Origin | None:
        """Return the running job, as the parent of the jobs that it enqueues.

        A record of an application's own table is not a job.
        """
        running = self._executor.running
        if running is None or running.kind not in self._kinds:
            return None
        if self._known is None or self._known.job != running.id:  # Read once, however many jobs the job enqueues.
            self._known = Origin(running.id, running.traceparent(), self._session.database, self._schema)
        return self._known
