"""What a running supervisor shows: its log, and the titles of its processes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.shell import COMMAND, LIMIT, environment, jobherd, start
from tests.cli.terminal import Terminal
from tests.support.ports import spare_port
from tests.support.processes import children_of

if TYPE_CHECKING:
    from collections.abc import Iterator

HANDLERS = ("--handlers", "jobherd.handlers.jobs_purge")


@contextlib.contextmanager
def running(*words: object, dsn: str | None, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a supervisor, terminate it at the end, and check that it exits with 0."""
    process = start("run", *words, "--log-format", "text", dsn=dsn, **more)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, said.decode()


def read_until(process: subprocess.Popen[bytes], *patterns: str) -> list[re.Match[str]]:
    """Read the log until all these patterns have matched."""
    said, found = "", []
    while len(found) < len(patterns):
        line = process.stderr.readline().decode()
        assert line, said
        said += line
        found = [match for pattern in patterns if (match := re.search(pattern, said))]
    return found


def title(pid: str) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()


def test_process_titles_show_what_web_and_maintenance_processes_do(database):
    with running(*HANDLERS, "--workers", 1, "--http", "127.0.0.1:0", dsn=database) as process:
        serves, web, maintenance = read_until(
            process,
            r"metrics and health on http://(127\.0\.0\.1:\d+)",
            r"web(?: \d+)? is ready  pid=(\d+)",
            r"maintenance(?: \d+)? is ready  pid=(\d+)",
        )
        assert title(web[1]) == f"jobherd: web serves {serves[1]}"
        assert title(maintenance[1]) == "jobherd: maintenance runs"


def test_title_of_the_web_process_shows_that_it_waits_for_a_taken_port(database):
    with running(*HANDLERS, "--workers", 1, "--http", "127.0.0.1:0", dsn=database) as first:
        (taken,) = read_until(first, r"metrics and health on http://(127\.0\.0\.1:\d+)")
        with running(*HANDLERS, "--workers", 1, "--http", taken[1], dsn=database) as second:
            (web,) = read_until(second, r"web(?: \d+)? is ready  pid=(\d+)")
            assert title(web[1]) == f"jobherd: web waits for {taken[1]}"


def test_broken_module_is_reported_once_with_file_and_line_for_all_workers(database, tmp_path):
    (tmp_path / "broken.py").write_text("import json\n\nraise RuntimeError('out of paper')\n")
    ran = jobherd(
        "run", "--handlers", tmp_path, "--workers", 4, "--log-format", "text", dsn=database, JOBHERD_HTTP="off"
    )
    assert ran.code == 78
    (line,) = [line for line in ran.err.splitlines() if "out of paper" in line]
    assert f"{tmp_path / 'broken.py'}:3: does not load: RuntimeError: out of paper" in line


@pytest.mark.parametrize("flag", ["--handlers", "--hooks"])
@pytest.mark.parametrize("source", ["./nothere", "./nothere.py", "nowhere_at_all.jobs"])
def test_missing_handlers_and_hooks_are_reported_once_before_anything_starts(tmp_path, flag, source):
    ran = jobherd("run", *HANDLERS, flag, source, "--dsn", "host=/nonexistent", "--log-format", "text", cwd=tmp_path)
    assert ran.code == 78
    (line,) = ran.err.splitlines()
    assert (
        line
        == f"jobherd: {flag[2:]}: there is no folder, file or module '{source}' (from {flag}), seen from {tmp_path}"
    )


def test_log_names_kinds_queues_workers_dashboard_and_how_to_stop(database):
    port = spare_port()
    words = (
        *HANDLERS,
        "--workers",
        1,
        "--queues",
        "mail,default",
        "--drain-timeout",
        "90s",
        "--http",
        f"127.0.0.1:{port}",
    )
    with running(*words, dsn=database) as process:
        read_until(
            process,
            r"supervisor: serves 1 kind: jobs:purge_completed",
            r"1 worker, queues: mail, default\n",
            rf"the dashboard is http://127\.0\.0\.1:{port}/",
            r"stop with Ctrl-C: running jobs may finish within 90s; a second Ctrl-C returns them to their queues",
        )


def test_no_address_is_printed_for_a_dashboard_whose_port_is_taken(database):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with running(*HANDLERS, "--workers", 1, "--http", address, dsn=database) as process:
            off, _ = read_until(process, f"are off: cannot listen on {address}", "stop with Ctrl-C")
    assert f"http://{address}" not in off.string


def test_status_lists_workers_and_maintenance_process_but_not_the_web_process(database):
    """The web process claims no jobs, so the database does not list it. The help refers to the metrics instead."""
    with running(*HANDLERS, "--workers", 2, "--http", "127.0.0.1:0", dsn=database) as process:
        read_until(
            process,
            r"worker 0 is ready",
            r"worker 1 is ready",
            r"maintenance(?: \d+)? is ready",
            r"web(?: \d+)? is ready",
        )
        (supervisor,) = jobherd("status", "--json", dsn=database).json["supervisors"]
        assert sorted(child["kind"] for child in supervisor["children"]) == ["maintenance", "worker", "worker"]
    assert "metrics" in jobherd("status", "--help").out


def test_killed_embedded_server_is_restarted_and_the_supervisor_continues(tmp_path):
    number = tmp_path / ".jobherd" / "postgres" / "postmaster.pid"
    with running(*HANDLERS, "--workers", 1, dsn=None, cwd=tmp_path, JOBHERD_HTTP="off") as process:
        read_until(process, r"worker 0 is ready")
        died = int(number.read_text().split()[0])
        os.kill(died, signal.SIGKILL)
        again, _ = read_until(process, r"had ended and was started again  postmaster=(\d+)", r"database is back")
        assert int(again[1]) == int(number.read_text().split()[0]) != died
        added = jobherd("enqueue", "jobs:purge_completed", "{}", cwd=tmp_path)
        assert added.code == 0, added
        assert jobherd("wait", added.out.strip(), cwd=tmp_path).code == 0
        # The server is a child of the supervisor now, since the process that started it has exited.
        # The supervisor must not kill it as an orphan of the dead worker.
        [worker] = [pid for pid in children_of(process.pid) if b"worker 0" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(worker, signal.SIGKILL)
        read_until(process, r"worker 0 is ready")
        assert int(again[1]) in children_of(process.pid)
    assert not number.exists(), "the guard must stop the server when its last user, the supervisor, exits"


CHATTY = """
import os, subprocess
from jobherd import handler

@handler("c:chatty")
def chatty():
    print("said to the job's log")
    os.write(2, b"said by the job\\n")
    subprocess.run(["sh", "-c", "echo said by a program of the job >/dev/tty"], check=True)
"""


def test_child_processes_can_write_to_a_terminal_that_stops_background_writers(database, tmp_path):
    """Regression: each child process leads its own process group.

    Under `stty tostop` the kernel stopped it at its first line, and the supervisor killed it as hanging.
    """
    (tmp_path / "chatty.py").write_text(CHATTY)
    words = ("run", "--handlers", tmp_path, "--workers", 1, "--http", "off", "--no-log-capture")
    with Terminal(*words, dsn=database, columns=160, tostop=True) as seen:
        seen.wait("maintenance is ready", "worker 0 is ready")
        job = jobherd("enqueue", "c:chatty", "{}", dsn=database).out.strip()
        seen.wait("said to the job's log", "said by the job", "said by a program of the job")
        waited = jobherd("wait", job, dsn=database)
        assert waited.code == 0, waited.err
        seen.tell(signal.SIGTERM)
        assert seen.wait_exit() == 0, seen.text


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_supervisor_works_without_standard_streams(database, closed):
    """Otherwise a session or a pipe would get the file descriptor of a stream, and printed text would go there."""
    job = jobherd("enqueue", "jobs:purge_completed", "{}", dsn=database).out.strip()
    words = [*COMMAND, "run", *HANDLERS, "--workers", "1", "--until-empty"]
    ran = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *words],
        capture_output=True, env=environment(database, JOBHERD_HTTP="off"), timeout=LIMIT, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr.decode()
    assert jobherd("job", job, "--json", dsn=database).json["state"] == "completed"


def test_embedded_database_is_created_although_sigchld_is_ignored(tmp_path):
    """Child processes inherit that setting.

    Exit codes are then lost, and initdb, which needs those of its own child processes, fails.
    """
    words = [*COMMAND, "enqueue", "jobs:purge_completed", "{}"]
    ran = subprocess.run(
        [sys.executable, "-c", "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])", *words],
        capture_output=True, env=environment(None), cwd=tmp_path, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, b"1\n"), ran.stderr.decode()


@pytest.mark.parametrize(("limit", "why"), [("-n 40", "Too many open files"), ("-f 10", "File too large")])
def test_ulimits_that_are_too_low_for_a_supervisor_are_reported_with_a_fix(database, limit, why):
    words = [*COMMAND, "run", *HANDLERS, "--http", "off"]
    ran = subprocess.run(
        ["bash", "-c", f'ulimit {limit}; exec "$@"', "bash", *words],
        capture_output=True,
        env=environment(database),
        timeout=LIMIT,
        check=False,
    )
    said = ran.stderr.decode()
    assert ran.returncode == 78 and why in said and "or lower max_workers" in said and "Traceback" not in said, said
