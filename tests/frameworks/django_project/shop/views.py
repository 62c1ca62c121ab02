"""The pages of the sample project. They enqueue in the request's transaction and show the state of the job."""

from __future__ import annotations

from django.db import transaction
from django.http import HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404

from jobherd.django.models import Job
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


PAGE = """<progress id="bar" max="1" value="0"></progress> <span id="note"></span>
<script>
async function poll() {
  const job = await (await fetch("/progress/%d/")).json();
  bar.value = job.state == "completed" ? 1 : job.progress?.fraction ?? 0;
  note.textContent = job.result ?? job.progress?.note ?? job.state;
  if (!["completed", "failed", "cancelled", "expired"].includes(job.state)) setTimeout(poll, 1000);
}
poll();
</script>"""


def watch(request, number: int):
    """Show the progress of a job in a browser."""
    return HttpResponse(PAGE % number)


def progress(request, number: int):
    """Return the state of a job, for the page."""
    job = get_object_or_404(Job, pk=number)
    return JsonResponse({"state": job.state, "progress": job.progress, "result": job.result})
