"""Finds the version of the application's code that a child runs.

It is the setting, or else the commit of the folder's git repository. The commit is read from the
files of the repository, since the supervisor starts no program. It is read at the start and at each
reload. If the code on disk changes without a reload, new children report the old version.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def revision(folder: Path) -> str:
    """Return the commit that is checked out around a folder, in twelve digits, or ""."""
    with suppress(OSError, ValueError):
        place = next(
            (each / ".git" for each in (folder.absolute(), *folder.absolute().parents) if (each / ".git").exists()),
            folder,
        )
        if place.is_file():  # a worktree or a submodule
            place = (place.parent / place.read_text(encoding="utf-8").partition("gitdir:")[2].strip()).resolve()
        head = place.joinpath("HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref:"):
            return head[:12]
        name = head.partition(":")[2].strip()
        common = place
        if (place / "commondir").exists():
            common = (place / (place / "commondir").read_text(encoding="utf-8").strip()).resolve()
        for where in (place, common):
            if (where / name).is_file():
                return (where / name).read_text(encoding="utf-8").strip()[:12]
        for line in (common / "packed-refs").read_text(encoding="utf-8").splitlines():
            if line.endswith(f" {name}"):
                return line[:12]
    return ""
