"""The parent's policies under very many moves: `python -m tests.machines --moves 1000000 --seed 1`. Exits with 1 for a promise that was broken."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter

from tests.machines.herd import NAMES, Move, play


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moves", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--length", type=int, default=400, help="of one supervisor's life, at the most")
    given = parser.parse_args()
    chance, begun = random.Random(given.seed), time.monotonic()
    made = turns = lives = 0
    seen: Counter[str] = Counter()
    while made < given.moves:
        moves = [(chance.choice(NAMES), chance.randrange(1000)) for _ in range(chance.randrange(1, given.length))]
        if why := _broken(moves):
            print(f"seed {given.seed}, life {lives}: {why}")
            for move in _least(moves):
                print(f"    {move!r},")
            return 1
        world = play(moves)
        made, turns, lives = made + world.made, turns + world.turns, lives + 1
        seen += world.seen
    print(f"seed {given.seed}: {made} moves, {turns} turns, {lives} lives, in {time.monotonic() - begun:.0f} s: every promise held")
    print(", ".join(f"{name} {count}" for name, count in sorted(seen.items())))
    return 0


def _broken(moves: list[Move]) -> str:
    try:
        play(moves)
    except AssertionError as problem:
        return str(problem) or "an assertion"
    return ""


def _least(moves: list[Move]) -> list[Move]:
    """Leave out what is not needed for it to break."""
    size = len(moves)
    while size:
        at = 0
        while at < len(moves):
            fewer = moves[:at] + moves[at + size :]
            if _broken(fewer):
                moves = fewer
            else:
                at += size
        size //= 2
    return moves


if __name__ == "__main__":
    sys.exit(main())
