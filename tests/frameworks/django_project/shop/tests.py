"""Tests of the sample project with pytest-django. tests/frameworks/test_django.py runs them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobherd import PayloadError
from jobherd.django.models import Job
from jobherd.django.task import declared
from jobherd.django.versions import InvalidTask, TaskResultDoesNotExist, signals, tasks
from shop.models import Order
from shop.tasks import count, fail, finish, receipt, stuck

pytestmark = pytest.mark.django_db


@pytest.fixture
def staff(client, django_user_model):
    """A user of the admin who may act on jobs."""
    user = django_user_model.objects.create_user("ada", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="change_job", content_type__app_label="jobherd"))
    client.force_login(user)
    return client


def test_migrate_creates_the_schema_and_checks_report_nothing():
    call_command("check")
    call_command("makemigrations", check=True, dry_run=True)
    assert Job.objects.count() == 0


def test_task_is_enqueued_in_the_transaction_of_its_caller():
    heard = []
    signals.task_enqueued.connect(lambda **given: heard.append(given["task_result"].id), weak=False)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        finish.enqueue(7)
        raise ZeroDivisionError
    assert Job.objects.count() == 0
    result = finish.enqueue(7)
    assert heard[-1] == result.id
    assert (result.status, result.args, result.attempts) == ("READY", [7], 0)
    job = Job.objects.get()
    assert (job.kind, job.payload, job.queue) == (
        "shop:finish",
        {"task": "shop.tasks.finish", "args": [7], "kwargs": {}},
        "default",
    )
    later = count.using(priority=-20, run_after=timezone.now() + timedelta(hours=1)).enqueue(up_to=3)
    job = Job.objects.get(pk=later.id)
    assert (job.state, job.priority, job.queue, job.payload["kwargs"]) == ("scheduled", 20, "media", {"up_to": 3})
    assert count.get_result(later.id).kwargs == {"up_to": 3}
    receipt.enqueue(number=5)
    assert Job.objects.filter(kind="shop:receipt").count() == 1


def test_invalid_tasks_payloads_and_options_are_rejected():
    with pytest.raises(TypeError):
        finish.enqueue(object())
    with pytest.raises(PayloadError):
        receipt.enqueue(number="seven")
    with pytest.raises(InvalidTask, match="Queue 'no' is not valid"):
        finish.using(queue_name="no")
    with pytest.raises(InvalidTask, match="timeout"):
        tasks.default_task_backend.options["timeout"] = "soon"
        try:
            finish.using(priority=1)
        finally:
            del tasks.default_task_backend.options["timeout"]
    for unknown in ("1", "no"):
        with pytest.raises(TaskResultDoesNotExist):
            finish.get_result(unknown)
    with pytest.raises(InvalidTask, match="max_attempts"):
        replace(stuck, max_attempts=0)
    assert set(declared) == {f"shop.tasks.{name}" for name in ("finish", "count", "fail", "stuck")}


def test_options_of_a_task_come_from_its_decorator_and_then_from_the_settings():
    from jobherd.django.handlers import handler_of

    policies = {task.name: handler_of(task).policy for task in (stuck, fail, finish)}
    assert {name: (policy.max_attempts, policy.timeout) for name, policy in policies.items()} == {
        "stuck": (1, 1.0),  # @task(max_attempts=1, timeout="1s"); OPTIONS["tasks"] of Django 6.0
        "fail": (1, policies["finish"].timeout),  # OPTIONS["tasks"]
        "finish": (3, policies["finish"].timeout),  # OPTIONS
    }


def test_handler_has_the_file_and_line_of_its_task():
    from jobherd.django.handlers import handler_of

    for task in (fail, count):
        found = handler_of(task)
        assert (found.file, found.line) == (task.func.__code__.co_filename, task.func.__code__.co_firstlineno)


def test_coroutine_enqueues_through_the_thread_of_django():
    async def enqueue():
        with pytest.raises(TypeError, match=r"await sync_to_async\(handler.enqueue"):
            await receipt.aenqueue(number=1)
        return [await fail.aenqueue(), await sync_to_async(receipt.enqueue)(number=2)]

    assert len(async_to_sync(enqueue)()) == Job.objects.count() == 2


def test_admin_shows_cancels_and_retries_jobs(staff):
    result = fail.enqueue()
    page = staff.get("/admin/jobherd/job/").content.decode()
    assert "shop:fail" in page and f'href="/jobherd/jobs/{result.id}"' in page
    assert (
        "&quot;task&quot;: &quot;shop.tasks.fail&quot;"
        in staff.get(f"/admin/jobherd/job/{result.id}/change/").content.decode()
    )
    assert staff.get("/admin/jobherd/job/add/").status_code == 403
    for action, state in (("cancel", "cancelled"), ("retry", "ready")):
        staff.post("/admin/jobherd/job/", {"action": action, "_selected_action": [result.id]})
        assert Job.objects.get(pk=result.id).state == state
    with connection.cursor() as cursor:
        cursor.execute("SELECT actor FROM jobherd.audit WHERE action IN ('cancel', 'retry')")
        assert {row[0] for row in cursor.fetchall()} == {"ada"}


def test_job_list_does_not_read_histories_and_job_page_switches_jit_off(staff):
    """The column `history` reads each partition of the attempts, and PostgreSQL compiles such a query for seconds."""
    result = fail.enqueue()
    with CaptureQueriesContext(connection) as queries:
        staff.get("/admin/jobherd/job/")
        Job.objects.get(pk=result.id)
    assert len(queries) > 2 and "history" not in str(queries.captured_queries)
    with CaptureQueriesContext(connection) as queries:
        staff.get(f"/admin/jobherd/job/{result.id}/change/")
    statements = [query["sql"] for query in queries.captured_queries]
    (reads,) = [place for place, statement in enumerate(statements) if "history" in statement]
    assert "SET LOCAL jit = off" in statements[:reads]
    with CaptureQueriesContext(connection) as queries:
        assert fail.get_result(result.id).attempts == 0
    # Django does not log the client's own statement, which goes directly to the driver
    assert "SET LOCAL jit = off" in [query["sql"] for query in queries.captured_queries]


def test_page_polls_the_progress_of_a_job(client):
    number = receipt.enqueue(number=5)
    assert client.get(f"/progress/{number}/").json() == {"state": "ready", "progress": None, "result": None}
    assert f'"/progress/{number}/"' in client.get(f"/watch/{number}/").content.decode()
    assert client.get("/progress/99999/").status_code == 404


def test_admin_denies_access_without_the_permission(client, django_user_model):
    client.force_login(django_user_model.objects.create_user("bob", is_staff=True))
    assert client.get("/admin/jobherd/job/").status_code == 403
    assert not Order.objects.exists()


def test_inline_jobs_run_inside_the_transaction_of_the_test(jobherd_inline):
    from jobherd.django.handlers import handler_of

    Order.objects.create(number=1)
    result = count.enqueue(up_to=1)
    fail.enqueue()
    receipt.options(delay="1h").enqueue(number=8)
    # a coroutine of Django uses the connection of this thread only inside async_to_sync
    ran = async_to_sync(jobherd_inline.adrain)([handler_of(count), handler_of(fail), receipt])
    assert [job.ran[0].outcome.label for job in ran] == ["ok", "failed"]
    assert ran[0].ran[0].value() == [1, 0]
    jobherd_inline.advance("1h")
    assert jobherd_inline.drain([receipt])[0].ran[0].value() == "receipt of 8"
    assert Order.objects.get(number=8).state == "receipt"
    assert Job.objects.get(pk=result.id).kind == "shop:count"


def test_tasks_are_recorded_without_a_database(jobherd_recorder):
    finish.enqueue(7)
    assert jobherd_recorder.assert_enqueued("shop:finish", args=[7]).payload["task"] == "shop.tasks.finish"
