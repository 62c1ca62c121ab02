"""Unregisters the supervisor from the database when it exits, if that takes at most 5 seconds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.database.connection import DatabaseConnection, Link

if TYPE_CHECKING:
    import selectors
    from collections.abc import Callable

    from jobherd.supervisor.database.lease import Lease
    from jobherd.supervisor.database.requests import Answer
    from jobherd.supervisor.database.session import DatabaseSession
    from jobherd.supervisor.policy.slot_table import SlotTable

MOST: Final = 5.0
"""Maximum seconds, for a busy server commits slowly. After that, the registration lasts until its lease expires."""


def unregister(
    db: DatabaseConnection,
    session: DatabaseSession,
    lease: Lease,
    slot_table: SlotTable,
    selector: selectors.BaseSelector,
) -> None:
    """Delete the supervisor's registration and close the session."""
    answers: list[Answer] = []
    until = time.monotonic() + MOST

    def exchange(done: Callable[[], bool]) -> None:
        while not done() and time.monotonic() < until and db.link is Link.UP:
            session.step(time.monotonic())
            selector.select(0.05)

    # After a stop during registration the server still registers this supervisor. Such a
    # registration, left behind, would last until its lease expires.
    exchange(lambda: not lease.underway)
    if slot_table.supervisor and db.link is Link.UP:
        db.ask("recover/unregister_supervisor", {"supervisor": slot_table.supervisor}, answers.append)
        exchange(lambda: bool(answers))
    db.close()
