"""What the router of an uplink needs of the parts around it, as protocols: a test has others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jobherd.handlers._remote import messages as m
    from jobherd.handlers._remote.events import Ref


class Stream(Protocol):
    """The stream to the gateway."""

    def ask(
        self,
        answer: Callable[[Sequence[m.Task], float], None],
        *,
        kinds: Sequence[str],
        queues: Sequence[str],
        count: int,
        lease: float,
    ) -> int:
        """Ask for tasks. answer: called once, with the time."""

    def take_back(self, number: int) -> None:
        """Take a Ready back."""

    def report(self, result: m.Result) -> None:
        """Report a result."""

    def tell_progress(self, report: m.Progress) -> None:
        """Report progress."""

    def extend(self, ref: Ref, seconds: float) -> bool:
        """Extend a task."""

    def release(self, claim: int, behind: int = 0) -> None:
        """Release a claim."""

    def declare(self, kinds: Sequence[m.KindPolicy]) -> None:
        """Replace what is declared about kinds."""


class Link(Protocol):
    """The connection to a worker."""

    child: int
    """The incarnation of the worker. 0: it has not said it."""

    def send(self, response: m.WorkResponse) -> None:
        """Send a message."""

    def close(self) -> None:
        """End the connection."""
