"""Runs git and reads its output. Only this module starts git.

Every call is a list of arguments, never a shell. Untrusted values follow `--`, go through standard
input or are full object names. git gets the repository explicitly (`--git-dir`), so it does not
search for one. Where commits are read, the configuration of the host and the user is ignored, so
that the numbers are the same everywhere. git stays in the worker's process group: the stop sequence
that ends a job past its timeout also ends git.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Final

from jobherd import Poison

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

QUICK: Final = 60.0
"""Seconds for commands that git answers quickly."""

SHA: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_OURS: Final = {
    "GIT_TERMINAL_PROMPT": "0",  # a worker has no terminal: git would wait forever for a password
    "GIT_ASKPASS": "true",
    "SSH_ASKPASS": "true",
    "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
    "GIT_OPTIONAL_LOCKS": "0",  # reading must not make a push fail on a lock
    "GIT_NO_REPLACE_OBJECTS": "1",  # a commit is read as it was pushed
    "LC_ALL": "C",  # the program parses its messages
}
_PLAIN: Final = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}


class GitError(Exception):
    """git failed. `said` is the last line it printed, for people."""

    def __init__(self, what: str, code: int, said: str) -> None:
        super().__init__(f"git {what} ended with {code}: {said or 'it printed nothing'}")
        self.code = code
        self.said = said


def environment(more: Mapping[str, str] | None = None, *, plain: bool = True) -> dict[str, str]:
    """Return the environment for git.

    It is the process's, without git's variables (a hook has GIT_DIR set), with Jobherd's.

    more: further variables. plain: ignore the configuration of the host and the user, default True.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | _OURS | (_PLAIN if plain else {}) | dict(more or {})


def run(
    *words: str,
    repository: str | None = None,
    given: bytes = b"",
    timeout: float = QUICK,
    more: Mapping[str, str] | None = None,
    plain: bool = True,
) -> bytes:
    """Run git to its end and return its output.

    words: its arguments. repository: path of a bare repository, default none. given: its standard
        input.
    timeout: seconds, default 60. more, plain: as for `environment`.
    Raises GitError if git fails, and TimeoutError.
    """
    command = _command(repository, words)
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, env=environment(more, plain=plain), timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        message = f"git {_verb(words)} did not finish within {timeout:g} s"
        raise TimeoutError(message) from None
    if done.returncode:
        raise GitError(_verb(words), done.returncode, last_line(done.stderr))
    return done.stdout


@contextmanager
def reading(repository: str, *words: str, given: bytes = b"") -> Iterator[IO[bytes]]:
    """Run git and yield its output while it runs, for output that does not fit into memory.

    At the end of the block, wait for git; if the block raises, kill git. Raises GitError if git
    fails.
    """
    # Files and not pipes for the other two streams: serving three pipes at once would need threads.
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as said:
        asked.write(given)
        asked.seek(0)
        process = subprocess.Popen(
            _command(repository, words), stdin=asked, stdout=subprocess.PIPE, stderr=said, env=environment()
        )
        assert process.stdout is not None
        try:
            with process.stdout:
                yield process.stdout
        except BaseException:
            process.kill()
            raise
        finally:
            code = process.wait()
        if code:
            said.seek(0)
            raise GitError(_verb(words), code, last_line(said.read()[-10_000:]))


def last_line(said: bytes) -> str:
    """Return the last line with text, for people.

    At most 300 characters, without terminal control characters.
    """
    lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
    text = next(
        (line for line in reversed(lines) if line.startswith(("fatal:", "error:", "remote:"))),
        lines[-1] if lines else "",
    )
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:300]


def check_repository(path: str) -> str:
    """Return the path if it is a git repository.

    Raises Poison otherwise: a retry would not bring it back.
    """
    if not os.path.isdir(path):
        raise Poison(f"the repository {path} has vanished", code="REPOSITORY_VANISHED")
    if not is_repository(path):
        raise Poison(f"{path} is not a git repository any more", code="REPOSITORY_VANISHED")
    return path


def is_repository(path: str) -> bool:
    """Return whether a folder is the inside of a git repository: a bare one, or a `.git`."""
    try:
        run("rev-parse", "--git-dir", repository=path)
    except GitError:
        return False
    return True


def known_commits(repository: str, shas: Sequence[str]) -> dict[str, str | None]:
    """Return the commit of each object, dereferencing tags.

    None for an object that is missing or leads to no commit.
    """
    asked = "".join(f"{sha}^{{commit}}\n" for sha in shas)
    lines = (
        run("cat-file", "--batch-check=%(objectname) %(objecttype)", repository=repository, given=asked.encode())
        .decode()
        .splitlines()
    )
    return {sha: line.split()[0] if line.endswith(" commit") else None for sha, line in zip(shas, lines, strict=True)}


def is_ancestor(repository: str, *, old: str, new: str) -> bool:
    """Return whether `new` contains all commits of `old`. Both are existing commits."""
    try:
        run("merge-base", "--is-ancestor", old, new, repository=repository)
    except GitError as problem:
        if problem.code == 1:
            return False
        raise
    return True


def count_commits(repository: str, *, reached: Sequence[str], without: Sequence[str], timeout: float = QUICK) -> int:
    """Return the number of commits in `reached` that are not in `without`."""
    return int(
        run("rev-list", "--count", "--stdin", repository=repository, given=revisions(reached, without), timeout=timeout)
    )


def revisions(reached: Sequence[str], without: Sequence[str]) -> bytes:
    """Return the input for `--stdin` that selects `reached` without `without`.

    There may be thousands.
    """
    return "".join([*(f"{sha}\n" for sha in reached), *(f"^{sha}\n" for sha in without)]).encode()


def list_refs(repository: str) -> dict[str, str]:
    """Return the refs and the full names of their objects."""
    printed = run("for-each-ref", "--format=%(objectname) %(refname)", repository=repository)
    return {ref_name(ref): sha.decode() for sha, ref in (line.split(b" ", 1) for line in printed.splitlines())}


def ref_name(ref: bytes) -> str:
    """Return a ref's name as text.

    git allows any bytes, the database only UTF-8: other bytes are escaped.
    """
    return ref.decode(errors="backslashreplace")


def _verb(words: Sequence[str]) -> str:
    """Return the git command among the arguments: the first one after settings and folders."""
    rest = list(words)
    while rest[0] in {"-c", "-C"}:
        del rest[:2]
    return rest[0]


def _command(repository: str | None, words: Sequence[str]) -> list[str]:
    return ["git", *([f"--git-dir={repository}"] if repository is not None else []), *words]
