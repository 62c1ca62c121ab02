"""Which database: what was given, or what the environment says. Opens nothing."""

from __future__ import annotations

import os
from math import ceil
from typing import Any, Final

from psycopg.conninfo import conninfo_to_dict

KEPT_ALIVE: Final = {
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}
"""In seconds, the last in milliseconds. A host that is gone says nothing: without these a statement would wait for its answer for a quarter of an
hour, and whoever waits for a notification for two hours."""
_OURS: Final = {"autocommit": True, "application_name": "jobherd client", "client_encoding": "UTF8"}


class NotConfiguredError(RuntimeError):
    """Nobody said which database to use."""


def find_dsn(dsn: str | None = None) -> str:
    """Return `dsn`, or the environment's JOBHERD_DSN or DATABASE_URL. Raises NotConfiguredError with the remedy."""
    found = dsn or os.environ.get("JOBHERD_DSN") or os.environ.get("DATABASE_URL")
    if not found:
        message = "no database is configured: give dsn='postgresql://user@host/name', or set JOBHERD_DSN or DATABASE_URL"
        raise NotConfiguredError(message)
    return found


def find_listen_dsn(dsn: str | None = None) -> tuple[str, bool]:
    """Return where to listen, and whether somebody has said that one can: `dsn`, or JOBHERD_LISTEN_DSN, which says so, before the others."""
    said = None if dsn else os.environ.get("JOBHERD_LISTEN_DSN")
    return find_dsn(dsn or said), bool(said)


def session_of(dsn: str, within: float | None = None) -> dict[str, Any]:
    """Return what a client connects with beside `dsn`: what is ours, and what the DSN leaves open. Of several hosts one that takes writes.

    within: seconds that each host has to answer, in whole ones and at least 2, as the driver takes them; what the DSN says stands if it is less. Default
    None: what the DSN or the driver says.

    >>> session_of("host=a tcp_user_timeout=900")["tcp_user_timeout"], session_of("host=a connect_timeout=3", 10.0)["connect_timeout"]
    ('900', '3')
    """
    given = conninfo_to_dict(dsn)
    open_ = dict(KEPT_ALIVE)
    if "," in str(given.get("hostaddr") or given.get("host") or "") and "PGTARGETSESSIONATTRS" not in os.environ:
        open_["target_session_attrs"] = "read-write"  # the first that answers may be a standby
    if within is not None:
        own = str(given.get("connect_timeout") or "")
        open_["connect_timeout"] = str(max(2, ceil(within)))
        if not (own.isascii() and own.isdigit() and len(own) < 10 and 0 < int(own) < within):
            given.pop("connect_timeout", None)
    return {name: str(given.get(name) or value) for name, value in open_.items()} | _OURS
