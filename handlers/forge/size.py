"""repo:size_recalc: measure the size of a repository on disk, and count its objects and refs.

It overwrites the previous numbers. The last one wins, where last means the one that began last. So
it needs no guard and may run in any order.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from jobherd import Job, Poison, handler
from jobherd.handlers.forge import _git
from jobherd.handlers.forge._database import transaction


@handler("repo:size_recalc", timeout="10m")
def size_recalc(job: Job, repo: int) -> dict[str, Any]:
    """Measure a repository and overwrite its numbers.

    repo: id of its row. Returns the numbers. Raises Poison if the row or the repository is gone.

    >>> size_recalc.enqueue(repo=3)  # doctest: +SKIP
    42
    """
    with transaction() as database:
        row = database.row("forge/show_repo", id=repo)
    if row is None:
        raise Poison(f"repository {repo} does not exist", code="REPOSITORY_VANISHED")
    path = _git.check_repository(row["path"])
    refs = _git.list_refs(path)
    numbers = {
        "size_bytes": _bytes_below(path),
        "objects": _objects(path, timeout=min(job.remaining(), 300)),
        "branches": sum(ref.startswith("refs/heads/") for ref in refs),
        "tags": sum(ref.startswith("refs/tags/") for ref in refs),
    }
    with transaction() as database:
        written = database.row("forge/store_size", id=repo, began=row["began"], **numbers)
        if written is None and database.row("forge/show_repo", id=repo) is None:
            raise Poison(f"repository {repo} was removed while it was measured", code="REPOSITORY_VANISHED")
    return {"repo": repo, **numbers, "written": written is not None}


def _objects(path: str, *, timeout: float) -> int:
    """Return the number of stored objects.

    An object in two packs counts twice until git repacks.
    """
    lines = _git.run("count-objects", "-v", repository=path, timeout=timeout).decode().splitlines()
    counted = dict(line.split(": ", 1) for line in lines if ": " in line)
    return int(counted["count"]) + int(counted["in-pack"])


def _bytes_below(path: str) -> int:
    """Return the disk usage of a folder's files.

    Files that disappear meanwhile (git packs) count as 0.
    """
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total
