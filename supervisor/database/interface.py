"""What the other parts of the supervisor use of its way to the queue: requests, their state, its registration.

`DatabaseConnection` and `Lease` are that way in `jobherd run`. In `jobherd work`, `uplink/link.py` is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jobherd.supervisor.database.connection import Link
    from jobherd.supervisor.database.requests import Answer


class Requests(Protocol):
    """Sends requests about jobs."""

    def ask(
        self,
        name: str,
        parameters: Mapping[str, object],
        answered: Callable[[Answer], None],
        refused: Callable[[], None] | None = None,
    ) -> None:
        """Send the statement of that name.

        `refused` is called instead of `answered` if it is permanently rejected.
        """


class Connection(Requests, Protocol):
    """The connection that carries the requests."""

    @property
    def link(self) -> Link:
        """Its state."""

    @property
    def peer(self) -> str:
        """What it leads to, for people."""

    @property
    def trouble(self) -> str:
        """The reason of the last loss or failure, without secrets."""

    @property
    def write_problem(self) -> str:
        """Why the peer accepts no writes, though it answers."""

    @property
    def is_quiet(self) -> bool:
        """Whether it is up and no request is under way."""

    @property
    def polls(self) -> bool:
        """Whether it is usable but receives no notifications."""

    def forget(self) -> int:
        """Called in a forked child: return the socket's number, which the child closes, or -1."""


class Registration(Protocol):
    """The right of this supervisor to its jobs."""

    @property
    def receives_notifications(self) -> bool:
        """Whether notifications arrive."""

    @property
    def reclaimed(self) -> int:
        """Number of jobs that were reclaimed from dead supervisors."""

    @property
    def renewals(self) -> int:
        """Number of renewals."""

    def change_lease(self, lease: float) -> None:
        """Use this duration of the lease from now on."""
