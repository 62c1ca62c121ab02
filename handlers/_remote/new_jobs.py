"""Turns checked jobs into a request of ProducerService, and reads its answer.

A request keeps within the limits of one transaction.

It must not load grpc: a worker that has only an uplink uses it too.
"""

from __future__ import annotations

import uuid
from itertools import repeat
from typing import TYPE_CHECKING, Final

from jobherd.handlers._policy.unique import Unique
from jobherd.handlers._remote import messages
from jobherd.handlers._values.job_id import DuplicateJob, known_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from jobherd.handlers._enqueue.bulk import Chunk
    from jobherd.handlers._enqueue.options import Options

MOST_JOBS: Final = 10_000
MOST_BYTES: Final = 8 << 20


def request_of(chunks: Iterable[Chunk], key: str = "") -> messages.EnqueueRequest:
    """Return the request that enqueues these jobs.

    key: the idempotency key. Empty: a new one.

    Raises:
        ValueError: the jobs are too many or too large.
    """
    jobs = [job for chunk in chunks for job in _jobs_of(chunk)]
    request = messages.EnqueueRequest(jobs=jobs, idempotency_key=key or uuid.uuid4().hex)
    if len(jobs) > MOST_JOBS or request.ByteSize() > MOST_BYTES:
        message = (
            f"{len(jobs):,} jobs of {request.ByteSize():,} bytes are too many for one transaction through a "
            f"gateway: enqueue at most {MOST_JOBS:,} jobs and {MOST_BYTES:,} bytes in each call"
        )
        raise ValueError(message)
    return request


def _jobs_of(chunk: Chunk) -> list[messages.NewJob]:
    options, count = chunk.options, len(chunk.texts)
    keys = chunk.keys or repeat("", count)
    costs = repeat(options.cost, count) if options.cost is not None else chunk.costs or repeat(None, count)
    return [
        messages.NewJob(
            kind=chunk.kind,
            payload=text.encode(),
            data=options.payload_bytes,
            queue=options.queue,
            priority=options.priority,
            max_attempts=options.max_attempts,
            timeout_seconds=options.timeout,
            delay_seconds=options.delay,
            run_at_micros=_micros(options.run_at),
            expires_at_micros=_micros(options.expires_at),
            tenant=options.tenant,
            partition=options.partition,
            after=options.after,
            when=options.when,
            webhook=options.webhook,
            traceparent=options.traceparent,
            parent_id=options.parent_id,
            unique=_unique_of(options, key) if options.is_unique else None,
            cost=None if cost is None else _cost_of(cost),
        )
        for text, key, cost in zip(chunk.texts, keys, costs, strict=True)
    ]


def _cost_of(cost: Mapping[str, float]) -> messages.Cost:
    return messages.Cost(amounts=[messages.Amount(resource=name, amount=amount) for name, amount in cost.items()])


def _unique_of(options: Options, secret_key: str) -> messages.Unique:
    unique = options.unique or Unique()
    return messages.Unique(
        by=unique.by if not secret_key else None,
        key=options.unique_key if not secret_key else None,
        per_queue=unique.queue,
        during=unique.during,
        conflict=unique.conflict,
        collect=unique.collect,
        for_seconds=options.unique_for,
        debounce_seconds=options.debounce,
        max_wait_seconds=options.max_wait,
        throttle_seconds=options.throttle,
        edge=options.edge,
        secret_key=secret_key,
    )


def ids_of(answer: messages.EnqueueResponse | messages.EnqueueStreamResponse) -> list[int]:
    """Return the ids of the jobs, each a JobId.

    Raises:
        DuplicateJob: no job was enqueued, because another job holds the key of one.
    """
    if answer.HasField("holder"):
        raise DuplicateJob(answer.holder or None)
    existing = set(answer.existing)
    return [known_id(id_, new=place not in existing) for place, id_ in enumerate(answer.ids)]


def _micros(at: datetime | None) -> int | None:
    return None if at is None else round(at.timestamp() * 1_000_000)
