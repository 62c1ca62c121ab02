"""Jobherd inside Django: add `jobherd.django` to INSTALLED_APPS.

`jobherd.django.Backend` is a backend of `django.tasks`. Importing this package imports no Django:
Django does that when it loads the application.

* `backend.py`, `task.py`, `results.py`: tasks of Django as jobs. `versions.py` finds their classes.
* `handlers.py`: what a worker loads. `management/`: `manage.py jobherd`.
* `apps.py`: the schema after `migrate`, and the default client. `models.py`, `admin.py`: the admin.
* `dashboard.py`: the dashboard next to Django's views. `testing.py`: jobs in a test's transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jobherd.django.backend import Backend

__all__ = ["Backend"]


def __getattr__(name: str) -> object:
    if name == "Backend":
        from jobherd.django.backend import Backend  # noqa: PLC0415 - needs Django's settings

        return Backend
    message = f"module 'jobherd.django' has no attribute {name!r}"
    raise AttributeError(message)
