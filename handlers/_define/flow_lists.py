"""Chains and groups of jobs: `chain`, `group`, and `extend`, by which a job adds members to its flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._define.flow import Flow, Started, callback
from jobherd.handlers._define.flow_nodes import Call, Node, encode, member_nodes
from jobherd.handlers._enqueue import default
from jobherd.handlers._enqueue.client import Client
from jobherd.handlers._enqueue.options import check_id, check_target
from jobherd.handlers._enqueue.statements import extend_flow
from jobherd.handlers._run.call_checks import check_call, check_calls

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jobherd.handlers._policy.durations import Duration

MOST: Final = 100_000
"""Most jobs that one call adds."""
_ON: Final = {"on_success": "success", "on_failure": "failure", "on_done": "done"}


class Chain(Started):
    """Jobs that run one after the other: see `chain`."""

    def __init__(self, calls: Iterable[Call[Any]], name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._flow = Flow(name)
        before: Node[Any] | None = None
        for call in calls:
            given: Call[Any] = Call(call.producer, (), call.given)
            if before is not None and (parameter := given.missing) is not None:
                given.given[parameter] = before.result
            node = self._flow.put(given)
            before = node if before is None else node.after(before)

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes as `jobherd.start_flow` takes them."""
        return self._flow.nodes()


class Group(Started):
    """Jobs that run at the same time: see `group`."""

    def __init__(
        self, calls: Iterable[Call[Any]], callbacks: dict[str, Call[Any] | None], name: str, **options: Any
    ) -> None:
        super().__init__(name, **options)
        self._calls = list(calls)
        self._callbacks = [callback(_ON[when], call) for when, call in callbacks.items() if call is not None]
        if len(self._calls) > MOST:
            message = f"a group has at most {MOST:,} jobs, not {len(self._calls):,}"
            raise ValueError(message)

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes as `jobherd.start_flow` takes them: jobs of one kind and one set of options together."""
        return member_nodes(self._calls) + self._callbacks


def chain(
    *calls: Call[Any], name: str | None = None, deadline: Duration | None = None, tenant: str | None = None
) -> Chain:
    """Return jobs that run one after the other. The next one starts when the one before has completed.

    Each job gets the result of the one before it, in the required parameter that its call leaves
    out. If a job fails, those after it are canceled.

    Args:
        calls: the jobs, made by `Handler.call`.
        name: name of the flow. Default: the kind of the first job.
        deadline: longest duration of the whole chain. Default: no limit.
        tenant: tenant of all jobs.

    Example:
        >>> chain(fetch.call(url="https://example.org"), parse.call()).enqueue()  # doctest: +SKIP
        42
    """
    given = check_calls(calls, "chain")
    return Chain(given, _named(name, given, "chain"), deadline=deadline, tenant=tenant)


def group(
    calls: Iterable[Call[Any]],
    *,
    on_success: Call[Any] | None = None,
    on_failure: Call[Any] | None = None,
    on_done: Call[Any] | None = None,
    name: str | None = None,
    deadline: Duration | None = None,
    tenant: str | None = None,
) -> Group:
    """Return jobs that run at the same time, and jobs that run after all of them have ended.

    A callback whose call leaves out a required parameter gets the list of results in it, in the
    order of the jobs. A failed job does not stop the others.

    Args:
        calls: the jobs, made by `Handler.call`, up to 100,000. If there are none, the group is a
            success at once.
        on_success: runs if all have completed.
        on_failure: runs if one has failed or expired.
        on_done: runs in any case.
        name: name of the flow. Default: the kind of the first job.
        deadline: longest duration of the whole group. Default: no limit.
        tenant: tenant of all jobs.

    Example:
        >>> group([resize.call(n) for n in range(100)], on_success=zip_all.call()).enqueue()  # doctest: +SKIP
        42
    """
    given = check_calls(calls, "group")
    callbacks = {"on_success": on_success, "on_failure": on_failure, "on_done": on_done}
    for when, call in callbacks.items():
        if call is not None:
            check_call(call, f"group: {when}")
    return Group(
        given, callbacks, _named(name, given, "group"), on_failure="continue", deadline=deadline, tenant=tenant
    )


def extend(flow_id: int, calls: Iterable[Call[Any]], *, client: Client | None = None) -> int:
    """Add jobs to a flow, from a handler of one of its jobs or before the seal of the flow, and return their number.

    The flow ends when these jobs have ended too. Their results are not in the list of a callback.

    Args:
        flow_id: id of the flow, `job.flow` in a handler.
        calls: the jobs, made by `Handler.call`.
        client: another client. Default: as for `Handler.enqueue`. The jobs must be committed before
            the handler returns.

    Raises:
        psycopg.Error: the flow has ended.

    Example:
        >>> extend(job.flow, [visit.call(url) for url in found])  # doctest: +SKIP
        3
    """
    check_target(client, "client", "a Client", Client)
    nodes = [node | {"item": None} for node in Group(check_calls(calls, "extend"), {}, "group").nodes()]
    statement = extend_flow(check_id(flow_id, field="flow_id"), encode(nodes))
    return (client or default.default_client()).run(statement, flow_id)


def _named(name: str | None, calls: Iterable[Call[Any]], usual: str) -> str:
    if name is not None:
        return name
    first = next(iter(calls), None)
    return usual if first is None else f"{usual} {first.producer.kind}"
