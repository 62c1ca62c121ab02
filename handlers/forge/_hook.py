"""The post-receive hook: `python -m jobherd.handlers.forge._hook` in a bare repository.

git's lines are on its standard input. git has stored the push when the hook runs. The hook records
a push event per ref and enqueues push:process for each, in one transaction whose commit wakes a
worker. If the database is away, it tells the pushing user and keeps the push in the repository; the
next push or `jobherd forge catch-up` records it. The hook must not delay `git push` for long, and
must not show the DSN to the pushing user.
"""

from __future__ import annotations

import os
import sys

from jobherd import configure
from jobherd.handlers.forge import _git
from jobherd.handlers.forge._pushes import Push, keep, read_push, tell
from jobherd.handlers.forge._repository import read_place


def main() -> int:
    """Record the push and return the exit status. git shows the status only to scripts."""
    path = os.path.realpath(os.environ.get("GIT_DIR") or ".")
    try:
        push = read_push(sys.stdin.buffer)
    except (ValueError, TypeError) as problem:
        _say(f"this is not the input of a post-receive hook ({problem}); nothing is recorded")
        return 1
    if not push.changes:
        return 0
    try:
        place = read_place(path)
        configure(place.dsn, schema=place.schema)
        jobs = tell(path, push)
    except BaseException as problem:  # any exception, including Ctrl-C: the push must not be lost
        return _keep(path, push, problem)
    _say(f"recorded, {len(jobs)} job{'s' * (len(jobs) != 1)} enqueued: {_few(jobs)}")
    return 0


def _keep(path: str, push: Push, problem: BaseException) -> int:
    summary = str(problem).strip().partition("\n")[0]  # the lines after it are the statement and a caret
    why = _git.last_line(summary.encode(errors="replace")) or type(problem).__name__
    _say(f"this push is stored in the repository, but not recorded: {why}")
    try:
        keep(path, push)
    except OSError as another:
        _say(f"it could not be saved for later either ({another}); run later: jobherd forge catch-up {path}")
        return 1
    _say(f"it is saved, and will be recorded with the next push, or by: jobherd forge catch-up {path}")
    return 1


def _few(jobs: list[int]) -> str:
    return ", ".join(map(str, jobs[:5])) + (", ..." if len(jobs) > 5 else "")


def _say(text: str) -> None:
    print(f"jobherd: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
