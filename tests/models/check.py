"""Run the models: each variant that a model's head lists must give the verdict that stands there. Needs spin and a C compiler; no test does.

Usage: python -m tests.models.check
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
VARIANT = re.compile(r"^ \*   (?P<flags>\(none\)|-D[A-Z_]+(?: -D[A-Z_]+)*) +(?P<verdict>pass|FAIL) ", re.MULTILINE)


def verdict(model: Path, flags: list[str]) -> tuple[str, str]:
    """Search every state of a variant; give pass or FAIL and how many states there were."""
    with tempfile.TemporaryDirectory(prefix="jobherd-model-") as folder:
        subprocess.run(["spin", "-a", *flags, model], cwd=folder, check=True, capture_output=True)
        subprocess.run(["cc", "-O2", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c"], cwd=folder, check=True, capture_output=True)
        # -E: that everybody sleeps is no error; the monitor looks at what it means.
        said = subprocess.run(["./pan", "-E", "-m1000000"], cwd=folder, check=True, capture_output=True, text=True).stdout
    errors = re.search(r"errors: (\d+)", said)
    states = re.search(r"([0-9.e+]+) states, stored", said)
    if errors is None or "max search depth too small" in said:
        return "TRUNCATED", said
    return "pass" if errors[1] == "0" else "FAIL", states[1] if states else "?"


def main() -> int:
    wrong = 0
    for model in sorted(HERE.glob("*.pml")):
        for found in VARIANT.finditer(model.read_text()):
            flags = [] if found["flags"] == "(none)" else found["flags"].split()
            got, states = verdict(model, flags)
            wrong += got != found["verdict"]
            print(f"{'ok   ' if got == found['verdict'] else 'WRONG'} {model.name} {found['flags']:<20} {got}, {states} states")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
