"""Splits jobs of one kind into chunks: a small chunk is one statement, a large one is copied.

Payloads are read from the caller's iterable one chunk at a time and checked on the way, so a list
of any length takes the memory of a few chunks. This module uses no connection. Nothing is read from
the iterable between the statements of one chunk: the iterable may read from the very connection
that the jobs go to.

Why 2,000: one statement with its payloads as a binary array costs about 4 µs a row, whatever their
number. COPY costs one more round trip, for the ids, and about 10 % less per row. It wins from 1,000
to 2,000 rows on (tests/bench/enqueue.py). COPY is sent as text: binary was 6 % faster, but Jobherd
would have to handle the encoding of the caller's connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._enqueue.options import Options, check_options
from jobherd.handlers._enqueue.statements import (
    Statement,
    copy_jobs,
    enqueue_after,
    enqueue_jobs,
    enqueue_unique,
    reserve_jobs,
    store_costs,
)
from jobherd.handlers._policy.names import check_kind
from jobherd.handlers._policy.unique import Unique
from jobherd.handlers._values.encryption import digest_key, seal_bytes, seal_document
from jobherd.handlers._values.job_id import job_id
from jobherd.handlers._values.json_form import type_name, with_article
from jobherd.handlers._values.payload import PayloadError, check_payload, decode_payload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from jobherd.handlers._enqueue.origin import Origin
    from jobherd.handlers._enqueue.statements import Reserved

CHUNK: Final = 10_000
"""Most jobs in a chunk."""
CHUNK_SIZE: Final = 4_000_000
"""Most characters of payload in a chunk, for large payloads."""
COPY_FROM: Final = 2000
"""Number of jobs from which a chunk is copied."""
KNOWN: Final = frozenset(Options.__slots__) | {"encrypt"}
"""Options that an enqueue by name accepts."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Jobs that have been checked: their kind, payloads as text, and options."""

    kind: str
    texts: list[str]
    options: Options
    costs: list[dict[str, float]] | None = None
    """Cost of each job, if the kind's cost does not apply."""
    keys: list[str] | None = None
    """What makes each job unique, if the database cannot read the payloads."""

    @property
    def is_large(self) -> bool:
        """Whether a COPY is worth it, and possible."""
        return len(self.texts) >= COPY_FROM and not self.options.has_extras and not self.options.is_unique

    def with_origin(self, origin: Origin | None) -> Chunk:
        """Return the chunk with its parent job and trace, unless its options name others.

        Returns the same chunk if there is no parent.
        """
        if origin is None:
            return self
        options = self.options
        return replace(
            self,
            options=replace(
                options,
                parent_id=origin.job if options.parent_id is None else options.parent_id,
                traceparent=options.traceparent or origin.traceparent,
            ),
        )

    def statement(self) -> Statement[list[int]]:
        """Return the statement that enqueues the chunk; its answer is the ids in order."""
        if self.options.after is not None:
            return enqueue_after(self.kind, self.texts, self.options)
        if self.options.is_unique:
            return enqueue_unique(self.kind, self.texts, self.options, self.keys)
        return enqueue_jobs(self.kind, self.texts, self.options)

    def reserve(self) -> Statement[Reserved | None]:
        """Return the statement that reserves ids and resolves the options.

        Its answer is None if this role cannot copy.
        """
        return reserve_jobs(self.kind, len(self.texts), self.options)

    def demands(self, ids: list[int]) -> Statement[None] | None:
        """Return the statement that stores the costs of the new ones of these jobs, or None."""
        costs = [self.options.cost] * len(ids) if self.options.cost is not None else self.costs
        if costs is None:
            return None
        found = [(id_, cost) for id_, cost in zip(ids, costs, strict=True) if job_id(id_).new]
        return store_costs([id_ for id_, _ in found], [cost for _, cost in found]) if found else None

    @property
    def is_one_statement(self) -> bool:
        """Whether one statement enqueues the whole chunk, without a transaction around it."""
        return self.costs is None and self.options.cost is None

    def copy(self, reserved: Reserved) -> Statement[None]:
        """Return the statement that copies the chunk under the reserved ids."""
        return copy_jobs(self.kind, self.texts, self.options, reserved)


def chunks(
    kind: str,
    payloads: Iterable[object],
    options: Options,
    *,
    encode: Callable[[Any], str] = check_payload,
    most: int = CHUNK,
) -> Iterator[Chunk]:
    """Yield the jobs in chunks, with encoded payloads.

    An invalid payload raises PayloadError with its index. The jobs before a rejected payload, or
    before an error of the iterable, are yielded before the error is raised. Raises TypeError at once
    for the arguments of one job in place of a list, and ValueError if `most` is not a valid number of
    jobs per chunk.
    """
    if isinstance(payloads, str | bytes | Mapping):
        message = f"the jobs of {kind!r} must be a list or another iterable of them, not one {type_name(payloads)}"
        raise TypeError(message)
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= CHUNK:
        message = f"chunk must be a whole number from 1 to {CHUNK}, not {most!r}"
        raise ValueError(message)
    return _chunks(kind, payloads, options, encode, most)


def one_by_name(kind: str, payload: object, options: Mapping[str, Any], *, call: str = "enqueue") -> Chunk:
    """Check one job that is enqueued by name, without its handler.

    options: those of `Options`, and `encrypt`. call: as in `many_by_name`.
    """
    options, seals = _split(options, KNOWN, call=call)
    chunk = Chunk(check_kind(kind), [check_payload({} if payload is None else payload)], check_options(**options))
    return sealed(chunk) if seals else chunk


def many_by_name(
    kind: str, payloads: Iterable[object], options: Mapping[str, Any], *, most: int = CHUNK, call: str = "enqueue_many"
) -> Iterator[Chunk]:
    """Check kind and options at once, and each payload when it is read.

    call: name of the function that the caller used, for the message about an unknown option.
    """
    if options.get("payload_bytes") is not None:
        message = "payload_bytes belong to one job: enqueue() takes them, a list of jobs does not"
        raise TypeError(message)
    options, seals = _split(options, KNOWN - {"payload_bytes"}, call=call)
    found = chunks(check_kind(kind), payloads, check_options(**options), most=most)
    return map(sealed, found) if seals else found


def sealed(chunk: Chunk) -> Chunk:
    """Return the chunk with encrypted payloads. Raises KeyMissingError."""
    texts = [seal_document(text, "payload", chunk.kind) for text in chunk.texts]
    return replace(
        chunk,
        texts=texts,
        keys=_secret_keys(chunk),
        options=replace(chunk.options, payload_bytes=seal_bytes(chunk.options.payload_bytes, chunk.kind)),
    )


def _secret_keys(chunk: Chunk) -> list[str] | None:
    """Return the keys of unique jobs whose payloads will be encrypted."""
    options = chunk.options
    if not options.is_unique:
        return None
    if options.unique and options.unique.collect is not None:
        message = "conflict='collect' excludes encrypt: the database cannot append to an encrypted list"
        raise ValueError(message)
    if options.unique_key is not None:
        return [digest_key({"key": options.unique_key}, chunk.kind)] * len(chunk.texts)
    unique = options.unique or Unique()
    data = None if unique.by or options.payload_bytes is None else options.payload_bytes.hex()
    picked = ([unique.by, unique.pick(decode_payload(text)), data] for text in chunk.texts)
    return [digest_key(one, chunk.kind) for one in picked]


def _split(options: Mapping[str, Any], known: frozenset[str], *, call: str) -> tuple[dict[str, Any], bool]:
    if unknown := [name for name in options if name not in KNOWN]:
        # Python's own message would name `check_options`, which the caller did not call.
        message = f"{call}() has no option {unknown[0]!r}; it has {', '.join(sorted(known))}"
        raise TypeError(message)
    rest = dict(options)
    seals = rest.pop("encrypt", False)
    if not isinstance(seals, bool):
        message = f"encrypt must be True or False, not {with_article(type_name(seals))}"
        raise TypeError(message)
    return rest, seals


def stream(
    chunks: Iterable[Chunk], put: Callable[[list[Chunk]], list[int]], on_chunk: Callable[[list[int]], object] | None
) -> int:
    """Enqueue each chunk separately, call `on_chunk` with its ids, return the number of jobs."""
    count = 0
    for chunk in chunks:
        ids = put([chunk])
        count += len(ids)
        if on_chunk is not None:
            on_chunk(ids)
    return count


async def astream(
    chunks: Iterable[Chunk],
    put: Callable[[list[Chunk]], Awaitable[list[int]]],
    on_chunk: Callable[[list[int]], object] | None,
) -> int:
    """`stream` for asyncio."""
    count = 0
    for chunk in chunks:
        ids = await put([chunk])
        count += len(ids)
        if on_chunk is not None:
            on_chunk(ids)
    return count


def _chunks(
    kind: str, payloads: Iterable[object], options: Options, encode: Callable[[Any], str], most: int
) -> Iterator[Chunk]:
    texts: list[str] = []
    size = 0
    try:
        for index, payload in enumerate(payloads):
            try:
                text = encode(payload)
            except PayloadError as problem:
                problem.index = index
                raise
            except TypeError as problem:
                problem.add_note(f"It was the job at index {index}.")
                raise
            texts.append(text)
            size += len(text)
            if len(texts) >= most or size >= CHUNK_SIZE:
                yield Chunk(kind, texts, options)
                texts, size = [], 0
    except Exception:
        if texts:
            yield Chunk(kind, texts, options)
        raise
    if texts:
        yield Chunk(kind, texts, options)
