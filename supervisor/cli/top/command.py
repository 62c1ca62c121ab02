"""`top`: shows the fleet live on a terminal.

rich, its only dependency beyond the core, is imported only here and only when the command runs.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Final

from psycopg.conninfo import conninfo_to_dict

from jobherd.supervisor.cli.actor import actor
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import CONNECTION, Command, given_flags
from jobherd.supervisor.cli.database import Session, chosen, connect, explained, load_settings, look_at_schema
from jobherd.supervisor.cli.databases import name_of

if TYPE_CHECKING:
    import argparse


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="print one frame and exit")


def _top(arguments: argparse.Namespace) -> int:
    if importlib.util.find_spec("rich") is None:
        raise CommandError(
            "top draws with rich, which is not installed: pip install 'jobherd[top]'", ExitCode.CONFIGURATION
        )
    terminals = (
        sys.stdin is not None
        and sys.stdin.isatty()
        and sys.stdout.isatty()
        and os.environ.get("TERM", "dumb") != "dumb"
    )
    if not arguments.once and not terminals:
        raise CommandError(
            "top needs a terminal; --once prints one frame, and `jobherd status --json` is for programs", ExitCode.USAGE
        )
    from jobherd.supervisor.cli.top.screen import Screen, show_once  # noqa: PLC0415 - rich is an extra
    from jobherd.supervisor.cli.top.watch import Watch  # noqa: PLC0415 - as above

    settings = load_settings(given_flags(arguments), only=CONNECTION)
    with chosen(settings) as dsn, explained():
        addresses = getattr(arguments, "addresses", None) or [dsn]
        if len(addresses) == 1:  # of several, the screen shows which do not answer
            with connect(dsn, name=arguments.command) as connection:
                look_at_schema(Session(connection, settings.schema))
        names = [name_of(arguments, address) for address in addresses] if len(addresses) > 1 else [_where(dsn)]
        who = actor()
        watches = [Watch(address, settings.schema, actor=who) for address in addresses]
        shown = list(zip(watches, names, strict=True))
        asyncio.run(show_once(*shown[0]) if arguments.once else Screen(shown).live())
    return ExitCode.DONE


def _where(dsn: str) -> str:
    """Return the name and host of the database, without secrets."""
    given = conninfo_to_dict(dsn)
    host = str(given.get("host") or given.get("hostaddr") or "")
    return f"{given.get('dbname') or ''}" + (f" on {host}" if host and not host.startswith("/") else "")


COMMANDS: Final = (
    Command(
        "top",
        "watch the fleet, the queues, what runs and what failed",
        "  jobherd top\n  jobherd top --once",
        _arguments,
        _top,
        about="Watch the fleet live, twice a second: supervisors, queues, running jobs with how far they are, and "
        "what failed lately. Keys sort,\n"
        "filter, pause and resume queues, cancel and retry jobs; ? shows them. It needs the extra `top`, which "
        "brings rich.\nWith several databases, it shows one at a time; d shows the next one.",
        spans="together",
    ),
)
