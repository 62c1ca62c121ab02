"""What a worker holds, in a file next to the sockets of its uplink.

A worker that runs a job reads nothing. If its uplink dies meanwhile, the next one resumes the session
with what this file names. The gateway would release every other task, and another worker run it.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from jobherd.handlers._remote.events import Ref

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def write_held(folder: Path, child: int, held: Mapping[int, Sequence[int]]) -> None:
    """Write the jobs of each claim, by token. A reader sees the last version or this one."""
    path = _path(folder, child)
    fresh = f"{path}.new"
    with open(fresh, "w", encoding="ascii") as file:
        json.dump(list(held.items()), file)
    os.replace(fresh, path)


def read_held(folder: Path, child: int) -> list[Ref]:
    """Return the tasks that a worker holds."""
    try:
        with open(_path(folder, child), encoding="ascii") as file:
            return [Ref(job, token) for token, jobs in json.load(file) for job in jobs]
    except FileNotFoundError:
        return []


def _path(folder: Path, child: int) -> str:
    return f"{folder}/held-{child}"
