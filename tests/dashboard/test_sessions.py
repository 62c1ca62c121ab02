"""Sessions of the dashboard end on every supervisor of the database, by a logout or a new secret.

Also the limits for wrong tokens.
"""

from __future__ import annotations

import re
from itertools import islice

import httpx2 as httpx
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from jobherd.workers.dashboard import Role, application, event_stream, login_limits, sessions
from jobherd.workers.dashboard.cookies import VISIT
from jobherd.workers.dashboard.login_limits import ADDRESS, ALL, LoginLimits
from jobherd.workers.dashboard.sessions import ROTATE
from tests.cli.rows import send
from tests.dashboard.support import Page
from tests.support.patience import LIMIT
from tests.workers.web.support import Web

OPERATE, VIEW, WRONG = "operate-0123456789abcdef", "view-0123456789abcdef", "wrong-0123456789abcdef"
NOTES = "SELECT actor, action, target FROM jobherd.audit ORDER BY id"


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Read the secrets on each request, so that no test has to wait."""
    monkeypatch.setattr(sessions, "REFRESH", 0.0)


@pytest.fixture
def supervisors(database):
    """Two dashboards of one database, and a browser at each."""
    tokens = {"operate_tokens": [f"alice={OPERATE}"], "view_tokens": [VIEW]}
    with Page(application(database, **tokens)) as one, Page(application(database, **tokens)) as other:
        yield one, other


def log_in(page, token=OPERATE):
    answer = page.act_at("/login", "/login", token=token)
    assert answer.status_code == 303, answer.text
    return dict(page.cookies)


def is_in(page, cookies):
    page.cookies.clear()
    for name, value in cookies.items():
        page.cookies.set(name, value, domain="localhost.local")
    return page.get("/queues", follow_redirects=False).status_code == 200


def test_session_is_valid_on_every_supervisor_until_a_logout_on_one(supervisors, database):
    """Regression: a logout only deleted the cookie in the browser, and a copy was accepted for 12 h."""
    one, other = supervisors
    mine, another = log_in(one), log_in(other)
    assert is_in(other, mine)
    assert is_in(one, mine)
    assert one.act_at("/queues", "/logout").status_code == 303
    for page in supervisors:
        assert not is_in(page, mine)
        assert is_in(page, another), "another session of the same token must stay valid"
    with Page(application(database, operate_tokens=[f"alice={OPERATE}"], view_tokens=[VIEW])) as later:
        assert not is_in(later, mine)
        assert is_in(later, another)


def test_all_sessions_end_when_the_secret_is_replaced(supervisors, database):
    one, other = supervisors
    cookies = log_in(one), log_in(other, VIEW)
    assert is_in(one, cookies[1])
    refused = one.act_at("/queues", "/sessions/end")
    assert (refused.status_code, is_in(one, cookies[1])) == (403, True), "a view token must not end sessions"
    assert is_in(one, cookies[0])
    assert "End all sessions" in one.get("/audit").text
    answer = one.act_at("/queues", "/sessions/end", follow=True)
    assert "All sessions have ended" in answer.text
    assert 'name="token"' in answer.text
    assert not any(is_in(page, mine) for page in supervisors for mine in cookies)
    again = log_in(one)
    assert is_in(other, again)
    send(database, "SELECT jobherd.end_dashboard_sessions('anna', 'a token was sent by mail')")
    assert not any(is_in(page, again) for page in supervisors)
    assert [(actor, action) for actor, action, _ in send(database, NOTES) if action == "end sessions"] == [
        ("dashboard:alice", "end sessions"),
        ("anna", "end sessions"),
    ]


def test_rotation_of_the_secret_ends_no_session(supervisors, database):
    one, other = supervisors
    mine = log_in(one)
    old = send(database, "SELECT secret FROM jobherd.dashboard_secrets")
    send(database, f"UPDATE jobherd.dashboard_secrets SET made_at = now() - interval '{ROTATE + 1} seconds'")
    assert is_in(other, mine)
    assert is_in(one, mine)
    secrets = send(database, "SELECT secret FROM jobherd.dashboard_secrets ORDER BY id")
    assert (len(secrets), secrets[:1], len({bytes(secret) for (secret,) in secrets})) == (2, old, 2)
    assert one.act_at("/queues", "/queues/action", do="pause", scope="queue", name="mail").status_code == 303, (
        "a form must be accepted, too"
    )
    send(
        database,
        "UPDATE jobherd.dashboard_secrets SET made_at = now() - interval '13 hours' WHERE id = (SELECT max(id) FROM jobherd.dashboard_secrets)",
    )
    assert not is_in(one, mine), "the old secret must be valid only for as long as one of its sessions could last"


def test_stream_ends_when_its_session_ends(database, monkeypatch):
    monkeypatch.setattr(event_stream, "ALIVE", 0.1)
    headers = {"Origin": "http://127.0.0.1"}
    with (
        Web(database, dashboard=True, dashboard_operate_token=(OPERATE,)) as web,
        httpx.Client(base_url=f"http://127.0.0.1:{web.port}", timeout=LIMIT) as browser,
    ):
        headers = {"Origin": str(browser.base_url)}

        def csrf(path):
            return re.search(r'<meta name="csrf" content="([^"]*)">', browser.get(path).text)[1]

        browser.post("/login", data={"token": OPERATE, "csrf": csrf("/login")}, headers=headers)
        leave = {"csrf": csrf("/queues")}
        with browser.stream("GET", "/live?topic=queues") as stream:
            parts = stream.iter_text()
            assert any("event: fragment" in part for part in parts)
            assert browser.post("/logout", data=leave, headers=headers).status_code == 303
            assert len(list(islice(parts, 100))) < 100, "the stream must end"


@pytest.mark.parametrize("role", ["jobherd_read", "jobherd_enqueue"])
def test_dashboard_whose_role_cannot_read_the_secret_uses_its_own(database, role, caplog):
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(f"SET ROLE {role}")  # type: ignore[arg-type]
        for statement in (
            "SELECT secret FROM jobherd.dashboard_secrets",
            "SELECT jobherd.end_dashboard_sessions()",
            "SELECT * FROM jobherd.dashboard_logouts",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                owner.execute(statement)
    as_role = make_conninfo(database, options=f"-c role={role}")
    with (
        Page(application(as_role, view_tokens=[VIEW])) as page,
        Page(application(database, view_tokens=[VIEW])) as served,
    ):
        mine = log_in(page, VIEW)
        assert not is_in(served, mine)
        assert page.act_at("/login", "/logout").status_code == 303
        assert not is_in(page, mine), "the logout must apply in this process at least"
    assert caplog.text.count("sessions end with this process") == 1


def test_each_process_of_a_site_accepts_forms_of_the_other_processes(database):
    """Regression: each process had its own key and rejected forms that another process had made."""
    with (
        Page(application(database, authorize=lambda _: Role.OPERATE), host="site.example") as one,
        Page(application(database, authorize=lambda _: Role.OPERATE), host="site.example") as other,
    ):
        sent = {"csrf": one.csrf("/queues"), "do": "pause", "scope": "queue", "name": "mail"}
        other.cookies.set(VISIT, one.cookies[VISIT], domain="site.example")
        answer = other.post(
            "/queues/action", data=sent, headers={"Origin": "http://site.example"}, follow_redirects=False
        )
        assert answer.status_code == 303
    assert [action for _, action, _ in send(database, NOTES)] == ["pause"]


def test_dashboard_on_an_older_schema_uses_its_own_secret(database):
    send(database, "DROP TABLE jobherd.dashboard_secrets CASCADE")
    with Page(application(database, operate_tokens=[OPERATE])) as page:
        assert is_in(page, log_in(page))


# -- wrong tokens


@pytest.mark.parametrize("bearer", [True, False])
def test_address_with_too_many_wrong_tokens_is_rejected_for_a_time(database, monkeypatch, bearer):
    now = [1000.0]
    app = application(database, operate_tokens=[OPERATE])
    app.state.login_limits = LoginLimits(clock=lambda: now[0])

    def show(page, token):
        if bearer:
            return page.get("/queues", headers={"Authorization": f"Bearer {token}"}, follow_redirects=False)
        return page.act_at("/login", "/login", token=token)

    wrong, right = (401, 200) if bearer else (403, 303)
    with Page(app, address="10.1.2.3") as guesser:
        assert show(guesser, OPERATE).status_code == right
        guesser.cookies.clear()
        for _ in range(ADDRESS[0]):
            assert show(guesser, WRONG).status_code == wrong
        for token in (WRONG, OPERATE):
            answer = show(guesser, token)
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "10")
            assert "Too many wrong tokens. Try again in 10 s." in answer.text
        assert show(Page(app, address="10.1.2.4"), OPERATE).status_code == right, "another address must not be limited"
        now[0] += ADDRESS[1]
        assert show(guesser, WRONG).status_code == wrong
        assert show(guesser, OPERATE).status_code == 429
        now[0] += ADDRESS[1]
        assert show(guesser, OPERATE).status_code == right
    notes = [
        (action, target.get("times"))
        for _, action, target in send(database, NOTES)
        if action in {"refuse login", "limit logins"}
    ]
    assert sorted(notes, key=str) == [
        ("limit logins", 2),
        ("limit logins", None),
        ("refuse login", ADDRESS[0]),
        ("refuse login", None),
    ]


def test_session_stays_valid_while_logins_are_limited(database):
    with Page(application(database, operate_tokens=[OPERATE]), address="10.1.2.3") as page:
        log_in(page)
        for _ in range(ADDRESS[0] + 1):
            assert page.get("/queues", headers={"Authorization": f"Bearer {WRONG}"}).status_code in {401, 429}
        assert page.get("/queues", follow_redirects=False).status_code == 200


def test_wrong_tokens_are_limited_over_all_addresses_except_those_with_a_login(monkeypatch):
    now = [50.0]
    counted = LoginLimits(clock=lambda: now[0])
    counted.succeeded("192.0.2.7")
    for number in range(ALL[0]):
        assert counted.wait(f"10.0.{number}.1") == 0
        counted.failed(f"10.0.{number}.1")
    assert counted.wait("10.9.9.9") == ALL[1]
    assert counted.wait("192.0.2.7") == 0
    now[0] += ALL[1]
    assert counted.wait("10.9.9.9") == 0
    monkeypatch.setattr(login_limits, "KEPT", 50)
    for number in range(2 * ALL[0]):
        counted.failed(f"10.1.{number}.1")
        counted.succeeded(f"10.2.{number}.1")
    assert (len(counted._each), len(counted._right)) == (50, 50)


def test_ipv6_network_counts_as_one_address():
    counted = LoginLimits(clock=lambda: 0.0)
    for number in range(ADDRESS[0]):
        counted.failed(f"2001:db8::{number:x}")
        counted.failed(f"::ffff:192.0.2.{number + 1}")
    assert counted.wait("2001:db8::ffff") > 0
    assert counted.wait("2001:db8:0:1::1") == 0
    assert counted.wait("::ffff:192.0.2.1") == 0
