"""A generated history for `git fast-import`, for demonstrations and tests.

It has several authors, branches that are merged or left open, renames, deletions, binary files and
empty commits. The same arguments give the same history, down to the last object name.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ENDINGS: Final = ("py", "c", "md", "sql", "js", "unknown")
FIRST_DAY: Final = 1_700_000_000


@dataclass(slots=True)
class _Branch:
    name: str
    tip: int | None
    files: dict[str, int]
    """Mark of each path's content."""
    changed: dict[str, int | None] = field(default_factory=dict)
    """Changes on this branch since it left main, which its merge brings. None: deleted."""


class _History:
    def __init__(self, *, authors: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.authors = authors
        self.marks = 0
        self.when = FIRST_DAY
        self.main = _Branch("main", None, {})
        self.topics: list[_Branch] = []
        self.opened = 0

    def mark(self) -> int:
        self.marks += 1
        return self.marks

    def step(self) -> Iterator[bytes]:
        """Yield the commands of one commit."""
        chance = self.random.random()
        if self.topics and chance < 0.12:
            yield from self.merge(self.topics.pop(self.random.randrange(len(self.topics))))
        elif self.main.tip is not None and len(self.topics) < 4 and chance < 0.24:
            self.opened += 1
            self.topics.append(_Branch(f"topic-{self.opened}", self.main.tip, dict(self.main.files)))
            yield from self.commit(self.topics[-1])
        else:
            yield from self.commit(self.random.choice([self.main, self.main, *self.topics]))

    def commit(self, branch: _Branch) -> Iterator[bytes]:
        chance = self.random.random()
        before = branch.tip
        changes: list[bytes] = []
        if branch.files and chance < 0.08:
            old = self.random.choice(sorted(branch.files))
            new = f"moved/{self.mark()}-{old.rsplit('/', 1)[-1]}"
            branch.files[new] = branch.changed[new] = branch.files.pop(old)
            branch.changed[old] = None
            changes.append(f"R {old} {new}\n".encode())
        elif branch.files and chance < 0.14:
            old = self.random.choice(sorted(branch.files))
            del branch.files[old]
            branch.changed[old] = None
            changes.append(f"D {old}\n".encode())
        elif chance < 0.18:
            pass  # an empty commit
        else:
            for _ in range(self.random.randint(1, 3)):
                path, content = self.content(branch, binary=chance > 0.94)
                mark = self.mark()
                yield b"blob\nmark :%d\ndata %d\n%s\n" % (mark, len(content), content)
                branch.files[path] = branch.changed[path] = mark
                changes.append(f"M 100644 :{mark} {path}\n".encode())
        yield self.header(branch, f"change {self.marks} on {branch.name}")
        if before is not None:
            yield b"from :%d\n" % before
        yield b"".join(changes) + b"\n"

    def merge(self, topic: _Branch) -> Iterator[bytes]:
        before = self.main.tip
        yield self.header(self.main, f"merge {topic.name}")
        yield b"from :%d\nmerge :%d\n" % (before or 0, topic.tip or 0)
        for path, mark in topic.changed.items():
            if mark is None:
                self.main.files.pop(path, None)
                yield f"D {path}\n".encode()
            else:
                self.main.files[path] = mark
                yield f"M 100644 :{mark} {path}\n".encode()
        yield b"\n"

    def header(self, branch: _Branch, subject: str) -> bytes:
        branch.tip = self.mark()
        self.when += self.random.randint(60, 7200)
        number = self.random.randint(1, self.authors)
        author = f"Author {number} <author-{number}@example.org> {self.when} +0000"
        words = f"commit refs/heads/{branch.name}\nmark :{branch.tip}\nauthor {author}\ncommitter {author}\n"
        return f"{words}data {len(subject)}\n{subject}\n".encode()

    def content(self, branch: _Branch, *, binary: bool) -> tuple[str, bytes]:
        if binary:
            return f"images/{self.random.randint(1, 5)}.png", b"\x89PNG\0" + self.random.randbytes(200)
        known = [path for path in sorted(branch.files) if not path.endswith(".png")]
        if known and self.random.random() < 0.6:
            path = self.random.choice(known)
        else:
            path = f"{branch.name}/part_{self.mark()}.{self.random.choice(ENDINGS)}"
        lines = (f"line {self.random.randint(1, 40)}\n" for _ in range(self.random.randint(0, 60)))
        return path, "".join(lines).encode()


def history(commits: int, *, authors: int = 5, seed: int = 1) -> bytes:
    """Return a history for `git fast-import`: the branch main, and open topic branches.

    commits: number of commits, including merges. authors: number of authors, default 5. seed:
    selects another history, default 1.

    >>> history(3).count(b"commit refs/heads/")
    3
    """
    made = _History(authors=authors, seed=seed)
    return b"".join(word for _ in range(commits) for word in made.step())
