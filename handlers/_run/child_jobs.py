"""Child jobs of a job: what `job.spawn` returns, and what became of them. It uses no database."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from jobherd.handlers._run.dispositions import Poison
from jobherd.handlers._run.steps import Record, converted, decoded

if TYPE_CHECKING:
    from collections.abc import Sequence

R_co = TypeVar("R_co", covariant=True)

OnParentCancel: TypeAlias = Literal["cancel", "leave"]
"""What happens to the children if their parent job is canceled."""
CODE: Final = "CHILD_JOB_FAILED"


class ChildCall(Protocol[R_co]):
    """A job that is not enqueued yet, made by `Handler.call`."""

    @property
    def returned(self) -> type[R_co] | None:
        """The type that the handler's annotation says it returns, or None."""

    def members(self, calls: Sequence[ChildCall[Any]]) -> list[dict[str, Any]]:
        """Return the nodes of calls for a flow. Raises TypeError and PayloadError."""


class Spawned(NamedTuple):
    """What the step that spawns has recorded."""

    name: str
    flow: int
    """Id of the children's flow; 0 if there are none."""
    jobs: int
    """How many there are."""


class Children(Generic[R_co]):
    """The child jobs that one step has spawned."""

    def __init__(self, spawned: Spawned, types: Sequence[type[R_co] | None]) -> None:
        self.name, self.flow, self._jobs = spawned
        self._types = types

    def __len__(self) -> int:
        return self._jobs

    def results(self, record: Record, *, return_exceptions: bool) -> list[Any]:
        """Return the results that a record holds, in the order of the calls.

        Args:
            record: of the step that gathers.
            return_exceptions: return a ChildJobFailed in the place of a child without a result.

        Raises:
            ChildJobFailed: for the first child that has not completed.
            StepError: a result does not fit the type that the handler's annotation says.
        """
        found: list[Any] = []
        entries = decoded(record.result)
        failed = sum("failed" in entry for entry in entries)
        for place, entry in enumerate(entries):
            if "failed" in entry:
                problem = ChildJobFailed(**entry["failed"], failed=failed, jobs=len(entries))
                if not return_exceptions:
                    raise problem
                found.append(problem)
            else:
                wanted = self._types[place] if len(self._types) == len(entries) else None
                one = Record(json.dumps(entry["result"]), record.version)
                found.append(converted(self.name, one, wanted))
        return found


class ChildJobs(Children[R_co]):
    """The child jobs of `job.spawn_many`, for `job.gather`.

    Attributes:
        name: name of the step that has spawned them.
        flow: id of the flow that they are members of, for the dashboard and `jobherd flow`. 0 if there
            are none.
    """


class ChildJob(Children[R_co]):
    """The child job of `job.spawn`, for `job.gather`.

    Attributes:
        name: name of the step that has spawned it.
        flow: id of the flow that it is the member of.
    """


class ChildJobFailed(Poison):
    """Raised by `job.gather` if child jobs have not completed. If it is not caught, the parent job fails permanently.

    Attributes:
        job_id: id of the first such child, or None if its record is deleted.
        kind: its kind.
        state: its state: "failed", "cancelled" or "expired".
        error: its error.
    """

    def __init__(
        self,
        job_id: int | None = None,
        kind: str = "",
        state: str = "failed",
        error: str = "",
        *,
        failed: int = 1,
        jobs: int = 1,
    ) -> None:
        who = "a child job whose record is deleted" if job_id is None else f"child job {job_id} ({kind})"
        ended = {"failed": "failed", "expired": "expired"}.get(state, "was canceled")
        text = f"{who} {ended}" + (f": {error}" if error else "")
        if failed > 1:
            text += f"; {failed:,} of {jobs:,} child jobs have not completed"
        super().__init__(text, CODE)
        self.job_id, self.kind, self.state, self.error = job_id, kind, state, error
