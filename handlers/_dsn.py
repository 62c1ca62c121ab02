"""Which database: what was given, or what the environment says. Opens nothing."""

from __future__ import annotations

import os


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
