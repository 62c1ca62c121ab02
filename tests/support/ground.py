"""A server of its own with a migrated database, for scripts that measure or break things.

Durable: fsync and synchronous_commit stay on.
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
"""Days, as many as a maintenance process makes with handlers that keep nothing longer than the default."""
SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB"}


@contextlib.contextmanager
def ground() -> Iterator[tuple[Cluster, str]]:
    """Start a server and give it with the DSN of a fresh database; both are removed at the end."""
    with Cluster(SETTINGS) as cluster, fresh(cluster) as dsn:
        yield cluster, dsn


@contextlib.contextmanager
def fresh(cluster: Cluster) -> Iterator[str]:
    """Give the DSN of a fresh migrated database on it."""
    with cluster.database() as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            migrate(connection)
            # Else the first maintenance process does it, and for that second no settlement gets through: it
            # would be measured as the work's.
            connection.execute(sql.load("maintenance/keep_partitions"), {"ahead": AHEAD, "most": None})
        yield dsn


def arguments(about: str | None, **counts: float | str) -> argparse.Namespace:
    """Read the command line.

    A number, or a word, for each of `counts` with its default, and --seed, random unless given.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in counts.items():
        parser.add_argument(
            "--" + name.replace("_", "-"), type=type(default), default=default, metavar="N", help=f"default {default}"
        )
    parser.add_argument(
        "--seed", type=int, default=random.randrange(10**6), help="default: a random one, which is printed"
    )
    return parser.parse_args()
