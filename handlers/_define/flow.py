"""Graphs of jobs: `Flow`, and what it has in common with chains and groups.

One statement enqueues a whole flow, so there is never half of one. What the statement gets is
`jobherd.start_flow`'s array of nodes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias, TypeVar, cast, get_args, overload

import psycopg

from jobherd.handlers._define.flow_nodes import Call, Node, Result, encode, node_document, payload_of
from jobherd.handlers._enqueue import default
from jobherd.handlers._enqueue.async_client import AsyncClient
from jobherd.handlers._enqueue.client import Client
from jobherd.handlers._enqueue.options import check_target
from jobherd.handlers._enqueue.statements import start_flow
from jobherd.handlers._policy.durations import Duration, positive
from jobherd.handlers._policy.names import check_tenant, check_whole
from jobherd.handlers._run.call_checks import check_call, check_handler

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from jobherd.handlers._define.handler import Handler
    from jobherd.handlers._enqueue.origin import Origin
    from jobherd.handlers._enqueue.statements import Statement

P = ParamSpec("P")
R = TypeVar("R")

Policy: TypeAlias = Literal["cancel", "continue"]
When: TypeAlias = Literal["success", "failure", "done"]
"""The end of a flow after which a job runs."""


class Started:
    """A flow before it is enqueued.

    Args:
        name: name of the flow, for the dashboard and the command line.
        on_failure: "cancel": the first failed job cancels all others. "continue": only the jobs that
            wait for it.
        deadline: longest duration from the enqueue to the end. Then all jobs that have not ended
            are canceled. Default: no limit.
        tenant: tenant of all jobs.
    """

    def __init__(
        self, name: str, *, on_failure: Policy = "cancel", deadline: Duration | None = None, tenant: str | None = None
    ) -> None:
        if not isinstance(name, str) or not 1 <= len(name) <= 200:
            message = "a flow's name has 1 to 200 characters"
            raise ValueError(message)
        if on_failure not in get_args(Policy):
            message = f"on_failure is {' or '.join(map(repr, get_args(Policy)))}, not {on_failure!r}"
            raise ValueError(message)
        self.name = name
        self._options: dict[str, Any] = {"policy": on_failure}
        if deadline is not None:
            self._options["deadline"] = positive(deadline, field="deadline")
        if tenant is not None:
            self._options["tenant"] = check_tenant(tenant, field="tenant")

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes as `jobherd.start_flow` takes them. Raises TypeError and PayloadError."""
        raise NotImplementedError

    def enqueue(self, *, connection: psycopg.Connection[Any] | None = None, client: Client | None = None) -> int:
        """Enqueue all jobs of the flow, and return its id. Other jobs can wait for it: `after=flow_id`.

        Args:
            connection: your own psycopg connection. The flow becomes part of its transaction.
            client: another client. Excludes `connection`. Default: as for `Handler.enqueue`.

        Raises:
            TypeError: a handler does not take its arguments, or cannot be in a flow.
            PayloadError: a value cannot be encoded as JSON or does not fit its annotation.
            psycopg.Error: the database reports an error.

        Example:
            >>> flow.enqueue()  # doctest: +SKIP
            42
        """
        check_target(connection, "connection", "a connection of psycopg 3", psycopg.Connection)
        check_target(client, "client", "a Client", Client)
        if connection is not None and client is not None:
            message = "connection and client exclude each other: give one of them"
            raise ValueError(message)
        if connection is not None:
            client = default.client_on(connection)
        return (client or default.default_client()).start(self._statement())

    async def aenqueue(self, *, client: AsyncClient | None = None) -> int:
        """Enqueue the flow from asyncio. Like `enqueue`.

        Args:
            client: client that enqueues. Default: the default client, in a thread.
        """
        check_target(client, "client", "an AsyncClient", AsyncClient)
        statement = self._statement()
        if client is not None:
            return await client.start(statement)
        if isinstance(own := default.entered_transaction(), psycopg.AsyncConnection):
            return await default.astart_on_own(own, statement)
        return await asyncio.to_thread(default.default_client().start, statement)

    def _statement(self) -> Any:
        nodes, options = self.nodes(), self._options

        def build(origin: Origin | None) -> Statement[int]:
            own = {} if origin is None else {"parent_id": origin.job, "traceparent": origin.traceparent}
            own = {name: value for name, value in own.items() if value is not None}
            return start_flow(self.name, encode(nodes), encode(options | own))

        return build


class Flow(Started):
    """A graph of jobs. A node starts when the nodes that it gets results of, or is `after`, have completed.

    Args:
        name, on_failure, deadline, tenant: those of `Started`.
        version: version of the graph, for `jobherd flow tree` and the dashboard. Default: none.
        unique_key: while a flow of this name and tenant with this key is open, `enqueue` enqueues
            nothing and returns that flow's id. Default: none.
        sealed: False: any program can add jobs with `extend`, and the flow does not end before
            `Client.seal_flow`.

    Example:
        >>> flow = Flow("import:nightly")  # doctest: +SKIP
        >>> index = flow.add(fetch_index, day="2026-01-31")  # doctest: +SKIP
        >>> pages = flow.map(parse_page, over=index.result)  # doctest: +SKIP
        >>> total = flow.add(sum_up, counts=pages.results)  # doctest: +SKIP
        >>> flow.add(publish, total=total.result)  # doctest: +SKIP
        >>> flow.enqueue()  # doctest: +SKIP
        42
    """

    def __init__(
        self,
        name: str,
        *,
        on_failure: Policy = "cancel",
        deadline: Duration | None = None,
        tenant: str | None = None,
        version: int | None = None,
        unique_key: str | None = None,
        sealed: bool = True,
    ) -> None:
        super().__init__(name, on_failure=on_failure, deadline=deadline, tenant=tenant)
        if version is not None:
            self._options["version"] = check_whole(version, field="version", least=1)
        if unique_key is not None:
            if not isinstance(unique_key, str) or not 1 <= len(unique_key) <= 200 or not unique_key.isprintable():
                message = f"unique_key must be a text of 1 to 200 printable characters, not {unique_key!r:.60}"
                raise ValueError(message)
            self._options["unique_key"] = unique_key
        if not sealed:
            self._options["sealed"] = False
        self._nodes: list[Node[Any]] = []
        self._callbacks: list[dict[str, Any]] = []

    @overload
    def add(self, handler: Handler[P, Any, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> Node[R]: ...
    @overload
    def add(self, handler: Handler[P, Any, R], *args: P.args, **kwargs: P.kwargs) -> Node[R]: ...
    def add(self, handler: Handler[P, Any, Any], *args: P.args, **kwargs: P.kwargs) -> Node[Any]:
        """Add a job, and return its node.

        Args:
            handler: the handler.
            args: its arguments, without the job. `node.result` passes the result of an earlier node.
            kwargs: arguments by name.

        Raises:
            TypeError: the handler does not take these arguments, or cannot be in a flow.
            PayloadError: a value does not fit its annotation.
        """
        check_handler(handler, "Flow.add")
        return self.put(Call(handler, args, kwargs))

    def map(self, handler: Handler[Any, Any, R], *, over: list[Any], **kwargs: object) -> Node[R]:
        """Add one job for each item of a list that an earlier node returns, and return their node.

        Args:
            handler: the handler. The required parameter that you leave out gets the item.
            over: `node.result` of the earlier node, up to 100,000 items.
            kwargs: the other arguments, the same for each item.

        Raises:
            TypeError: `over` is not the result of a node, or the handler does not take the arguments.
        """
        check_handler(handler, "Flow.map")
        result: object = over
        call: Call[Any] = Call(handler, (), kwargs)
        if not isinstance(result, Result) or call.missing is None:
            message = (
                f"{handler.kind!r} needs a required parameter for the item"
                if isinstance(result, Result)
                else "over must be node.result of an earlier node"
            )
            raise TypeError(message)
        parameter = call.missing
        call.given[parameter] = result
        return cast("Node[R]", self.put(call, over=parameter))

    def on(self, when: When, call: Call[Any]) -> None:
        """Add a job that runs after the end of the whole flow. It is not a member of it.

        Args:
            when: "success": all jobs have completed. "failure": a job has failed. "done": in any case.
            call: the job, made by `Handler.call`.
        """
        if when not in get_args(When):
            message = f"when is {', '.join(map(repr, get_args(When)))}, not {when!r}"
            raise ValueError(message)
        check_call(call, "Flow.on: the job")
        self._callbacks.append(callback(when, call))

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes as `jobherd.start_flow` takes them."""
        return [node.document() for node in self._nodes] + self._callbacks

    def put(self, call: Call[Any], *, over: str | None = None) -> Node[Any]:
        """Add a call as a node.

        Args:
            call: a handler with its arguments, from `Handler.call`.
            over: the parameter that gets an item of another node's list. Default: none.

        Raises:
            TypeError: the handler does not take these arguments.
            ValueError: an argument is the result of a node of another flow.
            PayloadError: a value cannot be encoded as JSON or does not fit its annotation.
        """
        check_call(call, "Flow.put: the argument")
        known = {node.name for node in self._nodes}
        for value in call.given.values():
            if isinstance(value, Result) and value.node not in self._nodes:
                message = f"node {value.node.name!r} belongs to another flow"
                raise ValueError(message)
        base = call.producer.kind
        name = next(name for name in (base, *(f"{base}-{n}" for n in range(2, len(known) + 3))) if name not in known)
        node: Node[Any] = Node(name, call, over=over, place=(self._nodes, len(self._nodes)))
        node.document()  # raises here, where the mistake is
        self._nodes.append(node)
        return node


def callback(when: str, call: Call[Any]) -> dict[str, Any]:
    """Return the node of a job that runs after the flow."""
    parameter = call.missing
    text, bound = payload_of(call, parameter)
    if bound:
        message = f"{call.producer.kind!r} runs after the flow: leave out a parameter to get its results"
        raise TypeError(message)
    producer = call.producer
    found = node_document(f"{when}: {producer.kind}", producer.kind, producer.set_options)
    return found | {"text": text, "on": when} | ({"results": parameter} if parameter is not None else {})
