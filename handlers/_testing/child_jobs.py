"""Child jobs of jobs that tests run: they are among the jobs of the test, which `drain` runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from jobherd.handlers._define.flow_nodes import payload_of
from jobherd.handlers._enqueue.bulk import Chunk
from jobherd.handlers._run.dispositions import JobSuspended
from jobherd.handlers._run.steps import FOREVER, Record, encoded
from jobherd.handlers._testing.steps import MemorySteps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobherd.handlers._define.flow_nodes import Call
    from jobherd.handlers._policy.policy import Policy
    from jobherd.handlers._run.child_job_methods import Parent
    from jobherd.handlers._run.child_jobs import ChildCall, Spawned
    from jobherd.handlers._testing.enqueued import Enqueued, Watched


class WatchedSteps(MemorySteps):
    """Steps of one attempt of a job in `inline` or `recorder`.

    watched: the jobs of the test. records, policy: as for MemorySteps. The record of a step that has
    spawned is the list of the children.
    """

    def __init__(self, watched: Watched, records: dict[str, Any], policy: Policy) -> None:
        super().__init__(records, policy)
        self._watched = watched
        self.undone_with_attempt: list[str] = []
        """Steps of this attempt whose effect is undone if `inline` undoes the attempt."""

    def begin_count(self, job: Parent) -> None:
        """Count the attempt as the first one, and begin the count of the job."""
        super().begin_count(job)
        self._watched.begin_count()

    def spawn(self, job: Parent, name: str | None, calls: Sequence[ChildCall[Any]], *, leaves: bool) -> Spawned:
        """Enqueue the children, unless that is done."""
        spawned = super().spawn(job, name, calls, leaves=leaves)
        if spawned.name not in self.records:
            before = len(self._watched.jobs)
            for call in cast("Sequence[Call[Any]]", calls):
                self._watched.client.put([Chunk(call.producer.kind, [payload_of(call)[0]], call.producer.set_options)])
            self.records[spawned.name] = self._watched.jobs[before:]
            self.undone_with_attempt.append(spawned.name)
            if self.begins_count:
                self.begin_count(job)
        return spawned._replace(jobs=len(self.records[spawned.name]))

    def gather(self, _job: Parent, spawned: Spawned, *, failures: bool) -> Record:  # noqa: ARG002  # no failure is recorded
        """Return what became of the children, or suspend the job until `drain` has run them."""
        children: list[Enqueued] = self.records[spawned.name]
        if not all(child.over for child in children):
            self._watched.wait_for(children)
            message = f"the job waits for {spawned.jobs} child jobs of step {spawned.name!r}"
            raise JobSuspended(message, FOREVER)
        return Record(encoded(spawned.name, [_entry(child) for child in children]), self.version)


def _entry(child: Enqueued) -> dict[str, Any]:
    ran = child.ran[-1]
    if ran.outcome.label == "ok":
        return {"result": ran.result}
    error = (ran.outcome.error or ran.outcome.code or "").split("\n", 1)[0]
    return {"failed": {"job_id": child.id, "kind": child.kind, "state": ran.outcome.state, "error": error}}
