"""Prints the commands that add the schedules of Celery beat, for `jobherd schedule import --celery MODULE`.

It imports the module of a Celery application, as `celery -A MODULE` does, and reads its `beat_schedule`.
A user reads the commands before they run. Must not connect to a database, and must not import Celery:
only the user's module does.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import sys
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from jobherd.handlers._policy.durations import positive
from jobherd.handlers._policy.schedule import check_cron, check_every, check_name, check_payload, check_tz
from jobherd.supervisor.cli.codes import CommandError, ExitCode
from jobherd.supervisor.cli.console import complain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

_FIELDS: Final = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")


def print_commands(module: str) -> int:
    """Print one command for each schedule, and what cannot be converted on standard error."""
    sys.path.insert(0, os.getcwd())  # as `celery` does
    try:
        found = importlib.import_module(module)
    except Exception as problem:
        why = " ".join(f"{type(problem).__name__}: {problem}".split()).rstrip(".: ")
        message = f"cannot import {module}: {why}. Run this where celery -A works"
        raise CommandError(message, ExitCode.USAGE) from None
    schedules, zone = _configured(found)
    code = ExitCode.DONE
    for name, entry in schedules.items():
        try:
            print(shlex.join(_command(name, entry, zone)))
        except (TypeError, ValueError) as problem:
            complain(f"{name} is left out: {problem}")
            code = ExitCode.WRONG
        else:
            if lost := sorted(set(entry.get("options") or {}) - {"queue", "expires"}):
                complain(f"{name}: {', '.join(lost)} of its options is not converted")
    return code


def _configured(module: ModuleType) -> tuple[Mapping[str, Any], str]:
    """Return the schedules of the module, or of a Celery application in it, and its time zone."""
    for one in (module, *vars(module).values()):
        with suppress(Exception):  # any object of the user
            settings = one if one is module else one.conf
            if settings.beat_schedule:
                return settings.beat_schedule, str(getattr(settings, "timezone", None) or "UTC")
    message = (
        f"{module.__name__} has no beat_schedule: name the module of the Celery application, "
        "such as proj.celery. For the tables of django-celery-beat, see docs/how-to/migrate/from-celery.md"
    )
    raise CommandError(message, ExitCode.WRONG)


def _command(name: str, entry: Mapping[str, Any], zone: str) -> list[str]:
    """Return the words of a command. Raises TypeError or ValueError with what to do."""
    if entry.get("args"):
        message = "it has positional arguments, and a payload has names: move them to kwargs"
        raise ValueError(message)
    options = entry.get("options") or {}
    called = check_name(re.sub(r"[^a-z0-9_.:-]+", "-", name.lower()).strip("-.:")[:100])
    words = ["jobherd", "schedule", "add", called, "--kind", str(entry["task"]).lower()]
    words += _timing(entry["schedule"], zone)
    if kwargs := check_payload(entry.get("kwargs") or {}, field="kwargs"):
        words += ["--payload", json.dumps(kwargs, ensure_ascii=False)]
    if options.get("queue"):
        words += ["--queue", str(options["queue"])]
    if options.get("expires"):
        words += ["--good-for", f"{positive(_seconds(options['expires']), field='expires'):g}s"]
    return words


def _timing(when: object, zone: str) -> list[str]:
    if all(hasattr(when, f"_orig_{field}") for field in _FIELDS):
        fields = [_field(getattr(when, f"_orig_{field}")) for field in _FIELDS]
        if "*" not in {fields[2], fields[4]}:
            message = (
                f"{' '.join(fields)} must match day and weekday in Celery, and one of them in cron: "
                "remove one of them, and check it in the handler"
            )
            raise ValueError(message)
        return ["--cron", check_cron(" ".join(fields), field="cron"), "--tz", check_tz(zone, field="timezone")]
    span = _seconds(getattr(when, "run_every", when))
    if not isinstance(span, int | float):
        message = f"a {type(when).__name__} is not a period or a crontab: run it often, and check in the handler"
        raise TypeError(message)
    return ["--every", f"{check_every(span, field='schedule'):.15g}s"]


def _field(value: Any) -> str:
    """Return a field of a crontab, which may be a number or a set of them. cron has short names only."""
    text = value if isinstance(value, str) else ",".join(map(str, value if hasattr(value, "__iter__") else [value]))
    return re.sub(r"[A-Za-z]{4,}", lambda word: word[0][:3], re.sub(r"\s", "", text))


def _seconds(span: object) -> object:
    return span.total_seconds() if isinstance(span, timedelta) else span
