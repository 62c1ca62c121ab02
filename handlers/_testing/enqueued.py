"""Records, checks and runs jobs that a test enqueues.

They are in a transaction that is rolled back, or in no database at all.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from jobherd.handlers._define.binding import WHOLE, BindingError
from jobherd.handlers._policy.durations import at_least_zero
from jobherd.handlers._run.job import EXTRAS
from jobherd.handlers._run.unrunnable import unknown_kind
from jobherd.handlers._testing.ran import Ran, refuse_loop
from jobherd.handlers._testing.records import Records
from jobherd.handlers._values.payload import decode_payload

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from datetime import datetime

    from jobherd.handlers._define.handler import AnyHandler, Handler
    from jobherd.handlers._enqueue.bulk import Chunk
    from jobherd.handlers._enqueue.client import Client
    from jobherd.handlers._policy.durations import Duration

P = ParamSpec("P")
C = ParamSpec("C")
R = TypeVar("R")


@dataclass(slots=True)
class Enqueued:
    """A job that was enqueued during a test."""

    id: int
    kind: str
    payload: object
    """Payload as JSON; `enqueued` returns the handler's types."""
    options: dict[str, Any]
    attempts: int = 0
    over: bool = False
    """Whether it is in a final state."""
    ran: list[Ran] = field(default_factory=list)
    """Results of its attempts so far."""
    due: float = 0.0
    """Seconds from the start of the test until the job is due. A child job counts from when its
    parent job was due."""
    round: int = 1
    """1 for a job that the test enqueued, 2 for its child jobs, and so on."""
    gathers: list[Enqueued] = field(default_factory=list, repr=False)
    """Child jobs for which it is suspended."""
    suspensions: int = 0
    """How often it was suspended for them."""


class Watched:
    """The jobs that a test enqueued, in order, and methods to check and run them.

    Attributes:
        jobs: the jobs enqueued so far.
        client: client that enqueues by kind.
    """

    client: Client

    def __init__(self) -> None:
        self.jobs: list[Enqueued] = []
        self._running: Enqueued | None = None
        self._touched: list[Enqueued] = []
        self._now = 0.0
        self.records = Records()

    def advance(self, duration: Duration) -> None:
        """Let time pass for delayed jobs: the next `drain` runs those that are due by then.

        The clock of the handlers is unchanged.

        Args:
            duration: a duration, from the last `advance` or the start of the test.

        Example:
            >>> jobs.advance("1h")  # doctest: +SKIP
        """
        self._now += at_least_zero(duration, field="duration")

    def enqueued(self, kind: str | AnyHandler) -> list[object]:
        """Return the payloads of all enqueued jobs of a kind, in order.

        Args:
            kind: a handler, for payloads in the types of its annotations, such as
                `Decimal("3.00")`; or a kind's name, for payloads as JSON.

        Example:
            >>> assert jobs.enqueued(receipt) == [{"order_id": 7}]  # doctest: +SKIP
        """
        name = kind if isinstance(kind, str) else kind.kind
        return [_typed(kind, job.payload) for job in self.jobs if job.kind == name]

    def assert_enqueued(self, kind: str | AnyHandler, /, **payload: object) -> Enqueued:
        """Return the first job of a kind whose payload has these values.

        Args:
            kind: as in `enqueued`.
            payload: parameters to compare. Others are ignored.

        Raises:
            AssertionError: there is no such job. The message lists the jobs of the kind.

        Example:
            >>> jobs.assert_enqueued(receipt, order_id=7)  # doctest: +SKIP
        """
        name = kind if isinstance(kind, str) else kind.kind
        alike = [job for job in self.jobs if job.kind == name]
        for job in alike:
            found = _typed(kind, job.payload)
            found = found if isinstance(found, dict) and not _is_whole(kind) else {WHOLE: found}
            if all(key in found and found[key] == value for key, value in payload.items()):
                return job
        others = (
            ", ".join(repr(_typed(kind, job.payload)) for job in alike[:10])
            or f"none of {name!r}, of others {len(self.jobs)}"
        )
        message = f"no job of {name!r} was enqueued with {payload!r}; there are: {others}"
        raise AssertionError(message)

    def run(self, handler: Handler[P, C, R], /, *args: P.args, **kwargs: P.kwargs) -> Ran:
        """Run a handler once, like `jobherd.testing.run`, and record the jobs that it enqueues."""
        data = handler.split_bytes(args, kwargs)[0]
        payload = handler.payload(*args, **kwargs)
        return self.records.ended(handler, payload, self._attempt(handler, payload, payload_bytes=data))

    async def arun(self, handler: Handler[P, C, R], /, *args: P.args, **kwargs: P.kwargs) -> Ran:
        """`run` for a test inside an event loop."""
        data = handler.split_bytes(args, kwargs)[0]
        payload = handler.payload(*args, **kwargs)
        return self.records.ended(handler, payload, await self._aattempt(handler, payload, payload_bytes=data))

    def drain(
        self,
        handlers: Iterable[AnyHandler],
        *,
        attempts: int = 1,
        due: Duration | None = 0,
        rounds: int | None = None,
        most: int = 1000,
    ) -> list[Enqueued]:
        """Run the due jobs and their child jobs until none is left.

        Return the jobs that ran, in that order.

        Args:
            handlers: handlers that run the jobs.
            attempts: most attempts of each job in this call, default 1. Backoff between attempts is
                skipped.
            due: a duration. Jobs delayed by at most that long run too, earlier ones first, as if
                the time had passed. A child job's delay counts from when its parent job was due, so
                a handler that enqueues its next run for tomorrow runs four times within "3d".
                Default 0: delayed jobs do not run. None: all jobs run.
            rounds: 1 runs only the jobs that exist now, 2 also their child jobs, and so on. Default
                None: all.
            most: attempts after which a loop is assumed, default 1000.

        Raises:
            RuntimeError: `most` attempts have not emptied the queue.
        """
        runs = self._runs(handlers, attempts, due, rounds, most)
        with contextlib.suppress(StopIteration):
            handler, payload, fields = next(runs)
            while True:
                refuse_loop(handler, "drain")
                handler, payload, fields = runs.send(self._attempt(handler, payload, **fields))
        return self._touched

    async def adrain(
        self,
        handlers: Iterable[AnyHandler],
        *,
        attempts: int = 1,
        due: Duration | None = 0,
        rounds: int | None = None,
        most: int = 1000,
    ) -> list[Enqueued]:
        """`drain` for a test inside an event loop."""
        runs = self._runs(handlers, attempts, due, rounds, most)
        with contextlib.suppress(StopIteration):
            handler, payload, fields = next(runs)
            while True:
                handler, payload, fields = runs.send(await self._aattempt(handler, payload, **fields))
        return self._touched

    def _runs(
        self, handlers: Iterable[AnyHandler], attempts: int, due: Duration | None, rounds: int | None, most: int
    ) -> Generator[tuple[AnyHandler, object, dict[str, Any]], Ran, None]:
        """Yield each attempt to run, and receive its result."""
        known = {handler.kind: handler for handler in handlers}
        until = float("inf") if due is None else self._now + at_least_zero(due, field="due")
        last = (
            float("inf")
            if rounds is None
            else max((job.round for job in self.jobs if not job.over), default=1) + rounds - 1
        )
        touched = self._touched = []
        for _ in range(most):
            waiting = [
                job
                for job in self.jobs
                if not job.over
                and len(job.ran) - job.suspensions < attempts
                and all(child.over for child in job.gathers)
                and job.due <= until
                and job.round <= last
            ]
            # of jobs due at the same time, the one enqueued first
            job = min(waiting, key=lambda one: one.due, default=None)
            if job is None:
                return
            if all(job is not one for one in touched):
                touched.append(job)
            self._running = job
            job.gathers = []
            handler = known.get(job.kind)
            if handler is None:
                ran = Ran(unknown_kind(job.kind, age=0))
            else:
                limit = job.options["max_attempts"] or handler.policy.max_attempts
                own = {name: job.options[column] for column, name in EXTRAS.items()}
                own |= {"payload_bytes": job.options["payload_bytes"], "attempt": job.attempts + 1}
                try:
                    ran = yield (handler, job.payload, {"id": job.id, "max_attempts": limit, **own})
                finally:
                    self._running = None
            job.suspensions += bool(job.gathers)
            job.attempts += ran.outcome.counted
            job.over = ran.outcome.state not in {"ready", "scheduled"}
            job.ran.append(ran)
        message = (
            f"{most} runs have not emptied the queue: a job enqueues itself without a delay. Pass `rounds`, "
            "or a larger `most`"
        )
        raise RuntimeError(message)

    def note(self, ids: Iterable[int], chunks: list[Chunk]) -> None:
        """Record jobs that were enqueued by the test or by the running job."""
        by = self._running
        texts = ((chunk, text) for chunk in chunks for text in chunk.texts)
        for job_id, (chunk, text) in zip(ids, texts, strict=False):
            options = chunk.options.parameters()
            due = _wait(options) + (self._begin(options) if by is None else by.due)
            job = Enqueued(
                job_id, chunk.kind, decode_payload(text), options, due=due, round=1 if by is None else by.round + 1
            )
            self.jobs.append(job)

    def wait_for(self, children: list[Enqueued]) -> None:
        """Let the running job wait for its child jobs. `run` has no such job."""
        if self._running is not None:
            self._running.gathers = children

    def begin_count(self) -> None:
        """Begin the count of the running job's attempts. `run` has no such job."""
        if self._running is not None:
            self._running.attempts = 0

    def _begin(self, options: dict[str, Any]) -> float:
        """Return when the wait of a job begins that the test enqueues: a timestamp needs no `advance`."""
        return self._now if options["run_at"] is None else 0.0

    def _attempt(self, handler: AnyHandler, payload: object, **fields: Any) -> Ran:
        raise NotImplementedError

    async def _aattempt(self, handler: AnyHandler, payload: object, **fields: Any) -> Ran:
        raise NotImplementedError


def _typed(kind: str | AnyHandler, payload: object) -> object:
    """Return a payload in the handler's types: unchanged without a handler, or if it does not fit."""
    if isinstance(kind, str):
        return payload
    try:
        arguments = kind.binding.bind(payload)
    except BindingError:
        return payload
    return arguments[WHOLE] if kind.signature.whole else arguments


def _is_whole(kind: str | AnyHandler) -> bool:
    return not isinstance(kind, str) and kind.signature.whole


def _wait(options: dict[str, Any]) -> float:
    """Return the seconds until a job is due."""
    moment: datetime | None = options["run_at"]
    if moment is not None:
        return max(0.0, moment.timestamp() - time.time())
    return 0.0 if options["delay"] is None else float(options["delay"])
