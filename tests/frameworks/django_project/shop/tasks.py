"""The tasks of the sample project, and one handler of Jobherd's own."""

from __future__ import annotations

import os
import signal

import django

from jobherd import Job, handler
from jobherd.django.versions import tasks
from shop.models import Order

task = tasks.task
ON_60 = django.VERSION[:2] == (6, 0)
"""Whether `@task` rejects options of the backend, as in Django 6.0. The settings then contain them."""
SHORT = {"max_attempts": 1, "timeout": "1s"}


@task(takes_context=True)
def finish(context, number):
    """Finish an order. The first attempt waits to be killed; the next one finds its order."""
    if context.attempt == 1:
        Order.objects.filter(number=number).update(state="waiting", worker=os.getpid())
        signal.pause()
    Order.objects.filter(number=number).update(state="done")
    return {"number": number, "attempt": context.attempt}


@task(priority=10, queue_name="media")
async def count(up_to: int):
    """Return the number of orders and some numbers."""
    return [await Order.objects.acount(), *range(up_to)]


@task
def fail():
    """Fail at once."""
    raise Order.DoesNotExist("there is none")


@task(**({} if ON_60 else SHORT))
def stuck():
    """Never return. The timeout of the task ends it."""
    signal.pause()


@handler("shop:receipt")
def receipt(job: Job, number: int) -> str:
    """Change an order through Django's connection, and enqueue on it."""
    Order.objects.create(number=number, state="receipt")
    return f"receipt of {number}"
