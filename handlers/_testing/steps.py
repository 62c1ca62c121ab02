"""Durable steps of jobs that tests run: the records are in a dict, in the form in which a database keeps them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from jobherd.handlers._run.child_jobs import Spawned
from jobherd.handlers._run.dispositions import JobSuspended
from jobherd.handlers._run.job import Job
from jobherd.handlers._run.steps import FOREVER, Record, StepError, decoded, encoded
from jobherd.handlers._run.transaction import NO_DATABASE
from jobherd.handlers._testing.inputs import MemoryInputs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobherd.handlers._policy.policy import Policy
    from jobherd.handlers._run.child_job_methods import Parent
    from jobherd.handlers._run.child_jobs import ChildCall
    from jobherd.handlers._run.durable import Durable
    from jobherd.handlers._run.inputs import InputHost
    from jobherd.handlers._run.steps import StepHost

_NO_DATABASE = "a step transaction needs a database: use `jobherd.testing.inline`, or a worker"


class MemorySteps:
    """Steps of one attempt.

    records: the results of the steps that are done, by name. policy: of the handler.
    """

    def __init__(self, records: dict[str, Any], policy: Policy) -> None:
        self.records = records
        self.version = policy.version
        self.begins_count = policy.attempts_per_step
        self._names: set[str] = set()
        self._sleeps = self._spawns = 0

    def enter(self, _job: Durable, name: str) -> Record | None:
        """Begin a step and return its record if it is done."""
        self._use(name)
        return Record(encoded(name, self.records[name]), self.version) if name in self.records else None

    def leave(self, name: str) -> None:
        """Note that a step has failed."""
        self._names.discard(name)

    def record(self, job: Durable, name: str, result: str | None) -> None:
        """Record a step."""
        self.records[name] = decoded(result)
        if self.begins_count:
            self.begin_count(job)

    def begin_count(self, job: Parent) -> None:
        """Count the attempt as the first one."""
        assert isinstance(job, Job)
        job.attempt = 1

    def begin(self, _job: Durable, _name: str) -> Any:
        """Raise StepError."""
        raise StepError(_NO_DATABASE)

    abegin = begin

    def commit(self, job: Durable, name: str, result: str | None) -> None:
        """Record a step."""
        self.record(job, name, result)

    def undo(self, name: str) -> None:
        """Note that a step has failed."""
        self.leave(name)

    def sleep(self, job: Durable, name: str | None, seconds: float) -> None:
        """Suspend the job, unless the name is in the dict: then it has slept."""
        self._sleeps += name is None
        name = f"sleep:{self._sleeps}" if name is None else name
        if self.enter(job, name) is None:
            self.record(job, name, None)
            message = f"the job sleeps for {seconds:g} s"
            raise JobSuspended(message, seconds)

    def wait(self, job: Durable, name: str, topic: str, seconds: float | None) -> Record:
        """Return what the dict has as the payload of the signal, or suspend the job."""
        record = self.enter(job, name)
        if record is None:
            message = f"the job waits for {topic}"
            raise JobSuspended(message, FOREVER if seconds is None else seconds)
        return Record(json.dumps({} if self.records[name] is None else {"payload": self.records[name]}), record.version)

    def spawn(self, _job: Parent, name: str | None, calls: Sequence[ChildCall[Any]], *, leaves: bool) -> Spawned:  # noqa: ARG002  # nothing is enqueued
        """Check the calls and enqueue nothing."""
        self._spawns += name is None
        name = f"spawn:{self._spawns}" if name is None else name
        self._use(name)
        if calls:
            calls[0].members(calls)
        return Spawned(name, 0, len(calls))

    def gather(self, _job: Parent, spawned: Spawned, *, failures: bool) -> Record:  # noqa: ARG002  # a dict has results only
        """Return what the dict has as the results of the children, or suspend the job."""
        if spawned.name not in self.records:
            message = f"the job waits for {spawned.jobs} child jobs of step {spawned.name!r}"
            raise JobSuspended(message, FOREVER)
        results = self.records[spawned.name]
        if not isinstance(results, list) or len(results) != spawned.jobs:
            message = f"steps[{spawned.name!r}] must be the list of the results of {spawned.jobs} child jobs"
            raise StepError(message)
        return Record(encoded(spawned.name, [{"result": result} for result in results]), self.version)

    def began_with(self, _job: Durable) -> int:
        """Return the handler's version: a dict has no older one."""
        return self.version

    def _use(self, name: str) -> None:
        if name in self._names:
            message = f"the name {name!r} is used twice in one attempt: in a loop, put the item into the name"
            raise StepError(message)
        self._names.add(name)


class InMemory:
    """Host of a job without a database: it has steps and inputs, and no transactions."""

    def __init__(self, records: dict[str, Any] | None, policy: Policy, inputs: Mapping[str, Any] | None) -> None:
        self.steps: StepHost = MemorySteps({} if records is None else records, policy)
        self.inputs: InputHost = MemoryInputs(inputs)

    def begin(self) -> NoReturn:
        """Raise RuntimeError."""
        NO_DATABASE.begin()

    abegin = connection = undo = begin

    def complete(self, _result: object) -> None:
        """Raise RuntimeError."""
        NO_DATABASE.begin()
