"""Records the jobs that a test enqueues, without a database."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, NoReturn

from jobherd import sql
from jobherd.handlers._enqueue.client import Client
from jobherd.handlers._enqueue.default import configure, keeping_default
from jobherd.handlers._testing.attempt import arun_payload, run_payload
from jobherd.handlers._testing.child_jobs import WatchedSteps
from jobherd.handlers._testing.enqueued import Watched
from jobherd.handlers._testing.steps import InMemory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jobherd.handlers._define.handler import AnyHandler
    from jobherd.handlers._enqueue.bulk import Chunk
    from jobherd.handlers._testing.ran import Ran


class Recorder(Watched):
    """The jobs that were enqueued inside `recorder`, without a database.

    Nothing is undone if a handler raises.
    """

    def __init__(self) -> None:
        super().__init__()
        self.client = _Recording(self)

    def _attempt(self, handler: AnyHandler, payload: object, **fields: Any) -> Ran:
        return run_payload(handler, payload, **self._host(handler, payload, fields))

    async def _aattempt(self, handler: AnyHandler, payload: object, **fields: Any) -> Ran:
        return await arun_payload(handler, payload, **self._host(handler, payload, fields))

    def _host(self, handler: AnyHandler, payload: object, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a job, with the host of its steps."""
        if handler.policy.batch is not None:
            return fields
        host = InMemory(None, handler.policy, None)
        host.steps = WatchedSteps(self, self.records.of(handler, payload, fields), handler.policy)
        return fields | {"transaction_host": host}


class _Recording(Client):
    """Client of a recorder: it numbers and records jobs, and sends nothing."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(schema=sql.SCHEMA)
        self._recorder = recorder
        self._ids = itertools.count(1)

    def put(self, chunks: Iterable[Chunk]) -> list[int]:
        taken = list(chunks)
        ids = [next(self._ids) for chunk in taken for _ in chunk.texts]
        self._recorder.note(ids, taken)
        return ids

    def _session(self, within: float | None = None) -> NoReturn:  # noqa: ARG002  # as the client's own
        message = "a recorder has no database: use `inline`, or the fixture jobherd_inline"
        raise RuntimeError(message)


@contextlib.contextmanager
def recorder() -> Iterator[Recorder]:
    """Record enqueued jobs, without a database. Each payload is checked as usual.

    Inside the block, `Handler.enqueue` without client or connection goes to the recorder. A job
    enqueued with its own client or connection does not.

    Example:
        >>> from jobherd import handler
        >>> @handler("demo:receipt")
        ... def receipt(order_id: int) -> None: ...
        >>> with recorder() as jobs:
        ...     _ = receipt.enqueue(order_id=7)
        ...     jobs.assert_enqueued(receipt, order_id=7).id
        1
    """
    with keeping_default():
        watching = Recorder()
        configure(client=watching.client)
        yield watching
