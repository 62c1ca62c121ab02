"""Findings of `jobherd doctor`: for each check, a row without and a row with a problem."""

from __future__ import annotations

import pytest

from jobherd.supervisor.cli.doctor import fleet, schema, server, vacuum

WELL = {
    "server_version_num": "180004", "fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "autovacuum": "on", "track_counts": "on",
    "default_transaction_isolation": "read committed", "default_transaction_read_only": "off", "statement_timeout": "0", "idle_session_timeout": "0",
    "session_replication_role": "origin", "row_security": "on",
}  # fmt: skip
SERVER = {
    "standby": False,
    "xid_age": 1000,
    "xid_of": "app",
    "notifications": 0.0,
    "sessions": 10,
    "sees_all": True,
    "open_schemas": [],
}
HOLDER = {
    "what": "transaction",
    "name": "psql",
    "handle": "77",
    "state": "idle in transaction",
    "seconds": 10.0,
    "age": 5,
    "bytes": None,
    "active": True,
}
FLEET = {"supervisors": 1, "expired": 0, "versions": ["1"], "workers": 2, "remote": 0, "waiting": True}


def weights(findings):
    return [(one.weight, one.about) for one in findings]


def settings(**changed):
    return list(server.settings([{"name": name, "setting": value} for name, value in (WELL | changed).items()]))


def test_healthy_server_has_only_ok_findings():
    assert weights(settings()) == [("ok", "settings")]
    assert weights(server.server(SERVER, seen=0.1, limit=100)) == [("ok", "clocks")]
    assert weights(server.pooler(reported=7, real=7)) == []


@pytest.mark.parametrize(
    ("name", "value", "weight"),
    [
        ("fsync", "off", "wrong"), ("full_page_writes", "off", "wrong"), ("synchronous_commit", "off", "wrong"), ("autovacuum", "off", "wrong"),
        ("track_counts", "off", "wrong"), ("default_transaction_isolation", "serializable", "wrong"), ("default_transaction_read_only", "on", "wrong"),
        ("statement_timeout", "30000", "note"), ("idle_session_timeout", "1000", "note"),
        ("session_replication_role", "replica", "wrong"), ("row_security", "off", "note"),
    ],
)  # fmt: skip
def test_harmful_server_setting_is_named_with_its_remedy(name, value, weight):
    (found,) = settings(**{name: value})
    assert found.weight == weight
    assert name in found.text or "read-only" in found.text
    assert found.remedy


@pytest.mark.parametrize(
    ("changed", "about"),
    [
        ({"standby": True}, "server"), ({"xid_age": 1_500_000_000}, "server"), ({"notifications": 0.11}, "listen"), ({"sessions": 95}, "connections"),
        ({"sees_all": False}, "privileges"), ({"open_schemas": ["public"]}, "privileges"),
    ],
)  # fmt: skip
def test_each_problem_of_the_server_is_found_with_a_remedy(changed, about):
    bad = [one for one in server.server(SERVER | changed, seen=0.0, limit=100) if one.weight != "ok"]
    assert [one.about for one in bad] == [about]
    assert bad[0].remedy


def test_clock_difference_is_reported_with_its_direction():
    assert "ahead of" in next(iter(server.server(SERVER, seen=3.0, limit=100))).text
    assert "behind" in next(iter(server.server(SERVER, seen=-3.0, limit=100))).text


def test_pooler_is_detected_by_a_different_backend_pid():
    (found,) = server.pooler(reported=7, real=8)
    assert found.weight == "wrong"
    assert "--listen-dsn" in found.remedy
    assert weights(server.pooler(reported=7, real=7, listens=True)) == []
    (found,) = server.pooler(reported=7, real=8, listens=True)
    assert (found.weight, "session mode" in found.text) == ("note", True), "the pooler's mode cannot be detected"


@pytest.mark.parametrize(
    ("changed", "weight"),
    [
        ({}, "ok"), ({"seconds": 400.0}, "note"), ({"seconds": 4000.0}, "wrong"),
        ({"what": "prepared", "handle": "gid", "seconds": 4000.0}, "wrong"),
        ({"what": "slot", "seconds": None, "age": 2_000_000}, "wrong"),
        ({"what": "slot", "seconds": None, "age": None, "bytes": 20 * 1024**3, "active": False}, "wrong"),
        ({"what": "slot", "seconds": None, "age": None, "bytes": 20 * 1024**3, "active": True}, "ok"),
        ({"what": "standby", "seconds": None, "age": 2_000_000}, "wrong"),
    ],
)  # fmt: skip
def test_finding_names_what_holds_back_vacuum_and_how_to_end_it(changed, weight):
    (found,) = vacuum.holders([HOLDER | changed])
    assert found.weight == weight
    if weight != "ok":
        assert (
            "hot_standby_feedback" if found.text.startswith("a query on the standby") else changed.get("handle", "77")
        ) in found.remedy


def test_name_of_a_prepared_transaction_is_quoted_as_an_sql_literal():
    (found,) = vacuum.holders([HOLDER | {"what": "prepared", "handle": "x'; DROP TABLE y; --", "seconds": 4000.0}])
    assert "ROLLBACK PREPARED 'x''; DROP TABLE y; --'" in found.remedy


@pytest.mark.parametrize(
    ("what", "weight", "word"),
    [("wake", "wrong", "poll"), ("wait", "wrong", "do not return"), ("keep", "note", "partitions")],
)
def test_session_with_an_advisory_lock_for_over_a_minute_is_named(what, weight, word):
    lock = {
        "pid": 77,
        "role": "stranger",
        "name": "psql",
        "state": "idle in transaction",
        "what": what,
        "seconds": 61.0,
    }
    (found,) = vacuum.advisory_locks([lock, lock | {"seconds": 59.0}, lock | {"seconds": None}])
    assert (found.weight, found.about) == (weight, "locks")
    assert "role stranger (psql, pid 77" in found.text
    assert word in found.text
    assert "pg_terminate_backend(77)" in found.remedy


def test_session_with_a_long_table_lock_is_named_with_its_pid():
    lock = {"pid": 77, "name": "psql", "state": "idle in transaction", "tables": "ready", "seconds": 100.0}
    (found,) = vacuum.locks([lock, lock | {"seconds": 1.0}, lock | {"seconds": None}])
    assert (found.weight, found.about) == ("wrong", "locks")
    assert "77" in found.remedy


def test_dead_rows_are_a_problem_only_relative_to_live_rows():
    table = {"name": "ready", "live": 1_000_000, "dead": 900_000, "vacuumed_ago": 5.0}
    assert weights(vacuum.tables([table])) == [("ok", "bloat")]
    assert weights(vacuum.tables([table | {"live": 10, "vacuumed_ago": None}])) == [("wrong", "bloat")]


def test_invalid_index_is_found():
    assert weights(schema.indexes([{"name": "i", "of": "ready", "called": "jobherd.i"}])) == [("wrong", "indexes")]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, [("ok", "fleet")]), ({"supervisors": 0}, [("wrong", "fleet")]), ({"supervisors": 0, "waiting": False}, [("note", "fleet")]),
        ({"workers": 0}, [("wrong", "fleet")]), ({"workers": 0, "remote": 1}, [("ok", "fleet")]), ({"expired": 1}, [("ok", "fleet"), ("note", "fleet")]),
        ({"versions": ["1", "2"]}, [("ok", "fleet"), ("note", "fleet")]),
    ],
)  # fmt: skip
def test_fleet_findings(changed, expected):
    assert weights(fleet.fleet(FLEET | changed, [], [])) == expected


def test_waiting_queue_is_wrong_only_if_a_worker_is_idle():
    queue = {"queue": "q", "id": 1, "kind": "a:b", "waited": 90.0, "idle": 0}
    assert weights(fleet.fleet(FLEET, [queue], [])) == [("ok", "fleet"), ("note", "queues")]
    assert weights(fleet.fleet(FLEET, [queue | {"idle": 1}], [])) == [("ok", "fleet"), ("wrong", "queues")]
