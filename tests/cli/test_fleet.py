"""`fleet` without a supervisor process: its list and fleet commands. Also the actor of audit entries.

For tests with a supervisor, see tests/system/test_orders.py.
"""

from __future__ import annotations

import getpass
import json
import re
import socket

import pytest

from jobherd.supervisor.cli import fleet, main
from tests.cli.rows import claim, past, remote_worker, send, supervisor
from tests.cli.shell import jobherd

FACTS = {
    "run_state": "serving", "wanted": 2, "reloading": False,
    "ends": [{"name": "worker 1", "ago": 30, "sentence": "Process 12 died of \x1b[31mSIGKILL (not sent by the supervisor)."}],
    "children": [
        {"name": "worker 0", "state": "computing", "pid": 11, "cpu": 0.98, "rss": 120_000_000, "jobs": 1203, "held": 4, "restarts": 0,
         "job": 17, "job_kind": "mail:receipt", "elapsed": 3.2, "progress": {"fraction": 0.4, "note": "x"}},
        {"name": "worker 1", "state": "resting", "restarts": 3, "left": 2.0, "last_end": {"sentence": "Process 12 died of SIGKILL (not sent by the supervisor).", "ago": 30}},
        {"name": "worker 2", "state": "waiting", "waits_on": "a lock", "pid": 13, "record": 5, "job_kind": "own:store", "elapsed": 1},
        {"name": "maintenance", "state": "idle", "pid": 14},
    ],
}  # fmt: skip


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(fleet, "PATIENCE", 0.1)
    monkeypatch.setattr(fleet, "FRESH", 0.1)
    monkeypatch.setenv("COLUMNS", "150")


def run(dsn, capsys, *words):
    code = main([*map(str, words), "--dsn", dsn])
    out = capsys.readouterr().out
    return code, out if "--json" in words else "\n".join(" ".join(line.split()) for line in out.splitlines()) + "\n"


def test_fleet_lists_the_status_reports_of_supervisors(database, capsys, hasty, monkeypatch):
    number, silent, expired = supervisor(database), supervisor(database, host="beta"), supervisor(database, lease=-5)
    send(
        database,
        "UPDATE jobherd.supervisors SET facts = %s, facts_at = clock_timestamp() WHERE id = %s RETURNING 1",
        json.dumps(FACTS),
        number,
    )
    code, said = run(database, capsys, "fleet")
    assert code == 0
    assert f"supervisor {number} alpha/77" in said
    # On a busy machine, some seconds pass between the report and the output.
    assert re.search(
        r"worker 0 computing 11 98% 114 MiB 1,203 4 0 mail:receipt #17 for [\d.]+ (s|min( \d+ s)?), 40%", said
    )
    assert "waits for a lock" in said
    assert re.search(r"own:store #5 for [\d.]+ (s|min)", said)
    assert re.search(r"for [\d.]+ m?s: Process 12 died of SIGKILL \(not sent by the supervisor\)\.", said)
    assert re.search(r"worker 1 ended ([3-5]\d s|1 min[ \d]*s?) ago", said)
    assert "\x1b[31mSIG" not in said, "text about a dead process must not change the colors of the screen"
    assert f"supervisor {silent} beta/77" in said
    assert "has not reported its child processes yet" in said
    assert f"supervisor {expired}" in said
    assert re.search(r"lease expired [\d.]+ (s|min.*) ago", said)
    assert max(map(len, said.splitlines())) <= 140
    monkeypatch.setenv("COLUMNS", "80")
    main(["fleet", "--dsn", database])
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("CHILD", "worker", "maint"))]
    assert len(table) == 5
    assert max(map(len, table)) <= 80
    assert send(database, "SELECT supervisor, name FROM jobherd.fleet_commands ORDER BY id") == [
        (number, "report"),
        (silent, "report"),
    ]
    code, said = run(database, capsys, "fleet", "--json")
    assert [(row["id"], row["expired"]) for row in json.loads(said)] == [
        (number, False),
        (expired, True),
        (silent, False),
    ]
    assert json.loads(said)[0]["facts"]["children"][0]["job"] == 17


def test_remote_workers_are_listed_under_their_supervisor(database, capsys, hasty):
    number, gone = supervisor(database), supervisor(database, host="beta")
    remote_worker(database, number)
    remote_worker(database, number, name="gpu-2\x1b[31m", ago=400)
    remote_worker(database, gone, name="gpu-3")
    send(database, "SELECT jobherd.enqueue('image:resize', '{}')")
    busy = remote_worker(database, number, name="gpu-0")
    job = claim(database, busy)
    send(database, "DELETE FROM jobherd.supervisors WHERE id = %s", gone)
    for command in ("fleet", "status"):
        code, said = run(database, capsys, command)
        assert code == 0
        assert re.search(
            rf"gpu-0 connected node/1.2 1 [\d.]+ \w+ [\d.]+ \w+ ago image:resize #{job} for [\d.]+ m?s", said
        ), said
        assert re.search(r"gpu-1 connected node/1.2 - ", said)
        assert re.search(r"gpu-2\S* away node/1.2 - ", said)
        assert "\x1b[31m" not in said
        _, orphans = said.split("remote workers without a gateway")
        assert re.search(r"gpu-3 away node/1.2", orphans)
    code, said = run(database, capsys, "fleet", "--json")
    assert [one["worker"] for one in json.loads(said)[0]["sessions"]] == ["gpu-0", "gpu-1", "gpu-2\x1b[31m"]


def test_empty_fleet_shows_how_to_start_a_supervisor(database, capsys, hasty):
    code, said = run(database, capsys, "fleet")
    assert (code, "Start one with `jobherd run`" in said) == (0, True)


def test_fleet_command_that_no_supervisor_takes_is_withdrawn_and_reported(database, capsys, hasty):
    number = supervisor(database)
    code, said = run(database, capsys, "fleet", "add", number)
    assert (code, said) == (
        1,
        f"supervisor {number}: the supervisor did not take the fleet command within 0 s; it is withdrawn\n",
    )
    assert send(database, "SELECT taken_at, error FROM jobherd.fleet_commands") == [
        (None, "withdrawn: the supervisor did not take it in time")
    ]


def test_fleet_command_for_a_remote_worker_is_rejected_with_what_to_do(database, capsys, hasty):
    child = remote_worker(database, supervisor(database))
    [(number,)] = send(database, "SELECT supervisor FROM jobherd.children WHERE id = %s", child)
    code, said = run(database, capsys, "fleet", "drain", number)
    assert code == 1
    assert f"supervisor {number}: it is the remote worker gpu-1, which takes no fleet commands: on its host" in said
    assert "TERM drains" in said
    assert send(database, "SELECT count(*) FROM jobherd.fleet_commands") == [(0,)]


def test_missing_supervisor_is_reported_once(database, capsys, hasty):
    code, said = run(database, capsys, "fleet", "drain", 99)
    assert (code, said) == (1, "supervisor 99: is not there: it has exited, or its lease has expired\n")


def test_fleet_command_requires_a_supervisor_id(database):
    answer = jobherd("fleet", "drain", dsn=database)
    assert answer.code == 2
    assert "jobherd fleet drain ID" in answer.err


def test_audit_entry_names_the_actor_of_a_command(database, capsys):
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
