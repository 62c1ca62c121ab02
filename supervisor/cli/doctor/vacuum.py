"""Judges what keeps dead rows: open transactions, replication slots, locks and bloat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobherd.supervisor.cli.doctor.finding import Finding, quoted
from jobherd.workers.inspect.phrases import duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from jobherd.supervisor.cli.doctor.finding import Row

OLD: Final = 300.0
"""Seconds after which an open transaction is a note.

Vacuum removes no row that died since the transaction began, and every claim skips over those rows.
"""
ANCIENT: Final = 3600.0
"""Seconds after which an open transaction is wrong."""
SLOT_AGE: Final = 1_000_000
"""Transactions that a replication slot or a standby may hold back."""
SLOT_BYTES: Final = 10 * 1024**3
"""Bytes of WAL that an inactive slot may keep on disk."""
DEAD: Final = 200_000
"""Dead rows of a table with many changes, above which claims become slow.

Autovacuum starts at 1,000 dead rows and a hundredth of the table.
"""
HELD: Final = 10.0
"""Seconds for which a session may lock a whole table of Jobherd, as a migration does."""
BRIEF: Final = 60.0
"""Seconds for which a session may hold an advisory lock of Jobherd.

A commit that enqueues holds one for microseconds.
"""


def holders(rows: Iterable[Row]) -> Iterator[Finding]:
    """Judge what holds back vacuum."""
    calm = True
    for row in rows:
        finding = _holder(row)
        if finding is not None:
            calm = False
            yield finding
    if calm:
        yield Finding("ok", "vacuum", "no old transaction, slot or standby holds it back")


def _holder(row: Row) -> Finding | None:
    seconds, handle = row["seconds"] or 0.0, row["handle"]
    match row["what"]:
        case "transaction" if seconds > OLD:
            text = (
                f"a transaction of {row['name']} (pid {handle}, {row['state']}) is open for {duration(seconds)}: "
                "vacuum removes no row that was deleted since"
            )
            return Finding(
                "wrong" if seconds > ANCIENT else "note",
                "vacuum",
                text,
                f"end it: SELECT pg_terminate_backend({handle})",
            )
        case "prepared" if seconds > OLD:
            text = (
                f"a prepared transaction of {row['name']} has been open for {duration(seconds)}: it keeps its locks "
                "and "
                "holds vacuum back, also after a restart"
            )
            return Finding(
                "wrong" if seconds > ANCIENT else "note",
                "vacuum",
                text,
                f"ROLLBACK PREPARED {quoted(handle)}, or commit it",
            )
        case "slot" if (row["age"] or 0) > SLOT_AGE or (not row["active"] and (row["bytes"] or 0) > SLOT_BYTES):
            kept = f" and {(row['bytes'] or 0) / 1024**3:.1f} GiB of log"
            use = "in use" if row["active"] else "which has no active reader,"
            text = f"the replication slot {row['name']}, {use} holds back {row['age'] or 0:,} transactions{kept}"
            return Finding(
                "wrong", "vacuum", text, f"reconnect its reader, or SELECT pg_drop_replication_slot({quoted(handle)})"
            )
        case "standby" if (row["age"] or 0) > SLOT_AGE:
            text = f"a query on the standby {row['name']} holds back {row['age']:,} transactions by its feedback"
            return Finding("wrong", "vacuum", text, "end the query there, or set hot_standby_feedback = off on it")
    return None


def locks(rows: Iterable[Row]) -> Iterator[Finding]:
    """Judge sessions that lock a table of Jobherd against writes."""
    for row in rows:
        if (row["seconds"] or 0.0) > HELD:
            yield Finding(
                "wrong",
                "locks",
                f"{row['name']} (pid {row['pid']}, {row['state']}) has locked {row['tables']}, in a transaction that "
                "is open for "
                f"{duration(row['seconds'])}: claims, settlements and enqueues wait for it",
                f"end it: SELECT pg_terminate_backend({row['pid']})",
            )


def advisory_locks(rows: Iterable[Row]) -> Iterator[Finding]:
    """Judge sessions that hold an advisory lock of Jobherd for long.

    Any login of the database can take one.
    """
    harm = {
        "wake": "supervisors that go idle are not notified of jobs and find them by the poll",
        "wait": "clients that wait for the end of a job do not return",
        "keep": "partitions, charts or migrations wait for it",
    }
    for row in rows:
        if (row["seconds"] or 0.0) > BRIEF:
            yield Finding(
                "note" if row["what"] == "keep" else "wrong",
                "locks",
                f"a session of role {row['role']} ({row['name']}, pid {row['pid']}, {row['state']}) has held an "
                "advisory lock of Jobherd for "
                f"{duration(row['seconds'])}: {harm[row['what']]}",
                f"end it: SELECT pg_terminate_backend({row['pid']})",
            )


def tables(rows: Sequence[Row]) -> Iterator[Finding]:
    """Judge dead rows and vacuum of the tables with many changes."""
    bad = False
    for row in rows:
        if row["dead"] > max(DEAD, row["live"]):
            bad = True
            when = f"{duration(row['vacuumed_ago'])} ago" if row["vacuumed_ago"] is not None else "never"
            yield Finding(
                "wrong",
                "bloat",
                f"{row['name']} holds {row['dead']:,} dead rows and {row['live']:,} live ones, and was last "
                f"vacuumed {when}",
                "see what holds vacuum back (above); then VACUUM that table",
            )
    if not bad:
        yield Finding("ok", "bloat", "vacuum keeps up with the tables that turn over fast")
