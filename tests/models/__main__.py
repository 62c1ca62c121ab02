"""Checks every model of this folder with Spin.

The design must hold. Without any one of its guards, it must fail as the header of the model says.

If a model passes without a guard, it proves nothing about that guard, so this is an error like a design that
fails. The header of each model lists its checks in lines that `README.md` explains. The ordinary tests run
only checks that take seconds: the fencing token and the concurrency limits (`test_models.py`).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
_LINE: Final = re.compile(r"^ \* (holds|wide|breaks):((?: +[A-Z_]+(?:=\d+)?(?= |$))*)", re.MULTILINE)
_PROPERTY: Final = re.compile(r"^ \* +([A-Z_]+) {2,}\S", re.MULTILINE)
_LIMIT: Final = 900.0
"""Seconds that a single search may take."""
_MEGABYTES: Final = 4000
_DEPTH: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Variant:
    """One search: a model, its definitions, and the property that must fail. Without one, all must hold."""

    model: Path
    flags: tuple[str, ...]
    fails: str = ""
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search."""

    errors: int
    states: str
    seconds: float
    why: str


class SearchError(Exception):
    """A search has no result: it did not begin, or did not visit every state."""


def variants(model: Path) -> list[Variant]:
    """Return the searches that the header of a model lists.

    Raises SearchError if it lists none, or names a property that it does not explain.
    """
    text = model.read_text()
    named = set(_PROPERTY.findall(text))
    found = []
    for what, words in _LINE.findall(text):
        flags = tuple(words.split())
        if what == "breaks":
            if len(flags) < 2 or flags[-1] not in named:
                raise SearchError(f"{model.name}: name the property that must fail with {' '.join(flags)}")
            found.append(Variant(model, flags[:-1], fails=flags[-1]))
        else:
            found.append(Variant(model, flags, wide=what == "wide"))
    if not any(one.fails for one in found) or all(one.fails for one in found):
        raise SearchError(f"{model.name}: the header must list checks that hold and checks that break a property")
    return found


def search(variant: Variant, level: str = "-O2") -> Found:
    """Let Spin visit every state. Raises SearchError if it could not.

    level: how the search is compiled. With -O0, compiling takes a sixth of the time, which pays below
    a million states.
    """
    flags = [f"-D{flag}" for flag in variant.flags] + ([f"-DONLY={variant.fails}"] if variant.fails else [])
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(variant.model, folder)
        _run(["spin", "-a", *flags, variant.model.name], folder)
        _run(["cc", level, "-w", "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={_MEGABYTES}", "-o", "pan", "pan.c"], folder)
        said = _run(["./pan", "-E", f"-m{_DEPTH}"], folder)
    errors, states = re.search(r"errors: (\d+)", said), re.search(r"(\S+) states, stored", said)
    why = re.search(r"pan:1: (.*)", said)
    if (
        errors is None
        or states is None
        or ("Search not completed" in said and errors[1] == "0")
        or "max search depth too small" in said
    ):
        raise SearchError(said)
    return Found(int(errors[1]), states[1], time.monotonic() - began, why[1] if why else "")


def _run(words: list[str], folder: str) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=_LIMIT, check=False)
    said = done.stdout + done.stderr
    if done.returncode or "Error:" in said:
        raise SearchError(f"{' '.join(words)}\n{said}")
    return said


def main(arguments: list[str]) -> int:
    """Check the named models, or all. With --wide, also check the bounds that take minutes.

    Returns the exit code.
    """
    if shutil.which("spin") is None or shutil.which("cc") is None:
        print(
            "The models were not checked: spin or cc is not installed. On Debian, run apt-get install spin gcc libc6-dev."
        )
        return 0
    names = [name for name in arguments if name != "--wide"]
    wrong = 0
    for model in [FOLDER / f"{name}.pml" for name in names] or sorted(FOLDER.glob("*.pml")):
        for variant in variants(model):
            if variant.wide and "--wide" not in arguments:
                continue
            found = search(variant)
            right = bool(found.errors) == bool(variant.fails)
            wrong += not right
            must = f"must fail in {variant.fails}" if variant.fails else "must hold"
            does = "fails" if found.errors else "holds"
            label = " ".join(variant.flags) or "as designed"
            print(
                f"{'ok   ' if right else 'WRONG'} {model.stem:<6} {label:<32} {must:<26} {does}, {found.states} states, {found.seconds:.1f} s",
                flush=True,
            )
            if not right and found.why:
                print(f"      {found.why}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SearchError as problem:
        sys.exit(f"A model could not be checked. {problem}")
