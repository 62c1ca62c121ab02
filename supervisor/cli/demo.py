"""Runs the demonstration of `make run`: pushes this project's real history and shows the jobs.

After that it enqueues a made-up job every few seconds. It is an ordinary client: it pushes with
git, the hook enqueues, workers in other processes run the jobs, and this module reads the rows. It
keeps its repository: a later run pushes what is new, deletes its demonstration branch and pushes
that again. It prints nothing before there are workers, so that on a terminal shared with a
supervisor its lines stay together, below those of the start.
"""

from __future__ import annotations

import time
from contextlib import suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg

from jobherd import handlers
from jobherd.handlers import default_client
from jobherd.handlers._values.outcome import FINAL_STATES
from jobherd.handlers.forge import _git, _sample
from jobherd.handlers.forge import demo as made_up
from jobherd.handlers.forge._database import transaction
from jobherd.handlers.forge._pushes import catch_up, repository_id
from jobherd.handlers.forge._repository import init_repository
from jobherd.handlers.forge.trending import trending_compute
from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.codes import ExitCode
from jobherd.supervisor.cli.console import STATE_COLOURS, paint, show_span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jobherd.handlers.forge._database import Row
    from jobherd.supervisor.cli.database import Session

PUSHES: Final = 4
"""Number of pushes into which the history is split."""
BRANCH: Final = "refs/heads/demonstration"
MAIN: Final = "refs/heads/main"
GLANCE: Final = 0.1
"""Seconds between two queries for the jobs."""
STEADY: Final = 3
"""Queries in a row that must find the same workers before all are assumed to have started."""
PATIENCE: Final = 10.0
"""Seconds without any change before a message that no worker seems to run."""
NO_WORKER: Final = "no worker seems to run: is `jobherd run --handlers jobherd.handlers.forge` running?"


def show(folder: Path, *, dsn: str, schema: str, timeout: float, is_wanted: Callable[[], bool]) -> int:
    """Push, print the jobs as they run until all are finished, and return an exit code.

    Args:
        folder: where the bare repository is kept.
        dsn: the database that its hook enqueues to.
        schema: the schema that its hook enqueues to.
        timeout: seconds for the jobs.
        is_wanted: called at each query; once it returns False, the function returns.

    Raises:
        RepositoryError: the repository cannot be created or used.
        GitError: a git command failed.
    """
    repository = init_repository(str(folder / "forge.git"), dsn=dsn, schema=schema)
    catch_up(repository)
    source, words = _source(folder)
    print(f"\npushing {words} into {console.near(repository)}", flush=True)
    look = _Look(repository)
    for refs in _pushes(source, repository):
        if not is_wanted():
            return ExitCode.INTERRUPTED
        _git.run("push", "--quiet", "--no-verify", "--force", "--", repository, *refs, repository=source)
        look.again()
    code = look.until_over(timeout, is_wanted)
    if code == ExitCode.DONE:
        code = _trending(timeout)
    return code


def await_workers(at: Session, timeout: float, *, is_wanted: Callable[[], bool]) -> bool:
    """Wait until the workers of a supervisor have started; return whether they have.

    Args:
        at: the database session.
        timeout: seconds.
        is_wanted: called at each query; once it returns False, the wait ends.
    """
    start, warned, before, same = time.monotonic(), False, frozenset[int](), 0
    while is_wanted():
        alive = {supervisor["id"] for supervisor in at.rows("observe/list_supervisors") if not supervisor["expired"]}
        here = frozenset(
            child["id"]
            for child in at.rows("observe/list_children")
            if child["kind"] == "worker" and child["supervisor"] in alive
        )
        same = same + 1 if here and here == before else 0
        if same >= STEADY:
            return True
        before = here
        waited = time.monotonic() - start
        if waited > timeout:
            return False
        if waited > PATIENCE and not here and not warned:
            warned = True
            console.complain(NO_WORKER)
        time.sleep(GLANCE)
    return False


def feed(every: float, *, is_wanted: Callable[[], bool]) -> None:
    """Enqueue a made-up job every `every` seconds until `is_wanted` returns False.

    While the database is unreachable, no job is enqueued.
    """
    for number in count():
        until = time.monotonic() + every
        while time.monotonic() < until:
            if not is_wanted():
                return
            time.sleep(GLANCE)
        with suppress(psycopg.OperationalError, psycopg.InterfaceError):
            made_up.enqueue_one(number)


def say_what_next(folder: Path, program: str, *, http: tuple[str, int] | None) -> None:
    """Print what the user can do next.

    Args:
        folder: where the demonstration keeps its repository.
        program: how the user calls this program.
        http: where the supervisor answers HTTP; None: it does not.
    """
    there = console.near(str(folder / "forge.git"))
    print(f"\npush to it yourself:  git push {there} HEAD:refs/heads/mine")
    print(f"see its jobs:         {program} jobs   {program} status   {program} job 1")
    if http is not None:
        host = f"[{http[0]}]" if ":" in http[0] else http[0]
        if find_spec("starlette") is not None:  # the extra `web` installs it
            print(f"the dashboard:        http://{host}:{http[1]}/")
        print(f"metrics and health:   http://{host}:{http[1]}/")
    print("Ctrl-C where the supervisor runs lets running jobs finish and ends it.\n", flush=True)


def _source(folder: Path) -> tuple[str, str]:
    """Return the git folder to push from, and a description of it.

    It is the folder of this checkout, or a made-up one if there is no history.
    """
    root = Path(handlers.__file__).resolve().parent.parent
    if (root / "setup.cfg").is_file() and (root / ".git").exists():
        try:
            place = _git.run("-C", str(root), "rev-parse", "--absolute-git-dir").decode().strip()
            shallow = _git.run("rev-parse", "--is-shallow-repository", repository=place).strip() == b"true"
            _git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}", repository=place)
        except _git.GitError:
            pass
        else:
            if not shallow:  # a shallow repository cannot be pushed into an empty one
                return place, "this project's history"
    made = folder / "made-up.git"
    if not (made / "HEAD").exists():
        _git.run("init", "--quiet", "--bare", "--template=", "--initial-branch=main", "--", str(made))
        _git.run("fast-import", "--quiet", "--force", repository=str(made), given=_sample.history(120))
    return str(made), "a made-up history (this is not a checkout with its own history)"


def _pushes(source: str, repository: str) -> Iterator[list[str]]:
    """Yield the refs of each push, in order."""
    head = _git.run("rev-parse", "--verify", "HEAD^{commit}", repository=source).decode().strip()
    there = _git.list_refs(repository)
    before = there.get(MAIN)
    known = _git.known_commits(source, [before])[before] if before else None
    wanted = [head, *([f"^{known}"] if known else [])]
    line = _git.run("rev-list", "--first-parent", "--reverse", *wanted, repository=source).decode().split()
    cuts = sorted({len(line) * part // PUSHES for part in range(1, PUSHES + 1)} - {0})
    for cut in cuts:
        yield [f"{line[cut - 1]}:{MAIN}"]
    if BRANCH in there:
        yield [f":{BRANCH}"]
    yield [f"{head}:{BRANCH}"]


class _Look:
    """The jobs of the pushes of this run, and what was printed about them."""

    def __init__(self, repository: str) -> None:
        with transaction() as database:
            self._repo = repository_id(database, repository)
            self._after = database.one("forge/find_last_event", repo=self._repo)["id"]
        self._shown: dict[int, str] = {}
        self._open = True
        self._waiting = False

    def again(self) -> bool:
        """Print what has changed; return whether anything has."""
        with transaction() as database:
            rows = database.rows("forge/list_push_jobs", repo=self._repo, after=self._after)
        changed = [row for row in rows if self._shown.get(row["job"]) != row["state"]]
        for row in changed:
            self._shown[row["job"]] = row["state"]
            print(_line(row), flush=True)
        self._open = any(row["state"] not in FINAL_STATES for row in rows)
        self._waiting = any(row["state"] == "ready" for row in rows)
        return bool(changed)

    def until_over(self, timeout: float, is_wanted: Callable[[], bool]) -> int:
        """Query until all jobs are finished; return an exit code."""
        until, last, warned = time.monotonic() + timeout, time.monotonic(), False
        while True:
            if self.again():
                last = time.monotonic()
            if not self._open:
                break
            if not is_wanted():
                return ExitCode.INTERRUPTED
            now = time.monotonic()
            if now > until:
                console.complain("the jobs are not all done; see them with: jobherd jobs")
                return ExitCode.TIMEOUT
            if now - last > PATIENCE and self._waiting and not warned:
                warned = True
                console.complain(NO_WORKER)
            time.sleep(GLANCE)
        bad = sum(state != "completed" for state in self._shown.values())
        print(
            f"{len(self._shown)} jobs have finished"
            + (f", {bad} of them not completed: jobherd jobs --state failed" if bad else ""),
            flush=True,
        )
        return ExitCode.WRONG if bad else ExitCode.DONE


def _trending(timeout: float) -> int:
    """Enqueue a job that computes what is trending, wait for it, and print its result."""
    client = default_client()
    try:
        row = client.wait(trending_compute.enqueue(), timeout=timeout)
    except TimeoutError as problem:
        console.complain(str(problem))
        return ExitCode.TIMEOUT
    result = row["result"] if isinstance(row["result"], dict) else {}
    best = ", ".join(f"{one['name']} ({one['score']:.0f})" for one in result.get("best", []))
    print(f"trending: {best or 'nothing'}; the next job is {result.get('next_job')}", flush=True)
    return ExitCode.DONE if row["state"] == "completed" else ExitCode.WRONG


def _line(row: Row) -> str:
    state, ref = row["state"], row["ref"].removeprefix("refs/heads/")
    words = (
        f"  job {row['job']:<6} {row['kind']:<17} {console.cut(console.plain(ref), 16):<16} "
        f"{paint(f'{state:<9}', STATE_COLOURS.get(state, ''))}"
    )
    if state not in FINAL_STATES:
        return f"{words}         {console.cut(console.plain(row['error'] or ''), 60)}".rstrip()
    words += f" {show_span(row['ran']):>6}"
    if row["error"]:
        return f"{words}  {console.cut(console.plain(row['error']), 60)}"
    if row["kind"] == "push:process" and row["change"] is not None:
        commits = (
            "1 commit" if row["commits"] == 1 else f"{row['commits']:,} commits" if row["commits"] else "no new commit"
        )
        words += f"  {row['change']}: {commits}" + (
            f", +{row['added']:,} -{row['deleted']:,} lines" if row["commits"] else ""
        )
    return words
