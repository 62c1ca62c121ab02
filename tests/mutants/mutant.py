"""Defines a mutant: a change that removes a guard, and the tests that must fail because of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A change that removes a guard from a file.

    Attributes:
        name: the wrong behavior that follows.
        file: the changed file.
        was: the text that is replaced. It must occur exactly once in the file.
        becomes: the new text.
        tests: arguments for pytest; at least one of these tests must fail.
    """

    name: str
    file: str
    was: str
    becomes: str
    tests: tuple[str, ...]
