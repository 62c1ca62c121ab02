"""Interfaces of the supervisor's connection to the queue: requests, their connection, its registration.

In `jobherd run`, `DatabaseConnection` and `Lease` have them; in `jobherd work`, `uplink/link.py` has.
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
        """The state of the connection."""

    @property
    def peer(self) -> str:
        """What it connects to, for log messages: database or gateway."""

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
        """Return the socket's number in a forked child, which closes it, or -1."""


class Registration(Protocol):
    """The supervisor's registration, with the lease on its jobs."""

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
