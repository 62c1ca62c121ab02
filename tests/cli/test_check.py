"""`check`, and the messages of `run` before it starts."""

from __future__ import annotations

import os
import re
import signal
import textwrap

import pytest

from jobherd.workers.inspect.phrases import duration
from tests.cli.rows import send
from tests.cli.shell import LIMIT, jobherd, start
from tests.support.processes import wait_for_exit


def module(folder, name: str, text: str) -> str:
    path = folder / f"{name}.py"
    path.write_text("from jobherd import handler\n" + textwrap.dedent(text))
    return str(path)


def test_check_lists_valid_handlers(tmp_path):
    file = module(
        tmp_path,
        "mail",
        '@handler("mail:receipt", queue="mail", timeout="2m")\ndef receipt(order_id: int) -> None: ...\n',
    )
    answer = jobherd("check", "--handlers", tmp_path, "--json", cwd=tmp_path)
    assert answer.code == 0, answer
    assert answer.json == {
        "ok": True,
        "kinds": [
            {
                "kind": "mail:receipt",
                "queue": "mail",
                "timeout": 120.0,
                "max_attempts": 5,
                "unique": None,
                "file": file,
                "line": 2,
            }
        ],
        "hooks": [],
        "problems": [],
        "notes": [],
    }
    assert "1 kind, no problems" in jobherd("check", "--handlers", tmp_path, cwd=tmp_path).out


def test_check_lists_the_rules_of_unique_jobs(tmp_path):
    file = module(
        tmp_path,
        "kinds",
        """
        from jobherd import Unique

        @handler("a:plain")
        def plain(x: int) -> None: ...

        @handler("b:payload", unique=True)
        def payload(x: int) -> None: ...

        @handler("c:fields", unique=Unique(by=("x", "$.y.id"), queue=True, during="waiting", conflict="replace"))
        def fields(x: int, y: dict) -> None: ...

        @handler("d:debounced", unique="x", debounce="30s")
        def debounced(x: int) -> None: ...

        @handler("e:throttled", throttle="1h")
        def throttled(x: int) -> None: ...
        """,
    )
    rule = {"queue": False, "during": "live", "conflict": "ignore", "collect": None}
    times = {"unique_for": None, "debounce": None, "throttle": None}
    told = jobherd("check", "--handlers", file, "--json", cwd=tmp_path).json["kinds"]
    assert [each["unique"] for each in told] == [
        None,
        {"by": None, **rule, **times},
        {"by": ["x", "$.y.id"], **rule, "queue": True, "during": "waiting", "conflict": "replace", **times},
        {"by": ["x"], **rule, **times, "debounce": 30.0},
        {"by": None, **rule, **times, "throttle": 3600.0},
    ]
    lines = jobherd("check", "--handlers", file, cwd=tmp_path, COLUMNS="200").out.splitlines()
    start, end = lines[0].index("UNIQUE BY"), lines[0].index("WHERE")
    assert [line[start:end].strip() for line in lines[1:6]] == [
        "-",
        "payload",
        "x, $.y.id, queue, waiting, replace",
        "x, debounce 30 s",
        "payload, throttle 1 h",
    ]


def test_check_reports_every_problem_with_file_and_line(tmp_path):
    module(tmp_path, "a_good", '@handler("mail:receipt")\ndef receipt() -> None: ...\n')
    module(tmp_path, "b_twice", '\n@handler("mail:receipt")\ndef receipt() -> None: ...\n')
    module(tmp_path, "c_option", '@handler("x:y", timeout="never")\ndef y() -> None: ...\n')
    module(tmp_path, "d_syntax", "\n\ndef (:\n")
    module(tmp_path, "e_exits", "raise SystemExit(3)\n")
    answer = jobherd("check", "--handlers", ".", cwd=tmp_path)
    assert answer.code == 1
    for place in ("b_twice.py:3", "c_option.py:2", "d_syntax.py:4", "e_exits.py:2"):
        assert f"jobherd: {place}: " in answer.err, place
    assert "4 problems" in answer.err
    assert "mail:receipt" in answer.out
    told = jobherd("check", "--handlers", ".", "--json", cwd=tmp_path).json
    assert not told["ok"]
    assert [os.path.basename(each["file"]) for each in told["problems"]] == [
        "b_twice.py",
        "c_option.py",
        "d_syntax.py",
        "e_exits.py",
    ]


def test_check_notes_a_hook_for_a_kind_that_is_not_loaded(tmp_path):
    text = '@handler("mail:receipt")\ndef receipt() -> None: ...\n@before_job("mail:receipt", "mail:reciept")\ndef look(job) -> None: ...\n'
    module(tmp_path, "mail", "from jobherd import before_job\n" + text)
    answer = jobherd("check", "--handlers", ".", cwd=tmp_path)
    assert answer.code == 0, answer
    assert (
        "note: mail.py:5: before_job is never called for 'mail:reciept': no handler of this kind is loaded"
        in answer.err
    )
    assert "'mail:receipt'" not in answer.err


def test_check_reports_a_misspelt_field_and_notes_a_redacted_path_that_looks_like_one(tmp_path):
    module(
        tmp_path, "card", '@handler("card:charge", redact=["$.crd", "$.token"])\ndef charge(card: str) -> None: ...\n'
    )
    module(tmp_path, "order", '@handler("order:sync", unique="ordr_id")\ndef sync(order_id: int) -> None: ...\n')
    answer = jobherd("check", "--handlers", ".", cwd=tmp_path)
    assert answer.code == 1
    assert (
        "order.py:2: does not load: ValueError: unique names 'ordr_id', and sync has no parameter 'ordr_id'"
        in answer.err
    )
    noted = (
        "note: card.py:2: redact names '$.crd' of card:charge, and charge has no parameter 'crd'; did you mean 'card'?"
    )
    assert noted in answer.err
    assert "$.token" not in answer.err


def test_check_fails_if_an_import_takes_longer_than_spawn_timeout(tmp_path):
    module(
        tmp_path,
        "mail",
        'import time\nbegan = time.monotonic()\nwhile time.monotonic() - began < 1: ...\n@handler("a:b")\ndef b() -> None: ...\n',
    )
    answer = jobherd("check", "--handlers", ".", "--spawn-timeout", "1s", cwd=tmp_path)
    assert answer.code == 1, answer
    assert "and the supervisor kills a worker that is not ready within spawn_timeout (1.0 s)" in answer.err


def test_settings_file_with_a_byte_order_mark_is_read(tmp_path):
    (tmp_path / "jobherd.toml").write_text("workers = 3\n", encoding="utf-8-sig")
    answer = jobherd("run", "--print-settings", cwd=tmp_path)
    assert answer.code == 0, answer
    assert re.search("^workers += 3 .*jobherd.toml", answer.out, re.MULTILINE)


def test_check_fails_if_a_path_of_handlers_does_not_exist(tmp_path):
    answer = jobherd("check", "--handlers", "./nowhere", cwd=tmp_path)
    assert answer.code == 1
    assert "nowhere" in answer.err


def test_missing_path_is_reported_with_the_setting_that_names_it(tmp_path):
    answer = jobherd("check", "--handlers", "./nowhere", "--hooks", "./nothing", cwd=tmp_path)
    assert answer.err.splitlines()[:2] == [
        "jobherd: ./nowhere: folder, file or module not found; check --handlers and JOBHERD_HANDLERS",
        "jobherd: ./nothing: folder, file or module not found; check --hooks and JOBHERD_HOOKS",
    ]


def test_check_reports_a_module_that_ends_its_process(tmp_path):
    module(tmp_path, "dies", "import os; os._exit(7)\n")
    assert jobherd("check", "--handlers", tmp_path, cwd=tmp_path).err.startswith(
        "jobherd: dies.py: importing the handlers ended its process with code 7:"
    )
    named = jobherd("check", "--handlers", "dies", "--json", cwd=tmp_path).json["problems"]
    assert [(each["module"], each["file"]) for each in named] == [("dies", "")]
    module(tmp_path, "dies", "import os; os.kill(os.getpid(), 11)\n")
    assert "SIGSEGV" in jobherd("check", "--handlers", tmp_path).err
    module(tmp_path, "dies", "import os; os.kill(os.getpid(), 40)\n")  # a real-time signal, which has no name
    assert "ended its process by signal 40" in jobherd("check", "--handlers", tmp_path).err


def test_check_kills_a_module_that_hangs_and_the_processes_it_started(tmp_path):
    note = tmp_path / "pid"
    module(
        tmp_path,
        "hangs",
        f"import subprocess\nprocess = subprocess.Popen(['sleep', '3600'])\nopen({str(note)!r}, 'w').write(str(process.pid))\nprocess.wait()\n",
    )
    for limit in (1, 5, 25):  # on a busy machine, a short limit may expire before the module is loaded
        answer = jobherd("check", "--handlers", tmp_path, "--timeout", f"{limit}s")
        assert answer.code == 1
        assert f"more than {duration(limit)}:" in answer.err
        if note.exists():
            assert answer.err.startswith(f"jobherd: {tmp_path}/hangs.py: importing the handlers takes more than")
        if note.exists() and note.read_text():
            break
    wait_for_exit(int(note.read_text()))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_process_that_imports_the_handlers_does_not_outlive_a_check_that_is_killed(tmp_path, number):
    module(tmp_path, "hangs", "import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(3600)\n")
    check = start("check", "--handlers", ".", cwd=tmp_path)
    words = check.stderr.readline().split()
    assert words[:1] == [b"pid"], words
    check.send_signal(number)
    check.communicate(timeout=LIMIT)
    wait_for_exit(int(words[1]))


def test_processes_that_a_module_starts_in_their_own_session_do_not_outlive_check(tmp_path):
    note = tmp_path / "pid"
    module(
        tmp_path,
        "starts",
        f"""
        import os, subprocess
        more = "sleep 3600 & echo $! > {note}; wait"
        subprocess.Popen(["sh", "-c", more], start_new_session=True)
        while not (os.path.exists({str(note)!r}) and open({str(note)!r}).read()):
            pass

        @handler("a:b")
        def b() -> None: ...
        """,
    )
    answer = jobherd("check", "--handlers", tmp_path)
    assert answer.code == 0, answer
    wait_for_exit(int(note.read_text()))


def test_output_of_handlers_does_not_corrupt_the_json(tmp_path):
    module(tmp_path, "prints", 'print("{")\n@handler("a:b")\ndef b() -> None: ...\n')
    answer = jobherd("check", "--handlers", tmp_path, "--json")
    assert [kind["kind"] for kind in answer.json["kinds"]] == ["a:b"]


def test_check_reads_a_folder_whose_name_is_not_utf8(tmp_path):
    folder = tmp_path / os.fsdecode(b"m\xe4il")
    folder.mkdir()
    (folder / "mail.py").write_text(
        "from jobherd import handler\n\n@handler\ndef send() -> None: ...\n\nraise RuntimeError('late')\n"
    )
    (folder / "sound.py").write_text("from jobherd import handler\n\n@handler\ndef hear() -> None: ...\n")
    ran = jobherd("check", "--json", "--handlers", folder)
    assert ran.code == 1, ran
    assert [kind["kind"] for kind in ran.json["kinds"]] == ["sound:hear"]
    assert ran.json["kinds"][0]["file"] == str(tmp_path / "m\ufffdil" / "sound.py")
    assert ran.json["problems"][0]["message"] == "does not load: RuntimeError: late"


def test_handlers_can_import_modules_of_app_dir(tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "shop.py").write_text("NAME = 'shop:order'\n")
    (tmp_path / "jobs").mkdir()
    module(tmp_path / "jobs", "order", "from shop import NAME\n@handler(NAME)\ndef order() -> None: ...\n")
    words = ("check", "--handlers", "jobs", "--json")
    assert jobherd(*words, "--app-dir", "app", cwd=tmp_path).json["kinds"][0]["kind"] == "shop:order"
    assert jobherd(*words, cwd=tmp_path).code == 1


def test_check_reports_invalid_settings(tmp_path):
    (tmp_path / "jobherd.toml").write_text('workers = 99\nhandlers = ["jobs"]\nworkerz = 3\n')
    (tmp_path / "jobs").mkdir()
    module(tmp_path / "jobs", "mail", '@handler("mail:receipt")\ndef receipt() -> None: ...\n')
    answer = jobherd("check", cwd=tmp_path)
    assert answer.code == 1
    assert "workers = 99 (from jobherd.toml): must be a whole number from 0 to 64" in answer.err
    assert "did you mean workers" in answer.err


def test_check_and_run_fail_without_handlers(tmp_path, database):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "_private.py").write_text(
        "from jobherd import handler\n@handler('a:b')\ndef b() -> None: ...\n"
    )
    for words, said in (
        ((), "no handlers are configured, and the working directory has no folder handlers/ of your own: create it"),
        (("--handlers", "jobs"), "no handler was found in jobs"),
    ):
        checked = jobherd("check", *words, cwd=tmp_path)
        assert (checked.code, checked.out) == (1, ""), checked
        assert said in checked.err
        ran = jobherd("run", *words, cwd=tmp_path, dsn=database, JOBHERD_HTTP="off")
        assert ran.code == 78, ran
        assert said in ran.err
        assert not jobherd("check", *words, "--json", cwd=tmp_path).json["ok"]


def test_folder_handlers_is_loaded_by_default(tmp_path, database):
    (tmp_path / "handlers").mkdir()
    module(tmp_path / "handlers", "mail", '@handler("mail:receipt")\ndef receipt() -> None: ...\n')
    assert [kind["kind"] for kind in jobherd("check", "--json", cwd=tmp_path).json["kinds"]] == ["mail:receipt"]
    assert jobherd("enqueue", "mail:receipt", "{}", cwd=tmp_path, dsn=database).code == 0
    ran = jobherd("run", "--until-empty", "--workers", 1, cwd=tmp_path, dsn=database, JOBHERD_HTTP="off")
    assert ran.code == 0, ran
    assert [row[0] for row in send(database, "SELECT state FROM jobherd.jobs")] == ["completed"]


def test_check_lists_the_kinds_that_a_worker_of_run_loads(tmp_path, database):
    (tmp_path / "jobs" / "deep").mkdir(parents=True)
    module(tmp_path / "jobs", "mail", '@handler("mail:receipt")\ndef receipt() -> None: ...\n')
    module(tmp_path / "jobs" / "deep", "__init__", "")
    module(tmp_path / "jobs" / "deep", "news", '@handler("news:letter")\ndef letter() -> None: ...\n')
    words = ("--handlers", "jobs", "--handlers", "jobherd.handlers.jobs_purge")
    listed = [kind["kind"] for kind in jobherd("check", *words, "--json", cwd=tmp_path).json["kinds"]]
    ran = jobherd("run", *words, "--until-empty", "--workers", 1, cwd=tmp_path, dsn=database, JOBHERD_HTTP="off")
    assert ran.code == 0, ran
    assert [row[0] for row in send(database, "SELECT name FROM jobherd.kinds ORDER BY name")] == listed == [
        "jobs:purge_completed", "mail:receipt", "news:letter",
    ]  # fmt: skip


# -- run, before it starts


@pytest.mark.promise("C8")
def test_run_with_invalid_settings_exits_with_78_and_every_reason(tmp_path):
    answer = jobherd("run", "--workers", "99", "--http", "nowhere", dsn="host=/nonexistent", cwd=tmp_path)
    assert answer.code == 78
    assert "workers = '99' (from --workers): must be a whole number from 0 to 64" in answer.err
    assert "http = 'nowhere' (from --http)" in answer.err


def test_run_prints_its_settings_and_their_sources(tmp_path):
    (tmp_path / "jobherd.toml").write_text("poll = '10s'\n")
    answer = jobherd(
        "run",
        "--print-settings",
        "--workers",
        3,
        cwd=tmp_path,
        JOBHERD_QUEUES="a,b",
        DATABASE_URL="postgresql://x:hunter2@y/z",
    )
    assert answer.code == 0
    told = {
        line.split()[0]: (line.split(" = ")[1].split("  # ")[0].strip(), line.split("  # ")[1]) for line in answer.lines
    }
    assert told["workers"] == ("3", "--workers")
    assert told["queues"] == ("a,b", "JOBHERD_QUEUES")
    assert told["poll"] == ("10s", "jobherd.toml")
    assert told["lease"] == ("15s", "default")
    assert told["dsn"] == ("(set)", "DATABASE_URL")
    for name in ("dashboard_operate_token", "dashboard_view_token", "webhook_secret", "listen_dsn"):
        assert told[name] == ("none", "default"), "a secret that is not set must not look set"
    assert "hunter2" not in answer.out


def away(number: int) -> tuple[int, bytes]:
    """Start a supervisor whose database is unreachable, and send it a signal once it has logged that."""
    process = start("run", "--handlers", "jobherd.handlers.jobs_purge", "--log-format", "text", dsn="host=/nonexistent")
    assert b"the database does not answer" in process.stderr.readline()
    process.send_signal(number)
    _, rest = process.communicate(timeout=LIMIT)
    return process.returncode, rest


def test_run_waits_for_its_database_and_exits_on_a_signal():
    assert away(signal.SIGTERM) == (0, b"")
    assert away(signal.SIGINT) == (0, b""), "expected the same exit code as with a database"


@pytest.mark.promise("C31")
def test_run_exits_after_db_retry_max_attempts():
    words = (
        "run",
        "--handlers",
        "jobherd.handlers.jobs_purge",
        "--db-retry-initial",
        "0.1",
        "--db-retry-max-attempts",
        "2",
    )
    answer = jobherd(*words, dsn="host=/nonexistent")
    assert answer.code == 69
    assert "tried 2 times" in answer.err
