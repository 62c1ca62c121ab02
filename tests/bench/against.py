"""Run the same benchmarks of this tree and of an earlier commit in turn, and print the ratios.

The ratios show whether a change has made anything slower.

    python -m tests.bench.against COMMIT [--pairs N] ["NAME OPTION ..." ...]

The earlier commit is in a separate work tree below `.bench/against/`, and both use this environment's
Python: a commit with other dependencies cannot be compared. Each run is a process with its own
server, the order changes with every pair, and a figure is the median of the pairs' ratios with its
interval. A label that only one of the two prints is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.checkout import import_path
from tests.support.figures import FOLDER, Report
from tests.support.herd import ROOT

USUAL = ("latency --jobs 150", "hot --rounds 60", "drain --runs 1", "cpu --pairs 1")
"""Long enough for one figure each; the pairs provide the spread."""
TREES = ROOT / ".bench" / "against"


def tree_of(commit: str) -> Path:
    """Check out the commit if necessary; return its folder."""
    name = subprocess.run(
        ["git", "rev-parse", "--verify", f"{commit}^{{commit}}"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    folder = TREES / name.stdout.strip()[:12]
    if not folder.exists():
        subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
        subprocess.run(
            ["git", "worktree", "add", "--detach", "--quiet", str(folder), name.stdout.strip()], cwd=ROOT, check=True
        )
    return folder


def measure(tree: Path, words: list[str]) -> dict[str, tuple[float, str]]:
    """Run one benchmark in the tree; return the median of each of its figures, and the unit, by label."""
    with tempfile.TemporaryDirectory(prefix="jobherd-against-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", f"tests.bench.{words[0]}", *words[1:]],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": import_path(tree), FOLDER: folder},
            check=False,
            stdout=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            sys.exit(f"{tree}: {' '.join(words)} failed with {done.returncode}\n{done.stdout}")
        (record,) = (json.loads(file.read_text()) for file in Path(folder).glob("*.json"))
    return {figure["label"]: (figure["ours"][0], figure["unit"]) for figure in record["figures"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("measurements", nargs="*", default=USUAL, help=f"default: {', '.join(USUAL)}")
    given = parser.parse_args()
    trees = [ROOT, tree_of(given.commit)]
    report = Report(f"against: this tree, and {given.commit}, in turn")
    for measurement in given.measurements:
        found: list[list[dict[str, tuple[float, str]]]] = [[], []]
        for number in range(given.pairs):
            for which in (0, 1) if number % 2 else (1, 0):
                found[which].append(measure(trees[which], measurement.split()))
        for label, (_, unit) in found[0][0].items():
            if label in found[1][0]:
                ours, theirs = ([each[label][0] for each in runs] for runs in found)
                report.figure(label, ours, theirs, unit=unit)
                print(
                    f"{label}: {[round(one / other, 3) for one, other in zip(ours, theirs, strict=True)]}",
                    file=sys.stderr,
                    flush=True,
                )
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
