"""`migrate`: migrates the database's schema to this version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobherd.sql.migrate import migrate, pending
from jobherd.supervisor.cli.codes import ExitCode
from jobherd.supervisor.cli.command import CONNECTION, Command, given_flags
from jobherd.supervisor.cli.database import chosen, connect, explained, load_settings
from jobherd.workers.inspect.phrases import count

if TYPE_CHECKING:
    import argparse


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="say how many steps are missing, change nothing; exit code 1 if there are any",
    )


def _migrate(arguments: argparse.Namespace) -> int:
    settings = load_settings(given_flags(arguments), only=CONNECTION)
    with chosen(settings) as dsn, explained(), connect(dsn, name="migrate") as connection:
        if arguments.dry_run:
            missing = pending(connection, schema=settings.schema)
            print(f"{count(missing, 'migration', 'migrations')} to apply" if missing else "up to date")
            return ExitCode.WRONG if missing else ExitCode.DONE
        applied = migrate(connection, schema=settings.schema, grant=True)
    print(f"{count(applied, 'migration', 'migrations')} applied" if applied else "up to date")
    return ExitCode.DONE


COMMANDS: Final = (
    Command(
        "migrate",
        "bring the database's schema to this version",
        "  jobherd migrate --dsn postgresql://jobs@db/app",
        _arguments,
        _migrate,
        about="Make or update the schema; forward only, in one transaction, safe to run anywhere at any time.\n"
        "`jobherd run` does the same when it starts.",
    ),
)
