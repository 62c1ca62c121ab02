"""Measure what a claim costs with 200 and with 200,000 waiting jobs, and as many scheduled for tomorrow.

The figures are plan, buffers and time.

They are measured directly after the bulk load, without ANALYZE. Each claim is rolled back, so all
claims see the same rows.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time

import psycopg

from tests.support.figures import Report
from tests.support.ground import arguments, fresh, ground
from tests.support.queue import Queue

SIZES = (200, 200_000)


def explain(queue: Queue, wanted: int) -> tuple[str, int]:
    """Explain a claim; return a short name for the shape of its plan, and the buffers that it reads."""
    child = queue.child()
    with psycopg.connect(queue.dsn) as connection:
        connection.execute(queue.text("session/force_index_plans"), {"local": False})
        row = connection.execute(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + queue.text("claim/claim_jobs"), child.parameters(wanted)
        ).fetchone()
        connection.rollback()
    plan = row[0][0]["Plan"]

    def shape(node):
        return [node["Node Type"], node.get("Index Name"), [shape(each) for each in node.get("Plans", [])]]

    return hashlib.sha256(json.dumps(shape(plan)).encode()).hexdigest()[:8], plan["Shared Hit Blocks"] + plan[
        "Shared Read Blocks"
    ]


def timed(queue: Queue, wanted: int, rounds: int) -> list[float]:
    """The milliseconds of prepared claims, each rolled back."""
    child, found = queue.child(), []
    with psycopg.connect(queue.dsn) as connection:
        connection.execute(queue.text("session/force_index_plans"), {"local": False})
        connection.commit()
        for _ in range(rounds):
            start = time.perf_counter()
            connection.execute(queue.text("claim/claim_jobs"), child.parameters(wanted), prepare=True).fetchall()
            found.append((time.perf_counter() - start) * 1000)
            connection.rollback()
    return found[5:]


def main() -> int:
    given = arguments(__doc__, rounds=105)
    report = Report("claim: what it costs, by the number of waiting jobs")
    with ground() as (cluster, dsn):
        report.on(dsn)
        plans: dict[tuple[int, int], tuple[str, int]] = {}
        for size in SIZES:
            with fresh(cluster) as own, Queue(own) as queue:
                queue.enqueue_many("a:b", size)
                queue.enqueue_many("a:b", size, delay=86400)
                for wanted in (1, 10, 100):
                    plans[size, wanted] = explain(queue, wanted)
                    name, buffers = plans[size, wanted]
                    report.fact(
                        f"{size} waiting and {size} scheduled, claim of {wanted}", f"plan {name}, {buffers} buffers"
                    )
                    report.spread(f"  claim of {wanted} at {size}", timed(queue, wanted, given.rounds))
        for wanted in (1, 10, 100):
            report.figure(
                f"buffers of a claim of {wanted} at {SIZES[1]:,} against {SIZES[0]:,}",
                [plans[SIZES[1], wanted][1]],
                [plans[SIZES[0], wanted][1]],
                aim=1.15,
            )
            small, large = plans[SIZES[0], wanted], plans[SIZES[1], wanted]
            report.holds(f"claim of {wanted}: the same plan", small[0] == large[0], f"{small[0]}, {large[0]}")
            # The indexes are one or two levels deeper, and a claim descends them a few times. Nothing
            # else may grow.
            report.holds(
                f"claim of {wanted}: buffers grow by the depth of the indexes only",
                large[1] <= small[1] + 30,
                f"{small[1]} to {large[1]}",
            )
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
