"""`top` on its own terminal: its screen, its keys, and changes of the terminal or the database."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from datetime import datetime

import psycopg
import pytest
from rich.cells import cell_len

from jobherd import sql
from jobherd.sql.migrate import migrate
from jobherd.supervisor.cli import main
from jobherd.supervisor.cli.top import panels
from jobherd.supervisor.cli.top.frame import Status, draw
from jobherd.supervisor.cli.top.layout import share
from jobherd.supervisor.cli.top.opened import Opened
from jobherd.supervisor.cli.top.panels import PANELS, RUNNING
from jobherd.supervisor.cli.top.screen import keys_of
from jobherd.supervisor.cli.top.view import View
from jobherd.supervisor.cli.top.watch import Look
from tests.cli.rows import child, claim, past, send, supervisor
from tests.cli.shell import COMMAND, LIMIT, environment, jobherd, on_terminal
from tests.cli.terminal import Terminal
from tests.support.postgres import Cluster


def populate(dsn: str) -> dict[str, int]:
    """Insert a busy fleet: two jobs run, 1,204 wait, one has failed, three are completed. Return some of the ids."""
    worker, other = (child(dsn, at := supervisor(dsn), slot=0), child(dsn, at, slot=1))
    jobs = {}
    for place, kind in ((worker, "report:build"), (other, "mail:receipt")):
        send(dsn, "INSERT INTO jobherd.ready (kind, queue) VALUES (%s, 'default')", kind)
        jobs[kind] = claim(dsn, place)
    send(
        dsn,
        'INSERT INTO jobherd.progress (job, token, progress) SELECT jobs[1].id, token, \'{"fraction": 0.25, "note": "month 3"}\''
        " FROM jobherd.running WHERE jobs[1].id = %s",
        jobs["report:build"],
    )
    send(dsn, "INSERT INTO jobherd.ready (kind, queue) SELECT 'image:resize', 'media' FROM generate_series(1, 1204)")
    send(
        dsn,
        "UPDATE jobherd.supervisors SET facts = jsonb_build_object('children', %s::jsonb), facts_at = clock_timestamp() WHERE id = %s",
        '[{"pid": 78, "cpu": 0.98, "rss": 123e6}, {"pid": 0, "rss": 5e6}, {"pid": 79, "cpu": 0.02, "rss": 100e6}]', at,
    )  # fmt: skip
    jobs["failed"] = past(dsn, "failed", kind="image:resize", error="no such \x1b[2J file")
    past(dsn, "completed", many=3)
    return jobs


def test_top_shows_the_fleet_and_its_keys_change_jobs_and_queues(database):
    jobs = populate(database)
    with Terminal("top", dsn=database) as seen:
        seen.wait("RUNNING", "month 3", "1,204", "no such", lambda: "q leave" in seen.lines[23])
        assert seen.lines[0].startswith("jobherd top")
        assert seen.lines[1].startswith("1,204 ready  0 scheduled  2 running  2 of 2 workers busy")
        assert "100%  213 MiB" in seen.line("alpha/77")
        assert "━━━─────────  25%" in seen.line(f"{jobs['report:build']} ")
        assert "\\e[2J file" in seen.text, "the error of a job must not clear the screen"
        # sorted, filtered
        assert seen.text.index("report:build") < seen.text.index("mail:receipt"), (
            "the job that has run longest must be first"
        )
        seen.on_key("ss")
        seen.wait("running by kind", lambda: seen.text.index("mail:receipt") < seen.text.index("report:build"))
        seen.on_key("/report")
        seen.wait("filter: report", lambda: "mail:receipt" not in seen.text)
        seen.on_key("\r")
        seen.wait("(escape shows all)")
        seen.on_key("\x1b")
        seen.wait("mail:receipt")
        # paused with a reason, resumed
        seen.on_key("\x1b[Z\x1b[Bjk")
        seen.on_key("p")
        seen.wait("pause the queue")
        queue = "media" if "pause the queue media" in seen.text else "default"
        seen.on_key("moving house\r")
        seen.wait(f"the queue {queue} is paused", "moving house")
        assert send(database, "SELECT name, reason FROM jobherd.gates") == [(queue, "moving house")]
        seen.on_key("p")
        seen.wait(f"resume the queue {queue}?")
        seen.on_key("y")
        seen.wait("is resumed")
        assert send(database, "SELECT name FROM jobherd.gates") == []
        # cancelled, but only after a confirmation
        seen.on_key("3gc")
        seen.wait(f"cancel the job {jobs['mail:receipt']} mail:receipt?")
        seen.on_key("n")
        seen.wait("nothing was done")
        assert send(database, "SELECT count(*) FROM jobherd.cancels") == [(0,)]
        seen.on_key("c")
        seen.wait("cancel the job")
        seen.on_key("y")
        seen.wait("is being interrupted", "cancelling")
        assert send(database, "SELECT job FROM jobherd.cancels") == [(jobs["mail:receipt"],)]
        # retried
        seen.on_key("4r")
        seen.wait(f"run the job {jobs['failed']} image:resize again?")
        seen.on_key("y")
        seen.wait(f"the job {jobs['failed']} will run again", "1,205 ready")
        seen.on_key("c")
        seen.wait("choose a job that runs")
        # help, then exit
        seen.on_key("?")
        seen.wait("this help", "pause the queue of the chosen row")
        seen.on_key("x")
        seen.wait("FAILURES")
        told = send(database, "SELECT action, actor FROM jobherd.audit ORDER BY id")
        assert [action for action, _ in told] == ["pause", "resume", "cancel", "retry"]
        assert all("@" in actor for _, actor in told)
        seen.on_key("q")
        assert seen.wait_exit() == 0
        assert b"\x1b[?1049l" in seen.raw
        assert b"\x1b[?25h" in seen.raw


def test_top_survives_a_resized_terminal_and_a_database_outage():
    with Cluster() as own, own.database() as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            migrate(connection)
        jobs = populate(dsn)
        with Terminal("top", dsn=dsn, COLUMNS="200") as seen:  # as some shells export it; the terminal's size counts
            seen.wait("month 3", lambda: "q leave" in seen.lines[23])
            seen.resize(160, 48)
            seen.wait("month 3", lambda: "q leave" in seen.lines[47], lambda: len(seen.lines[0]) > 150)
            seen.resize(60, 15)
            seen.wait("25%", lambda: "q leave" in seen.lines[14], lambda: "QUEUE" not in seen.line("RUNNING"))
            seen.resize(30, 5)
            seen.wait("too small: 30 by 5")
            seen.resize(80, 24)
            seen.wait("month 3", lambda: "q leave" in seen.lines[23])
            own.stop()
            seen.wait("the database is away since", "trying again", "month 3")
            seen.on_key("3c")
            seen.wait("cancel the job")
            seen.on_key("y")
            seen.wait("not done:")
            seen.on_key("?")
            seen.wait("this help")
            seen.on_key("x")
            own.start()
            seen.wait(lambda: "is away" not in seen.text, "month 3")
            seen.on_key("c")
            seen.wait("cancel the job")
            seen.on_key("y")
            seen.wait("is being interrupted")
            assert send(dsn, "SELECT job FROM jobherd.cancels") == [(jobs["report:build"],)]
            seen.on_key("\x03")  # Ctrl-C
            assert seen.wait_exit() == 0
            assert b"\x1b[?1049l" in seen.raw


def test_top_without_a_terminal_rich_or_database_exits_with_a_reason(database, monkeypatch, capsys):
    answer = jobherd("top", dsn=database)
    assert (answer.code, answer.out) == (2, "")
    assert "--once" in answer.err
    assert jobherd("top", "--once", dsn="host=/nonexistent").code == 69
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert main(["top", "--once", "--dsn", database]) == 78
    assert "pip install 'jobherd[top]'" in capsys.readouterr().err


def test_top_once_prints_one_frame(database):
    jobs = populate(database)
    answer = jobherd("top", "--once", dsn=database)
    assert answer.code == 0, answer
    assert max(map(cell_len, answer.lines)) <= 80
    assert len(answer.lines) <= 24
    assert "\x1b" not in answer.out
    assert f"{jobs['failed']}" in answer.out
    shown = on_terminal("top", "--once", dsn=database, columns=120)
    assert "month 3" in shown
    empty = jobherd("top", "--once", dsn=database, PYTHONIOENCODING="ascii")
    assert empty.code == 0
    assert "###" in empty.out


def look(*, rows: int = 30) -> Look:
    names = ["a:b", "kind:with-quite-a-long-name-that-goes-on-and-on", "日本:語", "x" * 100]
    queue = {"oldest": 5.0, "paused": True, "paused_by": "ann", "reason": "r" * 90, "most": 3, "running": 2} | {
        f"{state}{more}": bool(more) or 123456
        for state in ("ready", "scheduled", "running")
        for more in ("", "_capped")
    }
    return Look(
        supervisors=[{"id": n, "host": "h" * (n * 7), "pid": n, "version": "1", "up_for": 1e6, "lease_left": 3.0, "expired": n == 2, "facts_age": 5.0,
                      "facts": {"children": [{"pid": 7, "cpu": 0.5, "rss": 2e9}] * n} if n < 3 else None} for n in (1, 2, 3)],
        children=[{"supervisor": 1, "kind": "worker", "job": n, "running": 1} for n in range(rows)],
        queues=[queue | {"queue": names[n % 4] + str(n)} for n in range(rows)],
        gates=[{"scope": "all", "name": "*", "paused": True}],
        running=[
            {"id": 10**n, "kind": names[n % 4], "queue": "default", "host": "alpha", "slot": n, "held": 1 + n % 3, "held_for": 3.0 * n,
             "cancelled": n == 4, "fraction": None if n % 5 == 0 else n / 10, "note": names[(n + 1) % 4], "attempts": 1}
            for n in range(rows)
        ],
        failures=[
            {"id": n, "kind": names[n % 4], "queue": "q" * n, "ago": n * 1000.0, "error_code": "BOOM", "error": "日" * n, "attempts": 1}
            for n in range(rows)
        ],
        rate=12.3,
    )  # fmt: skip


def test_frame_fills_every_terminal_size_exactly():
    status = Status("jobs on db", "12:00:00")
    away = Status("jobs on db", "12:00:00", "11:59:00", 60.0, "connection refused " * 9)
    for found in (Look(), look(rows=3), look()):
        for width in (40, 57, 80, 81, 132, 240):
            for height in (10, 15, 24, 31, 32, 60):
                for panel in range(len(PANELS)):
                    for view in (View(panel=panel), View(panel=panel, wanted="a"), View(helps=True)):
                        for told in (status, away):
                            lines = draw(found, view, told, width=width, height=height)
                            assert len(lines) == height
                            assert max(line.cell_len for line in lines) <= width, (width, height, panel)
                            assert not any("\n" in line.plain for line in lines)
    assert not any("…" in line.plain for line in draw(Look(), View(helps=True), status, width=80, height=24))
    assert "too small" in draw(Look(), View(), status, width=39, height=24)[0].plain
    shown = "\n".join(line.plain for line in draw(look(), View(), status, width=80, height=24))
    assert "RUNNING 8/30" in shown or "RUNNING 7/30" in shown, shown
    assert "everything is paused" in "\n".join(
        line.plain for line in draw(look(rows=1), View(), status, width=132, height=24)
    )


def test_rows_are_shared_fairly_between_panels():
    assert share([1, 1, 1, 1], 17, first=0) == [1, 1, 1, 1]
    assert sum(share([50, 50, 50, 50], 17, first=2)) == 17
    assert share([50, 50, 50, 50], 17, first=2)[2] == max(share([50, 50, 50, 50], 17, first=2))
    assert min(share([50, 50, 50, 50], 8, first=0)) >= 1


def test_chosen_row_stays_chosen_and_visible_in_another_order():
    view, found = View(), look()
    for _ in range(25):
        view.on_key("j", found)
    rows = view.rows(RUNNING, found)
    chosen = rows[view.place(RUNNING, rows)]["id"]
    shown = "\n".join(line.plain for line in draw(found, view, Status("", ""), width=80, height=24))
    assert f"\n{chosen}" in shown
    view.on_key("S", found)
    rows = view.rows(RUNNING, found)
    assert rows[view.place(RUNNING, rows)]["id"] == chosen
    gone = Look(running=[row for row in found.running if row["id"] != chosen][:5])
    rows = view.rows(RUNNING, gone)
    assert 0 <= view.place(RUNNING, rows) < 5


def test_escape_sequences_of_terminals_are_read_as_keys():
    assert list(keys_of("j\x1b[A\x1bOBq\x1b")) == ["j", "up", "down", "q", "escape"]
    assert list(keys_of("\x1b[15~\x1b[1;5Cx\t\x7fé")) == ["x", "tab", "backspace", "é"]


def nodes(plan: dict) -> list[dict]:
    return [plan, *(node for below in plan.get("Plans", ()) for node in nodes(below))]


def test_retrying_jobs_are_counted_and_listed_with_the_failures(database):
    populate(database)
    send(
        database,
        "INSERT INTO jobherd.scheduled (kind, attempts, run_at, last_error)"
        ' SELECT \'api:sync\', 1, now() + \'3 h\', \'{"code": "DOWN", "message": "OSError: refused"}\' FROM generate_series(1, 25)',
    )
    send(
        database,
        "INSERT INTO jobherd.rollup (at, kind, step, completed, failed, cancelled, expired, started, ran, waited, cpu, retried)"
        " SELECT now() - n * interval '1 hour', 'api:sync', 60, 0, 2, 0, 0, 0, 0, 0, 0, 75 FROM generate_series(0, 1) AS n",
    )
    with Terminal("top", dsn=database, columns=132) as seen:
        seen.wait(
            "25 scheduled (25 retrying)",
            "failed in 1 h: 2 jobs, 75 attempts",
            "25 retrying: DOWN OSError: refused",
            "no such",
        )
        (row,) = [line for line in seen.lines if "api:sync" in line]
        assert " in 3 h" in row or " in 2 h 59 min" in row or " in 2 h 58 min" in row, row


def test_enter_opens_a_job_and_escape_returns_to_the_panels(database):
    jobs = populate(database)
    with Terminal("top", dsn=database) as seen:
        seen.wait("RUNNING", "month 3", "no such")
        seen.on_key("1\r")
        seen.wait("choose a job, to open it")
        seen.on_key("4g\r")
        seen.wait(f"job {jobs['failed']}  image:resize", "priority", "escape back", "BOOM: no such \\e[2J file")
        assert "RUNNING" not in seen.text
        send(database, "UPDATE jobherd.history SET error = 'a new reason' WHERE id = %s", jobs["failed"])
        seen.wait("BOOM: a new reason")
        seen.on_key("c")
        seen.wait("choose a job that runs")
        seen.on_key("r")
        seen.wait(f"run the job {jobs['failed']} image:resize again?")
        seen.on_key("n")
        seen.wait("nothing was done")
        seen.on_key("\x1b")
        seen.wait("RUNNING", "FAILURES", "q leave  ? help")
        seen.on_key("3\r")
        seen.wait("report:build", "progress", "running")
        send(database, "DELETE FROM jobherd.running")
        seen.wait("not found: it was deleted")
        seen.on_key("q")
        assert seen.wait_exit() == 0


def test_opened_job_is_wrapped_and_can_be_scrolled_to_its_end():
    view, status = View(opened=7), Status("", "")
    assert "reading it" in draw(Look(), view, status, width=80, height=24)[2].plain
    found = Look(
        opened=Opened(7, ("job 7", "x" * 170, "日" * 60, *(f"line {n}" for n in range(60)), "\x1b[31mthe end\x1b[0m"))
    )
    for width in (40, 57, 80, 133):
        for height in (10, 24, 60):
            lines = draw(found, view, status, width=width, height=height)
            assert len(lines) == height
            assert max(line.cell_len for line in lines) <= width
    first = [line.plain for line in draw(found, view, status, width=80, height=24)]
    assert first[2:8] == ["job 7", "x" * 80, "x" * 80, "x" * 10, "日" * 40, "日" * 20]
    view.on_key("G", found)
    last = [line.plain for line in draw(found, view, status, width=80, height=24)]
    assert last[-2] == "the end"
    view.on_key("k", found)
    assert draw(found, view, status, width=80, height=24)[-2].plain == "line 59"
    view.on_key("g", found)
    assert [line.plain for line in draw(found, view, status, width=80, height=24)] == first


def test_long_job_is_cut_and_names_the_command_that_shows_the_rest():
    view, found = View(opened=7, scroll=10**9), Look(opened=Opened(7, tuple(str(n) for n in range(6000))))
    assert "`jobherd job 7` shows the rest" in draw(found, view, Status("", ""), width=80, height=24)[-2].plain


@pytest.mark.parametrize("name", ["top/list_running", "top/list_failures", "top/count_ended"])
def test_statements_of_top_scan_neither_backlog_nor_history(database, name):
    past(database, "completed", many=5000)
    past(database, "failed", many=1000)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("ANALYZE")
        with connection.transaction(), psycopg.ClientCursor(connection) as cursor:
            connection.execute(sql.load("session/limit_measurement").encode(), {"milliseconds": 60_000})
            cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + sql.load(name), {"most": 200})
            plan = cursor.fetchone()[0][0]["Plan"]
    for node in nodes(plan):
        relation = node.get("Relation Name", "")
        assert relation not in {"ready", "scheduled"}
        if relation.startswith("history"):
            assert node["Node Type"] != "Seq Scan" or not node["Actual Rows"], node
            assert node["Actual Rows"] <= 500


def test_sigterm_restores_the_terminal(database):
    with Terminal("top", dsn=database) as seen:
        seen.wait("nothing runs", lambda: datetime.now().astimezone().strftime("%H:") in seen.text)
        os.kill(seen._pid, signal.SIGTERM)
        assert seen.wait_exit() == 0
        assert b"\x1b[?1049l" in seen.raw


def test_closed_terminal_ends_top_without_a_traceback(database, tmp_path):
    master, slave = pty.openpty()
    said = tmp_path / "said"
    with said.open("w") as err:
        process = subprocess.Popen(
            [*COMMAND, "top"], stdin=slave, stdout=slave, stderr=err, env=environment(database, TERM="xterm")
        )
    os.close(slave)
    while b"\x1b[?1049h" not in os.read(master, 65536):
        pass
    os.close(master)
    process.send_signal(signal.SIGHUP)  # like the kernel, to the session of the terminal
    assert process.wait(LIMIT) in {0, 1}
    assert "Traceback" not in said.read_text()
    assert "tcsetattr" not in said.read_text()


def test_a_remote_worker_is_not_shown_as_a_slot():
    assert [
        panels._child({"host": host, "slot": slot})[0] for host, slot in (("alpha", 0), ("gpu-1", None), (None, None))
    ] == [
        "alpha/0",
        "gpu-1 (remote)",
        "-",
    ]
