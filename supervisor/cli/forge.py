"""`forge`: repositories whose pushes enqueue jobs, imports from GitHub, and a demonstration.

`jobherd.handlers.forge` does the work; this module is its command line. These commands migrate the
forge's own tables to this version. A supervisor never does that: without a forge the tables do not
exist.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import CONNECTION, Command, HelpFormatter, add_common, given_flags, span
from jobherd.supervisor.cli.database import Session, chosen, connect, explained, load_settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from jobherd.supervisor.settings.definitions import Settings

DEMO: Final = Path(".jobherd", "demo")
PACE: Final = 2.0
"""Seconds between the jobs of `forge demo --keep`."""


@contextmanager
def forge(arguments: argparse.Namespace) -> Iterator[tuple[Settings, str]]:
    """Yield the settings and the DSN of a database with the forge's tables.

    Handlers of this process enqueue there.
    """
    from jobherd.handlers import configure  # noqa: PLC0415  # the other commands need no client
    from jobherd.handlers.forge import _database  # noqa: PLC0415
    from jobherd.sql.migrate import migrate  # noqa: PLC0415

    settings = load_settings(given_flags(arguments), only=CONNECTION)
    with chosen(settings) as dsn, explained():
        with connect(dsn, name="forge") as connection:
            migrate(connection, schema=settings.schema)
            migrate(connection, schema=settings.schema, area="forge")
        configure(dsn, schema=settings.schema)
        try:
            yield settings, dsn
        finally:
            _database.close()


def _init_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="the folder: new, empty, or a git repository")


def _init(arguments: argparse.Namespace) -> int:
    from jobherd.handlers.forge._database import transaction  # noqa: PLC0415
    from jobherd.handlers.forge._pushes import catch_up  # noqa: PLC0415
    from jobherd.handlers.forge._repository import RepositoryError, init_repository  # noqa: PLC0415
    from jobherd.handlers.forge.trending import plan_next  # noqa: PLC0415

    _need_git()
    with forge(arguments) as (settings, dsn):
        try:
            path = init_repository(arguments.path, dsn=dsn, schema=settings.schema)
            jobs = catch_up(path)
        except (RepositoryError, ValueError) as problem:
            raise CommandError(str(problem)) from None
        with transaction() as database:
            plan_next(database)
    print(path)
    if jobs:
        console.complain(f"what is in it already counts as pushed just now: {_jobs(jobs)} enqueued")
    return ExitCode.DONE


def _catch_up_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="a repository made by `jobherd forge init-repo`")


def _catch_up(arguments: argparse.Namespace) -> int:
    from jobherd.handlers.forge._git import is_repository  # noqa: PLC0415
    from jobherd.handlers.forge._pushes import catch_up  # noqa: PLC0415

    _need_git()
    path = Path(arguments.path).resolve()
    path = path / ".git" if (path / ".git").is_dir() else path
    if not path.is_dir() or not is_repository(str(path)):
        raise CommandError(f"{path} is not a git repository")
    with forge(arguments):
        try:
            jobs = catch_up(str(path))
        except ValueError as problem:
            raise CommandError(str(problem)) from None
    print(f"{_jobs(jobs)} enqueued" if jobs else "nothing was missing")
    return ExitCode.DONE


def _import_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("org", metavar="ORG", help="the organization's name on GitHub")


def _import(arguments: argparse.Namespace) -> int:
    from jobherd.handlers.forge.github import request_import  # noqa: PLC0415

    with forge(arguments):
        try:
            _, job = request_import(arguments.org)
        except ValueError as problem:
            raise CommandError(str(problem), ExitCode.USAGE) from None
    print(job)
    return ExitCode.DONE


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dir", type=Path, default=DEMO, metavar="PATH", help=f"where the repository is kept (default: {DEMO})"
    )
    parser.add_argument(
        "--timeout", type=span, default=120.0, metavar="TIME", help="how long to watch the jobs (default: 2m)"
    )
    parser.add_argument(
        "--keep", action="store_true", help="then enqueue a made-up job every 2 s until the supervisor exits, or Ctrl-C"
    )


def _demo(arguments: argparse.Namespace) -> int:
    from jobherd.handlers.forge._git import GitError  # noqa: PLC0415
    from jobherd.handlers.forge._repository import RepositoryError  # noqa: PLC0415
    from jobherd.supervisor.cli import demo  # noqa: PLC0415

    _need_git()
    parent = os.getppid()

    def is_wanted() -> bool:
        # In `make run` the supervisor is this process's parent: once it has exited, no worker runs.
        return os.getppid() == parent

    # A shell makes a command before `&` ignore Ctrl-C. `make run` starts this command so, and
    # Ctrl-C must end both.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _await_server(load_settings(given_flags(arguments), only=CONNECTION), demo.PATIENCE)
    with forge(arguments) as (settings, dsn):
        with connect(dsn, name="forge") as connection:
            came = demo.await_workers(Session(connection, settings.schema), arguments.timeout, is_wanted=is_wanted)
        if not is_wanted():
            return ExitCode.INTERRUPTED
        if not came:
            raise CommandError(
                f"no worker came in {console.show_span(arguments.timeout)}; nothing was pushed", ExitCode.TIMEOUT
            )
        try:
            code = demo.show(
                arguments.dir, dsn=dsn, schema=settings.schema, timeout=arguments.timeout, is_wanted=is_wanted
            )
        except (RepositoryError, GitError, TimeoutError) as problem:
            raise CommandError(str(problem)) from None
        if code == ExitCode.DONE:
            demo.say_what_next(arguments.dir, _program(), http=_http(arguments))
        if arguments.keep:
            print(f"a made-up job is enqueued every {PACE:g} s from now on; one in six is retried\n", flush=True)
            demo.feed(PACE, is_wanted=is_wanted)
    return code


def _await_server(settings: Settings, patience: float) -> None:
    """Let a supervisor that is just starting here start the embedded PostgreSQL as its own.

    If none does within `patience` seconds, this process starts it later.
    """
    if settings.dsn is not None:
        return
    # Needed only without a database of your own.
    from jobherd.supervisor.embedded import lifecycle  # noqa: PLC0415

    until = time.monotonic() + patience
    while time.monotonic() < until:
        try:
            server = lifecycle.find(settings.embedded_dir)
        except lifecycle.EmbeddedUnavailable:
            return  # the process that starts it reports the reason
        if server is not None:
            server.leave()
            return
        time.sleep(0.1)


def _http(arguments: argparse.Namespace) -> tuple[str, int] | None:
    """Return the HTTP address of a supervisor with the same environment and files."""
    return load_settings(given_flags(arguments), only=("http",)).http


def _program() -> str:
    """Return how this program was called, for the user to call it again from the same folder."""
    called = console.near(sys.argv[0])
    return called if os.path.basename(called) == "jobherd" and os.sep in called else "jobherd"


def _need_git() -> None:
    if shutil.which("git") is None:
        raise CommandError("git was not found: install it, or put it on the PATH", ExitCode.CONFIGURATION)


def _jobs(jobs: list[int]) -> str:
    return "1 job" if len(jobs) == 1 else f"{len(jobs):,} jobs"


PARTS: Final = (
    Command(
        "init-repo",
        "create a bare repository whose pushes enqueue jobs",
        "  jobherd forge init-repo /srv/git/project.git",
        _init_arguments,
        _init,
        about="Make a bare repository with a post-receive hook that records each push and enqueues push:process, or "
        "give the\n"
        "hook to a repository that is there. The DSN is kept in PATH/jobherd.json, which only its owner may read.\n"
        "Prints the repository's path. Run workers with --handlers jobherd.handlers.forge.",
    ),
    Command(
        "catch-up",
        "record pushes that no hook recorded",
        "  jobherd forge catch-up /srv/git/project.git",
        _catch_up_arguments,
        _catch_up,
        about="Record pushes that the hook could not (the database was away), and refs that moved without it. Run "
        "it while no\npush runs.",
    ),
    Command(
        "import",
        "mirror an organization's repositories from GitHub",
        "  JOBHERD_GITHUB_TOKEN=... jobherd forge import example-org",
        _import_arguments,
        _import,
        about="Enqueue the discovery of an organization's repositories; each found one gets a job that mirrors it. "
        "Prints the\n"
        "job's id. The workers read JOBHERD_GITHUB_URL, JOBHERD_GITHUB_TOKEN and JOBHERD_IMPORT_FOLDER.",
    ),
    Command(
        "demo",
        "push this project's history and show the jobs that it enqueues",
        "  jobherd forge demo",
        _demo_arguments,
        _demo,
        about="Push this checkout's history into a bare repository and show the jobs as they run, until all are "
        "done. It waits for\n"
        "workers first: start it next to `jobherd run --handlers jobherd.handlers.forge`; `make run` does both. With "
        "--keep, a made-up job\n"
        "follows every 2 s.",
    ),
)


def _arguments(parser: argparse.ArgumentParser) -> None:
    branches = parser.add_subparsers(dest="part", metavar="WHAT", title="what to do", required=True)
    for part in PARTS:
        branch = branches.add_parser(
            part.name,
            help=part.help,
            description=part.about or part.help,
            epilog=f"example:\n{part.example}",
            formatter_class=HelpFormatter,
            allow_abbrev=False,
        )
        add_common(branch, part)
        part.arguments(branch)


def _run(arguments: argparse.Namespace) -> int:
    return next(part for part in PARTS if part.name == arguments.part).run(arguments)


COMMANDS: Final = (
    Command(
        "forge",
        "git repositories whose pushes enqueue jobs",
        "  jobherd forge init-repo /srv/git/project.git",
        _arguments,
        _run,
        about="A forge's worker: pushes are recorded commit by commit, repositories measured, organizations imported.\n"
        "See docs/project/forge.md. `jobherd forge WHAT --help` explains each command.",
        settings=(),
    ),
)
