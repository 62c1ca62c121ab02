"""Detects a pooler between a session and the server.

A pooler that gives each transaction another backend reports a made-up backend id when the session
connects. So the id that the connection was given differs from the one that a statement returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn


def is_pooled(connection: PGconn, backend: int | str) -> bool:
    """Return whether a pooler is in between. `backend`: the result of pg_backend_pid()."""
    return int(backend) != connection.backend_pid
