"""`manage.py jobherd ...`: the command line of Jobherd, on Django's database.

Replace this process by `jobherd`, so that its supervisor never has Django in memory. Only the child
processes of `run` load the project.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

import psycopg
from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import connections
from psycopg.conninfo import make_conninfo

if TYPE_CHECKING:
    from collections.abc import Sequence

LOADING: Final = frozenset({"run", "check"})
"""Commands that load handlers."""


class Command(BaseCommand):
    """Runs `jobherd` with the words that follow."""

    help = "Run Jobherd's command line on Django's database: manage.py jobherd run --workers 4"

    def run_from_argv(self, argv: Sequence[str]) -> NoReturn:
        """Replace this process by `jobherd`."""
        words = list(argv[2:])
        environment = os.environ | {
            "JOBHERD_DSN": address(),
            "JOBHERD_APP_DIR": os.path.dirname(os.path.abspath(argv[0])),
        }
        if words[:1] and words[0] in LOADING:
            environment.setdefault("JOBHERD_HANDLERS", "jobherd.django.handlers")
            if settings.DEBUG:
                environment.setdefault("JOBHERD_RELOAD", "true")
        connections.close_all()
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, "-P", "-m", "jobherd.supervisor", *words], environment)  # noqa: S606

    def handle(self, *_: Any, **__: Any) -> NoReturn:
        """Reject `call_command`, which would replace the caller's process."""
        message = "call_command('jobherd') is not supported: it would replace this process"
        raise NotImplementedError(message)


def address() -> str:
    """Return JOBHERD_DSN, or the address of Django's database."""
    if given := os.environ.get("JOBHERD_DSN"):
        return given
    from jobherd.django.backend import database_alias  # noqa: PLC0415 - needs the settings

    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    parameters = connections[database_alias()].get_connection_params()
    return make_conninfo("", **{name: value for name, value in parameters.items() if name in known})
