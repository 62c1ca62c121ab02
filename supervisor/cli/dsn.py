"""`dsn` and `psql`: print the address of the database that this folder uses, or open psql on it.

Commands and producers that run in this folder use the same database.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from jobherd.handlers._enqueue import embedded
from jobherd.handlers._enqueue.dsn import redact_dsn
from jobherd.supervisor.cli import console
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import CONNECTION, Command, given_flags
from jobherd.supervisor.cli.database import chosen, load_settings

if TYPE_CHECKING:
    import argparse


def _dsn_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--show-password", action="store_true", help="print the password too, so that a program can connect"
    )


def _dsn(arguments: argparse.Namespace) -> int:
    settings = load_settings(given_flags(arguments), only=CONNECTION)
    dsn = settings.dsn or embedded.find_running(settings.embedded_dir)
    if dsn is None:
        folder = settings.embedded_dir.absolute() / embedded.FOLDER
        raise CommandError(
            f"no database is named, and no embedded PostgreSQL runs in {folder}: start `jobherd run`, or set "
            "JOBHERD_DSN",
            ExitCode.NO_DATABASE,
        )
    shown = dsn if arguments.show_password else redact_dsn(dsn)
    print(shown)
    if shown != dsn:
        console.complain("the password is hidden; print it with --show-password")
    return ExitCode.DONE


def _psql_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs="*", metavar="ARGUMENT", help="arguments for psql; flags of this command come before them"
    )


def _psql(arguments: argparse.Namespace) -> int:
    settings = load_settings(given_flags(arguments), only=CONNECTION)
    program = shutil.which("psql") or _carried_psql()
    if program is None:
        raise CommandError(
            "psql is not installed: install PostgreSQL's client (postgresql-client), or pip install "
            "'jobherd[embedded]', which brings it",
            ExitCode.CONFIGURATION,
        )
    if settings.dsn is not None:
        command, environment = _call(program, settings.dsn, arguments.words)
        os.execve(program, command, environment)  # noqa: S606  # no shell is wanted
    with chosen(settings) as dsn:  # held until psql ends, so that the server keeps running
        command, environment = _call(program, dsn, arguments.words)
        # Ctrl-C is for psql, which cancels its statement; psql does not inherit a handler.
        signal.signal(signal.SIGINT, lambda *_: None)
        code = subprocess.call(command, env=environment)
    return code if code >= 0 else 128 - code


def _call(program: str, dsn: str, words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command line and environment of psql.

    Every user of this host can read a command line, so the password is passed in the environment.
    """
    given = conninfo_to_dict(dsn)
    password = given.pop("password", None)
    environment = os.environ | ({} if password is None else {"PGPASSWORD": str(password)})
    rest = make_conninfo(**{name: str(value) for name, value in given.items()})
    return [program, rest, *words], environment


def _carried_psql() -> str | None:
    """Return the psql of the extra `embedded`, if it is installed."""
    from jobherd.supervisor.embedded import binaries  # noqa: PLC0415  # most hosts have a psql

    try:
        program = binaries.carried().bin / "psql"
    except binaries.EmbeddedUnavailable:
        return None
    return str(program) if Path(program).is_file() else None


COMMANDS: Final = (
    Command(
        "dsn",
        "print the address of the database",
        "  jobherd dsn\n  JOBHERD_DSN=$(jobherd dsn --show-password) ./import-orders",
        _dsn_arguments,
        _dsn,
        about="Print the address of the database that commands and producers use in this folder. A password is "
        "printed as *** unless\n"
        "--show-password is given: scripts that connect need that flag. An embedded PostgreSQL is not started, and "
        "its address has\n"
        "no password. The exit code is 69 if no database is named and no embedded one runs.",
    ),
    Command(
        "psql",
        "open psql on the database",
        "  jobherd psql\n  jobherd psql -c 'SELECT * FROM jobherd.jobs LIMIT 5'",
        _psql_arguments,
        _psql,
        about="Open psql on the database that commands and producers use in this folder. An embedded PostgreSQL is "
        "started if it does\n"
        "not run, and stopped at the end if no other process uses it. All arguments after this command's own flags "
        "go to psql.",
        passes_on=True,
    ),
)
