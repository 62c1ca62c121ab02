"""The nodes of flows: calls that are made later, results that come later, and how they are sent.

A result that a node gets is a reference: the database writes the result into the payload before the
node starts. No connection is used here.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, Unpack, cast

import orjson

from jobherd.handlers._enqueue.bulk import Chunk, sealed
from jobherd.handlers._enqueue.options import check_id, check_options
from jobherd.handlers._run.steps import returned_by

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from jobherd.handlers._define.producer import Producer
    from jobherd.handlers._enqueue.options import JobOptions, Options, When

R_co = TypeVar("R_co", covariant=True)

_SENT: Final = ("queue", "priority", "delay", "run_at", "max_attempts", "timeout", "expires_at", "partition", "webhook")
"""Options that a node can have."""
_NOT_SENT: Final = ("cost", "tenant", "after", "parent_id", "traceparent", "payload_bytes")


class Call(Generic[R_co]):
    """A job of a chain or a group, before it is enqueued: made by `Handler.call`."""

    def __init__(self, producer: Producer[Any], args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        signature = producer.signature
        names = [parameter.name for parameter in signature.parameters]
        if len(args) > len(names):
            message = f"{signature.name} takes {len(names)} arguments, {len(args)} were given"
            raise TypeError(message)
        given = dict(zip(names, args, strict=False))
        if twice := sorted(given.keys() & kwargs.keys()):
            message = f"{signature.name} got {twice[0]!r} twice"
            raise TypeError(message)
        self.producer = producer
        self.given: dict[str, object] = {**given, **kwargs}

    @property
    def missing(self) -> str | None:
        """The required parameter that the call leaves out. Raises TypeError if there are several."""
        signature = self.producer.signature
        left = [p.name for p in signature.parameters if p.name in signature.required and p.name not in self.given]
        if len(left) > 1:
            message = f"{signature.name} gets one result, and the call leaves out {', '.join(map(repr, left))}"
            raise TypeError(message)
        return left[0] if left else None

    @property
    def returned(self) -> type[R_co] | None:
        """The type that the handler's annotation says it returns, or None."""
        return cast("type[R_co] | None", returned_by(getattr(self.producer, "function", None)))

    def members(self, calls: Sequence[Call[Any]]) -> list[dict[str, Any]]:
        """Return the nodes of calls for `job.spawn_many`.

        Args:
            calls: the calls, this one among them.

        Raises:
            TypeError: a handler does not take its arguments, or its jobs cannot be children.
            PayloadError: a value does not fit.
        """
        for call in calls:
            if call.producer.encoder.seal:
                message = (
                    f"{call.producer.kind!r} is encrypted, so its parent job cannot get its result: enqueue it instead"
                )
                raise TypeError(message)
        return member_nodes(calls)


class Result:
    """The result of a node, as an argument of another node."""

    def __init__(self, node: Node[Any]) -> None:
        self.node = node


class Node(Generic[R_co]):
    """A job of a flow: made by `Flow.add` and `Flow.map`.

    Attributes:
        name: name of the node in its flow.
    """

    def __init__(
        self, name: str, call: Call[R_co], *, over: str | None = None, place: tuple[Sequence[Node[Any]], int]
    ) -> None:
        self.name = name
        self.place = place
        """The nodes of its flow, and its number there."""
        self._call = call
        self._over = over
        self._options = call.producer.set_options
        self._after: list[Node[Any] | int] = []
        self._when: When | None = None

    @property
    def is_encrypted(self) -> bool:
        """Whether its result is encrypted."""
        return self._call.producer.encoder.seal

    @property
    def result(self) -> R_co:
        """What the handler will return, for the arguments of later nodes. A reference: not usable as a value."""
        return cast("R_co", Result(self))

    @property
    def results(self) -> list[R_co]:
        """What the handler will return for each item of a node made by `Flow.map`, in the order of the items."""
        return cast("list[R_co]", Result(self))

    def after(self, *others: Node[Any] | int, when: When | None = None) -> Self:
        """Start after other nodes of the flow, or after any jobs by their ids, and return this node.

        Args:
            others: nodes that were added before this one, or ids of jobs.
            when: how they must end: "completed", the default, "failed" or "ended".

        Example:
            >>> flow.add(publish).after(check, audit_id)  # doctest: +SKIP
        """
        with naming(self.name):
            for one in others:
                if isinstance(one, Node) and (one.place[0] is not self.place[0] or one.place[1] >= self.place[1]):
                    message = f"after names node {one.name!r}, which was added later or belongs to another flow"
                    raise ValueError(message)
            found = [one if isinstance(one, Node) else check_id(one, field="each id in after") for one in others]
            self._when = check_options(after=1, when=when).when if when is not None else self._when
        self._after += found
        return self

    def named(self, name: str) -> Self:
        """Give the node another name than the kind of its handler, and return this node.

        Args:
            name: 1 to 100 printable characters, unlike those of the other nodes.

        Example:
            >>> flow.add(step, wheel=3).named("build wheel 3")  # doctest: +SKIP
        """
        if not isinstance(name, str) or not 1 <= len(name) <= 100 or not name.isprintable():
            message = f"a node's name must be a text of 1 to 100 printable characters, not {name!r:.60}"
            raise ValueError(message)
        if any(one is not self and one.name == name for one in self.place[0]):
            message = f"the flow has a node {name!r} already"
            raise ValueError(message)
        self.name = name
        return self

    def options(self, **options: Unpack[JobOptions]) -> Self:
        """Set options of the job, such as `queue="bulk"` or `priority=5`, and return this node.

        Args:
            options: those of `Client.enqueue`.

        Example:
            >>> node.options(queue="bulk")  # doctest: +SKIP
        """
        with naming(self.name):
            given = {name: value for name, value in check_options(**options).parameters().items() if value is not None}
            for one, other in (("delay", "run_at"), ("run_at", "delay")):  # the later one counts
                if one in given:
                    given[other] = None
            changed = type(self._options)(**self._options.parameters() | given)
            node_document(self.name, self._call.producer.kind, changed)
        self._options = changed
        return self

    def document(self) -> dict[str, Any]:
        """Return the node as `jobherd.start_flow` takes it. Raises TypeError and PayloadError."""
        with naming(self.name):
            text, bound = payload_of(self._call)
            found = node_document(self.name, self._call.producer.kind, self._options) | {"text": text}
        found |= {"after": [one.name if isinstance(one, Node) else one for one in self._after]} if self._after else {}
        found |= {"when": self._when} if self._when else {}
        found |= {"bind": bound} if bound else {}
        return found | ({"map": self._over} if self._over else {})


@contextmanager
def naming(node: str) -> Iterator[None]:
    """Put the name of a node before the message of an error."""
    try:
        yield
    except (TypeError, ValueError) as problem:
        problem.args = (f"node {node!r}: {problem}", *problem.args[1:])
        raise


def node_document(name: str, kind: str, options: Options) -> dict[str, Any]:
    """Return name, kind and options of a node. Raises TypeError if it cannot have one of the options."""
    if options.is_unique:
        message = f"{kind!r} is unique, which jobs of a flow cannot be: use .options(unique=False)"
        raise TypeError(message)
    for field in _NOT_SENT:
        if getattr(options, field) is not None:
            message = f"a job of a flow cannot have the option {field}"
            raise TypeError(message)
    sent = {field: getattr(options, field) for field in _SENT if getattr(options, field) is not None}
    for field in ("run_at", "expires_at"):
        if field in sent:
            sent[field] = sent[field].astimezone(UTC).isoformat()
    return {"node": name, "kind": kind} | ({"options": sent} if sent else {})


def member_nodes(calls: Sequence[Call[Any]]) -> list[dict[str, Any]]:
    """Return the nodes of jobs that run at the same time: jobs of one kind and one set of options together."""
    found: list[dict[str, Any]] = []
    last: object = None
    for item, call in enumerate(calls):
        text, _ = payload_of(call)
        if call.producer is not last:
            found.append(
                node_document(call.producer.kind, call.producer.kind, call.producer.set_options)
                | {"item": item, "payloads": []}
            )
            last = call.producer
        found[-1]["payloads"].append(text)
    return found


def payload_of(call: Call[Any], later: str | None = None) -> tuple[str, dict[str, str]]:
    """Return the payload of a call as text, and the nodes whose results it gets, by parameter.

    later: a parameter that gets a result which is not in the call.

    Raises:
        TypeError: the handler does not take these arguments, or cannot be in a flow.
        PayloadError: a value does not fit.
    """
    producer, signature = call.producer, call.producer.signature
    bound = {name: value.node.name for name, value in call.given.items() if isinstance(value, Result)}
    plain = {name: value for name, value in call.given.items() if name not in bound}
    names = frozenset(bound) | ({later} if later is not None else set())
    for problem, found in (
        ("needs payload_bytes", getattr(signature, "needs_bytes", False)),
        ("has a function for its cost", producer.encoder.weigh is not None),
        ("takes the whole payload, and a result needs a parameter", bool(names) and getattr(signature, "whole", False)),
        ("is encrypted, and cannot get a result", bool(names) and producer.encoder.seal),
    ):
        if found:
            message = f"{producer.kind!r} {problem}: it cannot be in this flow"
            raise TypeError(message)
    for value in call.given.values():
        if isinstance(value, Result) and value.node.is_encrypted:
            message = f"the result of node {value.node.name!r} is encrypted: no other job can get it"
            raise TypeError(message)
    text = producer.encoder.partial(signature.payload((), plain | dict.fromkeys(names)), names)
    if producer.encoder.seal:
        text = sealed(Chunk(producer.kind, [text], producer.set_options)).texts[0]
    return text, bound


def encode(value: object) -> str:
    """Return a JSON text for a parameter of a statement."""
    return orjson.dumps(value).decode()
