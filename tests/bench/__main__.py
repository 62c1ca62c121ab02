"""Run all benchmarks one after another, and print one table at the end.

`make bench`, or `python -m tests.bench [--quick] [--wide] [NAME ...]`.

Each benchmark is a separate process, which prints its results in full and writes its figures to
`.bench/figures/`. --quick takes about two minutes and shows that all benchmarks work; its runs are
too short for figures to quote. The exit code is 1 if an invariant was broken.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from tests.bench.publish import FIGURES, rows
from tests.support.figures import FOLDER
from tests.support.herd import ROOT

QUICK = {
    "latency": "--jobs 100",
    "cpu": "--pairs 2 --seconds 1",
    "scheduled": "--seconds 5 --runs 2",
    "claim": "--rounds 25",
    "capped": "--rounds 3",
    "fair": "--flood 20000 --others 12000 --backlog 200000 --runs 1",
    "hot": "--rounds 40",
    "drain": "--jobs 20000 --runs 2",
    "backlog": "--jobs 50000 --some 5000 --pairs 2 --runs 2",
    "pinned": "--minutes 0.3",
    "enqueue": "--rounds 2 --large 50000",
    "unique": "--rounds 3 --jobs 1000",
    "join": "--jobs 10000 --runs 2",
    "steps": "--rounds 3 --jobs 100",
    "mixed": "--jobs 5000 --runs 1 --starts 50",
    "producers": "--rounds 4 --seconds 0.3",
    "dispatch": "--runs 1 --children 8 --seconds 5",
    "fleet": "--children 8 --seconds 5 --jobs 50000",
    "visible": "--times 3",
    "rollup": "--jobs 50000 --runs 2",
    "watched": "--jobs 20000 --children 8 --pairs 2",
    "gateway": "--jobs 20000 --runs 1",
}
"""Every benchmark in order, with its options for --quick."""
WIDE = {
    "scale": "--most 16 --rounds 1 --seconds 0.5",
    "layouts": "--jobs 20000 --rounds 1",
    "listing": "--jobs 300000 --rounds 2 --pairs 1 --drained 10000",
}
"""The benchmarks of docs/explanation/scaling.md: many claimers, other layouts, and a long history."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default all: {', '.join(QUICK)}")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--wide", action="store_true", help=f"instead those of docs/explanation/scaling.md: {', '.join(WIDE)}"
    )
    given = parser.parse_args()
    FIGURES.mkdir(parents=True, exist_ok=True)
    names = given.names or list(WIDE if given.wide else QUICK)
    worst = 0
    for name in names:
        (FIGURES / f"{name}.json").unlink(missing_ok=True)
        words = (QUICK | WIDE)[name].split() if given.quick else []
        done = subprocess.run(
            [sys.executable, "-m", f"tests.bench.{name}", *words],
            cwd=ROOT,
            env=os.environ | {FOLDER: str(FIGURES)},
            check=False,
        )
        worst = max(worst, done.returncode)
        print(flush=True)
    print_table([row for name in names for row in rows(name)])
    return worst


def print_table(lines: list[list[str]]) -> None:
    head = ["measured", "found", "against", "ratio", "n", "aim"]
    wide = [max(len(line[place]) for line in [head, *lines]) for place in range(len(head))]
    for line in [head, *lines]:
        print("  ".join(text.ljust(wide[place]) for place, text in enumerate(line)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
