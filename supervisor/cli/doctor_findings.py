"""Judges what is wrong with a database that holds jobs, from query results. Each finding has a fix.

Every judge gets rows as `sql/queries/doctor/` returns them, and returns findings. No judge queries,
changes or waits for anything. A finding is `wrong` only if it can make jobs lost, late or stuck. A
finding that only deserves attention is a `note`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from jobherd.sql.drift import Difference

Row: TypeAlias = "Mapping[str, Any]"
Weight: TypeAlias = Literal["ok", "note", "wrong"]

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
WRAPAROUND: Final = 1_000_000_000
"""Age in transaction IDs; the server stops accepting writes near 2,000,000,000."""
CLOCKS: Final = 2.0
"""Seconds by which the clocks of this host and of the database may differ."""
NOTIFICATIONS: Final = 0.1
"""Share of the server's notification queue that may be full.

That is several hundred megabytes of unread data. If the queue is full, every commit that sends a
notification fails.
"""
HELD: Final = 10.0
"""Seconds for which a session may lock a whole table of Jobherd, as a migration does."""
BRIEF: Final = 60.0
"""Seconds for which a session may hold an advisory lock of Jobherd.

A commit that enqueues holds one for microseconds.
"""
SPARE: Final = 10
"""Free connections that should remain."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    weight: Weight
    about: str
    """The subject of the check, in one or two words."""
    text: str
    """What was found, as a sentence."""
    remedy: str = ""
    """What to do, or the SQL that fixes it."""


def settings(rows: Iterable[Row]) -> Iterator[Finding]:
    """Judge the server's settings."""
    is_ = {str(row["name"]): str(row["setting"]) for row in rows}
    version = int(is_["server_version_num"])
    bad = False

    def wrong(text: str, remedy: str, weight: Weight = "wrong") -> Finding:
        nonlocal bad
        bad = True
        return Finding(weight, "settings", text, remedy)

    if is_["fsync"] != "on":
        yield wrong(
            "fsync is off: a crash of the server's host can destroy the whole database",
            "ALTER SYSTEM SET fsync = on, and reload",
        )
    if is_["full_page_writes"] != "on":
        yield wrong(
            "full_page_writes is off: a crash in the middle of a write can destroy pages",
            "ALTER SYSTEM SET full_page_writes = on",
        )
    if is_["synchronous_commit"] == "off":
        yield wrong(
            "synchronous_commit is off: jobs that were acknowledged, and outcomes, are lost when the server crashes",
            "set it to on, for this database or role: ALTER DATABASE ... SET synchronous_commit = on",
        )
    for name in ("autovacuum", "track_counts"):
        if is_[name] != "on":
            yield wrong(
                f"{name} is off: dead rows pile up before the live ones, and every claim steps over them",
                f"ALTER SYSTEM SET {name} = on",
            )
    if is_["default_transaction_isolation"] != "read committed":
        yield wrong(
            f"default_transaction_isolation is {is_['default_transaction_isolation']}: claims and settlements would fail where they should wait",
            "set it to 'read committed' for the role that jobs use",
        )
    if is_["default_transaction_read_only"] == "on":
        yield wrong(
            "transactions are read-only here: nothing can be enqueued or claimed",
            "name the primary in --dsn, or correct the role's setting",
        )
    if is_["session_replication_role"] != "origin":
        yield wrong(
            f"session_replication_role is {is_['session_replication_role']} for this role: triggers do not fire, and workers hear of no job that it enqueues",
            "ALTER ROLE ... RESET session_replication_role for the role that jobs use",
        )
    if is_["row_security"] != "on":
        yield wrong(
            "row_security is off for this role: once there are tenants, PostgreSQL refuses jobs that are enqueued on a connection of your own",
            "ALTER ROLE ... RESET row_security for the role that jobs use",
            "note",
        )
    for name in ("statement_timeout", "transaction_timeout", "idle_session_timeout"):
        if is_.get(name, "0") != "0":
            yield wrong(
                f"{name} is {is_[name]} ms for this role: sessions that wait for jobs, or long statements of handlers, are ended by the server",
                f"ALTER ROLE ... SET {name} = 0 for the role that jobs use",
                "note",
            )
    if not bad:
        yield Finding("ok", "settings", f"PostgreSQL {version // 10000}.{version % 10000} commits durably and vacuums")


def server(row: Row, *, seen: float, limit: int) -> Iterator[Finding]:
    """Judge the server's state.

    Args:
        row: the state.
        seen: seconds by which the server's clock is ahead of this host's.
        limit: connections available to roles that are not superusers.
    """
    if row["standby"]:
        yield Finding(
            "wrong",
            "server",
            "this is a standby: nothing can be written",
            "name the primary, or target_session_attrs=read-write in --dsn",
        )
    if row["xid_age"] > WRAPAROUND:
        yield Finding(
            "wrong", "server",
            f"the oldest transaction id, in the database {row['xid_of']}, is {row['xid_age']:,} old: near 2,000,000,000 the server stops "
            "taking writes, in all databases",
            "remove what holds vacuum back (below), then VACUUM FREEZE there; if autovacuum runs it does the rest",
        )  # fmt: skip
    if row["notifications"] > NOTIFICATIONS:
        yield Finding(
            "wrong", "listen",
            f"the server's queue of notifications is {row['notifications']:.0%} full: from 90% on jobs wait for the poll, and when it is full, "
            "commits of others that notify fail",
            "end the session that has listened and not read for longest: a client in a transaction, or stopped; the server's log names it",
        )  # fmt: skip
    if row["sessions"] + SPARE > limit:
        yield Finding(
            "note", "connections",
            f"{row['sessions']} of {limit} connections are taken: children that start may be refused",
            "raise max_connections, or put pgbouncer before the application",
        )  # fmt: skip
    if abs(seen) > CLOCKS:
        ahead = "ahead of" if seen > 0 else "behind"
        yield Finding(
            "note", "clocks",
            f"the database's clock is {abs(seen):.1f} s {ahead} this host's: leases are reckoned by the database's and are safe, "
            "but times given by producers on this host are off by so much",
            "let both follow NTP",
        )  # fmt: skip
    else:
        yield Finding("ok", "clocks", "this host's clock and the database's agree")
    if row["open_schemas"]:
        names = ", ".join(row["open_schemas"])
        yield Finding(
            "note", "privileges",
            f"every role may create functions in {names}, which is in this role's search path: PostgreSQL can call such a function instead of "
            "its own, with this role's rights",
            "; ".join(f"REVOKE CREATE ON SCHEMA {name} FROM PUBLIC" for name in row["open_schemas"]),
        )  # fmt: skip
    if not row["sees_all"]:
        yield Finding(
            "note", "privileges", "this role does not see what other roles' sessions do: old transactions of theirs may be missing here",
            "GRANT pg_read_all_stats to it, or run this as a superuser",
        )  # fmt: skip


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
            "wrong", "privileges",
            f"row-level security is on for {', '.join(row['name'] for row in rows)}{cause}: roles other than the owner see no row, and nothing runs",
            "; ".join(f"ALTER TABLE {row['called']} DISABLE ROW LEVEL SECURITY" for row in rows),
        )  # fmt: skip


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
            "note", "privileges", f"{_listed(missing)} not there: only the owner of the schema has rights in it",
            f"{remedy}, as a role that may create roles",
        )  # fmt: skip
    if bare:
        yield Finding(
            "wrong", "privileges", f"{_listed(bare)} without privileges in the schema: PostgreSQL rejects what its members do", remedy,
        )  # fmt: skip


def _listed(names: list[str]) -> str:
    return f"the role {names[0]} is" if len(names) == 1 else f"the roles {', '.join(names)} are"


def sessions(rows: Iterable[Row]) -> Iterator[Finding]:
    """Judge whether the roles that serve this schema may end the sessions of dead processes."""
    for row in rows:
        if not row["may_end"]:
            yield Finding(
                "wrong", "privileges",
                f"the role {row['name']} must not call pg_terminate_backend: jobs of a worker that died are released only once its session has "
                "ended, or after one lease",
                f"GRANT EXECUTE ON FUNCTION pg_catalog.pg_terminate_backend(integer, bigint) TO {row['called']}",
            )  # fmt: skip
        elif row["others"]:
            yield Finding(
                "note", "privileges",
                f"the role {row['name']} must not end sessions of {', '.join(row['others'])}: if a host of theirs dies, a job whose transaction is open "
                "waits until the server ends that session",
                f"GRANT pg_signal_backend TO {row['called']}, or let all supervisors use one role",
            )  # fmt: skip


def pooler(*, told: int, real: int, listens: bool = False) -> Iterator[Finding]:
    """Judge whether a pooler is in between: it reports a made-up backend ID.

    Args:
        told: the backend ID that the connection was given.
        real: the ID of the backend that runs the statement.
        listens: whether this address is --listen-dsn.
    """
    if told != real and listens:
        # A self-sent notification can return even from a shared backend, if the pooler assigns the
        # same one again.
        yield Finding(
            "note", "pooler",
            "a pooler stands between this host and --listen-dsn: in session mode all is well, in transaction mode notifications get lost",
            "give the server's own address in --listen-dsn, unless that pooler is in session mode",
        )  # fmt: skip
    elif told != real:
        yield Finding(
            "wrong", "pooler",
            "a pooler stands between this host and the server: nothing is listened to through it, and jobs wait for the poll",
            "give the server's own address in --listen-dsn, or in --dsn; or this one in --listen-dsn, if the pooler is in session mode",
        )  # fmt: skip


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
            text = f"a transaction of {row['name']} (pid {handle}, {row['state']}) is open for {_span(seconds)}: vacuum removes nothing that died since"
            return Finding(
                "wrong" if seconds > ANCIENT else "note",
                "vacuum",
                text,
                f"end it: SELECT pg_terminate_backend({handle})",
            )
        case "prepared" if seconds > OLD:
            text = f"a prepared transaction of {row['name']} stands for {_span(seconds)}: it holds its locks and vacuum back, over restarts too"
            return Finding(
                "wrong" if seconds > ANCIENT else "note",
                "vacuum",
                text,
                f"ROLLBACK PREPARED {_quoted(handle)}, or commit it",
            )
        case "slot" if (row["age"] or 0) > SLOT_AGE or (not row["active"] and (row["bytes"] or 0) > SLOT_BYTES):
            kept = f" and {(row['bytes'] or 0) / 1024**3:.1f} GiB of log"
            use = "in use" if row["active"] else "which has no active reader,"
            text = f"the replication slot {row['name']}, {use} holds back {row['age'] or 0:,} transactions{kept}"
            return Finding(
                "wrong", "vacuum", text, f"bring its reader back, or SELECT pg_drop_replication_slot({_quoted(handle)})"
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
                "wrong", "locks",
                f"{row['name']} (pid {row['pid']}, {row['state']}) has locked {row['tables']}, in a transaction that is open for "
                f"{_span(row['seconds'])}: who claims, settles or enqueues waits for it",
                f"end it: SELECT pg_terminate_backend({row['pid']})",
            )  # fmt: skip


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
                "note" if row["what"] == "keep" else "wrong", "locks",
                f"a session of role {row['role']} ({row['name']}, pid {row['pid']}, {row['state']}) has held an advisory lock of Jobherd for "
                f"{_span(row['seconds'])}: {harm[row['what']]}",
                f"end it: SELECT pg_terminate_backend({row['pid']})",
            )  # fmt: skip


def tables(rows: Sequence[Row]) -> Iterator[Finding]:
    """Judge dead rows and vacuum of the tables with many changes."""
    bad = False
    for row in rows:
        if row["dead"] > max(DEAD, row["live"]):
            bad = True
            when = f"{_span(row['vacuumed_ago'])} ago" if row["vacuumed_ago"] is not None else "never"
            yield Finding(
                "wrong", "bloat",
                f"{row['name']} holds {row['dead']:,} dead rows beside {row['live']:,} live ones, and was last vacuumed {when}",
                "see what holds vacuum back (above); then VACUUM that table",
            )  # fmt: skip
    if not bad:
        yield Finding("ok", "bloat", "vacuum keeps up with the tables that turn over fast")


def indexes(rows: Sequence[Row]) -> Iterator[Finding]:
    """Judge indexes that are incomplete."""
    for row in rows:
        yield Finding(
            "wrong", "indexes", f"the index {row['name']} of {row['of']} was never built to the end: it costs writes and serves no read",
            f"REINDEX INDEX CONCURRENTLY {row['called']}",
        )  # fmt: skip


def schema(differences: Sequence[Difference]) -> Iterator[Finding]:
    """Judge how the schema differs from what the migrations create."""
    for one in differences:
        name = f"{one.what} {one.name}" + (f" of {one.of}" if one.of else "")
        if one.wanted is None:
            yield Finding(
                "note",
                "schema",
                f"the {name} is not of Jobherd's making",
                "nothing to do if it is meant; an index costs every job",
            )
        elif one.found is None:
            yield Finding("wrong", "schema", f"the {name} is missing", one.remedy)
        else:
            yield Finding("wrong", "schema", f"the {name} is not as the migrations make it", one.remedy)
    if all(one.wanted is None for one in differences):
        yield Finding(
            "ok", "schema", "tables, indexes, constraints, triggers and functions are as the migrations make them"
        )


def fleet(row: Row, unserved: Iterable[Row], unhandled: Iterable[Row]) -> Iterator[Finding]:
    """Judge whether supervisors and workers run, and which queues and kinds no worker serves."""
    if not row["supervisors"]:
        weight: Weight = "wrong" if row["waiting"] else "note"
        tail = ", and jobs wait" if row["waiting"] else ""
        yield Finding(
            weight, "fleet", f"no supervisor holds a lease: nothing runs{tail}", "start one: jobherd run --handlers ..."
        )
    elif not row["workers"]:
        yield Finding("wrong", "fleet", "no worker is registered", "see the supervisor's log: do its handlers load?")
    else:
        yield Finding("ok", "fleet", f"{row['supervisors']} supervisors with {row['workers']} workers hold leases")
    if row["lapsed"] and row["supervisors"]:
        yield Finding(
            "note", "fleet", f"{row['lapsed']} supervisors have an expired lease: other supervisors reclaim their jobs",
            "nothing, unless it stays so",
        )  # fmt: skip
    if len(row["versions"] or ()) > 1:
        yield Finding("note", "fleet", f"versions {', '.join(row['versions'])} run side by side", "finish the upgrade")
    if row["stray"]:
        yield Finding(
            "note", "fleet", "there is history that no partition was made for in time, so it is not dropped by the day",
            "keep a supervisor running: its maintenance process creates partitions ahead; jobherd purge removes what lies there",
        )  # fmt: skip
    for queue in unserved:
        if queue["idle"]:
            yield Finding(
                "wrong", "queues",
                f"no supervisor serves queue {queue['queue']}: job {queue['id']} ({queue['kind']}) has been due for {_span(queue['waited'])}, "
                f"and {queue['idle']} workers are idle",
                f"start a supervisor with --queues {queue['queue']}, or without --queues; if that job costs more than any budget that serves the "
                "queue, a larger --budget",
            )  # fmt: skip
        elif row["workers"]:
            yield Finding(
                "note", "queues",
                f"nothing of queue {queue['queue']} runs: job {queue['id']} ({queue['kind']}) is due for {_span(queue['waited'])}; all workers are busy",
                "add workers (kill -TTIN the supervisor), or let some serve this queue first",
            )  # fmt: skip
    for kind in unhandled:
        yield Finding(
            "wrong", "kinds",
            f"no worker has ever declared the kind {kind['kind']}; job {kind['job']} waits for it, and {kind['jobs'] - 1} others",
            "load the module that has its handler, or correct the name at the producer",
        )  # fmt: skip


def keys(lacking: Iterable[Row]) -> Iterator[Finding]:
    """Judge jobs that wait for a key.

    `fleet` reports jobs that wait for a handler, by their kind.
    """
    for one in lacking:
        if one["code"] == "KEY_MISSING":
            yield Finding(
                "wrong", "keys",
                f"job {one['job']} waits for a key that the worker which took it did not have, and {one['jobs'] - 1} others",
                "give the supervisors JOBHERD_KEYS or JOBHERD_KEYS_FILE with the key that its producer has: jobherd job says what was missing",
            )  # fmt: skip


def _quoted(text: str) -> str:
    """Return a text as an SQL literal.

    Any user can choose the name of a prepared transaction, and a superuser may run the fix.
    """
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def _span(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
