"""Jobs in Django's admin: read-only, with the actions retry and cancel.

The actions need the permission `jobherd.change_job`. The audit log names the user.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.core.paginator import Paginator
from django.db import connections
from django.utils.functional import cached_property
from django.utils.html import format_html

from jobherd.django.backend import backends, database_alias, without_jit
from jobherd.django.models import Job
from jobherd.handlers._enqueue.client import Client
from jobherd.handlers._enqueue.default import schema_or_default

MOST = 10_000
"""Most jobs that the list counts: counting millions would take seconds for each page."""


class _Pages(Paginator):
    @cached_property
    def count(self) -> int:
        number: int = self.object_list[:MOST].count()
        return number


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):
    """The list of jobs, and one job."""

    list_display = ("id", "kind", "state", "queue", "attempts", "run_at", "finished_at", "error", "dashboard")
    list_filter = ("state",)
    search_fields = ("=id", "=kind")
    actions = ("retry", "cancel")
    show_full_result_count = False
    paginator = _Pages

    def get_queryset(self, request: Any) -> Any:
        """Read the database that has Jobherd's schema."""
        del request
        return Job.objects.using(database_alias()).all()

    def get_object(self, request: Any, object_id: str, from_field: str | None = None) -> Any:
        """Return a job with its history."""
        with without_jit(database_alias()):
            job = super().get_object(request, object_id, from_field)
            if job is not None:
                job.refresh_from_db(fields=["history"])
            return job

    def has_add_permission(self, request: Any) -> bool:
        """Reject: jobs are enqueued by code."""
        del request
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """Reject: a job is changed only by the actions."""
        del request, obj
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        """Reject: retention deletes finished jobs."""
        del request, obj
        return False

    def has_view_permission(self, request: Any, obj: Any = None) -> bool:
        """Return whether the user may view or control jobs."""
        allowed: bool = super().has_view_permission(request, obj) or self.has_control_permission(request)
        return allowed

    def has_control_permission(self, request: Any) -> bool:
        """Return whether the user may retry and cancel jobs."""
        allowed: bool = request.user.has_perm("jobherd.change_job")
        return allowed

    @admin.display(description="dashboard")
    def dashboard(self, job: Job) -> str:
        """Return a link to the job on the dashboard."""
        address = next((found for backend in backends() if (found := backend.options.get("dashboard"))), None)
        return "" if address is None else format_html('<a href="{}/jobs/{}">open</a>', address.rstrip("/"), job.pk)

    @admin.action(description="Run again", permissions=["control"])
    def retry(self, request: Any, jobs: Any) -> None:
        """Run the selected jobs again."""
        self._each(request, jobs, "retry")

    @admin.action(description="Cancel", permissions=["control"])
    def cancel(self, request: Any, jobs: Any) -> None:
        """Cancel the selected jobs."""
        self._each(request, jobs, "cancel")

    def _each(self, request: Any, jobs: Any, what: str) -> None:
        client = Client(schema=schema_or_default(), connection=connections[database_alias()])
        answers = [getattr(client, what)(job.pk, actor=request.user.get_username()) for job in jobs]
        counted = ", ".join(
            f"{answers.count(word)} {word}" for word in sorted({answer or "gone" for answer in answers})
        )
        self.message_user(request, f"{what}: {counted}", messages.SUCCESS)
