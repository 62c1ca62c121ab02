"""Records pushes and their jobs in one transaction, or keeps them until they can be recorded.

They are kept in the repository. git has stored a push before the hook runs, and it cannot be
rejected any more. So a push that cannot be recorded is written to a file in the repository, and
recorded before the next one. Each push has its own name, so that recording it twice stores it once.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from jobherd.handlers.forge import _git
from jobherd.handlers.forge._database import transaction
from jobherd.handlers.forge.push import push_process

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from jobherd.handlers.forge._database import Database

MISSED: Final = "jobherd-missed"
"""Folder in a repository for pushes that could not be recorded."""


@dataclass(frozen=True, slots=True)
class Change:
    """One ref of a push. old is None for a new ref, new is None for a deleted ref."""

    ref: str
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class Push:
    """What one `git push` changed. `name` identifies it."""

    changes: tuple[Change, ...]
    name: str = field(default_factory=lambda: str(uuid.uuid4()))


def read_push(lines: Iterable[bytes]) -> Push:
    """Parse the input of a post-receive hook: a line "old new ref" for each ref.

    Raises ValueError otherwise.
    """
    return Push(tuple(_change(*line.rstrip(b"\n").split(b" ", 2)) for line in lines if line.strip()))


def _change(old: bytes, new: bytes, ref: bytes) -> Change:
    return Change(_git.ref_name(ref), _sha(old.decode()), _sha(new.decode()))


def _sha(value: str | None) -> str | None:
    if value is None or not value.strip("0"):  # git writes zeros for a missing object
        return None
    if not _git.SHA.fullmatch(value):
        message = f"{value[:80]!r} is not a full object name"
        raise ValueError(message)
    return value


def repository_id(database: Database, path: str) -> int:
    """Return the id of the repository at a path. A new repository is added.

    Raises ValueError for a path that is not UTF-8, which the database could not store.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        message = "the repository's path is not UTF-8: rename it"
        raise ValueError(message) from None
    name = os.path.basename(path.removesuffix("/.git"))
    for _ in range(2):  # another process may add it between the two halves of the statement; the second try sees it
        row = database.row("forge/add_repo", path=path, name=name.removesuffix(".git") or name)
        if row is not None:
            break
    assert row is not None, "a repository that is neither new nor known"
    return int(row["id"])


def record(database: Database, path: str, pushes: Sequence[Push]) -> list[int]:
    """Record pushes and enqueue a push:process for each of their refs.

    Return the ids of these jobs, in order.

    database: the open transaction; its commit wakes a worker. path: path of the repository, links
        resolved.
    """
    repo = repository_id(database, path)
    told = [(push.name, change) for push in pushes for change in push.changes if change.old != change.new]
    events = database.rows(
        "forge/insert_pushes",
        repo=repo,
        pushes=[name for name, _ in told],
        refs=[change.ref for _, change in told],
        olds=[change.old for _, change in told],
        news=[change.new for _, change in told],
    )
    ids = [int(row["id"]) for row in events]
    jobs = (
        push_process.options(connection=database.connection).enqueue_many({"push_event": one} for one in ids)
        if ids
        else []
    )
    database.rows("forge/store_push_jobs", ids=ids, jobs=jobs)
    return jobs


def keep(path: str, push: Push) -> str:
    """Write a push that could not be recorded to a file in its repository.

    Returns the file's name. Raises OSError.
    """
    folder = os.path.join(path, MISSED)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    file = os.path.join(folder, f"{time.time_ns():020}-{push.name}.json")
    document = {"push": push.name, "changes": [[change.ref, change.old, change.new] for change in push.changes]}
    with open(f"{file}.new", "w", encoding="utf-8") as stream:
        json.dump(document, stream)
        stream.flush()
        os.fsync(stream.fileno())
    os.rename(f"{file}.new", file)
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(place)  # otherwise a power failure could lose the file's name, and so the push
    finally:
        os.close(place)
    return file


def kept(path: str) -> Iterator[tuple[str, Push]]:
    """Yield the files of pushes that could not be recorded, oldest first.

    Raises ValueError naming a broken file.
    """
    folder = os.path.join(path, MISSED)
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(folder)):
            if name.endswith(".json"):
                file = os.path.join(folder, name)
                with contextlib.suppress(FileNotFoundError):  # another hook has just recorded it
                    yield file, _read_kept(file)


def _read_kept(file: str) -> Push:
    try:
        with open(file, encoding="utf-8") as stream:
            document = json.load(stream)
        changes = tuple(Change(str(ref), _sha(old), _sha(new)) for ref, old, new in document["changes"])
        return Push(changes, str(uuid.UUID(document["push"])))
    except (ValueError, TypeError, KeyError, AttributeError) as problem:
        message = f"{file} does not hold a push ({type(problem).__name__}): remove it, then run jobherd forge catch-up"
        raise ValueError(message) from None


def tell(path: str, push: Push | None, *, patience: float = 10.0) -> list[int]:
    """Record the kept pushes, then a new push, in one transaction. Return the ids of the jobs.

    push: None to record only the kept ones. patience: seconds for each statement, default 10.
    Raises psycopg's errors, and ValueError for a file that cannot be read; then nothing was
    recorded.
    """
    before = list(kept(path))
    pushes = [one for _, one in before] + ([] if push is None else [push])
    with transaction() as database:
        database.rows("forge/limit_transaction", milliseconds=str(int(patience * 1000)))
        jobs = record(database, path, pushes)
    for file, _ in before:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file)
    return jobs


def catch_up(path: str) -> list[int]:
    """Record all unrecorded pushes: kept ones, and refs that differ from their last recorded push.

    Returns the ids of the jobs. A ref that moved several times counts as one push. Run it while
    there are no pushes: a push that is being recorded may be recorded a second time, as one without
    new commits.
    """
    jobs = tell(path, None, patience=60)
    with transaction() as database:
        known = {
            row["ref"]: row["new_sha"]
            for row in database.rows("forge/list_known_refs", repo=repository_id(database, path))
        }
    there: dict[str, str | None] = {**dict.fromkeys(known), **_git.list_refs(path)}
    changes = tuple(Change(ref, known.get(ref), now) for ref, now in there.items() if now != known.get(ref))
    return jobs + (tell(path, Push(changes), patience=60) if changes else [])
