"""Commands that show or change jobs and queues."""

from __future__ import annotations

import json
import os
import pty
import subprocess

import psycopg
import pytest

from jobherd import sql
from tests.cli.rows import child, claim, past, send, supervisor
from tests.cli.shell import COMMAND, LIMIT, environment, jobherd, start
from tests.support.network import Network

KEYS = (
    "id kind queue priority state attempts max_attempts crashes payload result error error_code run_at created_at started_at finished_at "
    "progress history"
).split()


def enqueue(dsn: str, kind: str = "a:b", **options: object) -> int:
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    return int(jobherd("enqueue", kind, "{}", *words, dsn=dsn).out)


def everything(dsn: str) -> dict[str, int]:
    """Insert a job in each state except `blocked`. Return the ids by state."""
    running = enqueue(dsn)
    claim(dsn, child(dsn, supervisor(dsn)))
    return {
        "running": running,
        "ready": enqueue(dsn),
        "scheduled": enqueue(dsn, delay="1h"),
        "retrying": send(
            dsn, "INSERT INTO jobherd.scheduled (kind, attempts, run_at) VALUES ('a:b', 1, now() + '1 h') RETURNING id"
        )[0][0],
        **{state: past(dsn, state) for state in ("completed", "failed", "cancelled", "expired")},
    }


@pytest.mark.promise("A32", "C14")
def test_jobs_of_every_state_are_listed_newest_first_and_found_by_state(database):
    ids = everything(database)
    listed = jobherd("jobs", "--json", dsn=database).json
    assert [job["id"] for job in listed] == sorted(ids.values(), reverse=True)
    assert {job["state"]: job["id"] for job in listed} == ids
    table = jobherd("jobs", dsn=database)
    assert [line.split()[:2] for line in table.lines[1:]] == [
        [str(number), state] for state, number in sorted(ids.items(), key=lambda i: -i[1])
    ]
    for state, number in ids.items():
        assert [job["id"] for job in jobherd("jobs", "--state", state, "--json", dsn=database).json] == [number], state
    pair = jobherd("jobs", "--state", "failed,ready", "--state", "running", "--json", dsn=database).json
    assert {job["state"] for job in pair} == {"failed", "ready", "running"}


def test_times_are_read_whatever_the_date_style_of_the_role_or_database(database):
    number = past(database, "completed")
    send(database, "SELECT jobherd.pause('default')")
    for command in (("jobs",), ("job", number), ("queues",), ("status",), ("doctor",)):
        answer = jobherd(*command, "--json", dsn=database, PGOPTIONS="-c DateStyle=German")
        assert answer.json, answer


def test_jobs_are_filtered_by_kind_and_queue(database):
    past(database, "completed", many=3)
    wanted = past(database, "failed", kind="rare:one", queue="slow")
    waiting = enqueue(database, "rare:one")
    assert [job["id"] for job in jobherd("jobs", "--kind", "rare:one", "--json", dsn=database).json] == [
        waiting,
        wanted,
    ]
    assert [job["id"] for job in jobherd("jobs", "--queue", "slow", "--json", dsn=database).json] == [wanted]
    assert jobherd("jobs", "--queue", "none", "--json", dsn=database).json == []


def test_jobs_are_filtered_by_the_code_of_their_error(database):
    past(database, "completed")
    failed = past(database, "failed")
    waiting = send(
        database,
        "INSERT INTO jobherd.scheduled (kind, attempts, run_at, last_error) VALUES ('a:b', 1, now() + '1 h', '{\"code\": \"BOOM\"}') RETURNING id",
    )[0][0]
    past(database, "failed", error="other")
    send(database, "UPDATE jobherd.history SET error_code = 'OTHER' WHERE error = 'other'")
    assert [job["id"] for job in jobherd("jobs", "--code", "BOOM", "--json", dsn=database).json] == [waiting, failed]
    assert [
        job["id"] for job in jobherd("jobs", "--code", "BOOM", "--state", "failed", "--json", dsn=database).json
    ] == [failed]


def test_pages_follow_each_other_without_gap_or_repetition(database):
    past(database, "completed", many=7)
    for _ in range(4):
        enqueue(database)
    past(database, "failed", many=3)
    seen, before = [], []
    while page := jobherd("jobs", "--limit", 4, "--json", *before, dsn=database).json:
        seen += [job["id"] for job in page]
        before = ["--before", seen[-1]]
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) == 14
    assert f"--before {seen[3]}" in jobherd("jobs", "--limit", 4, dsn=database).err


def test_filtered_list_reads_at_most_50000_jobs_and_prints_where_to_continue(database):
    past(database, "completed", kind="rare:one")
    floor = past(database, "completed", many=50_010) - 50_000 + 1
    answer = jobherd("jobs", "--kind", "rare:one", dsn=database)
    assert (answer.code, answer.out) == (0, "")
    assert f"--before {floor}" in answer.err
    assert len(jobherd("jobs", "--kind", "rare:one", "--before", floor, "--json", dsn=database).json) == 1


def test_list_of_failed_jobs_does_not_read_completed_ones(database):
    past(database, "failed")
    past(database, "completed", many=20_000)
    send(database, "ANALYZE jobherd.history")
    parameters = {
        "states": ["failed"],
        "kind": None,
        "queue": None,
        "tenant": None,
        "code": None,
        "limit": 50,
        "before": 2**63 - 1,
        "scan": 50_000,
    }
    with psycopg.connect(database) as conn:
        plan = conn.execute(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + sql.load("observe/list_jobs"), parameters
        ).fetchone()[0][0]["Plan"]
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 60


@pytest.mark.promise("D19", "D35")
def test_json_of_a_job_has_the_keys_that_scripts_rely_on(database):
    for state, number in everything(database).items():
        job = jobherd("job", number, "--json", dsn=database).json
        assert set(KEYS) <= set(job), state
        assert (job["id"], job["state"]) == (number, state)
    failed = jobherd("job", number, "--json", dsn=database).json
    assert [attempt["outcome"] for attempt in failed["history"]] == ["expired"]


@pytest.mark.promise("D21", "D35")
def test_job_shows_its_attempts(database):
    number = past(database, "failed", error="the last straw")
    send(
        database,
        """INSERT INTO jobherd.attempts (job, token, attempt, outcome, started_at, finished_at, drop_on, error_code, error, traceback, ran_on)
           VALUES (%s, 1, 1, 'retry', now() - interval '5 s', now() - interval '3 s', current_date + 30, 'ValueError', 'the first straw',
                   'Traceback:\n  File "x.py", line 3', 'beta/12')""",
        number,
    )
    page = jobherd("job", number, dsn=database)
    assert page.code == 0
    assert page.out.index("the first straw") < page.out.rindex("the last straw")
    for words in (
        "mail:receipt",
        "failed",
        '{"order_id": 7}',
        'File "x.py", line 3',
        "beta/12",
        "alpha/77",
        "ran for 2.0 s",
    ):
        assert words in page.out, words


def test_job_shows_memory_and_processor_time_of_its_attempts(database):
    number = past(database, "completed")
    for token, usage in enumerate(
        ('{"max_rss": 34603008, "cpu_user": 1.5, "cpu_system": 0.5}', '{"max_rss": 1048576}', '"much"')
    ):
        send(
            database,
            """INSERT INTO jobherd.attempts (job, token, attempt, outcome, finished_at, drop_on, usage)
               VALUES (%s, %s, 1, 'retry', now(), current_date + 30, %s)""",
            number, token + 1, usage,
        )  # fmt: skip
    page = jobherd("job", number, dsn=database).lines
    assert [line for line in page if "used" in line] == [
        "  used 33.0 MiB at most, 2.0 s of processor",
        "  used 1.0 MiB at most",
        "  used much",
    ]


def test_sentence_of_a_post_mortem_is_shown_once_per_attempt(database):
    number = past(database, "completed")
    why = "Process 12 died of SIGKILL (not sent by the supervisor) while it ran mail:receipt #1."
    for token, error in enumerate((why, "it was never written")):
        send(
            database,
            """INSERT INTO jobherd.attempts (job, token, attempt, outcome, started_at, finished_at, drop_on, error_code, error, post_mortem)
               VALUES (%s, %s, 1, 'retry', now(), now(), current_date + 30, 'WORKER_CRASHED', %s, jsonb_build_object('sentence', %s::text))""",
            number, token + 1, error, why,
        )  # fmt: skip
    page = jobherd("job", number, dsn=database).lines
    assert page.count(f"  {why}") == 2  # once for each attempt
    assert page.count("  it was never written") == 1


def test_payload_that_python_cannot_load_is_shown(database):
    hostile = '{"deep": ' + "[" * 3000 + "]" * 3000 + ', "long": ' + "9" * 6000 + "}"
    number = send(database, "INSERT INTO jobherd.ready (kind, payload) VALUES ('a:b', %s) RETURNING id", hostile)[0][0]
    for words in (("jobs",), ("jobs", "--json"), ("job", number), ("job", number, "--json")):
        answer = jobherd(*words, dsn=database)
        assert answer.code == 0, answer
    assert hostile in answer.out


def test_output_escapes_control_characters_and_characters_that_reverse_text(database):
    """A hostile payload, shown as JSON on a terminal, could hide other text."""
    hostile = "a\u202e\u2066\x9b31m\x7f\u2028\ufeff\x1b[2J\u061cz"
    payload = json.dumps({hostile: [hostile]}, ensure_ascii=False)
    statement = "INSERT INTO jobherd.scheduled (kind, payload, run_at) VALUES ('a:b', %s, now() + '1 day') RETURNING id"
    number = send(database, statement, payload)[0][0]
    for words in (("jobs",), ("job", number), ("why", number)):
        for flags in ((), ("--json",)):
            answer = jobherd(*words, *flags, dsn=database)
            assert answer.code == 0, answer
            assert not set(hostile) & set(answer.out + answer.err) - {"a", "z", "3", "1", "m", "[", "2", "J"}, (
                words,
                flags,
            )
        if words[0] == "job":
            assert answer.json["payload"] == {hostile: [hostile]}, "a program must read the original text"
    wrong = jobherd("retry", "9\x1b[31m\u202e", dsn=database)
    assert wrong.code == 2
    assert not {"\x1b", "\u202e"} & set(wrong.err), wrong.err


def test_missing_job_exits_with_1(database):
    for words in (("job", 77), ("wait", 77), ("retry", 77), ("cancel", 77)):
        answer = jobherd(*words, dsn=database)
        assert answer.code == 1, answer
        assert "not found" in answer.out + answer.err


def test_wait_reports_the_final_states_of_jobs(database):
    good, bad = past(database, "completed"), past(database, "failed")
    assert (jobherd("wait", good, dsn=database).code, jobherd("wait", bad, dsn=database).code) == (0, 1)
    both = jobherd("wait", good, bad, "--json", dsn=database)
    assert both.code == 1
    assert both.json == [
        {"id": good, "state": "completed", "error_code": None, "error": None},
        {"id": bad, "state": "failed", "error_code": "BOOM", "error": "it broke"},
    ]
    missing = jobherd("wait", 77, "--json", dsn=database)
    assert (missing.code, missing.json) == (1, [{"id": 77, "state": "unknown", "error_code": None, "error": None}])


def test_wait_prints_the_error_of_a_failed_job_in_one_line(database):
    short = past(database, "failed", error="no paper")
    assert jobherd("wait", short, dsn=database).out == f"{short} failed  BOOM: no paper\n"
    long = past(database, "failed", error="line one\nthe reason is long " * 50)
    (whole,) = jobherd("wait", long, dsn=database).lines
    assert whole.count("the reason is long") == 50
    (line,) = jobherd("wait", long, dsn=database, COLUMNS="80").lines
    assert line.startswith(f"{long} failed  BOOM: line one\\nthe reason")
    assert len(line) == 80


def test_wait_exits_with_124_after_its_timeout_and_names_unfinished_jobs(database):
    number = enqueue(database)
    answer = jobherd("wait", number, "--timeout", "0", dsn=database)
    assert answer.code == 124
    assert str(number) in answer.err


def test_wait_notices_the_end_of_a_job_despite_invalid_notifications(database):
    first, second = past(database, "completed"), enqueue(database)
    process = start("wait", first, second, dsn=database)
    assert process.stdout.readline() == f"{first} completed\n".encode()  # it has queried once and keeps waiting
    send(database, "NOTIFY jobherd_done, '²=completed " + "9" * 5000 + "=completed'")  # any role can send any text
    jobherd("cancel", second, dsn=database)
    out, _ = process.communicate(timeout=LIMIT)
    assert (process.returncode, out) == (1, f"{second} cancelled\n".encode())


@pytest.mark.parametrize("timeout", [None, "2s"])
def test_wait_does_not_hang_if_the_network_swallows_its_session(database, timeout):
    """Regression: if each packet was acknowledged and none delivered, `wait` hung, even past its timeout."""
    first, second = past(database, "completed"), enqueue(database)
    with Network(database) as network:
        process = start("wait", first, second, *(("--timeout", timeout) if timeout else ()), dsn=network.dsn)
        assert process.stdout.readline() == f"{first} completed\n".encode()  # it has queried once and keeps waiting
        if timeout:
            network.blackhole("jobherd wait")
        else:
            assert network.stall("jobherd wait") == 1
            jobherd("cancel", second, dsn=database)
        out, err = process.communicate(timeout=LIMIT)
    assert b"the database does not answer" in err
    assert (process.returncode, out) == ((69, b"") if timeout else (1, f"{second} cancelled\n".encode()))


def test_cancel_reports_cancelled_being_cancelled_or_too_late(database):
    waiting, running = enqueue(database), None
    answer = jobherd("cancel", waiting, dsn=database)
    assert (answer.code, answer.out) == (0, f"{waiting} cancelled\n")
    running = enqueue(database)
    claim(database, child(database, supervisor(database)))
    answer = jobherd("cancel", running, "--json", dsn=database)
    assert (answer.code, answer.json) == (0, [{"id": running, "answer": "cancelling"}])
    late = jobherd("cancel", past(database, "completed"), dsn=database)
    assert late.code == 1
    assert "too late" in late.out


@pytest.mark.promise("A32", "D20")
def test_retry_reads_ids_from_standard_input_and_continues_after_a_missing_one(database):
    ids = [past(database, "failed") for _ in range(3)]
    answer = jobherd("retry", "-", dsn=database, stdin=f"{ids[0]}\n{ids[1]} 4711 {ids[2]}\n")
    assert answer.code == 1  # 4711 does not exist
    assert answer.lines == [f"{ids[0]} ready", f"{ids[1]} ready", "4711 not found", f"{ids[2]} ready"]
    assert send(database, "SELECT array_agg(id ORDER BY id) FROM jobherd.ready") == [(ids,)]


def test_queue_is_paused_and_resumed(database):
    enqueue(database, queue="mail")
    assert jobherd("pause", "mail", "--reason", "provider down", dsn=database).out == "mail is paused\n"
    assert jobherd("pause", "mail", dsn=database).out == "mail was paused already\n"
    queue = jobherd("queues", "--json", dsn=database).json[0]
    assert (queue["queue"], queue["ready"], queue["paused"], queue["reason"]) == ("mail", 1, True, "provider down")
    assert "provider down" in jobherd("queues", dsn=database).out
    assert jobherd("resume", "mail", dsn=database).out == "mail is resumed\n"
    assert jobherd("resume", "mail", dsn=database).out == "mail was not paused\n"
    refused = jobherd("pause", "No Queue", dsn=database)
    assert refused.code == 2
    assert "not a queue name" in refused.err


def test_limits_and_pauses_of_queues_and_kinds_are_set_and_shown(database):
    assert (
        jobherd("limit", "media", "10", dsn=database).out
        == "media runs at most 10 at a time; there was no concurrency limit\n"
    )
    assert (
        jobherd("limit", "--kind", "report:year", "3", dsn=database).out
        == "report:year runs at most 3 at a time; there was no concurrency limit\n"
    )
    assert jobherd(
        "pause", "--kind", "mail:receipt", "--for", "1h", "--by", "ada", "--reason", "bounces", dsn=database
    ).out.startswith("mail:receipt is")
    shown = jobherd("queues", dsn=database).out
    assert "0 of 10" in shown
    assert "by ada, until" in shown
    gates = {gate["name"]: gate for gate in jobherd("status", "--json", dsn=database).json["gates"]}
    assert (gates["media"]["scope"], gates["media"]["running"], gates["media"]["max_running"]) == ("queue", 0, 10)
    assert gates["mail:receipt"]["paused"] is True
    assert jobherd("resume", "--kind", "mail:receipt", dsn=database).out == "mail:receipt is resumed\n"
    assert jobherd("limit", "media", "off", dsn=database).out == "media has no concurrency limit; it was 10\n"
    assert jobherd("pause", "*", dsn=database).out == "everything is paused\n"
    assert jobherd("pause", "--all", dsn=database).out == "everything was paused already\n"
    assert jobherd("resume", "--all", dsn=database).out == "everything is resumed\n"
    for wrong in (["limit", "media"], ["limit", "media", "0"], ["pause"], ["pause", "a", "--kind", "a:b"], ["pause", "a", "--for", "long"],
                  ["pause", "a", "--all"], ["resume", "--all", "--kind", "a:b"]):  # fmt: skip
        assert jobherd(*wrong, dsn=database).code == 2, wrong


def test_queues_shows_the_number_of_jobs_by_state(database):
    everything(database)
    past(database, "completed", many=5)
    default = jobherd("queues", "--json", dsn=database).json[0]
    assert {name: default[name] for name in ("ready", "scheduled", "running", "retrying")} == {
        "ready": 1, "scheduled": 1, "running": 1, "retrying": 1,
    }  # fmt: skip
    assert default["oldest_age"] > 0


def test_status_shows_supervisors_and_the_jobs_of_their_workers(database):
    empty = jobherd("status", dsn=database)
    assert empty.code == 0
    assert "nothing runs" in empty.out
    number = enqueue(database)
    claim(database, child(database, supervisor(database, host="alpha")))
    supervisor(database, host="omega", lease=-60)
    told = jobherd("status", "--json", dsn=database).json
    alpha, omega = told["supervisors"]
    assert (alpha["host"], alpha["expired"], omega["expired"]) == ("alpha", False, True)
    assert [(each["running"], each["job"], each["job_kind"]) for each in alpha["children"]] == [(1, number, "a:b")]
    assert told["queues"][0]["running"] == 1
    page = jobherd("status", dsn=database)
    assert "lease expired" in page.out
    assert f"{number} a:b" in page.out
    assert max(len(line) for line in page.lines) <= 80


def test_purge_needs_a_confirmation_and_deletes_only_the_jobs_it_counted(database):
    old, young = past(database, "failed", days=40, many=2500), past(database, "failed", days=1)
    other = past(database, "completed", days=40)
    send(database, "INSERT INTO jobherd.attempts SELECT %s, 1, 1, 'retry', NULL, now(), current_date + 9", old)
    waiting = enqueue(database)
    words = ("purge", "--state", "failed", "--older-than", "30d")
    assert (
        "'99999d' is not a duration up to 100 years"
        in jobherd("purge", "--state", "failed", "--older-than", "99999d").err
    )
    assert jobherd(*words, "--dry-run", dsn=database).out == "2,500 jobs to delete (2500 failed)\n"
    refused = jobherd(*words, dsn=database)  # no terminal for the question
    assert refused.code == 2
    assert "--yes" in refused.err
    assert send(database, "SELECT count(*) FROM jobherd.history") == [(2502,)]
    done = jobherd(*words, "--yes", "--json", dsn=database)
    assert (done.code, done.json) == (0, {"counted": {"failed": 2500}, "deleted": 2500, "dry_run": False})
    assert send(database, "SELECT array_agg(id ORDER BY id) FROM jobherd.jobs") == [(sorted([young, other, waiting]),)]
    assert send(database, "SELECT count(*) FROM jobherd.attempts") == [(0,)]
    assert (
        jobherd("purge", "--state", "all", "--older-than", "30d", "--kind", "no:such", "--yes", dsn=database).out
        == "0 jobs to delete\n"
    )
    assert jobherd("purge", "--state", "ready", "--older-than", "30d", dsn=database).code == 2


def test_purge_deletes_nothing_if_the_user_answers_no(database):
    past(database, "failed", days=40)
    master, slave = pty.openpty()
    os.write(master, b"no\n")
    done = subprocess.run(
        [*COMMAND, "purge", "--state", "failed", "--older-than", "30d"], stdin=slave, capture_output=True, env=environment(database),
        timeout=LIMIT, check=False,
    )  # fmt: skip
    os.close(master)
    os.close(slave)
    assert done.returncode == 1
    assert b"Delete 1 job (1 failed)? [y/N]" in done.stderr
    assert send(database, "SELECT count(*) FROM jobherd.history") == [(1,)]


def test_reprioritize_and_reschedule_change_waiting_jobs_and_are_audited(database):
    first, second = enqueue(database), enqueue(database)
    assert jobherd("reprioritize", first, second, "--priority", "-5", "--json", dsn=database).json == [
        {"id": first, "answer": "ready"}, {"id": second, "answer": "ready"},
    ]  # fmt: skip
    assert jobherd("reschedule", second, "--delay", "10m", "--reason", "later", dsn=database).lines == [
        f"{second} scheduled"
    ]
    assert jobherd("reschedule", second, "--now", dsn=database).lines == [f"{second} ready"]
    over = past(database, "failed")
    late = jobherd("reprioritize", over, first, "--priority", "3", dsn=database)
    assert (late.code, late.lines) == (1, [f"{over} too late: it is failed", f"{first} ready"])
    assert jobherd("reprioritize", first, "--priority", "99999", dsn=database).code == 2
    noted = send(database, "SELECT action, reason FROM jobherd.audit WHERE actor LIKE '%%@%%' ORDER BY id")
    assert noted == [
        ("reprioritize", None),
        ("reprioritize", None),
        ("reschedule", "later"),
        ("reschedule", None),
        ("reprioritize", None),
    ]


def test_delete_deletes_only_finished_jobs(database):
    over, waits = past(database, "failed"), enqueue(database)
    answer = jobherd("delete", over, waits, dsn=database)
    assert (answer.code, answer.lines) == (1, [f"{over} deleted", f"{waits} not deleted: it waits; cancel it first"])
    assert [job["id"] for job in jobherd("jobs", "--json", dsn=database).json] == [waits]


def test_job_shows_output_and_log_entries_of_its_attempts(database):
    """The entries come from calls of `job.log(...)` in a handler."""
    number = past(database, "completed")
    entry = '[{"key": "build", "command": "make all", "exit_code": 0, "duration": 1.0, "out": "linked"}]'
    send(
        database,
        "INSERT INTO jobherd.logs (job, token, attempt, at, drop_on, output, entries) VALUES (%s, 1, 1, now(), current_date + 30, 'said', %s)",
        number,
        entry,
    )
    shown = jobherd("job", number, dsn=database)
    assert shown.code == 0
    assert "said" in shown.out
    assert "[build] make all exit 0" in shown.out
    assert "linked" in shown.out


def test_rate_limits_are_set_shown_and_removed(database):
    assert (
        jobherd("limit", "mail", "100/min", "--burst", "10", dsn=database).out
        == "mail starts at most 100/min; there was no rate limit\n"
    )
    assert jobherd("limit", "--kind", "crm:push", "5/2h", dsn=database).out.startswith("crm:push starts at most 5/2h;")
    assert jobherd("limit", "mail", "9/s", dsn=database).out == "mail starts at most 9/s; it was 100/min\n"
    jobherd("limit", "mail", "3", dsn=database)
    shown = {row["name"]: row for row in jobherd("limits", "--json", dsn=database).json}
    assert {name: (row["rate"], row["burst"], row["tokens"], row["max_running"]) for name, row in shown.items()} == {
        "mail": ("9/s", 1, 1, 3),
        "crm:push": ("5/2h", 1, 1, None),
    }
    out = jobherd("limits", dsn=database).out
    assert "0 of 3" in out
    assert "5/2h" in jobherd("queues", dsn=database).out
    assert (
        jobherd("limit", "--kind", "crm:push", "off", dsn=database).out == "crm:push has no rate limit; it was 5/2h\n"
    )
    assert jobherd("limit", "mail", "off", dsn=database).out == (
        "mail has no concurrency limit; it was 3\nmail has no rate limit; it was 9/s\n"
    )
    assert jobherd("limits", dsn=database).err.endswith("no queue or kind has a limit, and no partitions take turns\n")
    for wrong in (["mail", "often/s"], ["mail", "1/s", "--burst", "0"], ["mail", "3", "--burst", "2"]):
        assert jobherd("limit", *wrong, dsn=database).code == 2, wrong
