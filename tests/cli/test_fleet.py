"""`fleet`: what it lists and what it says of orders, without a supervisor; with one: tests/system/test_orders.py. And who the audit says it was."""

from __future__ import annotations

import getpass
import json
import re
import socket

import pytest

from jobherd.supervisor.cli import fleet, main
from tests.cli.rows import past, send, supervisor
from tests.cli.shell import jobherd

FACTS = {
    "course": "serving", "wanted": 2, "reloading": False,
    "ends": [{"name": "worker 1", "ago": 30, "sentence": "An unknown sender killed process 12 with \x1b[31mSIGKILL."}],
    "children": [
        {"name": "worker 0", "state": "computing", "pid": 11, "cpu": 0.98, "rss": 120_000_000, "jobs": 1203, "held": 4, "restarts": 0,
         "job": 17, "job_kind": "mail:receipt", "elapsed": 3.2, "progress": {"fraction": 0.4, "note": "x"}},
        {"name": "worker 1", "state": "resting", "restarts": 3, "left": 2.0, "last_end": {"sentence": "An unknown sender killed it.", "ago": 30}},
        {"name": "worker 2", "state": "waiting", "waits_on": "a lock", "pid": 13, "record": 5, "job_kind": "own:store", "elapsed": 1},
        {"name": "maintenance", "state": "idle", "pid": 14},
    ],
}  # fmt: skip


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(fleet, "PATIENCE", 0.1)
    monkeypatch.setattr(fleet, "FRESH", 0.1)
    monkeypatch.setenv("COLUMNS", "140")


def run(dsn, capsys, *words):
    code = main([*map(str, words), "--dsn", dsn])
    out = capsys.readouterr().out
    return code, out if "--json" in words else "\n".join(" ".join(line.split()) for line in out.splitlines()) + "\n"


def test_what_supervisors_say_of_their_children_is_listed(database, capsys, hasty):
    number, silent, lapsed = supervisor(database), supervisor(database, host="beta"), supervisor(database, lease=-5)
    send(
        database,
        "UPDATE jobherd.supervisors SET facts = %s, facts_at = clock_timestamp() WHERE id = %s RETURNING 1",
        json.dumps(FACTS),
        number,
    )
    code, said = run(database, capsys, "fleet")
    assert code == 0
    assert f"supervisor {number} alpha/77" in said
    # What was true when it was said is some seconds older when a busy machine prints it.
    assert re.search(r"worker 0 computing 11 98% 120MB 1,203 4 0 mail:receipt #17 for \d+s, 40%", said)
    assert "waits for a lock" in said
    assert re.search(r"own:store #5 for \d+s", said)
    assert "for 2s: An unknown sender killed it." in said
    assert re.search(r"worker 1 ended [3-5]\ds ago", said)
    assert "\x1b[31mSIG" not in said, "what a dead child has said cannot paint the screen"
    assert f"supervisor {silent} beta/77" in said
    assert "has not reported its child processes yet" in said
    assert f"supervisor {lapsed}" in said
    assert re.search(r"lease lapsed \d+s ago", said)
    assert max(map(len, said.splitlines())) <= 140
    assert send(database, "SELECT supervisor, name FROM jobherd.fleet_commands ORDER BY id") == [
        (number, "report"),
        (silent, "report"),
    ]
    code, said = run(database, capsys, "fleet", "--json")
    assert [(row["id"], row["lapsed"]) for row in json.loads(said)] == [
        (number, False),
        (lapsed, True),
        (silent, False),
    ]
    assert json.loads(said)[0]["facts"]["children"][0]["job"] == 17


def test_a_fleet_of_nobody_says_what_to_do(database, capsys, hasty):
    code, said = run(database, capsys, "fleet")
    assert (code, "Start one with `jobherd run`" in said) == (0, True)


def test_an_order_that_nobody_takes_is_withdrawn_before_that_is_said(database, capsys, hasty):
    number = supervisor(database)
    code, said = run(database, capsys, "fleet", "add", number)
    assert (code, said) == (
        1,
        f"supervisor {number}: the supervisor did not take the fleet command within 0 s; it is withdrawn\n",
    )
    assert send(database, "SELECT taken_at, error FROM jobherd.fleet_commands") == [
        (None, "withdrawn: the supervisor did not take it in time")
    ]


def test_whom_must_be_said(database):
    answer = jobherd("fleet", "drain", dsn=database)
    assert answer.code == 2
    assert "jobherd fleet drain ID" in answer.err


def test_who_acts_from_the_command_line_is_noted(database, capsys):
    job = past(database, "failed", error="it broke")
    for words in (
        ("pause", "mail", "--reason", "down"), ("resume", "mail", "--reason", "up"), ("limit", "media", "3"), ("retry", job, "--reason", "mended"),
        ("cancel", job), ("pause", "mail", "--by", "ada"),
    ):  # fmt: skip
        assert run(database, capsys, *words)[0] == 0, words
    past(database, "failed", days=2, many=3)
    assert run(database, capsys, "purge", "--state", "failed", "--older-than", "1d", "--yes")[0] == 0
    me = f"{getpass.getuser()}@{socket.gethostname()}"
    assert send(database, "SELECT actor, action, reason FROM jobherd.audit ORDER BY id") == [
        (me, "pause", "down"), (me, "resume", "up"), (me, "limit", None), (me, "retry", "mended"), (me, "cancel", None), ("ada", "pause", None),
        (me, "purge", None),
    ]  # fmt: skip
    [(target,)] = send(database, "SELECT target FROM jobherd.audit WHERE action = 'purge'")
    assert (target["states"], target["counted"]) == (["failed"], 3)
