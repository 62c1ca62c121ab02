"""What all commands have in common: help, exit codes, error messages, pipes and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import orjson
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from jobherd.sql.migrate import migrations
from jobherd.supervisor.cli import FAMILIES, commands
from jobherd.supervisor.cli.usage import GROUPS
from jobherd.supervisor.version import VERSION
from tests.cli.rows import past, send
from tests.cli.shell import COMMAND, LIMIT, ROOT, environment, jobherd, on_terminal, start

NOWHERE = "host=/nonexistent"
CORE = (
    "run", "enqueue", "jobs", "job", "wait", "retry", "cancel", "purge", "queues", "pause", "resume", "status", "migrate", "check", "bench",
)  # fmt: skip
LISTS = ("jobs", "job", "wait", "retry", "cancel", "queues", "status", "purge", "check", "bench")


@pytest.mark.parametrize("command", CORE)
def test_help_has_an_example_and_fits_80_columns(command):
    answer = jobherd(command, "--help")
    assert answer.code == 0
    assert f"jobherd {command}" in answer.out.split("example:")[1]
    assert max(len(line) for line in answer.lines) <= 80
    assert ("--json" in answer.out) == (command in LISTS)


@pytest.mark.promise("A2", "A3")
def test_the_help_lists_every_command_and_the_exit_codes():
    answer = jobherd("--help")
    assert answer.code == 0
    for command in commands():
        assert answer.out.count(f"\n  {command} ") == 1
    assert max(len(line) for line in answer.lines) <= 84
    assert jobherd("help").out == answer.out
    assert jobherd("version").out == jobherd("version", "x").out == jobherd("--version").out == f"jobherd {VERSION}\n"
    assert jobherd("help", "job").out == jobherd("job", "--help").out
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(commands())
    assert "69 no database" in answer.out


def test_only_the_family_of_the_given_command_is_loaded():
    for family, words in FAMILIES.items():
        assert tuple(commands(words[0])) == words, family
    assert list(commands()) == [word for words in FAMILIES.values() for word in words]
    loaded = "import sys; from jobherd.supervisor import cli; cli.commands({!r}); print(*(name for name in cli.FAMILIES if 'jobherd.supervisor.cli.' + name in sys.modules))"
    for word, families in (("enqueue", "enqueue"), ("job", "job"), ("--version", ""), ("dance", " ".join(FAMILIES))):
        done = subprocess.run(
            [sys.executable, "-c", loaded.format(word)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=LIMIT,
        )
        assert done.stdout.strip() == families, word


def test_invalid_command_line_exits_with_2():
    for words in (
        [],
        ["dance"],
        ["jobs", "--colour"],
        ["jobs", "--state", "angry"],
        ["job", "seven"],
        ["job", "0"],
        ["job", str(2**63)],
        # fmt: skip
        ["jobs", "--limit", "0"],
        ["wait", "1", "--timeout", "soon"],
        ["retry", "x"],
        ["purge"],
        ["jobs", "--lim", "3"],
    ):
        answer = jobherd(*words, dsn=NOWHERE)
        assert answer.code == 2, (words, answer)
        assert answer.out == ""
        assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    "words",
    [
        ("jobs",),
        ("job", "1"),
        ("wait", "1"),
        ("retry", "1"),
        ("queues",),
        ("status",),
        ("migrate",),
        ("enqueue", "a:b", "{}"),
    ],
)
def test_unreachable_database_exits_with_69_and_suggests_a_fix(words):
    answer = jobherd(*words, dsn=NOWHERE)
    assert answer.code == 69
    assert answer.err.startswith("jobherd: the database does not answer")
    assert "JOBHERD_DSN" in answer.err
    assert len(answer.err.splitlines()) == 1
    assert answer.err.count("?") == 1, "the advice of libpq must be left out"


@pytest.mark.parametrize(
    ("wrong", "says"), [({"user": "ghost"}, 'role "ghost"'), ({"dbname": "nowhere"}, 'database "nowhere"')]
)
def test_server_that_rejects_the_connection_is_not_reported_as_one_that_does_not_answer(database, wrong, says):
    answer = jobherd("jobs", dsn=make_conninfo(database, **wrong))
    assert answer.code == 69
    assert answer.err.startswith("jobherd: the database rejects the connection: ")
    assert answer.err.endswith(f"FATAL: {says} does not exist; correct --dsn or JOBHERD_DSN\n")


def test_a_password_in_the_dsn_is_never_shown():
    for dsn in (
        "postgresql://app:hunter2@127.0.0.1:1/x",
        "host=127.0.0.1 port=1 password=hunter2",
        "postgresql://app:hunter2@[bad",
    ):
        answer = jobherd("jobs", dsn=dsn)
        assert answer.code in {69, 78}
        assert "hunter2" not in answer.out + answer.err


def test_missing_schema_exits_with_78_and_names_the_command_to_run(empty_database):
    answer = jobherd("jobs", dsn=empty_database)
    assert answer.code == 78
    assert "run `jobherd migrate`" in answer.err
    elsewhere = jobherd("status", "--schema", "jobs_eu", dsn=empty_database)
    assert elsewhere.code == 78
    assert elsewhere.err.endswith("run `jobherd migrate --schema jobs_eu`\n")
    assert "jobherd migrate --schema jobs_eu" in jobherd("doctor", "--schema", "jobs_eu", dsn=empty_database).out


def test_schema_newer_than_this_version_exits_with_78(database):
    send(database, "INSERT INTO jobherd.migrations (area, version, name) VALUES ('jobherd', 9000, 'future')")
    for words in (
        ("jobs",),
        ("enqueue", "a:b", "{}"),
        ("migrate",),
        ("run", "--handlers", "jobherd.handlers.jobs_purge"),
    ):
        answer = jobherd(*words, dsn=database)
        assert answer.code == 78, answer
        assert "newer version" in answer.err


def test_migrate_can_be_repeated_and_prints_the_number_of_migrations(empty_database):
    assert jobherd("migrate", "--dry-run", dsn=empty_database).code == 1
    first = jobherd("migrate", dsn=empty_database)
    assert first.code == 0
    many = len(migrations())
    assert first.out == f"{many} migration{'' if many == 1 else 's'} applied\n"
    again = jobherd("migrate", dsn=empty_database)
    assert (again.code, again.out) == (0, "up to date\n")
    assert jobherd("migrate", "--dry-run", dsn=empty_database).code == 0
    send(empty_database, "DELETE FROM jobherd.migrations WHERE version = 1")
    assert jobherd("migrate", "--dry-run", dsn=empty_database).out == "1 migration to apply\n"


def test_each_schema_has_its_own_jobs(empty_database):
    assert jobherd("enqueue", "a:b", "{}", "--schema", "jobs_eu", dsn=empty_database).code == 0
    assert len(jobherd("jobs", "--json", dsn=empty_database, JOBHERD_SCHEMA="jobs_eu").json) == 1
    assert jobherd("jobs", dsn=empty_database).code == 78


def test_invalid_setting_that_a_command_does_not_need_is_ignored(database):
    assert jobherd("jobs", dsn=database, JOBHERD_WORKERS="many").code == 0
    assert jobherd("jobs", dsn=database, JOBHERD_SCHEMA="No Such").code == 78


def test_closed_pipe_ends_a_listing_with_141_and_no_message(database):
    past(database, "completed", many=5000)
    process = start("jobs", "--limit", 5000, dsn=database)
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(LIMIT) == 141
    process.stdin.close()
    process.stderr.close()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("enqueue", "a:b"), 0), (("jobs",), 0), (("jobs", "--json"), 0), (("cancel", 1), 0), (("why", 1), 0), (("doctor",), 1),
        (("retry", "-"), 2), (("enqueue", "a:b", "--bytes-file", "-"), 2), (("top",), 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("closed", [(0, 1), (0, 1, 2)])
def test_commands_work_with_closed_standard_streams(database, words, code, closed):
    """Regression: the job was enqueued, but the command ended with a traceback and exit code 1.

    A script would try again and enqueue the job twice.
    """
    send(database, "SELECT jobherd.enqueue('a:b')")
    shell = "exec " + " ".join(["$0", '"$@"', *(f"{number}>&-" for number in closed)])
    with open(os.devnull, "w") as nowhere:
        done = subprocess.run(
            ["/bin/sh", "-c", shell, *COMMAND, *map(str, words)],
            stdout=nowhere, stderr=subprocess.PIPE, env=environment(database), timeout=LIMIT, check=False,
        )  # fmt: skip
    assert (done.returncode, b"Traceback" in done.stderr) == (code, False)
    assert bool(done.stderr) == (code == 2 and 2 not in closed)
    assert send(database, "SELECT count(*) FROM jobherd.jobs") == [(2 if words == ("enqueue", "a:b") else 1,)]


def test_purge_does_not_prompt_on_a_closed_standard_input(database):
    past(database, "failed", days=2)
    shell = 'exec "$0" "$@" <&-'
    words = ["/bin/sh", "-c", shell, *COMMAND, "purge", "--state", "failed", "--older-than", "1d"]
    done = subprocess.run(words, capture_output=True, env=environment(database), timeout=LIMIT, check=False)
    assert (done.returncode, b"add --yes" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    "words",
    [
        ("jobs", "--kind"),
        ("retry", "1", "--reason"),
        ("pause",),
        ("purge", "--state", "all", "--older-than", "1d", "--kind"),
        ("jobs", "--dsn"),
    ],
)
def test_argument_that_is_not_utf8_gets_a_one_line_error(database, words):
    done = subprocess.run(
        [*COMMAND, *words, b"mail\xff"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment(database),
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == (78 if "--dsn" in words else 2)
    assert done.stderr.startswith(b"jobherd: ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("words", [("jobs",), ("jobs", "--json"), ("cancel", 1)])
def test_output_that_cannot_be_written_gets_a_one_line_error(database, words):
    send(database, "SELECT jobherd.enqueue('a:b')")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, *map(str, words)],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(database),
            timeout=LIMIT,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == b"jobherd: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("payload", "told"), [("{}", "job {} is enqueued"), ("-", "3 jobs are enqueued, the last of them is {}")]
)
def test_enqueue_prints_the_id_to_stderr_if_it_cannot_write_to_stdout(database, payload, told):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "enqueue", "a:b", payload],
            input=b"1\n2\n3\n", stdout=full, stderr=subprocess.PIPE, env=environment(database), timeout=LIMIT, check=False,
        )  # fmt: skip
    (last,) = send(database, "SELECT max(id) FROM jobherd.ready")[0]
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == [
        "jobherd: " + told.format(last),
        "jobherd: the output cannot be written: No space left on device",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("job", "0" * 19 + "1" + "9" * 30), ("retry", "-"), ("jobs", "--limit", "000000001999999"), ("jobs", "--before", 2**63),
        ("reschedule", 1, "--at", "9999-12-31T23:59:59"),
    ],
)  # fmt: skip
def test_numbers_and_timestamps_out_of_range_exit_with_2(database, words):
    answer = jobherd(*words, dsn=database, stdin="0" * 19 + "1" * 5000, TZ="America/New_York")
    assert answer.code == 2
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fleet", "drain", "one"), "'one' is not a supervisor's number, as `jobherd fleet` lists it"),
        (("fleet", "drain", 2**63), "is not a supervisor's number"),
        (("bench", "--jobs", "few"), "'few' is not a whole number from 100 to 10,000,000"),
        (("bench", "--jobs", "99"), "'99' is not a whole number from 100 to 10,000,000"),
        (("reprioritize", 1, "--priority", "high"), "'high' is not a whole number"),
        (("jobs", "--colour"), "unknown option --colour"),
        (("migrate", "now", "--json"), "unexpected argument 'now'"),
    ],
)
def test_unreadable_argument_gets_a_one_line_error(words, said):
    answer = jobherd(*words, dsn=NOWHERE)
    assert answer.code == 2
    (line,) = answer.err.splitlines()
    assert said in line
    assert line.startswith("jobherd: ")
    assert line.endswith(f"See `jobherd {words[0]} --help`.")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "no command is given. See `jobherd --help`."),
        (("retyr", "1"), "unknown command 'retyr': did you mean retry? See `jobherd --help`."),
        (
            ("flow", "tree", "abc"),
            "ID: 'abc' is not a flow's id: a whole number, as `jobherd flows` prints it. See `jobherd flow --help`.",
        ),
        (("limit", "shop:receipt", "5"), "'shop:receipt' is not a queue name; if it is a kind: --kind shop:receipt"),
        (("limit", "mail", "--rate", "1/s"), "a rate is written without --rate: `jobherd limit mail 100/min`"),
        (("rnu",), "unknown command 'rnu': did you mean run? See `jobherd --help`."),
        (("purge",), "--state, --older-than are missing. See `jobherd purge --help`."),
        (
            ("--dsn=x", "jobs"),
            "--dsn is before the command: write it after the command. See `jobherd --help`.",
        ),
        (("enqueue",), "KIND is missing. See `jobherd enqueue --help`."),
        (("jobs", "--stat", "x"), "unknown option --stat: did you mean --state? See `jobherd jobs --help`."),
        (("run", "--worker=3"), "unknown option --worker: did you mean --workers? See `jobherd run --help`."),
        (("run", "--workers"), "--workers needs a value. See `jobherd run --help`."),
        (
            ("fleet", "dran", "3"),
            "action: 'dran' is not one of drain, add, remove, reload: did you mean drain? See `jobherd fleet --help`.",
        ),
    ],
)
def test_usage_error_names_the_argument_and_what_to_do(words, line):
    answer = jobherd(*words, dsn=NOWHERE)
    assert (answer.code, answer.out, answer.err) == (2, "", f"jobherd: {line}\n")


def test_undeclared_kind_gets_a_suggestion(database):
    send(database, "INSERT INTO jobherd.kinds VALUES ('mail:receipt', 'default', 0, 1, 1, 60, 60)")
    said = "jobherd: no handler declares mail:recipt: did you mean mail:receipt?"
    for words in (("jobs",), ("pause",), ("resume",), ("limit", "3")):
        answer = jobherd(*words, "--kind", "mail:recipt", dsn=database)
        assert (answer.code, said in answer.err) == (0, True), answer
    assert jobherd("pause", "--kind", "mail:receipt", dsn=database).err == ""
    assert jobherd("enqueue", "mail:recipt", "{}", dsn=database).err == "", (
        "a script that enqueues jobs one by one must get no message"
    )
    assert said in on_terminal("enqueue", "mail:recipt", "{}", dsn=database)


def test_ctrl_c_while_the_program_loads_exits_with_130_and_no_message(tmp_path):
    (tmp_path / "psycopg_pool.py").write_text("raise KeyboardInterrupt\n")
    ran = jobherd("jobs", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert (ran.code, ran.out, ran.err) == (130, "", "")


def test_ctrl_c_exits_with_130_and_no_message(database):
    process = start("enqueue", "a:b", "-", dsn=database)
    process.stdin.write(b"{}\n" * 1000)
    process.stdin.flush()
    assert process.stdout.readline().strip().isdigit()  # now it waits for more lines
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (130, b"")
    assert send(database, "SELECT count(*) FROM jobherd.ready") == [(1000,)]


def test_output_has_colors_only_on_a_terminal(database):
    past(database, "failed")
    assert "\x1b[31mfailed" in on_terminal("jobs", dsn=database)
    assert "\x1b" not in on_terminal("jobs", dsn=database, NO_COLOR="1")
    assert "\x1b" not in jobherd("jobs", dsn=database).out


@pytest.mark.parametrize("words", [("jobs",), ("queues",)])
def test_tables_fit_the_terminal_whatever_they_contain(database, words):
    past(database, "failed", kind="k" * 100, queue="q" * 60, error="the reason is long " * 50)
    send(database, "SELECT jobherd.enqueue('a:b', '{}', jsonb_build_object('queue', repeat('r', 60)))")
    send(database, "SELECT jobherd.pause(repeat('r', 60), repeat('because ', 40))")
    narrow = on_terminal(*words, dsn=database, NO_COLOR="1").splitlines()
    assert max(len(line) for line in narrow) <= 80
    wide = on_terminal(*words, dsn=database, columns=160, NO_COLOR="1").splitlines()
    assert 80 < max(len(line) for line in wide) <= 160


def test_tables_are_not_cut_in_a_pipe_unless_columns_is_set(database):
    error = "the reason is long " * 10
    past(database, "failed", error=error)
    assert error.strip() in jobherd("jobs", dsn=database).out
    assert error.strip() not in jobherd("jobs", dsn=database, COLUMNS="100").out


def test_control_characters_in_errors_of_jobs_are_escaped(database):
    number = past(database, "failed", error="\x1b[2J\r\x9bhello\u202e")
    for words in (("jobs",), ("job", number)):
        answer = jobherd(*words, dsn=database)
        assert "\\e[2J\\r\\x9bhello" in answer.out
        assert not {"\x1b", "\r", "\x9b", "\u202e"} & set(answer.out)


def test_listing_works_without_utf8(database):
    past(database, "failed", error="grüß dich")
    answer = jobherd("jobs", dsn=database, PYTHONIOENCODING="ascii")
    assert answer.code == 0
    assert "gr\\xfc" in answer.out


def test_missing_permission_exits_with_78_and_a_message(database):
    role = f"stranger_{os.getpid()}"
    send(database, f"CREATE ROLE {role} LOGIN")
    try:
        stranger = psycopg.conninfo.make_conninfo(database, user=role)
        answer = jobherd("jobs", dsn=stranger)
        assert answer.code == 78
        assert "permission denied" in answer.err
        assert "Traceback" not in answer.err
    finally:
        send(database, f"DROP ROLE {role}")


def test_embedded_database_is_used_and_named_if_no_database_is_configured(tmp_path):
    first = jobherd("enqueue", "mail:receipt", '{"order_id": 7}', cwd=tmp_path)
    assert first.code == 0, first
    assert "embedded PostgreSQL" in first.err
    assert str(tmp_path / ".jobherd") in first.err
    listed = jobherd("jobs", "--json", cwd=tmp_path)
    assert [job["id"] for job in listed.json] == [int(first.out)]


def test_command_does_not_mention_an_embedded_database_that_already_runs(tmp_path):
    (tmp_path / "mail.py").write_text(
        "from jobherd import handler\n@handler('mail:receipt')\ndef receipt() -> None: ...\n"
    )
    process = start(
        "run", "--handlers", "mail.py", "--workers", 1, "--log-format", "json", cwd=tmp_path, JOBHERD_HTTP="off"
    )
    try:
        # a JSON log line like all others, for programs that read the log
        said = [orjson.loads(process.stderr.readline())]
        assert "no database is named; using the embedded PostgreSQL" in said[0]["message"]
        while "is ready" not in said[-1]["message"]:
            said.append(orjson.loads(process.stderr.readline()))
        answer = jobherd("enqueue", "mail:receipt", "{}", cwd=tmp_path)
        assert (answer.code, answer.err) == (0, "")
        assert jobherd("wait", int(answer.out), cwd=tmp_path).err == ""
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT)
    assert process.returncode == 0
