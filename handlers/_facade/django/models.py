"""The view `jobherd.jobs` as an unmanaged model, for reading: `Job.objects.filter(kind="shop:finish")`."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models


class _Document(models.JSONField):
    """A document of type json: psycopg has decoded it. Django reads jsonb as text."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        del expression, connection
        return value


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

    class Meta:
        managed = False
        db_table = '"jobherd"."jobs"'
        ordering: ClassVar = ["-id"]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"
