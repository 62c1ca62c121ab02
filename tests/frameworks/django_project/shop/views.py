"""The pages of the sample project: enqueue in the request's transaction, and show what became of it."""

from __future__ import annotations

from django.db import transaction
from django.http import JsonResponse

from jobherd.django.versions import tasks
from shop.models import Order
from shop.tasks import finish, receipt


class _Undo(Exception):
    pass


def order(request, number: int, end: str):
    """Create an order and its job in one transaction, which is committed if `end` is "commit"."""
    try:
        with transaction.atomic():
            created = Order.objects.create(number=number)
            result = finish.enqueue(created.number)
            if end != "commit":
                raise _Undo
            receipt.enqueue(number=number + 1)
    except _Undo:
        pass
    return JsonResponse({"id": result.id})


def state(request, result: str):
    """Return the state of a task."""
    found = tasks.default_task_backend.get_result(result)
    return JsonResponse(
        {
            "status": found.status,
            "attempts": found.attempts,
            "value": found.return_value if found.status == "SUCCESSFUL" else None,
            "errors": [error.exception_class_path for error in found.errors],
        }
    )
