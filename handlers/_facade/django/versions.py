"""The classes of `django.tasks`, or of the package `django_tasks` for Django before 6.0."""

from __future__ import annotations

import importlib
from typing import Any

import django

NAME = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"

try:
    base: Any = importlib.import_module(f"{NAME}.base")
    backends: Any = importlib.import_module(f"{NAME}.backends.base")
    exceptions: Any = importlib.import_module(f"{NAME}.exceptions")
    signals: Any = importlib.import_module(f"{NAME}.signals")
    tasks: Any = importlib.import_module(NAME)
except ModuleNotFoundError as problem:
    if (problem.name or "").partition(".")[0] != "django_tasks":
        raise
    message = "Django before 6.0 has no tasks. Install the package: pip install 'django-tasks >= 0.12, < 0.13'"
    raise ImportError(message) from problem

InvalidTask: Any = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
TaskResultDoesNotExist: Any = exceptions.TaskResultDoesNotExist
