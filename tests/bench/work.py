"""Handlers of the benchmarks."""

from __future__ import annotations

import _pydecimal
import fractions
import io
import resource
import sys
import textwrap
import time
import tokenize

from jobherd import handler

SOURCE = "def total(prices, *, rate=1.19):\n    net = sum(price for price in prices if price > 0)\n    return round(net * rate, 2)  # gross\n"


@handler("bench:stamp")
def stamp(n: int = 0) -> float:
    """Return the time of this statement, by the wall clock that the script and the server share."""
    return time.time()


@handler("bench:noop")
def noop(n: int = 0, user_id: int = 0, action: str = "", locale: str = "", ref: str = "") -> None:
    """Do nothing."""


@handler("bench:forgotten", keep_completed=0)
def forgotten(n: int = 0, user_id: int = 0, action: str = "", locale: str = "", ref: str = "") -> None:
    """Do nothing. Completed jobs of this kind are not kept."""


@handler("bench:hold", timeout="1h")
def hold(seconds: float) -> None:
    """Keep a worker busy without using a processor."""
    time.sleep(seconds)


@handler("bench:burn")
def burn(rounds: int) -> None:
    """Run pure Python for `rounds` rounds: a fixed amount of work, in any process."""
    spin(rounds)


def spin(rounds: int) -> int:
    """Do the work, the same for a job and for the plain process that it is compared with.

    It is ordinary pure Python, from the standard library.

    It uses many functions deliberately. The speed of a loop of three instructions depends on the
    processor's branch prediction. The same loop in the same plain process took 0.97 ms before and 1.12 ms
    after the process ran other code, for many seconds. The same sum took 4.7 or 7.8 ms, depending only
    on how many numbers the process had made before. Such a loop measures this chance, which is larger
    than the differences to measure here.
    """
    total = 0
    for number in range(rounds):
        total += sum(len(token.string) for token in tokenize.generate_tokens(io.StringIO(SOURCE).readline))
        total += int(_pydecimal.Decimal(number + 2).sqrt() * 100)
        total += fractions.Fraction(number + 1, 3).limit_denominator(1000).numerator
        total += len(textwrap.wrap(SOURCE, 60))
    return total


def main() -> None:
    """Run the same work in a plain process.

    It prints that it is ready, waits for the start, does the work, and prints its processor time.
    """
    jobs, rounds = map(int, sys.argv[1:])
    spin(rounds)
    print("here", flush=True)
    sys.stdin.read()
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(jobs):
        spin(rounds)
    after = resource.getrusage(resource.RUSAGE_SELF)
    print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, flush=True)


if __name__ == "__main__":
    main()
