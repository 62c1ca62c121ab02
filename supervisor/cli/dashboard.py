"""`dashboard`: serves the dashboard and the metrics of one or several databases, without a supervisor."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import CONNECTION, Command, given_flags
from jobherd.supervisor.cli.database import chosen, load_settings
from jobherd.supervisor.cli.databases import name_of
from jobherd.workers.process import logs
from jobherd.workers.web.page_handoff import why_off
from jobherd.workers.web.standalone import serve

if TYPE_CHECKING:
    import argparse

    from jobherd.supervisor.settings.definitions import Settings

log = logging.getLogger("jobherd")

SETTINGS: Final = (
    *CONNECTION,
    "http",
    "dashboard_operate_token",
    "dashboard_view_token",
    "dashboard_hosts",
    "dashboard_path",
    "dashboard_read_only",
    "log_format",
    "log_level",
)


def _dashboard(arguments: argparse.Namespace) -> int:
    settings = load_settings(given_flags(arguments), only=SETTINGS)
    if settings.http is None:
        raise CommandError("no address to serve: set --http HOST:PORT", ExitCode.CONFIGURATION)
    if problem := why_off(settings):
        raise CommandError(problem, ExitCode.CONFIGURATION)
    logs.set_up(process="dashboard", log_format=settings.log_format, level=settings.log_level)
    with chosen(settings, guarded=True) as dsn:
        addresses = getattr(arguments, "addresses", None) or [dsn]
        names = [name_of(arguments, address) for address in addresses]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise CommandError(f"two addresses lead to {twice}: give each database once", ExitCode.USAGE)
        try:
            asyncio.run(_serve(settings, dict(zip(names, addresses, strict=True))))
        except OSError as error:
            where = "{}:{}".format(*settings.http)
            raise CommandError(
                f"cannot listen on {where} ({error.strerror or error}): free the port or set --http",
                ExitCode.CONFIGURATION,
            ) from None
    return ExitCode.DONE


async def _serve(settings: Settings, databases: dict[str, str]) -> None:
    """Serve until a signal to stop."""
    serving = asyncio.create_task(serve(settings, databases, lambda url: log.info("the dashboard is %s", url)))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    await asyncio.wait({serving})
    if not serving.cancelled():
        serving.result()


COMMANDS: Final = (
    Command(
        "dashboard",
        "serve the dashboard of one or several databases",
        "  jobherd dashboard --dsn postgresql://db1/app --dsn postgresql://db2/app",
        lambda _parser: None,
        _dashboard,
        about="Serve the dashboard and /metrics without a supervisor. With several databases, the first page lists "
        "them, and each has its own dashboard.\nTERM or Ctrl-C ends it. It needs the extra `web`.",
        settings=SETTINGS,
        spans="together",
    ),
)
