"""A supervisor that gives a server up sooner than the product does.

`python -m tests.support.hasty SECONDS run ...`.

For tests of what comes after the ten seconds in which a session must say a word and a connection
must stand; no setting is for them. Children are forked, and have them from here. It must not touch
how these seconds are shared and counted: that is the product's, and under test.
"""

from __future__ import annotations

import sys

from jobherd.supervisor.__main__ import main
from jobherd.supervisor.process.signals import hold


def hurry(seconds: int) -> None:
    """Have this process, and whatever it forks, wait so long instead."""
    from jobherd.supervisor.cli import database
    from jobherd.supervisor.database import connection as db
    from jobherd.supervisor.database import connector
    from jobherd.workers.database import connection

    database.CONNECT_TIMEOUT = seconds
    db.CONNECT_PATIENCE = connector.CONNECT_PATIENCE = connection.CONNECT_PATIENCE = seconds  # type: ignore[misc]
    connection.Session.__init__.__kwdefaults__["patience"] = float(seconds)


if __name__ == "__main__":
    hold()  # as `python -m jobherd.supervisor` does before it loads the rest
    hurry(int(sys.argv.pop(1)))
    raise SystemExit(main())
