"""The suite in as many processes as there are processors: `python -m tests [OPTION OF PYTEST ...]`, or `make unit`.

Each is a pytest with a PostgreSQL of its own; they share the files between them. The tests of workers fork children from the test process
itself, so they have one to themselves: what other tests have left there, a child would inherit. A line is printed when a file is done;
what a process says beyond that (failures, warnings, its sums) stands together at its end. The exit code is 1 if anything failed.
"""

from __future__ import annotations

import compileall
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

from tests.support.herd import ROOT

PIECES = ("supervisor", "workers", "handlers", "sql", "tests")
ALONE = "tests/workers"
MOST = 5
"""Processes beside the first: with more, each would wait for the longest file."""
DONE = re.compile(r"tests/\S+\.py [.sxXFE]+")
SUMS = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)")


class Lane(threading.Thread):
    """Processes that run one after the other."""

    def __init__(self, *commands: list[str]) -> None:
        super().__init__()
        self.commands = commands
        self.failed = False
        self.sums: dict[str, int] = {}

    def run(self) -> None:
        for words in self.commands:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            kept = []
            assert process.stdout is not None
            for line in process.stdout:
                if DONE.match(line):
                    print(line, end="", flush=True)
                else:
                    kept.append(line)
            self.failed |= process.wait() != 0
            print("".join(kept), end="", flush=True)
            for count, what in SUMS.findall(kept[-1] if kept else ""):
                self.sums[what] = self.sums.get(what, 0) + int(count)


def main(words: list[str]) -> int:
    started = time.monotonic()
    os.chdir(ROOT)
    for piece in PIECES:  # some of what tests start may not write it, and would compile everything each time
        compileall.compile_dir(piece, quiet=2)
    with tempfile.TemporaryDirectory(prefix="jobherd-share-") as folder:
        # Named, for pytest would look for its settings above a folder that is an option's value.
        words = ["-c", "pyproject.toml", "--no-header", "-o", "console_output_style=classic", *words]
        shared = [*words, "-p", "tests.support.sharing", f"--share={folder}", f"--ignore={ALONE}"]
        others = min(max(len(os.sched_getaffinity(0)) - 1, 1), MOST)
        lanes = [Lane([*words, ALONE], shared), *(Lane(shared) for _ in range(others))]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
    names = sorted({name for lane in lanes for name in lane.sums})
    told = ", ".join(f"{sum(lane.sums.get(name, 0) for lane in lanes)} {name}" for name in names)
    print(f"the whole suite: {told or 'nothing was run'}, in {time.monotonic() - started:.0f} s and {len(lanes)} processes")
    return 1 if any(lane.failed for lane in lanes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
