"""The view `jobherd.jobs` as an unmanaged model, for reading: `Job.objects.filter(kind="shop:finish")`."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models


class _Document(models.JSONField):
    """A document of type json: psycopg has decoded it. Django reads jsonb as text."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        del expression, connection
        return value


class _Jobs(models.Manager["Job"]):
    """Jobs without their history, which a later access to the attribute reads.

    Cost: the history reads every partition of the attempts. PostgreSQL compiles such a query, for
    seconds, before it returns one row.
    """

    def get_queryset(self) -> models.QuerySet[Job]:
        """Return all jobs, with the history deferred."""
        return super().get_queryset().defer("history")


class Job(models.Model):
    """A job. Change jobs with `jobherd.Client`, not here."""

    id = models.BigIntegerField(primary_key=True)
    kind = models.TextField()
    queue = models.TextField()
    priority = models.SmallIntegerField()
    state = models.TextField()
    attempts = models.SmallIntegerField()
    max_attempts = models.SmallIntegerField()
    payload = _Document()
    result = _Document(null=True)
    error = models.TextField(null=True)  # noqa: DJ001 - the view's null
    error_code = models.TextField(null=True)  # noqa: DJ001 - as above
    run_at = models.DateTimeField()
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    progress = models.JSONField(null=True)
    history = models.JSONField()

    objects = _Jobs()

    class Meta:
        managed = False
        db_table = '"jobherd"."jobs"'
        ordering: ClassVar = ["-id"]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"
