"""`migrate`: migrates the database's schema to this version."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Final

from jobherd.handlers._enqueue.shards import MOST, first_id
from jobherd.sql.migrate import migrate, pending
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import CONNECTION, Command, given_flags
from jobherd.supervisor.cli.database import Session, chosen, connect, explained, load_settings
from jobherd.workers.inspect.phrases import count

if TYPE_CHECKING:
    import psycopg


def _shard(text: str) -> tuple[int, int]:
    """Parse a shard and their number, such as 2/4, for argparse."""
    match = re.fullmatch(r"([1-9]\d{0,2})/([1-9]\d{0,2})", text)
    if match is None or not int(match[1]) <= int(match[2]) <= MOST:
        message = f"{text[:40]!r} is not a shard: write 2/4 for the second of four databases, at most {MOST}"
        raise argparse.ArgumentTypeError(message)
    return int(match[1]), int(match[2])


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the number of missing migrations and change nothing; exit code 1 if there are any",
    )
    parser.add_argument(
        "--shard",
        type=_shard,
        metavar="K/N",
        help="make this database the K-th of N over which queues are divided: its jobs get ids of a separate range",
    )


def _migrate(arguments: argparse.Namespace) -> int:
    if arguments.dry_run and arguments.shard is not None:
        raise CommandError("--dry-run and --shard exclude each other: give one of them", ExitCode.USAGE)
    settings = load_settings(given_flags(arguments), only=CONNECTION)
    with chosen(settings) as dsn, explained(), connect(dsn, name="migrate") as connection:
        if arguments.dry_run:
            missing = pending(connection, schema=settings.schema)
            print(f"{count(missing, 'migration', 'migrations')} to apply" if missing else "up to date")
            return ExitCode.WRONG if missing else ExitCode.DONE
        applied = migrate(connection, schema=settings.schema, grant=True)
        print(f"{count(applied, 'migration', 'migrations')} applied" if applied else "up to date")
        if arguments.shard is not None:
            _set_shard(connection, settings.schema, *arguments.shard)
    return ExitCode.DONE


def _set_shard(connection: psycopg.Connection[object], schema: str, shard: int, total: int) -> None:
    is_new = Session(connection, schema).row("migrate/set_shard", {"shard": shard})["is_new"]
    print(f"shard {shard} of {total}: ids from {first_id(shard)}" + ("" if is_new else ", as before"))


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
