"""What a worker loads of a Django project: its tasks, and the handlers of its modules `tasks`.

Set up Django on import, because a worker loads modules before it calls a hook. Must not be imported
by the supervisor, or by the web process. `manage.py jobherd run` names this module.
"""

from __future__ import annotations

import sys
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final

import django
from asgiref.sync import sync_to_async
from django.apps import apps
from django.db import close_old_connections, reset_queries
from django.utils import timezone, translation
from django.utils.module_loading import autodiscover_modules

django.setup()
autodiscover_modules("tasks")

from jobherd.django import versions  # noqa: E402 - needs the applications
from jobherd.django.backend import Backend  # noqa: E402 - as above
from jobherd.django.results import new_result  # noqa: E402 - as above
from jobherd.django.task import declared, kind_of, policy_of  # noqa: E402 - as above
from jobherd.handlers._define.definition_site import code_of  # noqa: E402 - as above
from jobherd.handlers._define.handler import AnyHandler, handler  # noqa: E402 - as above
from jobherd.handlers._define.hooks import after_job, before_job, on_child_start  # noqa: E402 - as above
from jobherd.handlers._load.module_contents import handlers_of  # noqa: E402 - as above
from jobherd.handlers._run.dispositions import Disposition  # noqa: E402 - as above
from jobherd.handlers._run.job import Job  # noqa: E402, TC001 - the handlers' annotations
from jobherd.handlers._values.payload import Json  # noqa: E402, TC001 - as above

if TYPE_CHECKING:
    from jobherd.handlers._values.outcome import Outcome

_running: Final[dict[int, Any]] = {}
"""The result of each task that runs here, by the job's id."""
_in_worker = False
_STATUS: Final = {"completed": "SUCCESSFUL", "failed": "FAILED", "cancelled": "FAILED"}


def handler_of(task: Any) -> AnyHandler:
    """Return the handler that runs a task of Django, for workers and tests."""
    backend = versions.tasks.task_backends[task.backend]
    decorate = handler(kind_of(task), **policy_of(task, backend.options))

    if iscoroutinefunction(task.func):

        @decorate
        async def arun(job: Job, payload: Json) -> object:
            args, kwargs = _begun(backend, task, job, payload)
            if not _in_worker:  # the connection is that of the test's transaction
                return _result(await task.func(*args, **kwargs))
            # The coroutine's code uses the connections of asgiref's thread, which the hooks cannot reach.
            await sync_to_async(close_old_connections)()
            try:
                return _result(await task.func(*args, **kwargs))
            finally:
                await sync_to_async(close_old_connections)()

        return _placed(arun, task)

    @decorate
    def run(job: Job, payload: Json) -> object:
        args, kwargs = _begun(backend, task, job, payload)
        return _result(task.func(*args, **kwargs))

    return _placed(run, task)


def _placed(found: AnyHandler, task: Any) -> AnyHandler:
    """Return the handler with the file and line of the task's function, for `jobherd check` and errors."""
    if (code := code_of(task.func)) is not None:
        found.file, found.line = code.co_filename, code.co_firstlineno
    return found


def _begun(backend: Any, task: Any, job: Job, payload: Any) -> tuple[list[Any], dict[str, Any]]:
    now = timezone.now()
    result = new_result(
        task,
        job.id,
        payload,
        alias=backend.alias,
        status=versions.base.TaskResultStatus.RUNNING,
        started_at=now,
        last_attempted_at=now,
        worker_ids=["jobherd"] * job.attempt,
    )
    _running[job.id] = result
    versions.signals.task_started.send(type(backend), task_result=result)
    context = [versions.base.TaskContext(task_result=result)] if task.takes_context else []
    return [*context, *result.args], result.kwargs


def _result(value: object) -> object:
    """Return what a task returned as JSON; tuples become lists. A disposition stays what it is."""
    return value if isinstance(value, Disposition) else versions.base.normalize_json(value)


@on_child_start
def enter_worker() -> None:
    """Remember that this process is a worker. Tests call no hooks."""
    global _in_worker
    _in_worker = True


@before_job
def clean_before(job: Job) -> None:
    """Close what the last job has left: connections that are too old or broken."""
    del job
    reset_queries()
    close_old_connections()


@after_job
def clean_after(job: Job, outcome: Outcome) -> None:
    """Send `task_finished`, close old connections, and forget the job's language."""
    result = _running.pop(job.id, None)
    if result is not None and outcome.state in _STATUS:
        object.__setattr__(result, "status", versions.base.TaskResultStatus(_STATUS[outcome.state]))
        object.__setattr__(result, "finished_at", timezone.now())
        versions.signals.task_finished.send(Backend, task_result=result)
    close_old_connections()
    translation.deactivate()


_found = [handler_of(task) for task in list(declared.values())]
for _config in apps.get_app_configs():
    _module = sys.modules.get(f"{_config.name}.tasks")
    if _module is not None:
        _found += handlers_of(_module)
globals().update({f"handler_{number}": found for number, found in enumerate(_found)})
__all__ = ["handler_of", *(f"handler_{number}" for number in range(len(_found)))]  # noqa: PLE0604 - names for the loader
