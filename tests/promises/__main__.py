"""`python -m tests.promises [FILE]` prints the table: id, promise, test, passed.

FILE is the record of a run that `report.py` has written.

Exits with 1 if a test that carries a row did not pass. An open row is not a failure.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from tests.promises.rows import carried, rows

WIDE = 60


def main(argv: list[str]) -> int:
    ended: dict[str, dict[str, set[str]]] = {}
    for line in Path(argv[0]).read_text().splitlines() if argv else []:
        row, test, outcome = line.split("\t")
        ended.setdefault(row, {}).setdefault(test.partition("[")[0], set()).add(outcome)
    tests = carried()
    count: Counter[str] = Counter()
    for row in rows():
        shown = list(ended.get(row.id, {})) if argv else tests.get(row.id, []) + [file for file, _ in row.pages]
        outcomes = {outcome for each in ended.get(row.id, {}).values() for outcome in each}
        if not shown:
            state = "open"
        elif not argv:
            state = "not run"
        else:
            state = "FAILED" if "failed" in outcomes else "open (skipped)" if "skipped" in outcomes else "kept"
        count[state] += 1
        more = f" and {len(shown) - 1} more" if len(shown) > 1 else ""
        text = row.text if len(row.text) <= WIDE else row.text[: WIDE - 1] + "…"
        print(f"{row.id:4} {text:{WIDE}} {state:8} {shown[0] + more if shown else '-'}")
    print(", ".join(f"{number} {state}" for state, number in count.most_common()))
    return 1 if count["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
