"""Parses `git log --numstat` into commits: authors, and added and deleted lines by language.

Fields are separated by NULs, which neither paths nor names can contain, so no author, subject or
file name can be mistaken for another field. This module only parses: git is started elsewhere, rows
are written elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from jobherd.handlers.forge._git import reading, revisions
from jobherd.handlers.forge._languages import language_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence
    from typing import IO

LOG: Final = (
    # Only the repository's own configuration remains. Every setting of it that could change the
    # numbers is overridden here.
    *(
        "-c",
        "log.showRoot=true",
        "-c",
        "diff.renames=true",
        "-c",
        "diff.renameLimit=1000",
        "-c",
        "diff.algorithm=myers",
    ),
    *("-c", "log.showSignature=false", "-c", "log.mailmap=false", "-c", "diff.ignoreSubmodules=none"),
    *("-c", "core.attributesFile=/dev/null"),
    *("log", "--stdin", "-z", "--numstat", "-M", "--diff-merges=off", "--topo-order", "--reverse", "--encoding=UTF-8"),
    *(
        "--no-ext-diff",
        "--no-textconv",
        "--no-color",
        "--no-notes",
        "--format=tformat:%H%x00%P%x00%an%x00%ae%x00%at%x00%s",
    ),
)
_FIELDS: Final = 6
_COUNTS: Final = re.compile(rb"\n?(\d+|-)\t(\d+|-)\t(.*)", re.DOTALL)
_CHUNK: Final = 1 << 16


@dataclass(slots=True)
class Commit:
    """One commit, as it is stored."""

    sha: str
    author: str
    email: str
    authored: int | None
    """Seconds since 1970 by the author's clock; None if the commit has no number there."""
    subject: str
    merge: bool
    files: int = 0
    binary_files: int = 0
    added: int = 0
    deleted: int = 0
    languages: dict[str, list[int]] = field(default_factory=dict)
    """Added and deleted lines by language; files in an unknown language count as "Other"."""

    def count(self, added: bytes, deleted: bytes, path: bytes) -> None:
        """Add one changed file; git prints - instead of the line counts of a binary one."""
        self.files += 1
        if added == b"-" or deleted == b"-":
            self.binary_files += 1
            return
        plus, minus = int(added), int(deleted)
        self.added += plus
        self.deleted += minus
        if plus or minus:
            lines = self.languages.setdefault(language_of(path), [0, 0])
            lines[0] += plus
            lines[1] += minus


def commits(repository: str, *, reached: Sequence[str], without: Sequence[str]) -> Generator[Commit, None, None]:
    """Yield the commits in `reached` that are not in `without`, parents first. Raises GitError.

    repository: its path. reached, without: full names of existing commits.
    """
    with reading(repository, *LOG, given=revisions(reached, without)) as output:
        yield from parse(_fields(output))


def parse(fields: Iterable[bytes]) -> Iterator[Commit]:
    """Yield the commits in the output of `LOG`, split at its NULs.

    A commit is six fields, then "added TAB deleted TAB path" for each file. For a renamed file the
    path is empty, and the old and the new path follow as separate fields. Raises ValueError if the
    output ends in the middle of a commit.
    """
    rest = iter(fields)
    commit: Commit | None = None
    for first in rest:
        counts = _COUNTS.fullmatch(first)
        if counts is None:
            if commit is not None:
                yield commit
            commit = _header(first, rest)
            continue
        if commit is None:
            message = "git log began with a file instead of a commit"
            raise ValueError(message)
        path = counts[3]
        if not path:
            _old, path = _next(rest), _next(rest)
        commit.count(counts[1], counts[2], path)
    if commit is not None:
        yield commit


def _header(first: bytes, rest: Iterator[bytes]) -> Commit:
    _, parents, author, email, when, subject = (first, *(_next(rest) for _ in range(_FIELDS - 1)))
    return Commit(
        sha=first.strip().decode("ascii"),
        author=_text(author),
        email=_text(email),
        authored=int(when) if re.fullmatch(rb"\d{1,18}", when) else None,
        subject=_text(subject),
        merge=b" " in parents,
    )


def _next(rest: Iterator[bytes]) -> bytes:
    try:
        return next(rest)
    except StopIteration:
        message = "git log ended in the middle of a commit"
        raise ValueError(message) from None


def _text(value: bytes) -> str:
    # Commits may declare one encoding and use another; this must not keep a push from being
    # recorded.
    return value.decode(errors="replace")[:1000]


def _fields(output: IO[bytes]) -> Iterator[bytes]:
    """Split a stream at its NULs."""
    held = b""
    while chunk := output.read(_CHUNK):
        *whole, held = (held + chunk).split(b"\0")
        yield from whole
    if held:
        yield held
