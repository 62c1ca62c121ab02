"""push:process: record the commits of a pushed ref.

A commit belongs to the first push that brought it, whatever the order in which jobs run. A push
brings the commits that its new tip reaches and no tip of an earlier push does. The old tip does not
matter: if the push that led to it was never recorded, its commits are recorded with the next one.
Commits are recorded in batches, each in its own transaction, and recording one twice changes
nothing. The last statement, guarded by processed_at, closes the push and enqueues the jobs that
follow.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from jobherd import Job, Poison, handler
from jobherd.handlers.forge import _git
from jobherd.handlers.forge._commits import Commit, commits
from jobherd.handlers.forge._database import Row, transaction
from jobherd.handlers.forge.size import size_recalc

if TYPE_CHECKING:
    from collections.abc import Sequence

BATCH: Final = 500
"""Commits per transaction: a push of a million commits must not keep one open for minutes."""
LANGUAGES_SHOWN: Final = 12


@handler("push:process", timeout="30m")
def push_process(job: Job, push_event: int) -> dict[str, Any]:
    """Record a push, and enqueue the measurement of its repository.

    push_event: id of the event's row, which a hook created. Returns what the push brought, or
    `{"skipped": ...}` if it was recorded before. Raises Poison if the event or the repository is
    gone.

    >>> push_process.enqueue(push_event=7)  # doctest: +SKIP
    42
    """
    with transaction() as database:
        event = database.row("forge/show_push", id=push_event)
        if event is None:
            raise Poison(f"push event {push_event} does not exist", code="PUSH_EVENT_VANISHED")
        if event["processed_at"] is not None:
            return {"skipped": "this push was processed before", "push_event": push_event}
        earlier = [row["sha"] for row in database.rows("forge/list_earlier_tips", repo=event["repo"], id=push_event)]
    repository = _git.check_repository(event["path"])
    nature = _examine(repository, event, earlier)
    if nature.tip is not None:
        _record(job, repository, event, tip=nature.tip, without=nature.brought)
    with transaction() as database:
        said = database.row(
            "forge/finish_push",
            id=push_event,
            change=nature.change,
            dropped=nature.dropped,
            note=nature.note,
        )
        if said is None:  # another attempt of this job was faster and has enqueued the jobs that follow
            return {"skipped": "this push was processed meanwhile", "push_event": push_event}
        size_job = size_recalc.options(connection=database.connection).enqueue(repo=event["repo"])
        database.rows("forge/store_size_job", id=push_event, job=size_job)
        languages = database.rows("forge/sum_push_languages", id=push_event)
    shown = {row["language"]: [int(row["added"]), int(row["deleted"])] for row in languages[:LANGUAGES_SHOWN]}
    numbers = {name: int(said[name]) for name in ("commits", "merges", "added", "deleted")}
    return {
        "ref": said["ref"],
        "change": said["change"],
        **numbers,
        "dropped": said["dropped"],
        "languages": shown,
        "note": said["note"],
    }


@dataclass(frozen=True, slots=True)
class _Nature:
    """The type of a push, and the commits to read."""

    change: str
    tip: str | None
    brought: tuple[str, ...]
    dropped: int | None = None
    note: str | None = None


def _examine(repository: str, event: Row, earlier: Sequence[str]) -> _Nature:
    old, new = event["old_sha"], event["new_sha"]
    asked = list(dict.fromkeys(sha for sha in (old, new, *earlier) if sha is not None))
    known = _git.known_commits(repository, asked)
    brought = tuple(dict.fromkeys(commit for sha in earlier if (commit := known[sha]) is not None))
    was = known[old] if old is not None else None
    if new is None:
        if was is None:
            return _Nature("delete", None, brought, note="the object that the ref pointed to no longer exists")
        left = [
            commit
            for commit in _git.known_commits(repository, list(_git.list_refs(repository).values())).values()
            if commit
        ]
        dropped = _git.count_commits(repository, reached=[was], without=left)
        return _Nature("delete", None, brought, dropped, _kept(dropped))
    tip = known[new]
    if tip is None:
        note = "the ref does not point to a commit, or its commits were deleted before Jobherd read them"
        return _Nature("create" if old is None else "rewrite", None, brought, note=note)
    if old is None:
        return _Nature("create", tip, brought, 0)
    if was is None:
        return _Nature("rewrite", tip, brought, note="the commit to which the ref pointed before no longer exists")
    if _git.is_ancestor(repository, old=was, new=tip):
        return _Nature("update", tip, brought, 0)
    dropped = _git.count_commits(repository, reached=[was], without=[tip])
    return _Nature("rewrite", tip, brought, dropped, _kept(dropped))


def _kept(dropped: int) -> str | None:
    if not dropped:
        return None
    gone = "1 commit is" if dropped == 1 else f"{dropped} commits are"
    return f"{gone} no longer on this ref; the records stay"


def _record(job: Job, repository: str, event: Row, *, tip: str, without: Sequence[str]) -> None:
    total = _git.count_commits(repository, reached=[tip], without=without, timeout=min(job.remaining(), 1800))
    done = 0
    with contextlib.closing(commits(repository, reached=[tip], without=without)) as found:
        while batch := list(itertools.islice(found, BATCH)):
            with transaction() as database:
                database.rows("forge/insert_commits", repo=event["repo"], push_event=event["id"], **_columns(batch))
            done += len(batch)
            job.progress(done / total if total else 1.0, f"{done} of {total} commits")


def _columns(batch: Sequence[Commit]) -> dict[str, list[Any]]:
    return {
        "shas": [one.sha for one in batch],
        "authors": [one.author for one in batch],
        "emails": [one.email for one in batch],
        "authored": [one.authored for one in batch],
        "subjects": [one.subject for one in batch],
        "merges": [one.merge for one in batch],
        "files": [one.files for one in batch],
        "binary_files": [one.binary_files for one in batch],
        "added": [one.added for one in batch],
        "deleted": [one.deleted for one in batch],
        "languages": [orjson.dumps(one.languages).decode() for one in batch],
    }
