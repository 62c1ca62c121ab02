"""Hostile names, filters and sort orders are rejected on input or treated as plain text."""

from __future__ import annotations

import json

import psycopg
import pytest

from jobherd import Client, sql
from jobherd.workers.dashboard import application
from tests.dashboard.support import Page

HOSTILE = (
    "a'; DROP TABLE jobherd.ready; --",
    'a"; DROP TABLE jobherd.ready; --',
    "a') OR 1=1 --",
    "$$; DROP SCHEMA jobherd CASCADE; $$",
    "%s %(id)s %",
    "a\\'; SELECT pg_sleep(9); --",
    "jobherd_jobs, other",
    "a b",
    "ａ：ｂ",  # noqa: RUF001 - full-width letters are others
    "{a,b}",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_user_is_executed_as_sql(database, text):
    with psycopg.connect(database, autocommit=True) as connection, Client(database) as client:
        kept = client.enqueue("a:b", {"text": text})
        with pytest.raises(ValueError, match="is not a name like"):
            client.enqueue(text)
        for option in ("queue", "tenant"):
            with pytest.raises(ValueError, match="is not a name like"):
                client.enqueue("a:b", {}, **{option: text})
        with pytest.raises(ValueError, match="is not usable"):
            sql.check_schema(text)
        with pytest.raises(ValueError, match="is not usable"):
            Client(database, schema=text)
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            connection.execute("SELECT jobherd.enqueue(%s)", [text])
        for option in ("queue", "tenant", "priority", "run_at", "delay", "timeout", "webhook", text):
            with pytest.raises(psycopg.errors.InvalidParameterValue):
                connection.execute("SELECT jobherd.enqueue('a:b', '{}', %s::jsonb)", [json.dumps({option: text})])
        assert client.cancel(kept, actor=text, reason=text) == "cancelled"
        assert connection.execute("SELECT actor, reason FROM jobherd.audit").fetchall() == [(text, text)]
        with Page(application(database)) as page:
            for name in ("kind", "queue", "tenant", "code", "state", "q", "before", "sort", "order"):
                answer = page.get("/jobs", params={name: text})
                assert answer.status_code < 500, (name, answer.status_code)
            assert page.get("/audit", params={"actor": text, "action": text}).status_code < 500
        assert connection.execute("SELECT payload ->> 'text' FROM jobherd.jobs").fetchall() == [(text,)]
