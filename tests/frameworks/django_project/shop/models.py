"""Orders of the sample project."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    number = models.IntegerField(unique=True)
    state = models.CharField(max_length=20, default="new")
    worker = models.IntegerField(default=0)
