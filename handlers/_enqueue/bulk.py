"""Jobs of one kind on their way into the queue, in chunks: a small one is one statement, a large one is copied.

Payloads are taken from the caller's iterable a chunk at a time and pass the door on the way, so a list of any length takes the memory of
a few chunks. No connection is seen here. Nothing is taken from the iterable between the statements of one chunk: what it reads
from may be the very connection that the jobs go to.

Why 2,000: one statement with its payloads as a binary array costs about 4 us a row however many there are. A COPY costs a round trip
more, for the ids, and some 10 % less a row; between 1,000 and 2,000 rows it begins to win (tests/bench/enqueue.py). It is sent as text: the
binary form was 6 % faster, but would leave the encoding of the caller's connection to us.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._enqueue.options import Options, Statement, check_options, copy_jobs, enqueue_jobs, note_demands, reserve_jobs
from jobherd.handlers._policy.policy import check_kind
from jobherd.handlers._values.encryption import seal_bytes, seal_document
from jobherd.handlers._values.payload import PayloadError, check_payload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from jobherd.handlers._enqueue.options import Reserved
    from jobherd.handlers._enqueue.origin import Origin

CHUNK: Final = 10_000
"""Jobs of a chunk."""
CHUNK_SIZE: Final = 4_000_000
"""Or as many characters of payload, when they are large."""
COPY_FROM: Final = 2000
"""Jobs from which on a chunk is copied."""
KNOWN: Final = frozenset(Options.__slots__) | {"encrypt"}
"""What a job may be given by name."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some jobs that have passed the door: their kind, payloads as texts, and options."""

    kind: str
    texts: list[str]
    options: Options
    costs: list[dict[str, float]] | None = None
    """What each costs, where that is not left to the kind."""

    @property
    def is_large(self) -> bool:
        """Whether it is worth a COPY."""
        return len(self.texts) >= COPY_FROM and not self.options.has_extras

    def set_off(self, origin: Origin | None) -> Chunk:
        """Return the chunk with the job that it comes from, and its trace, unless it names others; itself if there is none."""
        if origin is None:
            return self
        options = self.options
        return replace(
            self,
            options=replace(
                options,
                set_off_by=origin.job if options.set_off_by is None else options.set_off_by,
                traceparent=options.traceparent or origin.traceparent,
            ),
        )

    def statement(self) -> Statement[list[int]]:
        """Enqueue it by one statement; the answer is the ids in order."""
        return enqueue_jobs(self.kind, self.texts, self.options)

    def reserve(self) -> Statement[Reserved | None]:
        """Ask for ids first, and for what the options mean now; None if this role cannot copy."""
        return reserve_jobs(self.kind, len(self.texts), self.options)

    def demands(self, ids: list[int]) -> Statement[None] | None:
        """Say what the jobs cost, which have these ids; None if there is nothing to say."""
        costs = [self.options.cost] * len(ids) if self.options.cost is not None else self.costs
        return None if costs is None else note_demands(ids, costs)

    @property
    def is_one_statement(self) -> bool:
        """Whether it is all or nothing by itself, without a transaction around it."""
        return self.costs is None and self.options.cost is None

    def copy(self, reserved: Reserved) -> Statement[None]:
        """Then copy it under these ids."""
        return copy_jobs(self.kind, self.texts, self.options, reserved)


def chunks(
    kind: str, payloads: Iterable[object], options: Options, *, encode: Callable[[Any], str] = check_payload, most: int = CHUNK
) -> Iterator[Chunk]:
    """Give the jobs chunk by chunk, each payload encoded, which raises PayloadError with its index for one that may not in.

    What stands before a payload that is refused, or before an error of the iterable's own, comes out before the error does.
    Raises ValueError at once if `most` cannot be the number of jobs of a chunk.
    """
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= CHUNK:
        message = f"chunk must be a whole number from 1 to {CHUNK}, not {most!r}"
        raise ValueError(message)
    return _chunks(kind, payloads, options, encode, most)


def one_by_name(kind: str, payload: object, options: Mapping[str, Any], *, call: str = "enqueue") -> Chunk:
    """Check one job as it comes from a caller that has no handler at hand. encrypt: an option beside the others. call: as in `many_by_name`."""
    options, seals = _split(options, KNOWN, call=call)
    chunk = Chunk(check_kind(kind), [check_payload({} if payload is None else payload)], check_options(**options))
    return sealed(chunk) if seals else chunk


def many_by_name(
    kind: str, payloads: Iterable[object], options: Mapping[str, Any], *, most: int = CHUNK, call: str = "enqueue_many"
) -> Iterator[Chunk]:
    """Check kind and options at once, and the payloads as they are taken. call: what the caller has called, for an option that is none."""
    if options.get("payload_bytes") is not None:
        message = "payload_bytes are one job's own: enqueue() takes them, a list of jobs does not"
        raise TypeError(message)
    options, seals = _split(options, KNOWN - {"payload_bytes"}, call=call)
    found = chunks(check_kind(kind), payloads, check_options(**options), most=most)
    return map(sealed, found) if seals else found


def sealed(chunk: Chunk) -> Chunk:
    """Return the chunk with its payloads encrypted. Raises KeyMissingError."""
    texts = [seal_document(text, "payload", chunk.kind) for text in chunk.texts]
    return replace(chunk, texts=texts, options=replace(chunk.options, payload_bytes=seal_bytes(chunk.options.payload_bytes, chunk.kind)))


def _split(options: Mapping[str, Any], known: frozenset[str], *, call: str) -> tuple[dict[str, Any], bool]:
    if unknown := [name for name in options if name not in KNOWN]:
        # Python would name `check_options`, which nobody has called.
        message = f"{call}() has no option {unknown[0]!r}; it has {', '.join(sorted(known))}"
        raise TypeError(message)
    rest = dict(options)
    seals = rest.pop("encrypt", False)
    if not isinstance(seals, bool):
        message = f"encrypt must be True or False, not a {type(seals).__name__}"
        raise TypeError(message)
    return rest, seals


def stream(chunks: Iterable[Chunk], put: Callable[[list[Chunk]], list[int]], on_chunk: Callable[[list[int]], object] | None) -> int:
    """Put in each chunk by itself, tell `on_chunk` its ids, and return how many jobs that were."""
    count = 0
    for chunk in chunks:
        ids = put([chunk])
        count += len(ids)
        if on_chunk is not None:
            on_chunk(ids)
    return count


async def astream(
    chunks: Iterable[Chunk], put: Callable[[list[Chunk]], Awaitable[list[int]]], on_chunk: Callable[[list[int]], object] | None
) -> int:
    """`stream` for those who wait."""
    count = 0
    for chunk in chunks:
        ids = await put([chunk])
        count += len(ids)
        if on_chunk is not None:
            on_chunk(ids)
    return count


def _chunks(kind: str, payloads: Iterable[object], options: Options, encode: Callable[[Any], str], most: int) -> Iterator[Chunk]:
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
