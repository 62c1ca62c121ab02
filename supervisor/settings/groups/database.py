"""Settings about where the database is, and how the supervisor keeps its lease and reconnects."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jobherd.supervisor.settings import address_readers
from jobherd.supervisor.settings import readers as values
from jobherd.supervisor.settings.field import setting


@dataclass(frozen=True)
class DatabaseSettings:
    """Settings about where the database is, and how the supervisor keeps its lease and reconnects."""

    dsn: str | None = setting(
        None,
        address_readers.dsn(),
        "The database. Without a value, Jobherd starts an embedded PostgreSQL and logs that.",
        group="Database", variables=("DATABASE_URL",), metavar="DSN", says="an embedded PostgreSQL", secret=True,
        for_good=True,
    )  # fmt: skip
    listen_dsn: str | None = setting(
        None,
        address_readers.dsn(),
        "Where the supervisor listens and renews its lease if `dsn` leads through a pooler. LISTEN needs its own "
        "session, so the supervisor does not use it through a pooler.",
        group="Database", metavar="DSN", says="the same as `dsn`", secret=True, for_good=True,
    )  # fmt: skip
    schema: str = setting(
        "jobherd",
        address_readers.schema(),
        "The database schema that holds the queue.",
        group="Database",
        metavar="NAME",
        for_good=True,
    )
    embedded_dir: Path = setting(  # noqa: RUF009  # a path never changes
        Path(),
        values.path(),
        "The folder in which the embedded PostgreSQL stores its `.jobherd/`.",
        group="Database", metavar="PATH", says="the working directory", for_good=True,
    )  # fmt: skip
    db_retry_initial: float = setting(
        0.5,
        values.span(0.1, 60),
        "Time to wait before the first attempt to reconnect to a lost database. It doubles with each attempt, with "
        "jitter.",
        group="Database", metavar="TIME",
    )  # fmt: skip
    db_retry_max: float = setting(
        30.0,
        values.span(0.5, 300),
        "Longest time to wait between two attempts to reconnect.",
        group="Database",
        metavar="TIME",
    )
    db_retry_max_attempts: int = setting(
        0,
        values.whole(1, 10_000, zero="indefinitely"),
        "Attempts to reach a database that does not answer before the supervisor exits with 69, so that its service "
        "manager is notified. "
        "The jobs that run then are released, or the next supervisor records their outcomes.",
        group="Database", metavar="N", says="0: indefinitely",
    )  # fmt: skip
    lease: float = setting(
        15.0,
        values.span(3, 3600),
        "Time without a renewal after which other supervisors may reclaim a supervisor's jobs. A supervisor renews "
        "its lease three times in that span.",
        group="Database", metavar="TIME",
    )  # fmt: skip
