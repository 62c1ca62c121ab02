"""Creates real git repositories for tests, and computes the expected numbers with git.

`generated` creates a history of any length in one `git fast-import`. `story` returns typical pushes:
one branch, several branches, a force push, a deleted branch, a tag. `truth` uses other git commands
than the product does.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from jobherd.handlers.forge._sample import history

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "Author 1",
    "GIT_AUTHOR_EMAIL": "author-1@example.org",
    "GIT_COMMITTER_NAME": "Author 1",
    "GIT_COMMITTER_EMAIL": "author-1@example.org",
    "LC_ALL": "C.UTF-8",
}


def git(*words: str, at: Path | str | None = None, given: bytes | None = None, **more: str) -> str:
    """Run git; return its output without the last line break.

    If git fails, the test fails with git's error.
    """
    done = subprocess.run(
        ["git", *(["-C", str(at)] if at is not None else []), *words],
        input=given,
        env=ENVIRONMENT | more,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, f"git {' '.join(words)}: {done.stderr.decode()}"
    return done.stdout.decode(errors="surrogateescape").rstrip("\n")


def push(source: Path, remote: Path | str, *refs: str, force: bool = False) -> str:
    """Push; return the messages of git and of the hooks."""
    words = ["git", "-C", str(source), "push", *(["--force"] if force else []), "--", str(remote), *refs]
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return done.stderr.decode(errors="replace")


def bare(path: Path) -> Path:
    """Create an empty bare repository."""
    git("init", "--quiet", "--bare", "--initial-branch=main", str(path))
    return path


def generated(path: Path, commits: int = 200, *, authors: int = 5, seed: int = 1) -> Path:
    """Create a bare repository with this many commits: the branch main and topics, merges, renames, binary files."""
    bare(path)
    git("fast-import", "--quiet", at=path, given=history(commits, authors=authors, seed=seed))
    return path


def commit(
    repository: Path,
    ref: str,
    files: dict[str, bytes],
    *,
    subject: str = "a change",
    parents: tuple[str, ...] = (),
    **more: str,
) -> str:
    """Create a commit with exactly these files, set the ref to it, and return its hash."""
    lines = []
    for name, content in files.items():
        blob = git("hash-object", "-w", "--stdin", at=repository, given=content)
        lines.append(f"100644 blob {blob}\t{name}".encode(errors="surrogateescape"))
    tree = _tree(repository, lines)
    sha = git(
        "commit-tree",
        "-m",
        subject,
        *(word for parent in parents for word in ("-p", parent)),
        tree,
        at=repository,
        **more,
    )
    git("update-ref", ref, sha, at=repository)
    return sha


def _tree(repository: Path, lines: list[bytes]) -> str:
    index = str(repository / "test-index")
    git("read-tree", "--empty", at=repository, GIT_INDEX_FILE=index)
    git(
        "update-index",
        "-z",
        "--index-info",
        at=repository,
        given=b"".join(line + b"\0" for line in lines),
        GIT_INDEX_FILE=index,
    )
    tree = git("write-tree", at=repository, GIT_INDEX_FILE=index)
    os.unlink(index)
    return tree


@dataclass(frozen=True)
class Step:
    """One `git push` of a story."""

    refs: tuple[str, ...]
    force: bool = False


def story(source: Path) -> list[Step]:
    """Return typical pushes of a generated repository, in order.

    Every pushed commit stays on a ref of the source.
    """
    line = git("rev-list", "--first-parent", "--reverse", "main", at=source).split()
    topics = [
        ref
        for ref in git("for-each-ref", "--format=%(refname:short)", "refs/heads", at=source).split()
        if ref != "main"
    ]
    third, half = line[len(line) // 3], line[len(line) * 2 // 3]
    # The rewritten main: without its last three commits, but with a new one.
    rewritten = commit(source, "refs/heads/rewritten", {"rewritten.py": b"1\n2\n"}, parents=(line[-4],))
    git("tag", "--annotate", "-m", "a release", "v1", third, at=source)
    heads = [f"{topic}:refs/heads/{topic}" for topic in topics]
    return [
        Step((f"{third}:refs/heads/main",)),
        Step((f"{half}:refs/heads/main", *heads[:2])),
        Step(("main:refs/heads/main",)),
        Step((*heads[2:], "refs/tags/v1:refs/tags/v1")),
        Step((f"{rewritten}:refs/heads/main",), force=True),
        Step((f":refs/heads/{topics[0]}",)),
    ]


@dataclass(frozen=True)
class Truth:
    """Numbers from git about the commits of a repository."""

    commits: int
    merges: int
    added: int
    deleted: int
    binary_files: int
    by_author: dict[str, int]
    """Commits by e-mail address, merges included."""
    python: int
    """Changed lines of Python."""


def truth(repository: Path, *revisions: str) -> Truth:
    """Return the numbers from git. revisions: the commits; default: those of every branch and tag."""
    what = revisions or ("--branches", "--tags")
    added = deleted = binary = python = 0
    for entry in git("log", "--no-merges", "--numstat", "--format=", "-M", *what, at=repository).splitlines():
        plus, minus, path = entry.split("\t", 2)
        if plus == "-":
            binary += 1
            continue
        added, deleted = added + int(plus), deleted + int(minus)
        # Git shows a rename as {old => new}/name or old => new, so the line ends with the new name
        # or a brace.
        if path.rstrip("}").endswith(".py"):
            python += int(plus) + int(minus)
    return Truth(
        commits=int(git("rev-list", "--count", *what, at=repository)),
        merges=int(git("rev-list", "--count", "--merges", *what, at=repository)),
        added=added,
        deleted=deleted,
        binary_files=binary,
        by_author=dict(Counter(git("log", "--format=%ae", *what, at=repository).splitlines())),
        python=python,
    )
