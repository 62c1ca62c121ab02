"""`enqueue`: one job, many jobs, and rejected input."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import orjson
import pytest

from tests.cli.rows import send
from tests.cli.shell import COMMAND, LIMIT, environment, jobherd, on_terminal


def test_enqueue_prints_only_the_id(database):
    answer = jobherd("enqueue", "mail:receipt", '{"order_id": 7}', dsn=database)
    assert (answer.code, answer.err) == (0, "")
    job = jobherd("job", int(answer.out), "--json", dsn=database).json
    assert (job["kind"], job["payload"], job["state"], job["queue"]) == (
        "mail:receipt",
        {"order_id": 7},
        "ready",
        "default",
    )


def test_every_option_is_stored(database):
    answer = jobherd(
        "enqueue", "a:b", "{}", "--queue", "media", "--priority", -5, "--delay", "1h30m", "--max-attempts", 2, "--timeout", "2m",
        "--expires-at", "2040-01-01T00:00:00+00:00", "--cost", "memory_mb=900,gpus=0.5", dsn=database,
    )  # fmt: skip
    job = jobherd("job", answer.out.strip(), "--json", dsn=database).json
    assert (job["state"], job["queue"], job["priority"], job["max_attempts"], job["timeout"]) == (
        "scheduled",
        "media",
        -5,
        2,
        120.0,
    )
    assert job["expires_at"] == "2040-01-01T00:00:00+00:00"
    assert send(database, "SELECT run_at - created_at FROM jobherd.jobs")[0][0].total_seconds() == 5400
    assert send(database, "SELECT job, cost FROM jobherd.demands") == [(job["id"], {"gpus": 0.5, "memory_mb": 900})]


def test_timestamp_does_not_depend_on_the_local_time_zone(database):
    answer = jobherd("enqueue", "a:b", "{}", "--run-at", "2040-06-01T12:00:00+03:00", dsn=database, TZ="Etc/GMT-5")
    assert jobherd("job", answer.out.strip(), "--json", dsn=database).json["run_at"] == "2040-06-01T09:00:00+00:00"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["Mail", "{}"], "kind"),
        (["a:b", "{"], "payload"),
        (["a:b", '{"x": NaN}'], "payload"),
        (["a:b", '{"a": {"b": ["\\u0000"]}}'], "$.a.b[0]"),
        (["a:b", '{"x": "\\ud800"}'], "payload"),
        (["a:b", "[" * 101 + "]" * 101], "100"),
        (["a:b", '{"x": ' + "9" * 1001 + "}"], "$.x"),
        (["a:b", "{}", "--queue", "No"], "queue"),
        (["a:b", "{}", "--cost", "memory"], "memory_mb=900,gpus=1"),
        (["a:b", "{}", "--cost", "memory=-1"], "cost['memory'] must be a number of 0 or more"),
        (["a:b", "{}", "--cost", "gpus=1,gpus=2"], "two amounts for one name"),
        (["a:b", "{}", "--priority", "0" * 12 + "99999"], "priority"),
        (["a:b", "{}", "--priority", "9" * 5000], "not a whole number"),
        (["a:b", "{}", "--delay", "soon"], "delay"),
        (["a:b", "{}", "--delay", "1h", "--run-at", "2040-01-01T00:00Z"], "exclude"),
        (["a:b", "{}", "--max-attempts", "0"], "max_attempts"),
        (["a:b", "{}", "--timeout", "0"], "timeout"),
        (["a:b", "{}", "--priority", "99999"], "priority"),
        (["a:b", "{}", "--run-at", "yesterday"], "timestamp"),
        (["a:b", "{}", "--run-at", "2040-01-01T08:00"], "has no time zone"),
        (["a:b", "{}", "--expires-at", "2040-01-01"], "has no time zone"),
        (["a:b", "{}", "--colour", "red"], "--colour"),
    ],
)
def test_invalid_input_exits_with_2_and_enqueues_nothing(database, words, said):
    answer = jobherd("enqueue", *words, dsn=database)
    assert answer.code == 2, answer
    assert said in answer.err
    assert answer.out == ""
    assert "Traceback" not in answer.err
    assert send(database, "SELECT count(*) FROM jobherd.jobs") == [(0,)]


def test_payload_of_more_than_a_megabyte_is_rejected(database):
    answer = jobherd("enqueue", "a:b", "-", dsn=database, stdin='{"x": "' + "y" * 1_000_001 + '"}')
    assert answer.code == 2
    assert "line 1" in answer.err
    endless = jobherd("enqueue", "a:b", "-", dsn=database, stdin=b" " * 5_000_000)
    assert endless.code == 2
    assert "longer than" in endless.err


def test_standard_input_enqueues_one_job_per_line_in_order(database):
    answer = jobherd(
        "enqueue", "a:b", "-", "--queue", "bulk", dsn=database, stdin="".join(f'{{"n": {n}}}\n\n' for n in range(2500))
    )
    assert (answer.code, answer.err) == (0, "")
    assert len(answer.lines) == 2500
    rows = send(database, "SELECT id, (payload ->> 'n')::int, queue FROM jobherd.ready ORDER BY id")
    assert rows == [(int(line), n, "bulk") for n, line in enumerate(answer.lines)]


def test_pipe_is_read_if_no_payload_is_given(database):
    assert len(jobherd("enqueue", "a:b", dsn=database, stdin='{"n": 1}\n{"n": 2}').lines) == 2


@pytest.mark.parametrize("given", ["null", "closed", "terminal"])
def test_payload_is_empty_if_none_is_given_and_there_is_no_input(database, given):
    """Cron, systemd and CI pass /dev/null as input. The job must not be lost silently."""
    if given == "terminal":
        said = on_terminal("enqueue", "a:b", dsn=database)
    else:
        command = shlex.join([*COMMAND, "enqueue", "a:b"]) + (" </dev/null" if given == "null" else " <&-")
        done = subprocess.run(
            ["sh", "-c", command], capture_output=True, env=environment(database), timeout=LIMIT, check=False
        )
        assert (done.returncode, done.stderr) == (0, b""), done
        said = done.stdout.decode()
    assert jobherd("job", said.strip(), "--json", dsn=database).json["payload"] == {}


@pytest.mark.parametrize("given", [b"", b"\n \n"])
def test_empty_pipe_or_file_in_place_of_a_payload_is_an_error_with_a_fix(database, tmp_path, given):
    piped = jobherd("enqueue", "a:b", dsn=database, stdin=given)
    assert (piped.code, piped.out) == (2, "")
    assert "give the payload as an argument, '{}' for an empty one" in piped.err
    (tmp_path / "orders").write_bytes(given)
    with (tmp_path / "orders").open("rb") as file:
        done = subprocess.run(
            [*COMMAND, "enqueue", "a:b"], stdin=file, capture_output=True, env=environment(database), timeout=LIMIT
        )
    assert (done.returncode, done.stderr.decode()) == (2, piped.err)
    assert send(database, "SELECT count(*) FROM jobherd.jobs") == [(0,)]


def test_enqueue_of_lines_accepts_empty_input_but_not_closed_input(database):
    answer = jobherd("enqueue", "a:b", "-", dsn=database)
    assert (answer.code, answer.out) == (0, "")
    assert "nothing was enqueued" in answer.err
    closed = subprocess.run(
        ["sh", "-c", shlex.join([*COMMAND, "enqueue", "a:b", "-"]) + " <&-"],
        capture_output=True,
        env=environment(database),
        timeout=LIMIT,
    )
    assert closed.returncode == 2
    assert b"standard input is closed" in closed.stderr


def states(shown: str) -> list[str]:
    """Return the successive contents of the progress line on a terminal."""
    return [
        state
        for line in shown.split("\n")
        for part in line.split("\r")
        if (state := part.removesuffix("\x1b[K")) and "jobs" in state
    ]


def test_long_file_shows_a_progress_bar_on_a_terminal(database, tmp_path):
    (tmp_path / "orders").write_text("".join(f'{{"n": {n}}}\n' for n in range(2500)))
    with (tmp_path / "orders").open("rb") as file, (tmp_path / "ids").open("wb") as ids:
        shown = states(on_terminal("enqueue", "a:b", dsn=database, stdin=file, stdout=ids))
    assert len((tmp_path / "ids").read_text().split()) == 2500
    first, last = shown[0], shown[-1]
    assert re.match(r"\[#{9}\.{15}\]  37%  1,000 jobs, [\d,]+ a second, [\w ]+ left$", first), first
    assert re.match(r"\[#{24}\] 100%  2,500 jobs, [\d,]+ a second$", last), last


def test_long_pipe_shows_a_count_on_a_terminal(database, tmp_path):
    given = subprocess.Popen([sys.executable, "-c", "for n in range(2500): print('{}')"], stdout=subprocess.PIPE)
    with (tmp_path / "ids").open("wb") as ids:
        shown = states(on_terminal("enqueue", "a:b", "-", dsn=database, stdin=given.stdout, stdout=ids))
    given.stdout.close()
    assert given.wait(LIMIT) == 0
    assert re.match(r"2,000 jobs, [\d,]+ a second$", shown[0]), shown
    assert re.match(r"2,500 jobs, [\d,]+ a second$", shown[-1]), shown


def test_ids_and_progress_bar_share_a_terminal(database, tmp_path):
    (tmp_path / "orders").write_text("{}\n" * 1500)
    with (tmp_path / "orders").open("rb") as file:
        shown = on_terminal("enqueue", "a:b", dsn=database, stdin=file)
    assert "\r\x1b[K1001\n" in shown  # the bar is erased before ids are printed
    assert shown.split("\n")[-2].endswith("\x1b[K")
    assert "100%" in shown.split("\n")[-2]


def test_short_input_or_no_terminal_shows_no_progress(database, tmp_path):
    (tmp_path / "orders").write_text("{}\n" * 900)
    with (tmp_path / "orders").open("rb") as file:
        assert states(on_terminal("enqueue", "a:b", dsn=database, stdin=file)) == []
    assert jobherd("enqueue", "a:b", "-", dsn=database, stdin="{}\n" * 2500).err == ""


def test_invalid_line_ends_enqueue_with_its_number_and_the_count_of_jobs(database):
    lines = [orjson.dumps({"n": n}) for n in range(1500)]
    lines[1200] = b'{"n": '
    answer = jobherd("enqueue", "a:b", "-", dsn=database, stdin=b"\n".join(lines))
    assert answer.code == 2
    assert "line 1201" in answer.err
    assert "1200 jobs before it are enqueued" in answer.err
    assert len(answer.lines) == 1200
    assert send(database, "SELECT count(*), max((payload ->> 'n')::int) FROM jobherd.ready") == [(1200, 1199)]


def test_number_of_a_rejected_line_counts_from_1_and_includes_empty_lines(database):
    answer = jobherd("enqueue", "a:b", "-", dsn=database, stdin='{"a": 1}\n\n{"a": "\\u0000"}\n{}\n')
    assert (answer.code, answer.lines) == (2, ["1"])
    assert "line 3: payload at $.a holds a NUL" in answer.err
    assert "; 1 job before it is enqueued, that line and the later ones are not" in answer.err


def test_invalid_option_for_many_jobs_is_not_reported_as_an_invalid_line(database):
    answer = jobherd("enqueue", "a:b", "-", "--queue", "No", dsn=database, stdin="{}\n")
    assert answer.code == 2
    assert "line" not in answer.err


def test_numbers_keep_every_digit(database):
    digits = "123456789012345678901234567890"
    number = jobherd("enqueue", "a:b", f'{{"x": {digits}}}', dsn=database).out.strip()
    assert digits in jobherd("job", number, "--json", dsn=database).out


def test_null_is_a_valid_payload(database):
    assert jobherd("enqueue", "a:b", "null", dsn=database).code == 0
    assert jobherd("enqueue", "a:b", "-", dsn=database, stdin="null\n").code == 0
    assert send(database, "SELECT payload::text FROM jobherd.ready") == [("null",), ("null",)]


def test_full_disk_is_reported_as_such(database):
    send(
        database,
        """CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN RAISE 'could not extend file "base/1/2": No space left on device' USING ERRCODE = 'disk_full'; END $$""",
    )
    send(database, "CREATE TRIGGER full_disk BEFORE INSERT ON jobherd.ready EXECUTE FUNCTION full_disk()")
    answer = jobherd("enqueue", "a:b", "{}", dsn=database)
    assert answer.code == 69
    assert (
        answer.err
        == 'jobherd: the database is out of space: could not extend file "base/1/2": No space left on device\n'
    )


@pytest.mark.parametrize("schema", ["jobherd", "elsewhere"])
def test_read_only_database_is_reported_as_such(database, schema):
    """A standby, or a primary that was made read-only.

    Regression: the message named only a rejected SELECT, which does not show the cause.
    """
    answer = jobherd(
        "enqueue", "a:b", "{}", "--schema", schema, dsn=f"{database} options='-c default_transaction_read_only=on'"
    )
    assert answer.code == 69
    assert answer.err.startswith("jobherd: the database takes no writes: cannot execute ")
    assert answer.err.endswith("in a read-only transaction; is it a standby, and is --dsn or JOBHERD_DSN right?\n")


def test_missing_schema_is_created(empty_database):
    answer = jobherd("enqueue", "a:b", "{}", dsn=empty_database)
    assert answer.code == 0
    assert "made the schema" in answer.err
    assert answer.out == "1\n"


def test_tenant_webhook_and_bytes_are_stored_and_shown(database, tmp_path):
    send(database, "SELECT jobherd.enable_webhooks()")
    (tmp_path / "logo.png").write_bytes(b"\x89PNG\x00\xff")
    words = ("--tenant", "acme", "--webhook", "https://example.com/done", "--bytes-file", tmp_path / "logo.png")
    answer = jobherd("enqueue", "a:b", '{"n": 1}', *words, dsn=database)
    job = jobherd("job", answer.out.strip(), "--json", dsn=database).json
    assert (job["tenant"], job["webhook"], job["payload"]) == ("acme", "https://example.com/done", {"n": 1})
    assert job["payload_bytes"] == "6 bytes, 89504e4700ff"
    assert send(database, "SELECT (extras).payload_bytes FROM jobherd.ready") == [(b"\x89PNG\x00\xff",)]
    page = jobherd("job", answer.out.strip(), dsn=database).out
    for shown in ("acme", "https://example.com/done", "6 bytes, 89504e4700ff"):
        assert shown in page
    other = jobherd("enqueue", "a:b", "{}", "--tenant", "globex", dsn=database).out.strip()
    assert [row["id"] for row in jobherd("jobs", "--tenant", "globex", "--json", dsn=database).json] == [int(other)]
    answer = jobherd("enqueue", "a:b", "{}", "--bytes-file", tmp_path / "nowhere", dsn=database)
    assert (answer.code, "No such file" in answer.err) == (2, True)
    answer = jobherd("enqueue", "a:b", "-", "--bytes-file", tmp_path / "logo.png", dsn=database)
    assert (answer.code, "--bytes-file is for one job" in answer.err) == (2, True)


def test_unique_job_is_enqueued_once_and_its_id_is_printed_again(database):
    answer = jobherd("enqueue", "a:b", '{"n": 1, "m": 1}', "--unique", "n", dsn=database)
    first, err = answer.out, answer.err
    again = jobherd("enqueue", "a:b", '{"n": 1, "m": 2}', "--unique", "n", dsn=database)
    assert (err, again.out, again.err) == (
        "",
        first,
        f"jobherd: job {first.strip()} has the key; no new job is enqueued\n",
    )
    whole = jobherd("enqueue", "a:b", '{"n": 1}', "--unique", "$", "--unique-for", "1h", dsn=database).out
    keyed = jobherd(
        "enqueue", "a:b", "{}", "--unique-key", "k", "--debounce", "30s", "--max-wait", "1m", dsn=database
    ).out
    assert len({first, whole, keyed}) == 3
    assert send(database, "SELECT count(*) FROM jobherd.jobs") == [(3,)]
    lines = jobherd("enqueue", "a:b", "-", "--unique", "n", dsn=database, stdin='{"n": 1}\n{"n": 7}\n{"n": 7}\n')
    assert lines.err.splitlines()[-1] == "jobherd: 2 of 3 are not new: another job has the key"
    wrong = jobherd("enqueue", "a:b", "{}", "--throttle", "1m", "--debounce", "1s", dsn=database)
    assert (wrong.code, "throttle excludes debounce" in wrong.err) == (2, True)


def test_flags_set_the_rule_of_a_unique_job(database):
    def run(*words, payload='{"n": 1, "items": [1]}'):
        return jobherd("enqueue", "a:b", payload, *words, dsn=database)

    first = run("--unique", "n", "--collect", "items").out
    assert run("--unique", "n", "--conflict", "collect", "--collect", "items").out == first
    assert jobherd("job", first.strip(), "--json", dsn=database).json["payload"] == {"n": 1, "items": [1, 1]}
    there = run("--unique", "n", "--conflict", "raise")
    assert (there.code, there.out) == (1, "")
    assert there.err == f"jobherd: nothing is enqueued: job {first.strip()} holds the same key\n"
    queues = [run("--per-queue", "--queue", name).out for name in ("one", "two", "one")]
    assert (queues[0] == queues[2], queues[0] == queues[1]) == (True, False)
    trailing = ("--unique", "n", "--throttle", "1m", "--edge", "trailing")
    assert run(*trailing, payload='{"n": 5}').out == run(*trailing, payload='{"n": 5}').out
    never = run("--during", "never")
    assert (never.code, "requires unique_for" in never.err) == (2, True)
    wrong = run("--during", "later")
    assert (wrong.code, "during must be" in wrong.err) == (2, True)
