"""Judges the schema: hidden tables, roles, indexes, stray rows, and what differs from the migrations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobherd.supervisor.cli.doctor.finding import Finding, listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jobherd.sql.drift import Difference
    from jobherd.supervisor.cli.doctor.finding import Row


def hidden(rows: Sequence[Row]) -> Iterator[Finding]:
    """Judge tables on which row-level security was enabled, but not by Jobherd."""
    if rows:
        triggers = rows[0]["triggers"]
        cause = (
            f" (perhaps by the event trigger {' or '.join(triggers)}, which will do it again with new tables)"
            if triggers
            else ""
        )
        yield Finding(
            "wrong",
            "privileges",
            f"row-level security is on for {', '.join(row['name'] for row in rows)}{cause}: roles other than the "
            "owner see no row, and nothing runs",
            "; ".join(f"ALTER TABLE {row['called']} DISABLE ROW LEVEL SECURITY" for row in rows),
        )


def roles(rows: Sequence[Row], remedy: str) -> Iterator[Finding]:
    """Judge whether the roles of Jobherd exist and have their privileges, which a restore elsewhere may lose.

    Args:
        rows: the roles.
        remedy: the command that creates them and grants the privileges.
    """
    missing = [row["name"] for row in rows if row["missing"]]
    bare = [row["name"] for row in rows if not row["missing"] and not row["granted"]]
    if missing:
        yield Finding(
            "note",
            "privileges",
            f"{listed(missing)} not there: only the owner of the schema has rights in it",
            f"{remedy}, as a role that may create roles",
        )
    if bare:
        yield Finding(
            "wrong",
            "privileges",
            f"{listed(bare)} without privileges in the schema: PostgreSQL rejects what its members do",
            remedy,
        )


def indexes(rows: Sequence[Row]) -> Iterator[Finding]:
    """Judge indexes that are incomplete."""
    for row in rows:
        yield Finding(
            "wrong",
            "indexes",
            f"the index {row['name']} of {row['of']} was never finished: it slows down writes and serves no query",
            f"REINDEX INDEX CONCURRENTLY {row['called']}",
        )


def schema(differences: Sequence[Difference]) -> Iterator[Finding]:
    """Judge how the schema differs from what the migrations create."""
    for one in differences:
        name = f"{one.what} {one.name}" + (f" of {one.of}" if one.of else "")
        if one.wanted is None:
            yield Finding(
                "note",
                "schema",
                f"the {name} was not created by Jobherd",
                "nothing, if you created it on purpose; an index slows down every job",
            )
        elif one.found is None:
            yield Finding("wrong", "schema", f"the {name} is missing", one.remedy)
        else:
            yield Finding("wrong", "schema", f"the {name} is not as the migrations make it", one.remedy)
    if all(one.wanted is None for one in differences):
        yield Finding(
            "ok", "schema", "tables, indexes, constraints, triggers and functions are as the migrations make them"
        )


def partitions(*, stray: bool) -> Iterator[Finding]:
    """Judge whether rows of the history are in a default partition."""
    if stray:
        yield Finding(
            "note",
            "partitions",
            "some history is in a default partition, because none was created for its day in time, so it is not "
            "dropped by the day",
            "keep a supervisor running: its maintenance process creates partitions ahead; jobherd purge deletes "
            "those jobs",
        )
