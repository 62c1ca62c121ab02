"""The handlers of the measurements."""

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
    """Say when this statement ran, by the wall clock that the script and the server share."""
    return time.time()


@handler("bench:noop")
def noop(n: int = 0, user_id: int = 0, action: str = "", locale: str = "", ref: str = "") -> None:
    """Do nothing."""


@handler("bench:forgotten", keep_completed=0)
def forgotten(n: int = 0, user_id: int = 0, action: str = "", locale: str = "", ref: str = "") -> None:
    """Do nothing, and be kept only if that fails."""


@handler("bench:hold", timeout="1h")
def hold(seconds: float) -> None:
    """Keep a worker busy, and no processor."""
    time.sleep(seconds)


@handler("bench:burn")
def burn(rounds: int) -> None:
    """Burn pure Python for so many rounds: a fixed amount of work, in any process."""
    spin(rounds)


def spin(rounds: int) -> int:
    """The work itself, the same for a job and for the plain process it is compared with.

    What pure Python does all day, from the standard library.

    It is many functions on purpose. A loop of three instructions is as fast as the processor
    guesses its jumps: the same loop took 0.97 ms or 1.12 in one and the same plain process, before
    and after that had run some other code, for seconds on end; and the same sum 4.7 ms or 7.8 by
    nothing but how many numbers the process had made before. A loop like that measures this luck,
    which is larger than what is looked for here.
    """
    total = 0
    for number in range(rounds):
        total += sum(len(token.string) for token in tokenize.generate_tokens(io.StringIO(SOURCE).readline))
        total += int(_pydecimal.Decimal(number + 2).sqrt() * 100)
        total += fractions.Fraction(number + 1, 3).limit_denominator(1000).numerator
        total += len(textwrap.wrap(SOURCE, 60))
    return total


def main() -> None:
    """The same work in a plain process.

    Say that we stand, wait for the start, burn, say how much processor time it took.
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
