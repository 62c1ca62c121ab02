"""Selects the settings that child processes receive.

`ChildSettings` (`workers/process/spec.py`) names them. They also include what the supervisor itself needs
to fork and to report a death, such as `log_capture` and `code_version`. A child process gets the values,
and not where they came from.
"""

from __future__ import annotations

import socket
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from jobherd.workers.process.spec import RECIPIENTS, ChildSettings, UplinkSettings

if TYPE_CHECKING:
    from pathlib import Path

    from jobherd.supervisor.settings.definitions import Settings


def child_settings(
    settings: Settings, *, dsn: str | None = None, uplink: UplinkSettings | None = None
) -> ChildSettings:
    """Return the settings for child processes: by name, except those that this run decides.

    Args:
        settings: the settings of the supervisor.
        dsn: the database chosen for this run, if it is not `settings.dsn`. Empty with an uplink.
        uplink: how jobs come through a gateway, in a run without a database.
    """
    database = dsn if dsn is not None else settings.dsn
    assert database is not None, "the database is chosen before children are made"
    decided: dict[str, Any] = {
        "dsn": database,
        "host": socket.gethostname(),
        "log_jobs": settings.resolved_log_jobs(),  # a child's standard error is not the terminal
        "log_format": settings.resolved_log_format(),
        "uplink": uplink,
    }
    names = [each.name for each in fields(ChildSettings) if each.name not in decided]
    return ChildSettings(**decided, **{name: getattr(settings, name) for name in names})


def uplink_settings(settings: Settings, folder: Path) -> UplinkSettings:
    """Return how jobs come through a gateway, for a run whose uplink has its sockets in that folder."""
    return UplinkSettings(
        folder,
        settings.gateway_addresses,
        token_file=settings.gateway_token_file,
        tls=settings.gateway_tls,
        ca=settings.gateway_ca,
        cert=settings.gateway_client_cert,
        key=settings.gateway_client_key,
        worker_id=settings.worker_id or socket.gethostname(),
        task_lease=settings.task_lease,
    )


def for_kind(settings: ChildSettings, kind: str) -> ChildSettings:
    """Return the settings for a child process of that kind, without the secrets of other kinds."""
    others: dict[str, Any] = {
        each.name: each.default for each in fields(settings) if RECIPIENTS.get(each.name, kind) != kind
    }
    return replace(settings, **others)
