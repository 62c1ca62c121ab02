"""Where `jobherd` is imported from.

This checkout, or another tree of it that a test runs beside.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("supervisor", "workers", "handlers", "sql")


def import_path(tree: Path = ROOT) -> str:
    """Return the PYTHONPATH under which `jobherd` and `tests` are those of that tree, whatever is installed.

    A tree of before the packages had the one name `jobherd` needs no links: there the folders are
    the packages.
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
