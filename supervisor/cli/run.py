"""`run`: loads the settings, prepares database and schema, and then runs the supervisor.

Until the schema exists, this process waits for the database, in one thread and without a child
process. It waits indefinitely by default (setting `db_retry_max_attempts`). Then
`jobherd.supervisor.start` takes over. At that point this module must have nothing open or running
that a fork would copy.
"""

from __future__ import annotations

import logging
import os
import time
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import psycopg

from jobherd.sql.migrate import SchemaError, migrate
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import Command, given_flags
from jobherd.supervisor.cli.database import (
    Session,
    chosen,
    connect,
    explained,
    lacks_room,
    load_settings,
    rejects_connection,
    why_away,
)
from jobherd.supervisor.cli.gateway_check import gateway_problems
from jobherd.supervisor.observe.log_stream import LogStream
from jobherd.supervisor.process.signals import SignalPipe, is_stop_request
from jobherd.supervisor.settings.definitions import Settings, flags_of_run, shown
from jobherd.workers.database.backoff import Backoff
from jobherd.workers.database.errors import takes_no_writes
from jobherd.workers.inspect.phrases import count
from jobherd.workers.process import logs
from jobherd.workers.system.local_address import is_local

if TYPE_CHECKING:
    import argparse

log = logging.getLogger("jobherd.start")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--print-settings", action="store_true", help="print every setting, its value and its source, and exit"
    )


def _run(arguments: argparse.Namespace) -> int:
    settings = load_settings(given_flags(arguments))
    if arguments.print_settings:
        _print_settings(settings)
        return ExitCode.DONE
    check_sources(settings)  # before a database is started for nothing
    _check_page(settings)
    if problems := gateway_problems(settings):
        raise CommandError("\njobherd: ".join(problems), ExitCode.CONFIGURATION)
    log_stream = LogStream()
    logs.set_up(process="supervisor", log_format=settings.log_format, level=settings.log_level, stream=log_stream)
    # Other commands do not need it; imported before signals can interrupt the import.
    from jobherd.supervisor import start  # noqa: PLC0415

    signals = SignalPipe(raises=True)
    try:
        with signals.handled(), chosen(settings, tell=lambda text: log.info("%s", text), guarded=True) as dsn:
            _make_schema(settings, dsn, signals)
            return start.run(settings, dsn, reload=settings.again, signals=signals, log_stream=log_stream)
    except start.RefusedError as problem:
        raise CommandError(str(problem), ExitCode.CONFIGURATION) from None
    except BaseException as problem:
        if not is_stop_request(problem):
            raise
        return ExitCode.DONE
    finally:
        signals.close()


def check_sources(settings: Settings) -> None:
    """Reject folders, files and modules that do not exist, before a process is forked.

    Imports nothing: an import would run user code in this process.
    """
    if settings.workers and not settings.handlers:
        # A running supervisor does not need the code of its workers.
        from jobherd.workers.run.loading import none_found_message  # noqa: PLC0415

        raise CommandError(none_found_message(()), ExitCode.CONFIGURATION)
    for name in ("handlers", "hooks"):
        for source in getattr(settings, name):
            if not (os.path.exists(source) or _is_module(source, settings)):
                raise CommandError(
                    f"{name}: there is no folder, file or module {source!r} (from {settings.source(name)}), seen "
                    f"from {settings.given.directory}",
                    ExitCode.CONFIGURATION,
                )


def _is_module(source: str, settings: Settings) -> bool:
    first, *rest = source.split(".")
    if not all(part.isidentifier() for part in (first, *rest)):
        return False
    try:
        return PathFinder.find_spec(first, [str(settings.app_dir)]) is not None or find_spec(first) is not None
    except (ImportError, ValueError):  # a module in sys.modules without a spec
        return True


def _check_page(settings: Settings) -> None:
    """Reject a dashboard that other hosts can reach without a token.

    The web process would only leave the dashboard out, and the user would see that too late.
    """
    if settings.http is None or not settings.dashboard or find_spec("starlette") is None:
        return
    if not (is_local(settings.http[0]) or settings.dashboard_operate_token or settings.dashboard_view_token):
        raise CommandError(
            f"http = {shown('http', settings.http)} (from {settings.source('http')}) can be reached from other "
            "hosts, and the dashboard has no token: set JOBHERD_DASHBOARD_OPERATE_TOKEN (`openssl rand -hex 20` "
            "makes one), or dashboard = false for metrics and health only",
            ExitCode.CONFIGURATION,
        )


def _make_schema(settings: Settings, dsn: str, signals: SignalPipe) -> None:
    """Migrate the schema to this version. While the database is down, wait, and log that once."""
    backoff = Backoff(settings.db_retry_initial, settings.db_retry_max, spread=(0.8, 1.2))
    away, tries = False, 0
    while True:
        tries += 1
        signals.check()
        try:
            with connect(dsn, name="supervisor") as connection:
                if away:
                    log.info("the database is back")
                applied = migrate(connection, schema=settings.schema)
                _check_role(Session(connection, settings.schema))
        except SchemaError as problem:
            raise CommandError(str(problem), ExitCode.CONFIGURATION) from None
        except (
            psycopg.errors.InsufficientPrivilege,
            psycopg.errors.ReadOnlySqlTransaction,
            psycopg.errors.FeatureNotSupported,
        ):
            with explained():
                raise
        except (psycopg.OperationalError, psycopg.InterfaceError) as problem:
            if 0 < settings.db_retry_max_attempts <= tries:
                raise CommandError(
                    f"the database does not answer, tried {tries} times: {why_away(problem)}", ExitCode.NO_DATABASE
                ) from None
            if not away and takes_no_writes(problem):
                log.warning("the database takes no writes: %s; trying until it does", why_away(problem))
            elif not away and lacks_room(problem):
                log.warning("the database is out of space: %s; trying until it has space", why_away(problem))
            elif not away and rejects_connection(problem):
                log.warning("the database rejects the connection: %s; trying until it does not", why_away(problem))
            elif not away:
                log.warning("the database does not answer: %s; trying until it does", why_away(problem))
            away = True
            time.sleep(backoff.next())
        except psycopg.Error:
            with explained():
                raise
        else:
            if applied:
                log.info("applied %s to the schema %s", count(applied, "migration", "migrations"), settings.schema)
            return


def _check_role(at: Session) -> None:
    """Reject a role that may not register a supervisor: the supervisor would wait for its rights indefinitely."""
    found = at.row("migrate/check_worker_role")
    if not found["may"]:
        raise CommandError(
            f"the role {found['role']} may not run a supervisor in the schema {at.schema!r}: run "
            f"`GRANT jobherd_work TO {found['role']}` as a role that may grant it, or name another role in --dsn or "
            "JOBHERD_DSN",
            ExitCode.CONFIGURATION,
        )


def _print_settings(settings: Settings) -> None:
    lines = [(name, shown(name, getattr(settings, name)), settings.source(name)) for name in flags_of_run()]
    name_width, value_width = (max(len(line[place]) for line in lines) for place in (0, 1))
    for name, value, source in lines:
        print(f"{name:<{name_width}} = {value:<{min(value_width, 40)}}  # {source}")


COMMANDS: Final = (
    Command(
        "run",
        "run a supervisor with its child processes",
        "  jobherd run --handlers ./my_handlers --workers 8 --queues mail,media",
        _arguments,
        _run,
        about="Run a supervisor: it creates the schema if needed, starts its child processes and runs jobs until it "
        "is stopped.\n"
        "TERM or Ctrl-C drains: running jobs finish, other claimed jobs are released; a second signal also releases "
        "running jobs.\n"
        "You can also set every setting in the environment or in a file: see docs/reference/settings.md.",
        settings=flags_of_run(),
    ),
)
