"""Enqueue a job from the dashboard: the form of a kind, its validation, and the required role."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import datetime
from enum import Enum
from html import unescape
from html.parser import HTMLParser
from typing import Literal

import psycopg
import pytest
from playwright.sync_api import expect

from jobherd import handler, sql
from jobherd.workers.dashboard import Role, application
from jobherd.workers.dashboard.payload_form import payload_of, read_signature
from jobherd.workers.dashboard.redaction import HIDDEN
from jobherd.workers.run.declaration import kinds_of
from jobherd.workers.run.signatures import signature_of
from tests.cli.rows import send
from tests.dashboard.support import W01, Page


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


@handler("mail:send", queue="mail", priority=3, redact=["$.secret"])
def mail(
    to: str,
    copies: int = 2,
    weight: float | None = None,
    urgent: bool = True,
    size: Size = Size.SMALL,
    tone: Literal["plain", "warm"] | None = None,
    at: datetime | None = None,
    lines: list[str] = [],  # noqa: B006  # what a user may write
    secret: str = "hunter2-is-my-word",
) -> None: ...


OBEYED = ("script", "img", "svg", "b", "on")


class Elements(HTMLParser):
    """Counts the elements of a page by name, and the attributes that run scripts as "on"."""

    def __init__(self, text):
        super().__init__()
        self.count = Counter()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.count[tag] += 1
        self.count["on"] += sum(name.startswith("on") for name, _ in attrs)


def declare(dsn, *handlers):
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(sql.load("lease/register_kinds"), kinds_of({one.kind: one for one in handlers}))


def jobs(dsn):
    return send(dsn, "SELECT kind, payload, queue, priority, state FROM jobherd.jobs ORDER BY id")


def test_each_parameter_has_a_field_of_its_type_with_its_default(page, database):
    declare(database, mail)
    shown = page.get("/enqueue?kind=mail:send").text
    fields = dict(re.findall(r'id="field:(\w+)" name="field:\w+"(?: type="(\w+)"| class="short"|(?=>))', shown))
    assert fields == {
        "to": "text", "copies": "number", "weight": "number", "urgent": "checkbox", "size": "", "tone": "", "at": "text",
        "lines": "", "secret": "text",
    }  # fmt: skip
    assert 'name="field:copies" type="number" value="" placeholder="2"' in shown
    assert 'name="field:urgent" type="checkbox" value="true" checked' in shown
    assert '<option value="">default: small</option><option value="small">' in shown
    assert (HIDDEN in shown, "hunter2" in shown) == (True, False)
    assert ">Enqueue a job</a>" in page.get("/kinds/mail:send").text


def test_form_enqueues_a_job_writes_an_audit_entry_and_opens_the_job(page, database):
    declare(database, mail)
    given = {"field:to": "ann", "field:copies": "7", "field:weight": "1.5", "field:size": "large"}
    given |= {"field:lines": '["a", 1]', "queue": "slow", "priority": "-4", "delay": "10m", "reason": "she asked"}
    done = page.act_at("/enqueue?kind=mail:send", "/enqueue/action", kind="mail:send", follow=True, **given)
    payload = {"to": "ann", "copies": 7, "weight": 1.5, "urgent": False, "size": "large", "lines": ["a", 1]}
    assert jobs(database) == [("mail:send", payload, "slow", -4, "scheduled")]
    ((job, at),) = send(database, "SELECT id, run_at - created_at FROM jobherd.jobs")
    assert (str(done.url).endswith(f"/jobs/{job}"), f"Job {job} is enqueued." in done.text) == (True, True)
    assert at.total_seconds() == pytest.approx(600, abs=1)
    written = send(database, "SELECT actor <> '', action, target, reason FROM jobherd.audit")
    assert written == [(True, "enqueue", {"job": job, "kind": "mail:send"}, "she asked")]


def test_each_error_names_its_field_and_typed_values_stay_in_the_form(page, database):
    declare(database, mail)
    given = {"field:copies": "7x", "field:weight": "inf", "field:lines": "[1", "field:size": "huge"}
    given |= {"queue": "No Queue", "priority": "99999", "delay": "soon", "field:tone": "warm"}
    answer = page.act("/enqueue/action", kind="mail:send", **given)
    assert answer.status_code == 422
    said = dict(re.findall(r'id="problem-([^"]*)" role="alert">([^<]*)<', unescape(answer.text)))
    assert said.pop("queue").startswith("queue 'No Queue' is not a name")
    assert said.pop("priority").startswith("priority must be a whole number")
    assert said.pop("delay").startswith("delay")
    assert said.pop("field:lines").startswith("lines: This is not JSON: ")
    assert said == {
        "field:to": "to is missing: the handler needs it.",
        "field:copies": "invalid copies “7x”: expected a whole number.",
        "field:weight": "invalid weight “inf”: expected a number.",
        "field:size": "invalid size “huge”: expected one of small, large.",
    }
    assert '<option value="warm" selected>' in answer.text
    assert ">\n[1</textarea>" in answer.text
    assert jobs(database) == []


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ('{"to": "ann", "other": 1}', "invalid payload: the handler has no parameter 'other'."),
        ('{"copies": 1}', "invalid payload: to is missing, and the handler needs it."),
        ("[1]", "invalid payload: expected an object with the handler's parameters as keys."),
        ("{", "payload: This is not JSON: "),
        ('{"to": "a\\u0000b"}', "payload: "),
        ('{"to": "ann"}', ""),
    ],
)
def test_payload_can_be_written_as_json_instead(written, problem):
    signature = read_signature(signature_of(mail), ())
    payload, problems = payload_of(signature, {"payload": written, "field:to": "not this"})
    assert list(problems) == (["payload"] if problem else [])
    assert problems.get("payload", "").startswith(problem)
    assert problem or json.loads(payload) == {"to": "ann"}


def test_kind_without_a_known_signature_takes_its_payload_as_json(page, database):
    shown = page.get("/enqueue?kind=other:kind").text
    assert "No supervisor has ever loaded a handler of this name" in shown
    assert page.act("/enqueue/action", kind="other:kind", payload='{"a": [1]}').status_code == 303
    assert page.act("/enqueue/action", kind="other:kind", payload=" ").status_code == 422
    assert jobs(database) == [("other:kind", {"a": [1]}, "default", 0, "ready")]


def test_invalid_kind_name_is_rejected_with_a_choice_of_kinds(page, database):
    declare(database, mail)
    for answer in (page.get("/enqueue?kind=No Kind"), page.act("/enqueue/action", kind="No Kind", payload="{}")):
        assert (answer.status_code, "is not a name like" in answer.text) == (422, True)
        assert '<option value="mail:send">' in answer.text
    assert jobs(database) == []


def test_kinds_that_only_a_program_can_enqueue_are_rejected(page, database):
    @handler("file:read")
    def read(payload_bytes: bytes) -> None: ...

    sealed = handler("card:charge", encrypt=True)(lambda card: None)
    declare(database, read, sealed)
    refused = (
        ("file:read", "need payload_bytes"),
        ("card:charge", "payloads are encrypted"),
        ("jobs:webhook", "Jobherd itself enqueues"),
    )
    for kind, reason in refused:
        assert reason in page.get(f"/enqueue?kind={kind}").text
        assert reason in page.act("/enqueue/action", kind=kind, payload="{}", follow=True).text
    assert jobs(database) == []


def test_enqueue_requires_the_role_operate_a_csrf_token_and_the_same_origin(database):
    declare(database, mail)
    for options in ({"authorize": lambda _: Role.VIEW}, {"read_only": True}):
        with Page(application(database, **options)) as page:
            assert page.get("/enqueue?kind=mail:send").status_code == 403
            assert page.act("/enqueue/action", kind="mail:send", payload='{"to": "a"}').status_code == 403
            for path in ("/jobs", "/kinds", "/kinds/mail:send"):
                assert "/enqueue" not in page.get(path).text
    with Page(application(database)) as page:
        form = {"kind": "mail:send", "payload": '{"to": "a"}'}
        assert page.post("/enqueue/action", data=form).status_code == 403
        assert page.post(
            "/enqueue/action", data=form | {"csrf": page.csrf()}, headers={"Host": "evil.example"}
        ).status_code in {400, 403, 421}
        evil = {"Origin": "https://evil.example"}
        assert page.post("/enqueue/action", data=form | {"csrf": page.csrf()}, headers=evil).status_code == 403
    assert jobs(database) == []


@pytest.mark.parametrize("text", W01)
def test_form_escapes_declared_and_typed_texts(page, database, text):
    declare(database, mail)
    one = {"name": text, "type": text, "input": text, "default": json.dumps(text), "required": True}
    stored = json.dumps({"open": True, "parameters": [one, one | {"input": "text", "choices": [text, 7]}, 7, {}]})
    send(database, "UPDATE jobherd.kinds SET signature = %s", stored)
    given = {"kind": "mail:send", f"field:{text}": text, "queue": text, "delay": text, "reason": text}
    plain = Elements(page.get("/enqueue?kind=other:kind").text)
    for answer in (page.get("/enqueue?kind=mail:send"), page.act("/enqueue/action", **given)):
        assert answer.status_code in {200, 422}
        found = Elements(answer.text)
        assert [found.count[one] for one in OBEYED] == [plain.count[one] for one in OBEYED]
        assert found.count["option"] > plain.count["option"]


@pytest.mark.parametrize("stored", [None, "", "{", "[]", "7", '{"open": 1}', '{"parameters": 7}', "{}", "[" * 100_000])
def test_unreadable_signature_falls_back_to_the_json_payload(stored):
    assert payload_of(read_signature(stored, ()), {"payload": "[7]"}) == ("[7]", {})


def test_signature_is_deterministic_and_odd_defaults_do_not_break_the_declaration(database):
    class Odd:
        def __iter__(self):
            raise RuntimeError("a default of a user")

    @handler("odd:one")
    def odd(
        a, b: int | str = Odd(), c: str = "a\0b", d: dict[str, int] = {"k": 1}, e: str = "x" * 500, **more: int
    ): ...  # noqa: B006, B008

    @handler("odd:whole")
    def whole(payload: list[int]) -> None: ...

    declare(database, odd, whole)
    found = json.loads(signature_of(odd))
    assert [(one["name"], one["input"], one.get("default")) for one in found["parameters"]] == [
        ("a", "json", None), ("b", "json", None), ("c", "text", None), ("d", "json", '{"k":1}'), ("e", "text", None),
    ]  # fmt: skip
    assert found["open"]
    with psycopg.connect(database, autocommit=True) as conn:
        again = kinds_of({one.kind: one for one in (odd, whole)})
        assert conn.execute(sql.load("lease/register_kinds"), again).rowcount == 0
    assert read_signature(signature_of(whole), ()).is_document
    assert payload_of(read_signature(signature_of(odd), ()), {"field:a": "7"}) == ('{"a":7}', {})


def test_form_enqueues_a_job_without_scripts(browser, herd):
    with herd.window(browser, java_script_enabled=False) as tab:
        tab.goto("/kinds")
        tab.get_by_role("link", name="Enqueue a job").click()
        tab.get_by_label("Kind").fill("mail:receipt")
        tab.get_by_role("button", name="Continue").click()
        tab.get_by_label("order_id").fill("41")
        tab.get_by_label("Delay").fill("1h")
        tab.get_by_role("button", name="Enqueue", exact=True).click()
        tab.wait_for_url(re.compile(r"/jobs/\d+$"))
        expect(tab.locator("main")).to_contain_text('"order_id": 41')
