"""Runs a supervisor with shorter timeouts for connecting to a database server.

    python -m tests.support.hasty SECONDS run ...

For tests of behavior after the 10 s within which a server must accept a connection and answer, which
no setting changes. Forked children inherit the timeouts. This module must not change how the product
divides and counts this time, because that is under test.
"""

from __future__ import annotations

import sys

from jobherd.supervisor.__main__ import main
from jobherd.supervisor.process.signals import hold


def hurry(seconds: int) -> None:
    """Set these timeouts in this process and in all that it forks."""
    from jobherd.supervisor.cli import database
    from jobherd.supervisor.database import connection as db
    from jobherd.supervisor.database import connector
    from jobherd.workers.database import connection

    database.CONNECT_TIMEOUT = seconds
    db.CONNECT_PATIENCE = connector.CONNECT_PATIENCE = seconds  # type: ignore[misc]
    connection.Session.__init__.__kwdefaults__["patience"] = float(seconds)


if __name__ == "__main__":
    hold()  # as `python -m jobherd.supervisor` does before it imports other modules
    hurry(int(sys.argv.pop(1)))
    raise SystemExit(main())
