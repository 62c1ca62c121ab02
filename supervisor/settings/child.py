"""Selects the settings that child processes receive.

Children do not know where a value came from, and get no setting that concerns only the supervisor.
"""

from __future__ import annotations

import socket
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from jobherd.workers.process.spec import ChildSettings

if TYPE_CHECKING:
    from jobherd.supervisor.settings.definitions import Settings


def child_settings(settings: Settings, *, dsn: str | None = None) -> ChildSettings:
    """Return the settings for child processes: by name, except those that this run decides.

    Args:
        settings: the settings of the supervisor.
        dsn: the database chosen for this run, if it is not `settings.dsn`.
    """
    database = dsn if dsn is not None else settings.dsn
    assert database is not None, "the database is chosen before children are made"
    decided: dict[str, Any] = {
        "dsn": database,
        "host": socket.gethostname(),
        "log_jobs": settings.resolved_log_jobs(),  # a child's standard error is not the terminal
        "log_format": settings.resolved_log_format(),
    }
    names = [each.name for each in fields(ChildSettings) if each.name not in decided]
    return ChildSettings(**decided, **{name: getattr(settings, name) for name in names})


def for_kind(settings: ChildSettings, kind: str) -> ChildSettings:
    """Return the settings for a child process of that kind, without the secrets that it does not need."""
    if kind != "web":
        settings = replace(settings, dashboard_view_token=(), dashboard_operate_token=())
    return settings if kind == "worker" else replace(settings, webhook_secret=())
