"""The handlers of the measurements."""

from __future__ import annotations

import resource
import sys
import time

from handlers import handler


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
    """Burn pure Python for so many rounds: a fixed amount of work, whoever does it."""
    spin(rounds)


def spin(rounds: int) -> int:
    """The work itself, the same for a job and for the plain process it is compared with."""
    total = 0
    for number in range(rounds):
        total += number * number % 7
    return total


def main() -> None:
    """The same work in a plain process: say that we stand, wait for the start, burn, say how much processor time it took."""
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
