"""Django's application `jobherd`: the schema after `migrate`, and the default client of handlers."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db import connections
from django.db.models.signals import post_migrate
from django.utils.connection import ConnectionProxy


class JobherdConfig(AppConfig):
    """Jobherd in INSTALLED_APPS."""

    name = "jobherd.django"
    label = "jobherd"
    verbose_name = "Jobherd"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Enqueue on Django's connection by default, and create the schema after `migrate`."""
        from jobherd.django.backend import database_alias  # noqa: PLC0415 - needs the applications
        from jobherd.handlers._enqueue.client import Client  # noqa: PLC0415 - as above
        from jobherd.handlers._enqueue.default import configure  # noqa: PLC0415 - as above

        # The proxy finds the connection of the thread that enqueues.
        configure(client=Client(connection=ConnectionProxy(connections, database_alias())))
        post_migrate.connect(_migrate, sender=self)


def _migrate(*, using: str, **_: Any) -> None:
    from jobherd.django.backend import database_alias, migrate_schema  # noqa: PLC0415 - as above

    if using == database_alias() and connections[using].vendor == "postgresql":
        migrate_schema(using)
