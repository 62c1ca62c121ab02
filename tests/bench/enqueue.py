"""Measure how many rows per second are enqueued, by the number of jobs in a call.

Jobs are enqueued one by one, by the statement, and by COPY, against a bare COPY into the same table.

All ways take turns within a round, in an order drawn for each round: the server pauses for some 50 ms
every few calls of 10,000, and with a fixed order this always hit the same way. Each begins with an
empty table. The server is durable, and every call commits.

The bare COPY sends prepared lines into the same table with its indexes, checks and trigger, and uses
ids of the sequence: it shows what the database can do. The statement is the product's own, with COPY
switched off. The statement and the COPY of the same jobs show at which size COPY becomes faster.
"""

from __future__ import annotations

import random
import sys
import time
from typing import TYPE_CHECKING, Any

import psycopg

from jobherd import Client, check_payload, handler
from jobherd.handlers._enqueue.bulk import Chunk, chunks
from jobherd.handlers._enqueue.options import Options
from jobherd.handlers._enqueue.send import put_on
from tests.support.figures import Report, median_with_interval
from tests.support.ground import arguments, ground

if TYPE_CHECKING:
    from collections.abc import Callable

SHOWN = (1, 100, 10_000)
"""Sizes of a call in the table, in addition to the largest."""
BARE = "COPY jobherd.ready (queue, kind, payload) FROM STDIN"


class ByStatement(Chunk):
    """A chunk that is never copied."""

    is_large = False


class ByCopy(Chunk):
    """A chunk that is always copied."""

    is_large = True


@handler("bench:order")
def order(order_id: int, customer: str, note: str, paid: bool) -> None: ...  # noqa: FBT001  # as applications write it


def payload(number: int) -> dict[str, Any]:
    """Return a payload of about 100 bytes."""
    return {
        "order_id": number,
        "customer": f"customer {number}",
        "note": "some words that make it a hundred bytes",
        "paid": True,
    }


def main() -> int:
    given = arguments(__doc__, rounds=9, large=200_000)
    dice = random.Random(given.seed)
    report = Report("enqueue: payloads of about 100 bytes", given.seed)
    with (
        ground() as (_, dsn),
        psycopg.connect(dsn, autocommit=True) as connection,
        Client(connection=connection) as client,
    ):
        report.on(dsn)

        def forced(made: type[Chunk], payloads: list[dict[str, Any]]) -> None:
            put_on(
                connection,
                (made(one.kind, one.texts, one.options) for one in chunks("bench:order", payloads, Options())),
                schema=client.schema,
            )

        def bare(lines: str) -> None:
            with connection.cursor().copy(BARE) as copy:
                copy.write(lines)

        for size in (1, 100, 500, 1000, 2000, 10_000, given.large):
            payloads = [payload(number) for number in range(size)]
            lines = "".join(f"default\tbench:order\t{check_payload(one)}\n" for one in payloads)
            ways: dict[str, Callable[[], object]] = {
                "bare COPY": lambda lines=lines: bare(lines),
                "statement": lambda payloads=payloads: forced(ByStatement, payloads),
                "COPY": lambda payloads=payloads: forced(ByCopy, payloads),
                "enqueue_many": lambda payloads=payloads: client.enqueue_many("bench:order", payloads),
                "enqueue_many of a handler": lambda payloads=payloads: order.options(client=client).enqueue_many(
                    payloads
                ),
                "enqueue_stream": lambda payloads=payloads: client.enqueue_stream("bench:order", iter(payloads)),
            }
            found: dict[str, list[float]] = {way: [] for way in ways}
            calls = max(1, min(50, 30_000 // size))
            rounds = given.rounds if size < given.large else (given.rounds + 1) // 2
            for _ in range(rounds):
                for way in dice.sample(list(ways), len(ways)):
                    connection.execute("TRUNCATE jobherd.ready")
                    start = time.perf_counter()
                    for _ in range(calls):
                        ways[way]()
                    found[way].append(calls * size / (time.perf_counter() - start))
                    (rows,) = connection.execute("SELECT count(*) FROM jobherd.ready").fetchone()
                    assert rows == calls * size, f"{way} enqueued {rows} of {calls * size}"
            report.fact(
                f"calls of {size}, {rounds} rounds",
                "rows/s, median (95 % interval), share of the bare COPY of the same round",
            )
            for way, rates in found.items():
                middle, low, high = median_with_interval(rates)
                share = median_with_interval(
                    [rate / floor for rate, floor in zip(rates, found["bare COPY"], strict=True)]
                )[0]
                report.fact(f"  {way}", f"{middle:,.0f} ({low:,.0f} to {high:,.0f}), {share:.2f}")
            for way in ("enqueue_many", "enqueue_stream"):
                if size in SHOWN or size == given.large:
                    report.figure(
                        f"{way}, {size:,} a call, against a bare COPY", found[way], found["bare COPY"], unit="rows/s"
                    )
            if size == given.large:
                report.figure(
                    f"enqueue_many, {size:,} a call", found["enqueue_many"], unit="rows/s", aim=150_000, at_least=True
                )
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
