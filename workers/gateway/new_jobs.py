"""Checks the jobs of a producer's request, and makes of them what is enqueued.

The checks are those of `jobherd.Client`. It also decides whether the producer may enqueue them. It
uses no database, so that a request that is not valid costs none.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._enqueue.bulk import CHUNK, CHUNK_SIZE, Chunk
from jobherd.handlers._enqueue.options import Options, check_options
from jobherd.handlers._enqueue.rule import is_keyed
from jobherd.handlers._policy.names import RESERVED, check_kind
from jobherd.handlers._policy.unique import Unique
from jobherd.handlers._policy.unique import check_key as check_key_text
from jobherd.handlers._values.payload import PayloadError, check_payload, decode_payload
from jobherd.workers.gateway.access import narrow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jobherd.handlers._remote import messages as m
    from jobherd.workers.gateway.access import Principal

MOST_JOBS: Final = 10_000
"""Jobs of one request."""
LONGEST_KEY: Final = 200
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class NewJobsError(ValueError):
    """The request is not valid. The text names the job and the field."""


class NotAllowedError(NewJobsError):
    """The producer may not enqueue one of these jobs."""


def chunks_of(jobs: Sequence[m.NewJob], principal: Principal) -> list[Chunk]:
    """Return the jobs in their order, those that differ only in their payload together. Raises NewJobsError."""
    if not jobs:
        message = "jobs is empty: a request enqueues at least one job"
        raise NewJobsError(message)
    if len(jobs) > MOST_JOBS:
        message = f"jobs has {len(jobs):,} jobs: a request has at most {MOST_JOBS:,}"
        raise NewJobsError(message)
    chunks: list[Chunk] = []
    size = 0
    for place, job in enumerate(jobs):
        try:
            kind, options = _checked(job, principal)
            text = check_payload(decode_payload(job.payload or b"{}"))
        except NotAllowedError as problem:
            message = f"jobs[{place}]: {problem}"
            raise NotAllowedError(message) from None
        except (PayloadError, ValueError, TypeError) as problem:
            message = f"jobs[{place}]: {problem}"
            raise NewJobsError(message) from None
        last = chunks[-1] if chunks else None
        keys = [job.unique.secret_key] if job.unique.secret_key else None
        costs = None if options.cost is None else [options.cost]
        options = replace(options, cost=None)  # Jobs with different costs are one chunk.
        if (
            last is None
            or (last.kind, last.options, last.keys is None, last.costs is None)
            != (kind, options, keys is None, costs is None)
            or size + len(text) > CHUNK_SIZE
        ):
            chunks.append(Chunk(kind, [text], options, costs, keys))
            size = len(text)
        else:
            last.texts.append(text)
            if last.keys is not None and keys is not None:
                last.keys.extend(keys)
            if last.costs is not None and costs is not None:
                last.costs.extend(costs)
            size += len(text)
    return chunks


def merged(chunks: Iterable[Chunk]) -> list[Chunk]:
    """Return the chunks in their order, neighbors that differ only in their payloads as one, if they fit into it."""
    whole: list[Chunk] = []
    size = 0
    for chunk in chunks:
        more = sum(map(len, chunk.texts))
        last = whole[-1] if whole else None
        if (
            last is None
            or (last.kind, last.options, last.costs is None) != (chunk.kind, chunk.options, chunk.costs is None)
            or chunk.options.is_unique  # a conflict then concerns the jobs of one request only
            or size + more > CHUNK_SIZE
            or len(last.texts) + len(chunk.texts) > CHUNK
        ):
            whole.append(replace(chunk, texts=list(chunk.texts), costs=chunk.costs and list(chunk.costs)))
            size = more
        else:
            last.texts.extend(chunk.texts)
            if last.costs is not None and chunk.costs is not None:
                last.costs.extend(chunk.costs)
            size += more
    return whole


def check_key(key: str) -> str:
    """Return a valid idempotency key; empty: none. Raises NewJobsError."""
    if len(key) > LONGEST_KEY or not key.isascii() or not key.isprintable():
        message = f"idempotency_key must have at most {LONGEST_KEY} printable ASCII characters"
        raise NewJobsError(message)
    return key


def digest_of(jobs: Sequence[m.NewJob]) -> bytes:
    """Return a digest by which the jobs of two requests are compared."""
    digest = hashlib.sha256()
    for job in jobs:
        text = job.SerializeToString(deterministic=True)
        digest.update(len(text).to_bytes(4, "big") + text)
    return digest.digest()


def _checked(job: m.NewJob, principal: Principal) -> tuple[str, Options]:
    kind = check_kind(job.kind)
    given: dict[str, Any] = {
        "queue": job.queue or None,
        "priority": job.priority if job.HasField("priority") else None,
        "max_attempts": job.max_attempts or None,
        "timeout": job.timeout_seconds or None,
        "delay": job.delay_seconds or None,
        "run_at": _moment(job.run_at_micros, "run_at_micros"),
        "expires_at": _moment(job.expires_at_micros, "expires_at_micros"),
        "tenant": job.tenant or _own_tenant(principal),
        "partition": job.partition or None,
        "after": list(job.after) or None,
        "when": job.when or None,
        "webhook": job.webhook or None,
        "traceparent": job.traceparent or None,
        "parent_id": job.parent_id or None,
        "payload_bytes": job.data or None,
        "cost": {one.resource: one.amount for one in job.cost.amounts} if job.HasField("cost") else None,
    } | _unique(job)
    options = check_options(**given)
    # A mere producer needs reserved kinds among its kinds.
    if narrow((kind,), principal.kinds) is None or (
        kind.startswith(RESERVED) and not principal.works and not principal.kinds
    ):
        message = f"the principal {principal.name} may not enqueue the kind {kind!r}"
        raise NotAllowedError(message)
    if principal.queues:
        # The queue that a kind declares is known to the database only.
        if options.queue is None:
            message = f"name the queue: the principal {principal.name} may enqueue only into some"
            raise NewJobsError(message)
        if is_keyed(options) and not (options.unique and options.unique.queue):
            # It would change a job that waits in another queue.
            message = f"set unique.per_queue: the principal {principal.name} may enqueue only into some queues"
            raise NewJobsError(message)
        if narrow((options.queue,), principal.queues) is None:
            message = f"the principal {principal.name} may not enqueue into the queue {options.queue!r}"
            raise NotAllowedError(message)
    if principal.tenants and options.tenant not in principal.tenants:
        message = (
            f"the principal {principal.name} may not enqueue for the tenant {options.tenant!r}"
            if options.tenant
            else f"name the tenant: the principal {principal.name} has several"
        )
        raise (NotAllowedError if options.tenant else NewJobsError)(message)
    if principal.tenants:
        # It gets no further turns and places by dividing its jobs.
        options = replace(options, partition=options.tenant)
    return kind, options


def _unique(job: m.NewJob) -> dict[str, Any]:
    """Return the options of a unique job."""
    if not job.HasField("unique"):
        return {}
    given = job.unique
    if given.secret_key:
        check_key_text(given.secret_key, field="secret_key")
        if given.by or given.key or given.collect:
            message = "unique.secret_key excludes by, key and collect"
            raise ValueError(message)
    return {
        "unique": Unique(
            by=tuple(given.by) or None,
            queue=given.per_queue,
            during=given.during or "live",  # type: ignore[arg-type]  # checked there
            conflict=given.conflict or "ignore",  # type: ignore[arg-type]
            collect=given.collect or None,
        ),
        "unique_key": given.key or None,
        "unique_for": given.for_seconds or None,
        "debounce": given.debounce_seconds or None,
        "max_wait": given.max_wait_seconds or None,
        "throttle": given.throttle_seconds or None,
        "edge": given.edge or None,
    }


def _own_tenant(principal: Principal) -> str | None:
    return principal.tenants[0] if len(principal.tenants) == 1 else None


def _moment(micros: int, field: str) -> datetime | None:
    if not micros:
        return None
    try:
        return EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        message = f"{field} must lie between the years 1900 and 9000, not at {micros}"
        raise ValueError(message) from None
