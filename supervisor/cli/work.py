"""`work`: runs a supervisor whose jobs come from a gateway, on a host that cannot reach the database.

It checks the settings, and then runs the supervisor as `run` does. It opens no connection: only the child process
`uplink` does.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.command import Command, given_flags
from jobherd.supervisor.cli.gateway_check import has_protobuf
from jobherd.supervisor.cli.run import check_sources
from jobherd.supervisor.observe.log_stream import LogStream
from jobherd.supervisor.process.signals import SignalPipe, is_stop_request
from jobherd.supervisor.settings.remote import FLAGS, RemoteSettings
from jobherd.supervisor.settings.sources import SettingsError, flag_of
from jobherd.workers.process import logs

if TYPE_CHECKING:
    import argparse

_FILES: Final = ("gateway_token_file", "gateway_ca", "gateway_client_cert", "gateway_client_key")


def _work(arguments: argparse.Namespace) -> int:
    try:
        settings = RemoteSettings.load(given_flags(arguments))
    except SettingsError as problem:
        raise CommandError("\njobherd: ".join(problem.problems), ExitCode.CONFIGURATION) from None
    check_sources(settings)
    _check_uplink(settings)
    log_stream = LogStream()
    logs.set_up(process="supervisor", log_format=settings.log_format, level=settings.log_level, stream=log_stream)
    # Other commands do not need it; imported before signals can interrupt the import.
    from jobherd.supervisor import start  # noqa: PLC0415

    signals = SignalPipe(raises=True)
    try:
        with signals.handled():
            return start.run(settings, None, reload=settings.again, signals=signals, log_stream=log_stream)
    except start.RefusedError as problem:
        raise CommandError(str(problem), ExitCode.CONFIGURATION) from None
    except BaseException as problem:
        if not is_stop_request(problem):
            raise
        return ExitCode.DONE
    finally:
        signals.close()


def _check_uplink(settings: RemoteSettings) -> None:
    """Reject what the child process `uplink` could not start with, before it is forked again and again."""
    if not (find_spec("grpc") and has_protobuf()):
        raise CommandError(
            "work needs packages that are not installed: pip install 'jobherd[grpc]'", ExitCode.CONFIGURATION
        )
    for name in _FILES:
        if (path := getattr(settings, name)) is not None and not os.access(path, os.R_OK):
            raise CommandError(
                f"{flag_of(name)} {path} (from {settings.source(name)}) cannot be read", ExitCode.CONFIGURATION
            )


COMMANDS: Final = (
    Command(
        "work",
        "run jobs of a gateway, on a host without the database",
        "  jobherd work --gateway jobs.example.com:9091 --gateway-token-file token \\\n"
        "    --gateway-ca ca.crt --handlers ./my_handlers --workers 8",
        lambda _parser: None,
        _work,
        about="Run a supervisor whose workers get their jobs from a gateway. The host needs no connection to the "
        "database, only to the address at which `jobherd run --gateway` serves.\n"
        "TERM or Ctrl-C drains, as for `jobherd run`.\n"
        "You can also set every setting in the environment or in a file: see docs/reference/settings.md.",
        settings=FLAGS,
    ),
)
