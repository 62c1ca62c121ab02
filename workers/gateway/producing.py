"""What ProducerService does in the database, in separate sessions.

Neither a slow request nor one that waits for a lock delays claims and settlements, which have
another session. gRPC is used in `producer_service.py`, not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import orjson

from jobherd.handlers._enqueue import statements
from jobherd.handlers._enqueue.async_client_pool import AsyncClientPool
from jobherd.handlers._enqueue.pool import PoolSettings
from jobherd.handlers._enqueue.send import aput_on, arun_on
from jobherd.handlers._enqueue.statements import Statement
from jobherd.handlers._values.job_id import DuplicateJob, job_id, known_id
from jobherd.handlers._values.json_output import JsonText, dumpable, job_document
from jobherd.handlers._values.outcome import FINAL_STATES
from jobherd.workers.gateway.finished_jobs import FinishedJobs
from jobherd.workers.gateway.new_jobs import NewJobsError, merged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.handlers._enqueue.bulk import Chunk
    from jobherd.handlers._enqueue.send import AsyncConnection
    from jobherd.workers.gateway.access import Principal

SESSIONS: Final = 4
"""Database sessions at a time. They are opened when they are needed."""
PATIENCE: Final = 10.0
"""Seconds to wait for one of them."""
LOCKED: Final = 2.0
"""Seconds to wait for another transaction that holds a key. It keeps a session from all producers."""
_JSON: Final = ("payload", "result", "progress", "history", "usage", "post_mortem", "entries")


@dataclass(frozen=True, slots=True)
class NewJobs:
    """The checked jobs of one request, its idempotency key, and the digest of the jobs. Key empty: none.

    tenants: those to which the principal is limited, if it is.
    """

    chunks: list[Chunk]
    key: str = ""
    digest: bytes = b""
    tenants: Sequence[str] = ()

    @property
    def has_keys(self) -> bool:
        """Whether another transaction can hold a key that this one needs."""
        return bool(self.key) or any(chunk.options.is_unique for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """Ids of jobs. earlier: an earlier request with the same key has enqueued them.

    holder: the job that holds the key of one of them, 0 if two of them have one key. Then no job was
    enqueued.
    """

    ids: list[int]
    earlier: bool = False
    holder: int | None = None

    def answer(self) -> dict[str, Any]:
        """Return the fields of an EnqueueResponse."""
        existing = [place for place, id_ in enumerate(self.ids) if not job_id(id_).new]
        return {"ids": self.ids, "already_enqueued": self.earlier, "existing": existing, "holder": self.holder}


class Producing:
    """Enqueues, shows and cancels jobs for principals. Functions raise the errors of psycopg and its pool."""

    def __init__(self, dsn: str, schema: str) -> None:
        self._schema = schema
        self._pool = AsyncClientPool(PoolSettings(dsn, 0, SESSIONS, PATIENCE))
        self._finished = FinishedJobs(dsn, schema)

    async def enqueue(
        self, requests: Sequence[NewJobs], principal: str, *, patience: float = LOCKED
    ) -> list[Enqueued | NewJobsError]:
        """Enqueue the jobs of requests in one transaction, or find those of earlier requests with the same keys.

        Args:
            requests: each has another key, or none.
            principal: whose keys they are.
            patience: seconds to wait for another transaction that holds a key.

        Returns:
            What became of each request. NewJobsError: the earlier request with its key had other jobs.

        Raises:
            DuplicateJob: nothing was enqueued, because of a job of one of several requests.
            LockNotAvailable: nothing was enqueued, because another transaction holds a key.
        """
        try:
            return await self._enqueue(requests, principal, patience)
        except DuplicateJob as problem:
            if len(requests) > 1:
                raise
            return [Enqueued([], holder=problem.id or 0)]

    async def _enqueue(
        self, requests: Sequence[NewJobs], principal: str, patience: float
    ) -> list[Enqueued | NewJobsError]:
        async with self._pool.session(None) as connection, connection.transaction():
            if any(request.has_keys for request in requests):
                await self._rows(connection, "session/set_lock_timeout", milliseconds=round(patience * 1000))
            earlier: dict[str, Enqueued | NewJobsError] = {}
            # Order: transactions that take several keys take them in one order, or two could wait for each other.
            for request in sorted((each for each in requests if each.key), key=lambda each: each.key):
                if (found := await self._take_key(connection, request, principal)) is not None:
                    earlier[request.key] = found
            new = [request for request in requests if request.key not in earlier]
            for request in new:
                for options in (chunk.options for chunk in request.chunks if request.tenants and chunk.options.after):
                    limits = {"after": options.after, "when": options.when, "tenants": list(request.tenants)}
                    await self._rows(connection, "enqueue/check_upstreams", **limits)
            chunks = merged(chunk for request in new for chunk in request.chunks)
            left = iter(await aput_on(connection, chunks, schema=self._schema))
            done: list[Enqueued | NewJobsError] = []
            for request in requests:
                if request.key in earlier:
                    done.append(earlier[request.key])
                    continue
                ids = list(islice(left, sum(len(chunk.texts) for chunk in request.chunks)))
                if request.key:
                    # psycopg rejects a list of ints of several types.
                    signed = [int(id_) if job_id(id_).new else -int(id_) for id_ in ids]
                    await self._rows(connection, "enqueue/store_key", ids=signed, principal=principal, key=request.key)
                done.append(Enqueued(ids))
            return done

    async def _take_key(
        self, connection: AsyncConnection, request: NewJobs, principal: str
    ) -> Enqueued | NewJobsError | None:
        """Take the key of a request, and return None; or the answer of the earlier request that has it."""
        whose = {"principal": principal, "key": request.key}
        while not await self._rows(connection, "enqueue/take_key", digest=request.digest, **whose):
            found = await self._rows(connection, "enqueue/find_key", **whose)
            if not found:
                continue  # maintenance has deleted it meanwhile
            if bytes(found[0]["digest"]) != request.digest:
                return NewJobsError("idempotency_key: an earlier request with this key had other jobs")
            return Enqueued([known_id(abs(id_), new=id_ > 0) for id_ in found[0]["ids"]], earlier=True)
        return None

    async def show(self, job: int, principal: Principal, wait: float) -> bytes | None:
        """Return a job as JSON, once it is finished or after that time; None: the job does not exist."""
        row = await self._look(job, principal)
        if row is not None and wait and row["state"] not in FINAL_STATES:
            state = await self._finished.wait(job, wait)
            later = await self._look(job, principal)
            # Nothing is kept of the jobs of some kinds.
            row = row | {"state": state} if later is None and state is not None else later
        if row is None:
            return None
        async with self._pool.session(None) as connection:
            logs = await self._rows(connection, "observe/show_logs", id=job)
            keys = await self._rows(connection, "observe/show_key", id=job)
        return orjson.dumps(dumpable(job_document(row, logs, keys[0] if keys else None)))

    async def cancel(self, job: int, principal: Principal, reason: str) -> str | None:
        """Cancel a job and return what happened; None: the job does not exist."""
        if await self._look(job, principal) is None:
            return None
        async with self._pool.session(None) as connection:
            statement = statements.cancel_job(job, principal.name, reason or None)
            return await arun_on(connection, statement, schema=self._schema)

    async def _look(self, job: int, principal: Principal) -> dict[str, Any] | None:
        """Return the row of a job, unless it is another tenant's."""
        async with self._pool.session(None) as connection:
            rows = await self._rows(connection, "observe/show_jobs", ids=[job])
        if not rows or (principal.tenants and rows[0]["tenant"] not in principal.tenants):
            return None
        return rows[0]

    async def _rows(self, connection: AsyncConnection, name: str, **parameters: Any) -> list[dict[str, Any]]:
        return await arun_on(connection, Statement(name, parameters, _read), schema=self._schema)


def _read(rows: list[tuple[Any, ...]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {
            name: JsonText(value) if name in _JSON and isinstance(value, str) else value
            for name, value in zip(names, row, strict=True)
        }
        for row in rows
    ]
