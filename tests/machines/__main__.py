"""Runs the state machines with very many moves.

`python -m tests.machines --moves 1000000 --seed 1` drives the supervisor's policies. `--gateway` drives the
bookkeeping of the gateway, and `--uplink` that of the uplink. `--queue` drives the states of jobs,
`--schedules` schedules and `--flows` flows: these three use PostgreSQL.

Exits with 1 if an invariant is broken, and prints the fewest moves that still break it.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.machines import flows, gateway, herd, queue, schedules, uplink
from tests.support.ground import ground
from tests.support.queue import Queue

if TYPE_CHECKING:
    from tests.machines.herd import Move

Play = "Callable[[list[Move]], Counter[str]]"
"""Makes the moves and returns counts of events, with the number of moves as `moves`.

Raises AssertionError if an invariant is broken.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, default=1_000_000, help="default %(default)s")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--length", type=int, default=400, help="of one life, at the most; default %(default)s")
    parser.add_argument("--queue", action="store_true", help="the job's states, instead of the parent's policies")
    parser.add_argument("--gateway", action="store_true", help="the bookkeeping of the gateway")
    parser.add_argument("--uplink", action="store_true", help="the bookkeeping of the uplink")
    parser.add_argument("--schedules", action="store_true", help="the instants of schedules")
    parser.add_argument("--flows", action="store_true", help="who waits, and what flows count")
    given = parser.parse_args()
    logging.disable()  # moves cause errors on purpose
    chance, begun, seen, lives = random.Random(given.seed), time.monotonic(), Counter[str](), 0
    with ExitStack() as stack:
        names, play = herd.NAMES, herd.play
        if given.gateway:
            names, play = gateway.NAMES, gateway.play
        if given.uplink:
            names, play = uplink.NAMES, uplink.play
        if given.queue or given.schedules or given.flows:
            machine = schedules if given.schedules else flows if given.flows else queue
            names, asked = machine.NAMES, stack.enter_context(Queue(stack.enter_context(ground())[1]))
            play = lambda moves: machine.play(asked, moves)  # noqa: E731
        while seen["moves"] < given.moves:
            moves = [(chance.choice(names), chance.randrange(10_000)) for _ in range(chance.randrange(1, given.length))]
            try:
                seen += play(moves)
            except AssertionError as problem:
                print(f"seed {given.seed}, life {lives}: {problem}\nThe fewest moves that break something:")
                for move in least(moves, play):
                    print(f"    {move!r},")
                return 1
            lives += 1
    took = time.monotonic() - begun
    print(f"seed {given.seed}: {lives} lives in {took:.0f} s, and every promise held")
    print(", ".join(f"{name} {count}" for name, count in sorted(seen.items())))
    return 0


def least(moves: list[Move], play: Play) -> list[Move]:
    """Remove the moves that are not needed for the failure."""
    size = len(moves)
    while size:
        at = 0
        while at < len(moves):
            fewer = moves[:at] + moves[at + size :]
            try:
                play(fewer)
            except AssertionError:
                moves = fewer
            else:
                at += size
        size //= 2
    return moves


if __name__ == "__main__":
    sys.exit(main())
