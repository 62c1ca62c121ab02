"""What a mutant is: a guard taken out, and the tests that are to notice it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A guard taken out. tests: what is to turn red, as pytest takes it."""

    name: str
    file: str
    was: str
    becomes: str
    tests: tuple[str, ...]
