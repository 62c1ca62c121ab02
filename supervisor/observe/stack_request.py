"""A request for the stack or profile of one running job, and how its answer is composed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from jobherd.workers.inspect.flamegraph import document
from jobherd.workers.inspect.stacks import read
from jobherd.workers.system.procfs import cpu_seconds
from jobherd.workers.system.threads import describe_threads

if TYPE_CHECKING:
    from jobherd.supervisor.policy.slot import Slot
    from jobherd.workers.inspect.stacks import Frame
    from jobherd.workers.ipc.current_work import CurrentWork

    Key = tuple[str, tuple[Frame, ...]]

MOST_STACKS: Final = 1000
"""Different stacks in a profile; all others are counted together."""
MOST_ANSWER: Final = 512 * 1024
"""Approximate maximum of characters in an answer."""
OTHER: Final = ("(other stacks)", ())


@dataclass(slots=True)
class StackRequest:
    """A request for the stack or profile of one running job."""

    command: int
    """Id of the fleet command."""
    job: int
    host: str
    slot: Slot
    incarnation: int
    now: CurrentWork
    """The work on its status board when the request came."""
    kind: str
    began: float
    until: float
    due: float
    every: float = 0.0
    """Seconds between two samples; 0: only one stack is wanted."""
    counts: dict[Key, int] = field(default_factory=dict)
    samples: int = 0
    processor: float = 0.0
    """Processor seconds that its process had used at the start."""

    def count(self, keys: list[Key], asked: float) -> None:
        """Count one sample of a profile, for which the signal was sent at that time."""
        for key in keys:
            known = key if key in self.counts or len(self.counts) < MOST_STACKS else OTHER
            self.counts[known] = self.counts.get(known, 0) + 1
        self.samples += 1
        # A missed sample is not repeated: two samples of the same time have no more information than one.
        self.due = max(self.due + self.every, asked)

    def about(self, now: float) -> dict[str, Any]:
        """Return the part of an answer that names its job and process."""
        return {
            "job": self.job,
            "token": self.now.token,
            "kind": self.kind,
            "host": self.host,
            "worker": self.slot.number,
            "pid": self.slot.process.pid,
            "runs_for": round(now - self.now.started, 3),
        }

    def stack(self, written: bytes, now: float) -> dict[str, Any]:
        """Return the answer with the stacks of one sample."""
        threads = [thread.document() for thread in read(written.decode(errors="replace")).threads]
        took = round(now - self.began, 4)
        return self.about(now) | {"took": took, "threads": threads, "tasks": describe_threads(self.slot.process.pid)}

    def profile(self, now: float, ended: str) -> dict[str, Any]:
        """Return the answer with all samples.

        Args:
            now: the current time.
            ended: why the profile ended early, or "".
        """
        seconds = min(now, self.until) - self.began
        used = cpu_seconds(self.slot.process.pid) - self.processor
        return {
            **self.about(now),
            "rate": round(1 / self.every, 3),
            "seconds": round(seconds, 3),
            "samples": self.samples,
            "missed": max(round(seconds / self.every) - self.samples, 0),
            "processor": None if ended else round(used, 3),
            "ended": ended,
            **document(self.counts, MOST_ANSWER),
        }
