"""The store of the fault campaigns: its handler writes one row in the transaction that holds the record."""

from __future__ import annotations

import time
from typing import Any

import psycopg

from jobherd import TableStore

store = TableStore(
    "fault:records",
    table="fault_records",
    max_resets=1000,
    heartbeat_interval="100ms",
    stalled_max_age="1s",
    reset_interval="500ms",
)


@store.handler
def work(record: dict[str, Any], connection: psycopg.Connection[Any]) -> None:
    """Write a row, then sleep for 5 ms."""
    connection.execute("INSERT INTO effects VALUES (%s)", (record["id"],))
    time.sleep(0.005)
