"""Where `jobherd` is imported from: this checkout, or another tree that a test compares it with."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("supervisor", "workers", "handlers", "sql")


def import_path(tree: Path = ROOT) -> str:
    """Return a PYTHONPATH with which `jobherd` and `tests` are those of the tree, whatever is installed.

    A tree from before the common package `jobherd` needs no links: its folders are the packages.
    """
    facade = tree / "handlers" / "_facade"
    if not facade.is_dir():
        return str(tree)
    package = tree / ".bench" / "checkout" / "jobherd"
    package.mkdir(parents=True, exist_ok=True)
    for target in (
        *(tree / name for name in FOLDERS),
        *(file for file in facade.iterdir() if file.name != "__pycache__"),
    ):
        link = package / target.name
        if not link.is_symlink():
            link.symlink_to(target)
    return f"{package.parent}{os.pathsep}{tree}"
