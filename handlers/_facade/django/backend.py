"""The backend of `django.tasks`: tasks are enqueued on Django's connection, in its transaction."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from django.conf import settings
from django.core import checks
from django.db import connections, transaction
from django.utils import timezone

from jobherd.django import versions
from jobherd.django.results import new_result, result_of
from jobherd.django.task import Task, declare, declared, kind_of
from jobherd.handlers._enqueue.client import Client
from jobherd.handlers._enqueue.default import default_client, schema_or_default
from jobherd.handlers._enqueue.driver_connection import driver_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class Backend(versions.backends.BaseTaskBackend):
    """Runs tasks of Django as jobs.

    OPTIONS in TASKS:
        database: alias of the database with Jobherd's schema. Default "default".
        max_attempts, timeout: those of tasks that set none; see `handler`.
        tasks: options of single tasks by dotted path, for Django 6.0, whose `@task` takes none.
        dashboard: address of the dashboard, to which the admin links. Default: no links.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True
    task_class = Task

    @property
    def database(self) -> str:
        """Alias of the database with Jobherd's schema."""
        name: str = self.options.get("database", "default")
        return name

    @property
    def client(self) -> Client:
        """A client on Django's connection of this thread."""
        return Client(schema=schema_or_default(), connection=connections[self.database])

    def validate_task(self, task: Any) -> None:
        """Raise InvalidTask if this backend cannot run the task."""
        super().validate_task(task)
        declare(task, self.options)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Enqueue a task in the open transaction, if there is one, and return its result.

        The job exists only if the transaction commits.
        """
        self.validate_task(task)
        arguments = {"args": list(args), "kwargs": dict(kwargs)}
        result = new_result(task, 0, arguments, alias=self.alias)  # checks that the arguments are JSON
        payload = {"task": task.module_path, "args": result.args, "kwargs": result.kwargs}
        due = task.run_after
        if due is not None and timezone.is_naive(due):
            due = timezone.make_aware(due)
        number = self._producer().enqueue(
            kind_of(task), payload, queue=task.queue_name, priority=-task.priority, run_at=due
        )
        object.__setattr__(result, "id", str(int(number)))
        versions.signals.task_enqueued.send(type(self), task_result=result)
        return result

    def _producer(self) -> Client:
        """Return the client that enqueues: of a job's or a test's transaction, if there is one."""
        found = default_client()
        is_plain = type(found) is Client and not found.is_of_a_thread
        return self.client if is_plain or self.database != database_alias() else found

    def get_result(self, result_id: str) -> Any:
        """Return the result of a task. Raises TaskResultDoesNotExist."""
        row = None
        if result_id.isdecimal():
            with without_jit(self.database):
                row = self.client.job(int(result_id))
        path = row["payload"].get("task") if row is not None and isinstance(row["payload"], dict) else None
        if row is None or path not in declared:
            raise versions.TaskResultDoesNotExist(result_id)
        return result_of(row, declared[path], alias=self.alias)

    def check(self, **kwargs: Any) -> list[Any]:
        """Return the problems that `manage.py check` reports."""
        found = list(super().check(**kwargs) or ())
        if self.database not in settings.DATABASES:
            message = f"TASKS[{self.alias!r}]: unknown database {self.database!r}"
            return [*found, checks.Error(message, hint="Set OPTIONS['database'].", id="jobherd.E001")]
        module = getattr(connections[self.database], "Database", None)
        if module is not psycopg:
            message = f"TASKS[{self.alias!r}]: the database {self.database!r} does not use PostgreSQL with psycopg 3"
            found.append(checks.Error(message, hint="pip install 'psycopg[binary]'", id="jobherd.E002"))
        return found


def backends() -> list[Backend]:
    """Return the backends of this kind in TASKS."""
    found = (versions.tasks.task_backends[alias] for alias in getattr(settings, "TASKS", {}))
    return [backend for backend in found if isinstance(backend, Backend)]


def database_alias() -> str:
    """Return the alias of the database that has Jobherd's schema."""
    return next((backend.database for backend in backends()), "default")


@contextmanager
def without_jit(alias: str) -> Iterator[None]:
    """Disable JIT in the transaction of the block, which reads a job with its history.

    Cost: PostgreSQL compiled such a query, over all partitions of the attempts, for seconds.
    """
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute("SET LOCAL jit = off")
        yield


def migrate_schema(alias: str) -> int:
    """Create or upgrade Jobherd's schema in one of Django's databases; return the number of migrations."""
    from jobherd.sql.migrate import migrate  # noqa: PLC0415 - only `manage.py migrate` needs it

    return migrate(driver_of(connections[alias]), schema=schema_or_default())
