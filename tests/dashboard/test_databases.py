"""One dashboard over several databases: the list, the shared login, ids, and an unreachable database."""

from __future__ import annotations

import re
import socket

import psycopg
import pytest

from jobherd import sql
from jobherd.workers.dashboard import application, query_cache
from jobherd.workers.dashboard.databases import application_of
from tests.cli.rows import send
from tests.dashboard.support import Page
from tests.support.patience import LIMIT

OPERATE = "operate-0123456789abcdef"
NOTES = "SELECT actor, action FROM jobherd.audit ORDER BY id"


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    monkeypatch.setattr(query_cache, "PATIENCE", LIMIT)


@pytest.fixture
def pair(cluster, template):
    """Two databases: shard 1 and shard 2."""
    with cluster.database(template=template) as one, cluster.database(template=template) as two:
        for shard, dsn in enumerate((one, two), 1):
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(sql.load("migrate/set_shard"), {"shard": shard})
        yield one, two


@pytest.fixture
def both(pair):
    with Page(application_of({"db1/app": pair[0], "db2/app": pair[1]})) as page:
        yield page


def enqueue(dsn):
    return send(dsn, "SELECT jobherd.enqueue('a:b', '{}')")[0][0]


def row_of(text, name):
    """Return the row of a database on the first page."""
    [found] = [row for row in re.findall(r"<tr id=.*?</tr>", text, re.DOTALL) if f">{name}</a>" in row]
    return found


def test_first_page_lists_the_databases_with_links_to_each(both, pair):
    enqueue(pair[0])
    send(
        pair[1], "INSERT INTO jobherd.gates (scope, name, paused_at, paused_by) VALUES ('queue', 'mail', now(), 'ada')"
    )
    send(pair[1], "INSERT INTO jobherd.ready (kind, queue) VALUES ('a:b', 'mail')")
    text = both.get("/").text
    one, two = row_of(text, "db1/app"), row_of(text, "db2/app")
    assert ">connected<" in re.sub(r"</span> ", ">", one)
    assert '<a class="quiet" href="/db/db1-app/jobs?state=ready">1</a>' in one
    assert '<a class="quiet" href="/db/db2-app/jobs?state=failed">0</a>' in two
    assert 'href="/db/db2-app/queues' in two, "an attention item must link to its page"
    for link in sorted(set(re.findall(r'href="(/db/[^"#]*)', text))):
        assert both.get(link).status_code == 200, link


def test_each_page_links_to_the_same_page_of_the_other_databases(both, pair):
    text = both.get("/db/db1-app/queues").text
    assert re.search(r"<summary>db1/app</summary>", text)
    for link in ("/", "/db/db1-app/queues", "/db/db2-app/queues"):
        assert f'<li><a href="{link}"' in text
    job = enqueue(pair[0])
    assert '<li><a href="/db/db2-app/jobs"' in both.get(f"/db/db1-app/jobs/{job}").text
    assert 'class="switch"' in both.get("/db/db1-app/no/such/page").text
    with Page(application(pair[0])) as alone:
        assert 'class="switch"' not in alone.get("/").text


def test_search_for_a_job_id_opens_the_job_in_its_database(both, pair):
    here, there = map(enqueue, pair)
    for page in ("/", "/db/db1-app/", "/db/db2-app/"):
        for job, name in ((here, "db1-app"), (there, "db2-app")):
            found = both.get(f"{page}search?q={job}", follow_redirects=False)
            assert found.headers["location"] == f"/db/{name}/jobs/{job}", page
    lost = both.get("/db/db1-app/search?q=90000000000001", follow_redirects=False)
    assert lost.headers["location"] == "/db/db1-app/jobs/90000000000001"
    for words in ("receipt", "90000000000001", "0"):
        text = both.get(f"/search?q={words}").text
        assert f'href="/db/db2-app/search?q={words}"' in text, "the page must offer a search in each database"


def test_unreachable_database_does_not_delay_the_others(pair, monkeypatch):
    """First it accepts connections and never answers, then it rejects connections."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        away = f"host=127.0.0.1 port={silent.getsockname()[1]} dbname=x user=x"
        with Page(application_of({"db1/app": pair[0], "away": away})) as page:
            front, *_ = page.app.state.parts
            here, there = front.state.databases
            page.portal.call(here.refresh)
            monkeypatch.setattr(query_cache, "PATIENCE", 0.0)
            text = page.get("/").text
            assert "no answer yet" in row_of(text, "away")
            assert "connected" in row_of(text, "db1/app")
            assert page.get("/db/db1-app/queues").status_code == 200
            silent.close()
            monkeypatch.setattr(query_cache, "PATIENCE", LIMIT)
            page.portal.call(there.refresh)
            text = page.get("/").text
            assert "away</span> since <time" in row_of(text, "away")
            assert "connected" in row_of(text, "db1/app")
            assert page.get("/db/away/").status_code == 503
            assert page.get("/db/db1-app/").status_code == 200
            job = enqueue(pair[0])
            assert page.get(f"/search?q={job}", follow_redirects=False).headers["location"].endswith(f"/jobs/{job}")


def test_database_without_the_schema_is_shown_with_its_error(pair, cluster):
    with cluster.database() as empty, Page(application_of({"db1/app": pair[0], "empty": empty})) as page:
        text = page.get("/").text
        # PostgreSQL 15 finds no schema, PostgreSQL 18 no table.
        assert {"InvalidSchemaName", "UndefinedTable"} & set(re.findall(r"\w+", row_of(text, "empty")))
        assert "connected" in row_of(text, "db1/app")


def test_one_login_and_one_logout_apply_to_all_databases(pair):
    tokens = {"operate_tokens": [f"alice={OPERATE}"]}
    with Page(application_of({"db1/app": pair[0], "db2/app": pair[1]}, **tokens)) as page:
        browser = {"Accept": "text/html"}
        for path in ("/", "/db/db1-app/jobs", "/db/db2-app/"):
            away = page.get(path, headers=browser, follow_redirects=False)
            assert (away.status_code, "/login?next=" in away.headers["location"]) == (303, True)
            assert "db1/app" not in page.get(path, headers=browser).text
        assert page.act_at("/login", "/login", token="wrong-0123456789abcdef").status_code == 403
        for login in ("/db/db2-app/login", "/login"):
            page.cookies.clear()
            assert page.act_at(login, login, token=OPERATE).status_code == 303
            for path in ("/", "/db/db1-app/queues", "/db/db2-app/queues"):
                assert page.get(path, follow_redirects=False).status_code == 200, path
        mine = dict(page.cookies)
        audit = page.app.state.parts[0].state.access_log

        async def written():
            await audit._writing

        paused = page.act_at("/", "/db/db2-app/queues/action", do="pause", scope="queue", name="mail")
        assert paused.status_code == 303, "a CSRF token belongs to the browser, whichever page it is from"
        assert page.post("/db/db1-app/queues/action", data={"do": "pause"}).status_code == 403
        assert page.act_at("/", "/logout").status_code == 303
        for name, value in mine.items():
            page.cookies.set(name, value, domain="localhost.local")
        assert page.get("/db/db1-app/queues", follow_redirects=False).status_code != 200
        page.portal.call(written)
    for dsn in pair:
        found = [tuple(entry) for entry in send(dsn, NOTES)]
        for action in ("log in", "log out"):
            assert ("dashboard:alice", action) in found
        assert ("dashboard:unknown", "refuse login") in found
    assert "pause" in {action for _, action in send(pair[1], NOTES)}
    assert "pause" not in {action for _, action in send(pair[0], NOTES)}


def test_ending_all_sessions_applies_to_all_databases(pair):
    with Page(application_of({"db1/app": pair[0], "db2/app": pair[1]}, operate_tokens=[f"alice={OPERATE}"])) as page:
        assert page.act_at("/login", "/login", token=OPERATE).status_code == 303
        answer = page.act_at("/db/db2-app/audit", "/db/db2-app/sessions/end", follow=True)
        assert "All sessions have ended" in answer.text
        for path in ("/", "/db/db1-app/", "/db/db2-app/"):
            assert page.get(path, follow_redirects=False).status_code != 200
    assert ("dashboard:alice", "end sessions") in [tuple(entry) for entry in send(pair[1], NOTES)]


def test_security_checks_of_a_single_dashboard_apply_to_every_page(both, pair):
    for path in ("/", "/db/db1-app/", "/db/db2-app/"):
        answer = both.get(path)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["content-encoding"] == "gzip"
        assert both.get(path, headers={"Host": "evil.example"}).status_code == 403
        assert both.post(f"{path}logout", headers={"Origin": "http://evil.example"}).status_code == 403
    with Page(application_of({"a": pair[0], "b": pair[1]}), address="10.0.0.1") as other:
        assert [other.get(path).status_code for path in ("/", "/db/a/", "/db/b/")] == [403, 403, 403]


def test_dashboard_of_several_databases_can_be_mounted_below_a_path(pair):
    with Page(application_of({"db1/app": pair[0], "db2/app": pair[1]}), root_path="/ops") as page:
        text = page.get("/ops/").text
        assert 'href="/ops/db/db1-app/"' in text
        assert 'href="/ops/static/dashboard.css' in text
        switch = page.get("/ops/db/db1-app/queues").text
        assert '<li><a href="/ops/db/db2-app/queues"' in switch
        assert '<li><a href="/ops/"' in switch
