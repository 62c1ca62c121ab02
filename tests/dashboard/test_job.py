"""The page of one job: its payload, state, attempts, result, parent and child jobs, and actions."""

from __future__ import annotations

import html
import json
import re

import pytest

from jobherd import Client
from jobherd.workers.dashboard import application
from tests.cli.rows import child, claim, past, send, supervisor
from tests.dashboard.support import Page
from tests.support.queue import Queue

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def queue(database):
    with Queue(database) as queue:
        yield queue


def words(page: Page, path: str, status: int = 200) -> str:
    """Return the text of the page's main part in one line."""
    answer = page.get(path)
    assert answer.status_code == status, answer.text
    return text_of(answer.text)


def text_of(page: str) -> str:
    main = re.sub(r"<(title|textarea).*?</\1>", "", page[page.index("<main") : page.index("</main>")], flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", main)).split())


def fail(queue: Queue, job: int, outcome: str = "failed", **more: object) -> int:
    """Claim the job, record this outcome, and return the fencing token."""
    child = queue.child()
    token = child.claim(10)[0].token
    child.settle(token, [job], outcome, **{"error": "boom", **more})
    return token


def declare(queue, kind):
    queue.run(
        "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed)"
        " VALUES (%s, 'mail', 0, 5, 3, 7, 30)",
        kind,
    )


def test_missing_job_is_not_found_with_an_explanation(page):
    for number in (1, 2**63 - 1):
        assert "it was deleted, or its retention has ended" in words(page, f"/jobs/{number}", 404)
        assert f"Job {number} does not exist" in words(page, f"/jobs/{number}", 404)
    for path in (
        f"/jobs/{2**63}",
        f"/jobs/{2**63}/edit",
        "/jobs/1/edit",
        "/jobs/1/documents/payload",
        "/jobs/1/anything",
    ):
        assert page.get(path).status_code == 404
    assert page.act("/jobs/1/action", do="retry", follow=True).status_code == 200
    assert page.act("/jobs/1/action", do="eat").status_code == 400


def test_job_of_an_undeclared_kind_explains_that_first_and_has_no_run_button(queue, page):
    job = queue.run("SELECT jobherd.enqueue('invoice:print', '{}', '{\"delay\": 3600}')")[0][0]
    said = words(page, f"/jobs/{job}")
    assert said.index("Waiting: no worker has ever declared the kind invoice:print") < said.index(
        "Scheduled: it is not"
    )
    assert "jobherd run --handlers" in said and "Run now" not in said
    assert "No supervisor has ever loaded" in page.get("/kinds/invoice:print").text
    declare(queue, "invoice:print")
    said = words(page, f"/jobs/{job}")
    assert "no worker has ever declared" not in said and "Run now" in said
    assert 'href="/kinds/invoice%3Aprint"' in page.get(f"/jobs/{job}").text


def test_each_state_is_explained_with_its_possible_actions(queue, page):
    declare(queue, "mail:receipt")
    job = queue.run(
        'SELECT jobherd.enqueue(\'mail:receipt\', \'{"order_id": 7}\', \'{"delay": 3600, "queue": "mail", "priority": -3}\')'
    )[0][0]
    said = words(page, f"/jobs/{job}")
    assert "Scheduled: it is not due before" in said
    assert "Run now" in said and "Cancel" in said and "Edit" not in said
    assert '"order_id": 7' in said and "mail priority -3" in said
    page.act(f"/jobs/{job}/action", do="retry")
    assert "Waiting: no supervisor with workers holds a lease" in words(page, f"/jobs/{job}")
    child = queue.child()
    token = child.claim(1)[0].token
    queue.run(
        'INSERT INTO jobherd.progress (job, token, progress) VALUES (%s, %s, \'{"fraction": 0.25, "note": "page 4"}\')',
        job,
        token,
    )
    said = words(page, f"/jobs/{job}")
    assert "Running since" in said and "25 % page 4" in said and "the job runs on another host" in said.lower()
    usage = '{"cpu_user": 1.5, "cpu_system": 0.5, "max_rss": 104857600}'
    child.settle(
        token,
        [job],
        "retry",
        code="BUSY",
        error="no room",
        traceback="Traceback: here",
        delay=60.0,
        usage=usage,
        ran=2.0,
    )
    said = words(page, f"/jobs/{job}")
    assert "Retrying: its first of 5 attempts ended without success" in said
    assert (
        "Attempt 1 ↻ retry BUSY" in said
        and "ran for 2.0 s, on host/1, 2.0 s of processor time, at most 100 MiB of memory" in said
    )
    assert "no room" in said and "Traceback: here" in said
    page.act(f"/jobs/{job}/action", do="cancel")
    said = words(page, f"/jobs/{job}")
    assert "Cancelled at" in said and "Edit and run again" in said
    page.act(f"/jobs/{job}/action", do="retry")
    fail(queue, job, "ok", result='{"sent": true}')
    said = words(page, f"/jobs/{job}")
    assert "Completed at" in said and '"sent": true' in said


def test_crashed_attempt_shows_its_post_mortem_with_stack_and_last_output(queue, page):
    job = queue.enqueue("video:encode")
    told = {
        "sentence": "Process 7 died of SIGSEGV.",
        "cause": "signal",
        "signal": "SIGSEGV",
        "core_dumped": True,
        "stack": "Current thread",
        "log_tail": "last words",
        "cpu_user": 1.0,
        "cpu_system": 0.25,
        "max_rss": 2**20,
        "oom": False,
    }
    fail(queue, job, error="Process 7 died of SIGSEGV.", code="WORKER_CRASHED", post_mortem=json.dumps(told), crashes=3)
    said = words(page, f"/jobs/{job}")
    for part in (
        "Failed at",
        "Process 7 died of SIGSEGV.",
        "WORKER_CRASHED",
        "Current thread",
        "Last log lines of the process last words",
        "core dumped yes",
        "oom no",
        "processor time of the process 1.2 s",
    ):
        assert part in said, part
    assert "of processor" not in said, (
        "the process ran other jobs too, so its processor time is not that of the attempt"
    )


def test_post_mortem_values_have_units_and_the_stack_is_shown_once(queue, page):
    job = queue.enqueue("video:encode")
    memory = {
        "counted": "control group",
        "oom_kills": 1,
        "group": "/web",
        "limit": 2 * 2**30,
        "peak": 2 * 2**30,
        "used": None,
    }
    told = {
        "sentence": "Out of memory.",
        "cause": "oom",
        "memory": memory,
        "lease_age": 2.5,
        "job_age": 75.0,
        "stack": "main thread: in shrink",
    }
    fail(
        queue,
        job,
        error="Out of memory.",
        code="WORKER_CRASHED",
        post_mortem=json.dumps(told),
        traceback="main thread: in shrink",
    )
    said = words(page, f"/jobs/{job}")
    assert "memory control group /web, may take 2.0 GiB, took at most 2.0 GiB, killed there so far: 1" in said
    assert "lease age 2.5 s" in said and "job age 1 min 15 s" in said
    assert said.count("in shrink") == 1


def test_attempt_shows_its_output_and_log_entries(queue, page):
    job = queue.enqueue("mail:receipt")
    log = {
        "output": "building the report",
        "entries": [{"key": "clone", "command": "git clone", "exit_code": 0, "out": "done"}, "odd"],
    }
    fail(queue, job, log=json.dumps(log), error="boom")
    said = words(page, f"/jobs/{job}")
    for part in ("building the report", "Log entries (2)", "clone", "git clone", "done", "odd"):
        assert part in said, part


def test_parent_and_child_jobs_are_links(queue, page):
    first = queue.enqueue("shop:day", parent_id=10**15, traceparent=TRACE)
    second = queue.enqueue("shop:order", parent_id=first)
    third = queue.enqueue("mail:receipt", parent_id=second)
    many = queue.enqueue_many("mail:receipt", 60, parent_id=third)
    said = words(page, f"/jobs/{second}")
    assert f"Parent jobs {first} ● ready shop:day" in said
    assert f"{10**15} is not kept any more" in said
    assert f"Child jobs {third} ● ready mail:receipt" in said
    said = words(page, f"/jobs/{third}")
    assert f"{many[0]} ●" in said and f"{many[-1]} ●" not in said and "Only the first 50 are shown" in said
    assert said.index(f"{second} ● ready shop:order") < said.index(f"{first} ● ready shop:day")
    assert TRACE in words(page, f"/jobs/{first}")
    assert f'href="/jobs/{third}"' in page.get(f"/jobs/{second}").text


def test_long_payload_is_folded_and_a_very_long_one_has_a_link_to_its_full_text(queue, page):
    short, long, longest = (queue.enqueue("a:b", json.dumps({"text": "x" * size})) for size in (10, 10_000, 300_000))
    assert "Show all" not in words(page, f"/jobs/{short}")
    assert "Show all 9.8 KiB" in words(page, f"/jobs/{long}")
    answer = page.get(f"/jobs/{longest}")
    assert "Show all as text" in text_of(answer.text) and len(answer.text) < 200_000
    whole = page.get(f"/jobs/{longest}/documents/payload")
    assert whole.headers["content-type"].startswith("text/plain") and json.loads(whole.text) == {"text": "x" * 300_000}
    assert page.get(f"/jobs/{longest}/documents/result").status_code == 404


def test_page_loads_for_payloads_that_python_cannot_represent(queue, page):
    for text in (
        '{"n": 1e999}',
        '{"half": "\\ud83d"}',
        "[" * 5000 + "]" * 5000,
        '{"n": ' + "9" * 5000 + "}",
        '"' + "\\u0001" * 50 + '"',
    ):
        queue.run("INSERT INTO jobherd.ready (kind, queue, payload) VALUES ('a:b', 'default', %s::json)", text)
        job = queue.run("SELECT max(id) FROM jobherd.ready")[0][0]
        answer = page.get(f"/jobs/{job}")
        assert answer.status_code == 200, text[:40]
        answer.content.decode()


def test_edited_payload_runs_as_a_new_job_and_the_old_job_does_not_change(queue, page):
    job = queue.run(
        "SELECT jobherd.enqueue_bytes('mail:receipt', 'abc', %s::jsonb, '{\"order_id\": \"seven\"}')",
        json.dumps({"queue": "mail", "priority": -3, "tenant": "acme", "max_attempts": 2, "traceparent": TRACE}),
    )[0][0]
    assert page.get(f"/jobs/{job}/edit").status_code == 409
    assert page.act(f"/jobs/{job}/edit/action", payload="{}").status_code == 409
    fail(queue, job, "poison", error="order_id must be a number")
    form = page.get(f"/jobs/{job}/edit").text
    assert "&#34;order_id&#34;: &#34;seven&#34;" in form
    answer = page.act(f"/jobs/{job}/edit/action", payload='{"order_id": 7}', reason="it was a word", follow=True)
    new = int(answer.url.path.rsplit("/", 1)[1])
    assert f"Job {job} runs again as job {new}" in answer.text
    before, after = queue.job(job), queue.job(new)
    assert (before["state"], before["payload"]) == ("failed", {"order_id": "seven"})
    kept = ("kind", "queue", "priority", "max_attempts", "tenant", "traceparent", "payload_bytes")
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert (after["payload"], after["parent_id"], after["state"], after["attempts"]) == (
        {"order_id": 7},
        job,
        "ready",
        0,
    )
    assert f"Child jobs {new}" in words(page, f"/jobs/{job}")
    assert f"Parent jobs {job}" in words(page, f"/jobs/{new}")


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ('{"order_id": 7', "line 1, column 15"),
        ('{\n  "order_id": 7\n  "x": 1}', "line 3, column 3"),  # Python 3.13 places a trailing comma elsewhere
        ("", "line 1, column 1"),
        ('{"items": [{"name": "a\\u0000b"}]}', "$.items[0].name"),
        ('{"n": [1, 1e999]}', "infinity"),
        ('{"half": "\\ud800"}', "surrogate"),
        ("[" * 200 + "]" * 200, "100 levels"),
        ('{"text": "' + "x" * 1_000_001 + '"}', "more than 1,000,000"),
    ],
)
def test_invalid_payload_is_rejected_with_its_position_and_stays_in_the_form(queue, page, payload, says):
    job = queue.enqueue("mail:receipt")
    fail(queue, job)
    answer = page.act(f"/jobs/{job}/edit/action", payload=payload)
    assert answer.status_code == 422
    assert says in html.unescape(answer.text)
    assert html.unescape(re.search(r"<textarea[^>]*>\n(.*?)</textarea>", answer.text, re.DOTALL)[1]) == payload
    assert queue.count("ready") == 0


def test_read_only_page_has_no_buttons_and_rejects_actions(queue, database):
    job = queue.enqueue("mail:receipt")
    fail(queue, job)
    with Page(application(database, read_only=True)) as page:
        assert "Run again" not in words(page, f"/jobs/{job}")
        assert page.get(f"/jobs/{job}/edit").status_code == 403
        for path, fields in (
            (f"/jobs/{job}/action", {"do": "delete"}),
            (f"/jobs/{job}/edit/action", {"payload": "{}"}),
        ):
            assert page.act(path, **fields).status_code == 403
    assert queue.state(job) == "failed"


def test_control_characters_are_shown_as_symbols_but_unchanged_in_form_values(page, queue):
    code, error = "NO\x1b[1mPAPER\x9b", "the printer said\x07\nand no more"
    job = queue.enqueue("a:b", max_attempts=1)
    fail(queue, job, code=code, error=error)
    shown = page.get(f"/jobs/{job}").text
    assert "NO␛[1mPAPER\\x9b" in shown
    assert "the printer said␇" in shown
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", shown)
    with_filter = page.get("/jobs", params={"code": code}).text
    assert f'name="code" value="{code}"' in with_filter
    assert f'href="/jobs/{job}"' in with_filter


def test_unique_job_shows_its_key_and_which_job_holds_it(page, queue):
    client = Client(connection=queue.connection)
    first = client.enqueue("a:b", {"n": 1}, unique=("n",))
    assert 'Unique key {"n": 1} This job holds it.' in words(page, f"/jobs/{first}")
    queue.cancel(first)
    assert 'Unique key {"n": 1} No job holds it.' in words(page, f"/jobs/{first}")
    second = client.enqueue("a:b", {"n": 1}, unique=("n",))
    assert f'Unique key {{"n": 1}} Job {second} holds it.' in words(page, f"/jobs/{first}")
    queue.run("DELETE FROM jobherd.keys")
    assert "Unique key deleted No job holds it." in words(page, f"/jobs/{first}")
    plain = client.enqueue("a:b", {"n": 1})
    assert "Unique key" not in words(page, f"/jobs/{plain}")
    throttled = client.enqueue("a:b", {"n": 2}, unique=("n",), throttle="1h")
    queue.cancel(throttled)
    assert 'Unique key {"n": 2} This job holds it until 20' in words(page, f"/jobs/{throttled}")


def test_a_long_error_is_folded_and_kind_queue_and_host_are_links(page, database):
    job = past(database, "failed", error="ValueError: " + "x" * 40_000)
    text = page.get(f"/jobs/{job}").text
    shown = re.sub(r"<details.*?</details>", "", text, flags=re.DOTALL)
    assert "x" * 300 in shown
    assert "x" * 500 not in shown
    assert "Show all 40,0" in text
    assert "x" * 40_000 in text
    for to in ("/kinds/mail%3Areceipt", "/errors?kind=mail%3Areceipt", "/jobs?queue=default", "/fleet"):
        assert f'<dd><a href="{to}"' in text or f'<a href="{to}">its errors' in text, to


def test_only_a_completed_job_needs_a_confirmation_to_run_again(page, database):
    asks = "its effects happen twice"
    assert asks in page.get(f"/jobs/{past(database, 'completed')}").text
    assert asks not in page.get(f"/jobs/{past(database, 'failed')}").text


def test_running_job_shows_the_time_left_until_its_timeout(page, database):
    send(database, "SELECT jobherd.enqueue('a:b', '{}', '{\"timeout\": \"1h\"}')")
    job = claim(database, child(database, supervisor(database)))
    assert re.search(r"1 h <span class=\"note\">ends <time[^>]*>in (59 min|1 h)", page.get(f"/jobs/{job}").text)


def test_recorded_steps_are_shown_without_redacted_parts(page, database, queue):
    job = queue.enqueue("a:b")
    send(
        database,
        "INSERT INTO jobherd.kinds (name, queue, priority, max_attempts, max_crashes, keep_completed, keep_failed, redact)"
        """ VALUES ('a:b', 'default', 0, 5, 3, 7, 30, '["$.card"]')""",
    )
    send(
        database,
        """INSERT INTO jobherd.steps (job, name, result, token, attempt, version)
           VALUES (%s, 'charge', '{"card": "4111-2222", "id": "ch_1"}', 1, 1, 2), (%s, 'mail', NULL, 1, 3, 1)""",
        job, job,
    )  # fmt: skip
    text = words(page, f"/jobs/{job}")
    assert "charge attempt 1" in text
    assert "version 2" in text
    assert "ch_1" in text
    assert "4111-22" not in text
    assert text.index("charge") < text.index("mail attempt 3")


@pytest.mark.parametrize("topic", ["job/{}/approved", "order/7"])
def test_form_sends_the_signal_that_a_suspended_job_waits_for(page, database, topic):
    job = send(database, "SELECT jobherd.enqueue('a:b', '{}', '{\"delay\": \"1d\"}')")[0][0]
    where, topic = f"/jobs/{job}", topic.format(job)
    assert "Send the signal" not in page.get(where).text
    send(database, "INSERT INTO jobherd.waits (job, name, topic) VALUES (%s, 'approved', %s)", job, topic)
    form = page.get(where).text
    assert "Send the signal" in form
    given = {"name": "approved"} | ({"topic": topic} if 'name="topic"' in form else {})
    assert ("topic" in given) is (topic == "order/7")
    assert "No signal was sent: This is not JSON" in html.unescape(
        page.act_at(where, f"{where}/signal", follow=True, payload="{", **given).text
    )
    assert send(database, "SELECT topic FROM jobherd.signals") == []
    answer = page.act_at(where, f"{where}/signal", follow=True, payload='{"by": "ada"}', reason="she said so", **given)
    assert f"The signal {given.get('topic', 'approved')} is sent." in answer.text
    assert send(database, "SELECT topic, payload FROM jobherd.signals") == [(topic, {"by": "ada"})]
    [(action, target, reason)] = send(database, "SELECT action, target, reason FROM jobherd.audit")
    assert (action, reason) == ("signal", "she said so")
    assert target == {"job": job, "signal": given.get("topic", "approved")}
    assert page.post(f"{where}/signal", data=given).status_code == 403, "the CSRF token is missing"


def test_signal_to_a_missing_job_shows_an_error(page, queue):
    job = queue.enqueue("a:b")
    answer = page.act_at(f"/jobs/{job}", f"/jobs/{job + 1}/signal", follow=True, name="approved")
    assert f"Job {job + 1} does not exist any more." in answer.text


def test_a_job_that_waits_for_child_jobs_has_no_form_for_signals(page, database):
    job = send(database, "SELECT jobherd.enqueue('a:b', '{}', '{\"delay\": \"1d\"}')")[0][0]
    send(
        database,
        "INSERT INTO jobherd.waits (job, name, topic, flow) VALUES (%s, 'gather:labels', 'flow/7', 7)",
        job,
    )
    text = page.get(f"/jobs/{job}").text
    assert "child jobs have ended" in text
    assert "Send the signal" not in text


def test_attempts_of_a_second_run_show_the_run_number(page, queue):
    job = queue.enqueue("mail:send")
    fail(queue, job)
    assert "Attempt 1 ✕ failed" in words(page, f"/jobs/{job}")
    assert queue.retry(job)
    fail(queue, job)
    said = words(page, f"/jobs/{job}")
    assert said.index("Run 2, attempt 1") < said.index("Run 1, attempt 1")
