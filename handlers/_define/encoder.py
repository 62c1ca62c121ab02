"""Turns the arguments of calls into chunks of jobs: payload, bytes, cost, encryption.

A payload is checked here as the worker will check it. No connection is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._define.signature import BYTES
from jobherd.handlers._enqueue import bulk
from jobherd.handlers._enqueue.bulk import Chunk, sealed
from jobherd.handlers._policy.costs import check_amounts
from jobherd.handlers._values.json_form import type_name, with_article
from jobherd.handlers._values.payload import check_bytes, decode_payload, encode_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from jobherd.handlers._define.signature import Signature
    from jobherd.handlers._enqueue.options import Options

_ARGUMENTS: Final = (dict, tuple)
_CHECKED: Final[dict[type, Any]] = {
    kind: type(f"Checked{kind.__name__.title()}", (kind,), {}) for kind in (dict, list, str, int)
}
"""Types of what `Producer.payload` returns: documents that were compared with their arguments, so
`enqueue_many` does not compare them again."""
_COMPARED: Final = frozenset(_CHECKED.values())


class Encoder:
    """Encodes the jobs of one kind.

    weigh: function from a payload to the job's cost, or None. seal: whether payloads are encrypted.
    """

    def __init__(
        self, kind: str, signature: Signature, *, weigh: Callable[[Any], Mapping[str, float]] | None, seal: bool
    ) -> None:
        self._kind = kind
        self._signature = signature
        self.weigh = weigh
        self.seal = seal

    def payload(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        """Return the checked payload for these arguments."""
        found = decode_payload(self._encoded(self._signature.payload(args, self.split_bytes(args, kwargs)[1])))
        kind = _CHECKED.get(type(found))
        return found if kind is None else kind(found)

    def split_bytes(
        self, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> tuple[bytes | None, Mapping[str, object]]:
        """Split the arguments of a call into payload bytes, or None, and other arguments."""
        if not self._signature.takes_bytes:
            return None, kwargs
        if args:
            message = f"{self._signature.name} takes payload_bytes: give all arguments by name"
            raise TypeError(message)
        rest = dict(kwargs)
        data = rest.pop(BYTES, None)
        if data is None and self._signature.needs_bytes:
            message = f"{self._signature.name} needs 'payload_bytes'"
            raise TypeError(message)
        return None if data is None else check_bytes(data), rest

    def partial(self, payload: Any, later: frozenset[str]) -> str:
        """Return the checked payload as text, without the parameters that are written into it later."""
        binding = self._signature.binding
        if not self._signature.whole:
            payload = {name: value for name, value in payload.items() if name not in later}
        text = encode_arguments(payload, wide=binding.is_wide)
        binding.compare(payload, binding.bind(decode_payload(text), later))
        return text

    def _call(self, call: object) -> object:
        signature = self._signature
        if signature.whole:
            return call
        named = isinstance(call, dict | Mapping)  # dict first: the check against the Mapping ABC is slower
        if named or isinstance(call, tuple):
            if type(call) in _ARGUMENTS or not self._signature.binding.takes_alone(type(call)):
                return signature.payload((), call) if named else signature.payload(call, {})  # type: ignore[arg-type]
        elif len(signature.parameters) != 1:
            message = (
                f"each job of {self._kind!r} takes a dict or a tuple of arguments, not {with_article(type_name(call))}"
            )
            raise TypeError(message)
        return signature.payload((), {signature.parameters[0].name: call})

    def _encoded(self, payload: object) -> str:
        binding = self._signature.binding
        text = encode_arguments(payload, wide=binding.is_wide)
        # Bind as the worker will: a payload that does not fit would otherwise fail permanently
        # there.
        binding.compare(payload, binding.bind(decode_payload(text)))
        return text

    def one(self, args: tuple[object, ...], kwargs: Mapping[str, object], options: Options) -> Chunk:
        """Return the job of a call."""
        if self._signature.takes_bytes:
            data, kwargs = self.split_bytes(args, kwargs)
            options = replace(options, payload_bytes=data)
        return self._ready(Chunk(self._kind, [self._encoded(self._signature.payload(args, kwargs))], options))

    def _ready(self, chunk: Chunk) -> Chunk:
        """Return the chunk as it is sent. Raises what `_weighed` raises, and KeyMissingError."""
        chunk = self._weighed(chunk)
        return sealed(chunk) if self.seal else chunk

    def _weighed(self, chunk: Chunk) -> Chunk:
        """Return the chunk with the cost of each job.

        Raises what the kind's cost function raises, and TypeError or ValueError for an invalid
        cost.
        """
        if self.weigh is None or chunk.options.cost is not None:
            return chunk
        return replace(
            chunk, costs=[check_amounts(self.weigh(decode_payload(text)), field="cost") for text in chunk.texts]
        )

    def many(self, calls: Iterable[object], options: Options, most: int) -> Iterator[Chunk]:
        """Yield the jobs of these calls in chunks of at most `most`."""
        if self._signature.needs_bytes:
            message = f"each job of {self._kind!r} needs its own payload_bytes: enqueue them one by one"
            raise TypeError(message)
        # looked up once, not once per job
        arguments, bind, compare, wide = (
            self._call,
            self._signature.binding.bind,
            self._signature.binding.compare,
            self._signature.binding.is_wide,
        )

        def encode(call: object) -> str:
            payload = arguments(call)
            text = encode_arguments(payload, wide=wide)
            found = bind(decode_payload(text))
            if type(call) not in _COMPARED:
                compare(payload, found)
            return text

        return map(self._ready, bulk.chunks(self._kind, calls, options, encode=encode, most=most))
