"""Selects the settings that child processes receive.

Children do not know where a value came from, and get no setting that concerns only the supervisor.
"""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from jobherd.workers.process.spec import ChildSettings

if TYPE_CHECKING:
    from jobherd.supervisor.settings.definitions import Settings


def child_settings(settings: Settings, *, dsn: str | None = None) -> ChildSettings:
    """Return the settings for child processes.

    Args:
        settings: the settings of the supervisor.
        dsn: the database chosen for this run, if it is not `settings.dsn`.
    """
    database = dsn if dsn is not None else settings.dsn
    assert database is not None, "the database is chosen before children are made"
    return ChildSettings(
        dsn=database,
        schema=settings.schema,
        handlers=settings.handlers,
        hooks=settings.hooks,
        reload=settings.reload,
        app_dir=settings.app_dir,
        code_version=settings.code_version,
        queues=settings.served,
        queue_turns=settings.queue_order == "turns",
        queue_weights=dict(settings.queue_weights),
        queue_tiers=dict(settings.queue_priorities),
        limits=settings.queue_max_concurrency,
        claim_size=settings.most_claimed,
        claim_window=settings.claim_window,
        budget={name: float(amount) for name, amount in (each.split("=") for each in settings.budget)},
        budget_patience=settings.budget_patience,
        poll=settings.poll,
        retry_initial=settings.db_retry_initial,
        retry_max=settings.db_retry_max,
        lease=settings.lease,
        long_transaction=settings.long_transaction,
        grace=settings.grace,
        unknown_delay=settings.unknown_delay,
        unknown_for=settings.unknown_for,
        sweep=settings.sweep,
        http=settings.http,
        dashboard=settings.dashboard,
        dashboard_view_token=settings.dashboard_view_token,
        dashboard_operate_token=settings.dashboard_operate_token,
        dashboard_hosts=settings.dashboard_hosts,
        dashboard_path=settings.dashboard_path,
        dashboard_read_only=settings.dashboard_read_only,
        log_capture=settings.log_capture,
        log_size=settings.log_size,
        log_jobs=settings.resolved_log_jobs(),
        log_format=settings.resolved_log_format(),
        log_level=settings.log_level,
        host=socket.gethostname(),
        webhook_secret=settings.webhook_secret,
        webhooks=bool(settings.webhook_secret),
        webhook_allow=settings.webhook_allow,
        webhook_timeout=settings.webhook_timeout,
        metrics_tenants=settings.metrics_tenants,
        audit_keep=settings.audit_keep,
    )


def for_kind(settings: ChildSettings, kind: str) -> ChildSettings:
    """Return the settings for a child process of that kind, without the secrets that it does not need."""
    if kind != "web":
        settings = replace(settings, dashboard_view_token=(), dashboard_operate_token=())
    return settings if kind == "worker" else replace(settings, webhook_secret=())
