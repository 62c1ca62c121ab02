"""Builds the parameters of the statements for child jobs, and reads their answers. It sends no statement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._define.flow_lists import MOST
from jobherd.handlers._define.flow_nodes import encode
from jobherd.handlers._run.child_jobs import CODE, Spawned
from jobherd.handlers._run.dispositions import Poison
from jobherd.handlers._run.steps import decoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.handlers._run.child_jobs import ChildCall
    from jobherd.handlers._run.durable import Durable
    from jobherd.handlers._run.steps import Record
    from jobherd.workers.database.opening import Row

BYTES: Final = 1_000_000
"""Most bytes of the results that a job gathers at once: they are the result of a step."""
SHOWN: Final = 1000
"""Children that have not completed of which the error is read."""


def spawn_values(job: Durable, calls: Sequence[ChildCall[Any]], *, leaves: bool) -> dict[str, object]:
    """Return the parameters of `spawn_children` about the children. Raises what `spawn_many` raises."""
    if len(calls) > MOST:
        message = f"one step spawns at most {MOST:,} jobs, not {len(calls):,}"
        raise ValueError(message)
    # The name must not hold the job's id: metrics count flows by name.
    options = {"policy": "continue", "keeps": True, "traceparent": getattr(job, "trace", None)}
    return {
        "title": f"spawn {job.kind}",
        "nodes": encode(calls[0].members(calls) if calls else []),
        "options": encode({name: value for name, value in options.items() if value is not None}),
        "jobs": len(calls),
        "leaves": leaves,
    }


def spawned_by(name: str, record: Record) -> Spawned:
    """Return what a step has spawned."""
    found = decoded(record.result)
    return Spawned(name, found["flow"], found["jobs"])


def find_values(spawned: Spawned) -> dict[str, object]:
    """Return the parameters of `find_children` about the children."""
    return {"flow": spawned.flow, "most": BYTES, "shown": SHOWN}


def wait_values(spawned: Spawned) -> dict[str, object]:
    """Return the parameters of `record_wait` for the end of the children."""
    return {"topic": f"flow/{spawned.flow}", "seconds": None, "flow": spawned.flow}


def judged(spawned: Spawned, row: Row) -> list[dict[str, Any]] | None:
    """Return an entry for each child, as `StepHost.gather` does, or None if they have not ended.

    row: of `find_children`. Raises Poison if the results are deleted or too large.
    """
    state, size, results, failures = row
    if state == "open":
        return None
    if state is None:
        message = (
            f"the results of the child jobs of step {spawned.name!r} are deleted: they are kept for 30 days after "
            "their end"
        )
        raise Poison(message, CODE)
    if results is None:
        message = (
            f"the results of the child jobs of step {spawned.name!r} have {size:,} bytes together, more than {BYTES:,}:"
            " return keys of stored data instead"
        )
        raise Poison(message, CODE)
    found = {item: {"result": result} for item, result in decoded(results)}
    for failure in decoded(failures) or []:
        told = {"job_id": failure["job"], "kind": failure["kind"], "state": failure["state"]}
        error = (failure["error"] or failure["code"] or "").split("\n", 1)[0]
        found[failure["item"]] = {"failed": told | {"error": error}}
    missing: dict[str, Any] = {"failed": {}}
    return [found.get(item, missing) for item in range(spawned.jobs)]
