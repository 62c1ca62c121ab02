"""Runs the test suite in several processes: one more than there are processors, at most six.

    python -m tests [OPTION OF PYTEST ...]        # or: make unit

Each process is a pytest with its own PostgreSQL server, and the processes share the test files. There
is one more than there are processors because tests also wait, for example for the end of a lease or
of a process. The tests of workers fork children from the test process, which would inherit leftovers
of other tests. So one process runs them before all other files.

A line is printed when a file is done. All other output of a process (failures, warnings, its summary)
is printed at its end. The exit code is 1 if anything failed.
"""

from __future__ import annotations

import compileall
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time

from tests.support.herd import ROOT

PIECES = ("supervisor", "workers", "handlers", "sql", "tests")
ALONE = "tests/workers"
MOST = 5
"""Maximum number of processes in addition to the first: more would only wait for the longest file."""
SILENCE = 900.0
"""Seconds without output after which a process counts as hanging. Longer than pytest's time limit of a test."""
DONE = re.compile(r"tests/\S+\.py [.sxXFE]+")
SUMS = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)")


class Lane(threading.Thread):
    """A thread that runs processes one after the other."""

    def __init__(self, *commands: list[str]) -> None:
        super().__init__()
        self.commands = commands
        self.failed = False
        self.sums: dict[str, int] = {}
        self.failures: list[str] = []

    def run(self) -> None:
        for words in self.commands:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            kept = follow(process)
            self.failed |= process.wait() != 0
            print("".join(kept), end="", flush=True)
            self.failures += [line for line in kept if line.startswith(("FAILED ", "ERROR ", "Fatal Python error"))]
            for count, what in SUMS.findall(kept[-1] if kept else ""):
                self.sums[what] = self.sums.get(what, 0) + int(count)


def follow(process: subprocess.Popen[bytes], silence: float = SILENCE) -> list[str]:
    """Print a line for each finished file until the process has ended; return its other output.

    A process without output for `silence` seconds hangs where pytest's time limit does not work. It gets
    SIGABRT, at which it prints the stacks of its threads, then SIGKILL. Orphans of the process can keep
    its output open indefinitely, so this also waits for the end of the process itself.
    """
    assert process.stdout is not None
    said, ended = process.stdout.fileno(), os.pidfd_open(process.pid)
    watched, orders = [said, ended], iter((signal.SIGABRT, signal.SIGKILL))
    kept: list[str] = []
    rest = b""
    while True:
        ready = select.select(watched, [], [], silence)[0]
        if not ready:
            process.send_signal(next(orders, signal.SIGKILL))
        elif said in ready:  # the end of the process counts only after all output was read
            data = os.read(said, 65536)
            *lines, rest = (rest + data).split(b"\n")
            for line in (raw.decode(errors="replace") + "\n" for raw in lines):
                if DONE.match(line):
                    print(line, end="", flush=True)
                else:
                    kept.append(line)
            if not data:
                watched.remove(said)
        else:
            break
    os.close(ended)
    process.stdout.close()
    return [*kept, rest.decode(errors="replace") + "\n"] if rest else kept


def main(words: list[str]) -> int:
    started = time.monotonic()
    os.chdir(ROOT)
    for piece in PIECES:  # some processes that tests start cannot write bytecode and would compile everything each time
        compileall.compile_dir(piece, quiet=2)
    with tempfile.TemporaryDirectory(prefix="jobherd-share-") as folder:
        # Named explicitly: otherwise pytest would search for its settings above the folder of --share.
        words = ["-c", "pyproject.toml", "--no-header", "-o", "console_output_style=classic", *words]
        shared = [*words, "-p", "tests.support.sharing", f"--share={folder}", f"--ignore={ALONE}"]
        others = min(len(os.sched_getaffinity(0)), MOST)
        lanes = [Lane([*words, ALONE], shared), *(Lane(shared) for _ in range(others))]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
    print("".join(failure for lane in lanes for failure in lane.failures), end="")
    names = sorted({name for lane in lanes for name in lane.sums})
    told = ", ".join(f"{sum(lane.sums.get(name, 0) for lane in lanes)} {name}" for name in names)
    print(
        f"the whole suite: {told or 'nothing was run'}, in {time.monotonic() - started:.0f} s and {len(lanes)} processes"
    )
    return 1 if any(lane.failed for lane in lanes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
