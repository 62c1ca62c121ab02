"""Django's tasks as kinds of job: the name of the kind, its options, and the payload.

A task declares itself here when it is created. Must not connect to a database.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps

from jobherd.django import versions
from jobherd.handlers._policy.names import check_kind
from jobherd.handlers._policy.policy import check_policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobherd.handlers._policy.durations import Duration

OF_TASKS: Final = ("max_attempts", "timeout")
"""Options of a handler that a task takes."""

declared: Final[dict[str, Any]] = {}
"""The tasks of this process as their decorator made them, by dotted path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(versions.base.Task):
    """A task of Django with the options of a handler.

    Attributes:
        max_attempts: attempts before the task fails permanently. Default: of the backend's OPTIONS.
        timeout: longest duration of one attempt. Default: of the backend's OPTIONS.
    """

    max_attempts: int | None = None
    timeout: Duration | None = None


def declare(task: Any, options: Mapping[str, Any]) -> None:
    """Remember a task, so that a worker can run it. Raises InvalidTask if an option is invalid."""
    try:
        policy_of(task, options)
    except (TypeError, ValueError) as problem:
        raise versions.InvalidTask(f"{task.module_path}: {problem}") from None
    declared.setdefault(task.module_path, task)


def policy_of(task: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task's options as a handler's: its own, else those of OPTIONS."""
    given = {name: options[name] for name in OF_TASKS if name in options}
    given |= options.get("tasks", {}).get(task.module_path, {})
    given |= {name: value for name in OF_TASKS if (value := getattr(task, name, None)) is not None}
    given |= {"queue": task.queue_name, "priority": -task.priority}
    check_policy(**given)
    return given


def kind_of(task: Any) -> str:
    """Return the kind of a task's jobs: application and function, such as "shop:finish".

    Raises InvalidTask if two tasks would have the same.
    """
    kind = _kind(task.module_path)
    for path in declared:
        if path != task.module_path and _kind(path) == kind:
            message = f"{path} and {task.module_path} would both be the kind {kind!r}: rename one of the functions"
            raise versions.InvalidTask(message)
    return kind


def _kind(path: str) -> str:
    module, _, function = path.rpartition(".")
    config = apps.get_containing_app_config(module)
    try:
        return check_kind(f"{config.label if config is not None else module.rpartition('.')[2]}:{function}".lower())
    except ValueError as problem:
        raise versions.InvalidTask(f"{path}: {problem}") from None
