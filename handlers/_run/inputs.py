"""Results of earlier nodes that a job of a flow reads while it runs: `job.input` and `job.inputs`.

The code that runs the handler provides an `InputHost`, which reads the results: a worker from the
database, a test from a dict. This module contains no SQL statement, and reads nothing before the
handler asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeVar, overload

from jobherd.handlers._values.converters import converter_for, describe_type
from jobherd.handlers._values.encryption import is_sealed
from jobherd.handlers._values.misfit import Misfit
from jobherd.handlers._values.payload import decode_payload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobherd.handlers._run.transaction import TransactionHost

T = TypeVar("T")


class InputError(LookupError):
    """Raised for a result that a job cannot read: of an unknown node, of a failed one, or of another type."""


class Source(NamedTuple):
    """A node that a job waited for."""

    node: str
    id: int = 0
    """Id of its job, or of the flow that its jobs make."""
    state: str = "completed"
    """The state in which it ended."""
    is_many: bool = False
    """Whether it has one job for each item of a list."""
    is_stored: bool = True
    """Whether the result of its one job is stored."""
    result: str | None = None
    """That result as JSON text, of the node that was asked for."""


class InputHost(Protocol):
    """Reads results for the code that runs the handler."""

    def sources(self, job: Inputs, node: str, *, many: bool) -> list[Source]:
        """Return the nodes that the job waited for, with the result of `node` if that has one job.

        many: the handler asks for the results of a node with many jobs.
        """

    def page(self, job: Inputs, source: Source, past: int) -> list[tuple[int, str | None]]:
        """Return the next results of a node with many jobs, behind item `past`: items and JSON texts."""


class NoInputs:
    """Host of a job that cannot read results. message: why, and what to do instead."""

    def __init__(self, message: str) -> None:
        self._message = message

    def sources(self, *_: object, **__: object) -> NoReturn:
        """Raise InputError with the message."""
        raise InputError(self._message)

    page = sources


class Inputs:
    """Base of `Job`, with the methods that read results of earlier nodes."""

    __slots__ = ()
    id: int
    kind: str
    token: int
    flow: int | None
    transaction_host: TransactionHost

    @overload
    def input(self, node: str, returns: type[T]) -> T: ...
    @overload
    def input(self, node: str, returns: None = None) -> Any: ...
    def input(self, node: str, returns: Any = None) -> Any:
        """Return the result of an earlier node, which has one job.

        For a job of a flow whose node is `after` the other one or gets its result, and for a job
        that runs after the flow. Each call reads from the database.

        Args:
            node: name of the node.
            returns: type to which the result is converted. Default: plain JSON.

        Raises:
            InputError: the job did not wait for this node, the node did not complete, its result is
                of another type or not stored any more, or the job cannot read results: in a batch
                handler, inside `job.transaction()`, or without a database.

        Example:
            >>> paths = job.input("import:index", returns=list[str])  # doctest: +SKIP
        """
        source = self._source(node, many=False)
        if source.is_many:
            message = f"node {node!r} has one job for each item of a list: use `job.inputs({node!r})`"
            raise InputError(message)
        if source.state != "completed":
            raise InputError(f"node {node!r} has no result: job {source.id} is {source.state}")
        if not source.is_stored:
            message = (
                f"the result of node {node!r} is not stored any more: job {source.id} was deleted from the history. "
                "Pass the result as an argument, which keeps it"
            )
            raise InputError(message)
        return _value(f"the result of node {node!r}", source.result, returns)

    @overload
    def inputs(self, node: str, returns: type[T]) -> Iterator[T]: ...
    @overload
    def inputs(self, node: str, returns: None = None) -> Iterator[Any]: ...
    def inputs(self, node: str, returns: Any = None) -> Iterator[Any]:
        """Iterate over the results of an earlier node that was added by `Flow.map`, in the order of its items.

        The results are read 1,000 at a time, so they can be more than fit into a payload. Items whose
        job did not complete are left out.

        Args:
            node: name of the node.
            returns: type to which each result is converted. Default: plain JSON.

        Raises:
            InputError: as `input`.

        Example:
            >>> total = sum(job.inputs("import:page", returns=int))  # doctest: +SKIP
        """
        source = self._source(node, many=True)
        if not source.is_many:
            message = f"node {node!r} has one job: use `job.input({node!r})`"
            raise InputError(message)
        return self._each(source, returns)

    def _each(self, source: Source, returns: Any) -> Iterator[Any]:
        past = -1
        while page := self.transaction_host.inputs.page(self, source, past):
            for past, text in page:
                yield _value(f"the result of node {source.node!r}, item {past},", text, returns)

    def _source(self, node: str, *, many: bool) -> Source:
        found = self.transaction_host.inputs.sources(self, node, many=many)
        for source in found:
            if source.node == node:
                return source
        names = ", ".join(sorted(repr(source.node) for source in found)) or "none"
        message = f"job {self.id} did not wait for node {node!r:.120}. Nodes that it waited for: {names:.500}"
        raise InputError(message)


def _value(what: str, text: str | None, wanted: Any) -> Any:
    """Return a result as `wanted`, a type, or as it is if that is None. Raises InputError."""
    value = None if text is None else decode_payload(text)
    if is_sealed(value):
        message = f"{what} is encrypted: results of an encrypted kind cannot be passed on"
        raise InputError(message)
    if wanted is None or (convert := converter_for(wanted)) is None:
        return value
    try:
        return convert(value)
    except Misfit as misfit:
        message = f"{what} is not {describe_type(wanted)}: {misfit}"
        raise InputError(message) from None
