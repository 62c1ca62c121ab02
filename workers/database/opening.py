"""Opens psycopg connections with Jobherd's parameters: time limits, encoding, and a server that accepts writes."""

from __future__ import annotations

import errno
from typing import Any, Final, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict

from jobherd.handlers._enqueue.adapters import OURS
from jobherd.handlers._enqueue.dsn import KEPT_ALIVE

Row: TypeAlias = tuple[Any, ...]

CONNECT_PATIENCE: Final = 10
LEAST_PATIENCE: Final = 2
"""Seconds to connect: CONNECT_PATIENCE for all servers of the DSN together, and at least
LEAST_PATIENCE for each.
"""
_DEFAULTS: Final = {**KEPT_ALIVE, "target_session_attrs": "read-write"}
"""With several hosts, the first that answers may be a standby. It accepts no claim, and would be
tried again and again.
"""
_FORCED: Final = {"client_encoding": "UTF8"}
"""Overrides the DSN and the environment: in another encoding a payload could not be read, and an
outcome not be written. Spelled as the server spells it: pgbouncer takes any other spelling for
another encoding, and sets it before each transaction.
"""


def open_session(dsn: str, name: str, **more: Any) -> psycopg.Connection[Row]:
    """Connect, with Jobherd's adapters unless `more` has a context.

    Raises psycopg.Error, also if the system has a file for the socket but none to wait for it.
    """
    try:
        return psycopg.connect("", **session_parameters(dsn, name), autocommit=True, **{"context": OURS, **more})
    except OSError as problem:
        if lacks_descriptor(problem):
            raise psycopg.OperationalError(str(problem)) from problem
        raise


def lacks_descriptor(problem: BaseException) -> bool:
    """Return whether the process or the system has no free file descriptor, so that a retry may succeed."""
    return isinstance(problem, OSError) and problem.errno in {errno.EMFILE, errno.ENFILE}


def session_parameters(dsn: str, name: str) -> dict[str, Any]:
    """Return connection parameters.

    The DSN, the session's name, and time limits unless the DSN has its own.
    """
    given = conninfo_to_dict(dsn)
    servers = str(given.get("hostaddr") or given.get("host") or "").count(",") + 1
    return {
        "connect_timeout": str(max(CONNECT_PATIENCE // servers, LEAST_PATIENCE)),
        **_DEFAULTS,
        **given,
        **_FORCED,
        "application_name": name,
    }
