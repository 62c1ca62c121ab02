"""Starts a separate, durable server with a migrated database, for benchmarks and faults.

fsync and synchronous_commit stay on.
"""

from __future__ import annotations

import argparse
import contextlib
import random
from typing import TYPE_CHECKING

import psycopg

from jobherd import sql
from jobherd.sql.migrate import migrate
from tests.support.postgres import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

AHEAD = 32
"""Days for which partitions are made, as by a maintenance process with the default retention."""
SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB"}


@contextlib.contextmanager
def ground() -> Iterator[tuple[Cluster, str]]:
    """Start a server; yield it with the DSN of a fresh database. Both are removed at the end."""
    with Cluster(SETTINGS) as cluster, fresh(cluster) as dsn:
        yield cluster, dsn


@contextlib.contextmanager
def fresh(cluster: Cluster) -> Iterator[str]:
    """Yield the DSN of a fresh migrated database on the server."""
    with cluster.database() as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            migrate(connection)
            # Otherwise the first maintenance process makes the partitions, which blocks recording of outcomes
            # for a second and distorts the measurement.
            connection.execute(sql.load("maintenance/keep_partitions"), {"ahead": AHEAD, "most": None})
        yield dsn


def arguments(about: str | None, **counts: float | str) -> argparse.Namespace:
    """Parse the command line: an option for each of `counts` with its default, and --seed, random by default."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in counts.items():
        parser.add_argument(
            "--" + name.replace("_", "-"), type=type(default), default=default, metavar="N", help=f"default {default}"
        )
    parser.add_argument(
        "--seed", type=int, default=random.randrange(10**6), help="default: a random one, which is printed"
    )
    return parser.parse_args()
