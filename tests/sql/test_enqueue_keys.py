"""Idempotency keys: which keys are deleted, and that a producer's lock does not delay the deletion."""

from __future__ import annotations

import psycopg

from tests.support.queue import Queue


def keys(queue: Queue) -> list[str]:
    return [row[0] for row in queue.run("SELECT key FROM jobherd.enqueue_keys ORDER BY key")]


def test_old_keys_are_deleted_in_limited_steps_except_locked_ones(database: str):
    with Queue(database) as queue:
        delete_in_steps(queue)


def delete_in_steps(queue: Queue) -> None:
    queue.run(
        "INSERT INTO jobherd.enqueue_keys (principal, key, digest, created_at)"
        " SELECT 'p', n::text, '', clock_timestamp() - make_interval(hours => n) FROM generate_series(21, 29) AS n"
    )
    delete = queue.text("maintenance/delete_enqueue_keys")
    with psycopg.connect(queue.dsn) as other:
        other.execute("SELECT FROM jobherd.enqueue_keys WHERE key = '29' FOR UPDATE")
        assert queue.connection.execute(delete, {"most": 2}).rowcount == 2
        assert keys(queue) == ["21", "22", "23", "24", "25", "26", "29"]
        assert queue.connection.execute(delete, {"most": 100}).rowcount == 3
    assert keys(queue) == ["21", "22", "23", "29"]
