"""Judges the server: its settings, its clock and connections, the roles' timeouts, and a pooler before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobherd.supervisor.cli.doctor.finding import Finding
from jobherd.workers.inspect.phrases import duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jobherd.supervisor.cli.doctor.finding import Row, Weight

CLOCKS: Final = 2.0
"""Seconds by which the clocks of this host and of the database may differ."""
NOTIFICATIONS: Final = 0.1
"""Share of the server's notification queue that may be full.

That is several hundred megabytes of unread data. If the queue is full, every commit that sends a
notification fails.
"""
SPARE: Final = 10
"""Free connections that should remain."""
WRAPAROUND: Final = 1_000_000_000
"""Age in transaction IDs; the server stops accepting writes near 2,000,000,000."""


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
                f"{name} is off: dead rows pile up before the live ones, and every claim scans them",
                f"ALTER SYSTEM SET {name} = on",
            )
    if is_["default_transaction_isolation"] != "read committed":
        yield wrong(
            f"default_transaction_isolation is {is_['default_transaction_isolation']}: claims and settlements would "
            "fail where they should wait",
            "set it to 'read committed' for the role that jobs use",
        )
    if is_["default_transaction_read_only"] == "on":
        yield wrong(
            "transactions are read-only here: nothing can be enqueued or claimed",
            "name the primary in --dsn, or correct the role's setting",
        )
    if is_["session_replication_role"] != "origin":
        yield wrong(
            f"session_replication_role is {is_['session_replication_role']} for this role: triggers do not fire, and "
            "workers are not notified of jobs that it enqueues",
            "ALTER ROLE ... RESET session_replication_role for the role that jobs use",
        )
    if is_["row_security"] != "on":
        yield wrong(
            "row_security is off for this role: once there are tenants, PostgreSQL rejects jobs that are enqueued on "
            "a connection of your own",
            "ALTER ROLE ... RESET row_security for the role that jobs use",
            "note",
        )
    for name in ("statement_timeout", "transaction_timeout", "idle_session_timeout"):
        if is_.get(name, "0") != "0":
            yield wrong(
                f"{name} is {is_[name]} ms for this role: sessions that wait for jobs, or long statements of "
                "handlers, are ended by the server",
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
            "wrong",
            "server",
            f"the oldest transaction id, in the database {row['xid_of']}, is {row['xid_age']:,} old: near "
            "2,000,000,000 the server stops "
            "taking writes, in all databases",
            "remove what holds vacuum back (below), then VACUUM FREEZE there; if autovacuum runs it does the rest",
        )
    if row["notifications"] > NOTIFICATIONS:
        yield Finding(
            "wrong",
            "listen",
            f"the server's queue of notifications is {row['notifications']:.0%} full: from 90% on jobs wait for the "
            "poll, and when it is full, "
            "commits of others that notify fail",
            "end the session that has listened and not read for longest: a client in a transaction, or stopped; the "
            "server's log names it",
        )
    if row["sessions"] + SPARE > limit:
        yield Finding(
            "note",
            "connections",
            f"{row['sessions']} of {limit} connections are in use: new child processes may be rejected",
            "raise max_connections, or put pgbouncer before the application",
        )
    if abs(seen) > CLOCKS:
        ahead = "ahead of" if seen > 0 else "behind"
        yield Finding(
            "note",
            "clocks",
            f"the database's clock is {duration(abs(seen))} {ahead} this host's: leases are counted by the database's "
            "and are safe, "
            "but times given by producers on this host are off by that",
            "let both follow NTP",
        )
    else:
        yield Finding("ok", "clocks", "this host's clock and the database's agree")
    if row["open_schemas"]:
        names = ", ".join(row["open_schemas"])
        yield Finding(
            "note",
            "privileges",
            f"every role may create functions in {names}, which is in this role's search path: PostgreSQL can call "
            "such a function instead of "
            "its own, with this role's rights",
            "; ".join(f"REVOKE CREATE ON SCHEMA {name} FROM PUBLIC" for name in row["open_schemas"]),
        )
    if not row["sees_all"]:
        yield Finding(
            "note",
            "privileges",
            "this role does not see what other roles' sessions do: their old transactions may be missing here",
            "GRANT pg_read_all_stats to it, or run this as a superuser",
        )


def sessions(rows: Iterable[Row]) -> Iterator[Finding]:
    """Judge whether the roles that serve this schema may end the sessions of dead processes."""
    for row in rows:
        if not row["may_end"]:
            yield Finding(
                "wrong",
                "privileges",
                f"the role {row['name']} must not call pg_terminate_backend: jobs of a worker that died are released "
                "only once its session has "
                "ended, or after one lease",
                f"GRANT EXECUTE ON FUNCTION pg_catalog.pg_terminate_backend(integer, bigint) TO {row['called']}",
            )
        elif row["others"]:
            yield Finding(
                "note",
                "privileges",
                f"the role {row['name']} must not end sessions of {', '.join(row['others'])}: if one of their hosts "
                "dies, a job whose transaction is open "
                "waits until the server ends that session",
                f"GRANT pg_signal_backend TO {row['called']}, or let all supervisors use one role",
            )


def pooler(*, reported: int, real: int, listens: bool = False) -> Iterator[Finding]:
    """Judge whether a pooler is in between: it reports a made-up backend ID.

    Args:
        reported: the backend ID that the connection was given.
        real: the ID of the backend that runs the statement.
        listens: whether this address is --listen-dsn.
    """
    if reported != real and listens:
        # A self-sent notification can return even from a shared backend, if the pooler assigns the
        # same one again.
        yield Finding(
            "note",
            "pooler",
            "a pooler is between this host and --listen-dsn: session mode works, transaction mode loses notifications",
            "give the server's own address in --listen-dsn, unless that pooler is in session mode",
        )
    elif reported != real:
        yield Finding(
            "wrong",
            "pooler",
            "a pooler is between this host and the server: supervisors do not LISTEN through it, and jobs wait for "
            "the poll",
            "give the server's own address in --listen-dsn, or in --dsn; or this one in --listen-dsn, if the pooler "
            "is in session mode",
        )
