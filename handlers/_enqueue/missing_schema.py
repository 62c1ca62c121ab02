"""Says what to do if a producer's statement finds no schema of Jobherd, or an older one.

The error keeps its class and its details, and its message names the command. It is looked at only
once PostgreSQL has rejected a statement, so an enqueue that succeeds pays nothing.
"""

from __future__ import annotations

from typing import Final

from jobherd import sql

_UNDEFINED: Final = frozenset({"3F000", "42P01", "42883", "42703", "42704"})
"""SQLSTATE of a schema, table, function, column or type that does not exist."""


def explain(problem: Exception, schema: str) -> None:
    """Replace the message of an error of psycopg or asyncpg, if it says that a part of the schema does not exist."""
    said = str(problem.args[0]) if problem.args else ""
    # A trigger of the application may miss one of its tables.
    if getattr(problem, "sqlstate", None) in _UNDEFINED and schema in said:
        cause, _, _ = said.partition("\n")
        problem.args = (f"the database has no schema {schema!r} of this version: run `{migrating(schema)}` ({cause})",)


def migrating(schema: str) -> str:
    """Return the command that migrates a schema to this version.

    Without the flag it would create the default schema in addition to the one that is meant.
    """
    return "jobherd migrate" if schema == sql.SCHEMA else f"jobherd migrate --schema {schema}"
