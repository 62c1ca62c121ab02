"""A secret in a job's data is found nowhere.

An encrypted one is nowhere in the database; an unencrypted one is in no log, list, metric, title or error.
"""

from __future__ import annotations

import base64
import time
import urllib.error
import urllib.request
from pathlib import Path

import psycopg
import pytest

from jobherd import Client, decrypt
from jobherd.handlers._values import encryption as sealing
from jobherd.handlers._values.keys import ring
from jobherd.workers.dashboard import application
from tests.cli.shell import jobherd
from tests.dashboard.support import Page
from tests.support.herd import Herd

CANARY = "canary-4111-2222"
KEYS = "2026=" + base64.b64encode(b"k" * 32).decode()
HANDLERS = """
import os
from jobherd import Completed, Job, Poison, handler

@handler("safe:work", encrypt="only", max_attempts=1)
def work(job: Job, card: str, wrong: bool = False) -> dict[str, str]:
    print("the card is", card)
    job.log.info("again %s", card)
    job.log("step", out=card)
    job.progress(0.5, card, {"card": card})
    if wrong:
        raise ValueError(card)
    return {"card": card}

@handler("safe:die", encrypt=True, max_attempts=1, max_crashes=1)
def die(card: str) -> None:
    print("the card is", card, flush=True)
    os.kill(os.getpid(), 9)

@handler("open:work")
def plain(card: str, token: int) -> dict[str, str]:
    return {"card": card}
"""


def is_up(url):
    """Return whether an address answers with status 200."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status == 200
    except urllib.error.HTTPError:
        return False


def until(condition):
    """Wait until a condition holds."""
    end = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.05)


@pytest.fixture
def keys(monkeypatch):
    monkeypatch.setenv("JOBHERD_KEYS", KEYS)
    ring.cache_clear()
    yield
    ring.cache_clear()


def everything_in(dsn):
    """Return each table of the schema as text."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        names = [name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'jobherd'")]
        return {
            name: str(connection.execute(f"SELECT string_agg(t::text, ' ') FROM jobherd.{name} t").fetchone())
            for name in names
        }


@pytest.mark.timeout(600)
def test_encrypted_value_is_nowhere_in_the_database_and_decrypts_with_the_key(database, tmp_path, keys):
    (tmp_path / "jobs.py").write_text(HANDLERS)
    with Client(database) as client, Herd(database, tmp_path, env={"JOBHERD_KEYS": KEYS}) as herd:
        well = client.enqueue("safe:work", {"card": CANARY}, encrypt=True)
        wrong = client.enqueue("safe:work", {"card": CANARY, "wrong": True}, encrypt=True)
        died = client.enqueue("safe:die", {"card": CANARY}, encrypt=True)
        clear = client.enqueue("safe:work", {"card": "not secret"})
        rows = client.wait_many([well, wrong, died, clear], timeout="60s")
        assert [rows[job]["state"] for job in (well, wrong, died, clear)] == ["completed", "failed", "failed", "failed"]
        assert decrypt(rows[well])["result"] == {"card": CANARY}
        assert decrypt(rows[well])["payload"] == {"card": CANARY}
        assert decrypt(rows[wrong])["error"] == f"ValueError: {CANARY}"
        assert "is not encrypted" in decrypt(rows[clear])["error"]
        for name, text in everything_in(database).items():
            assert CANARY not in text, name
            assert base64.b64encode(CANARY.encode()).decode()[:16] not in text, name
        with Page(application(database)) as page:
            shown = page.get(f"/jobs/{wrong}").text
            assert "(encrypted)" in shown
            assert CANARY not in shown
            assert sealing.MARK + ":" not in shown
        asked = jobherd("job", wrong, dsn=database)
        assert "(encrypted)" in asked.out
        assert CANARY not in asked.out
        assert CANARY in jobherd("job", wrong, "--decrypt", dsn=database, JOBHERD_KEYS=KEYS).out
        refused = jobherd("job", wrong, "--decrypt", dsn=database)
        assert refused.code == 1
        assert "there is no key" in refused.err
        herd.stop()


@pytest.mark.timeout(600)
def test_worker_without_the_key_reschedules_the_job_without_counting_an_attempt(database, tmp_path, keys):
    (tmp_path / "jobs.py").write_text(HANDLERS)
    with Client(database) as client:
        job = client.enqueue("safe:work", {"card": CANARY}, encrypt=True)
        with Herd(database, tmp_path) as herd:
            with psycopg.connect(database, autocommit=True) as connection:
                until(
                    lambda: (
                        connection.execute("SELECT last_error ->> 'code' FROM jobherd.scheduled").fetchall()
                        == [("KEY_MISSING",)]
                    )
                )
                assert connection.execute("SELECT attempts FROM jobherd.scheduled").fetchall() == [(0,)]
            herd.stop()
        with Herd(database, tmp_path, env={"JOBHERD_KEYS": KEYS}):
            assert client.retry(job) == "ready"
            assert decrypt(client.wait(job, timeout="60s"))["result"] == {"card": CANARY}


def titles(herd):
    """Return what `ps` shows of a supervisor and its child processes."""
    return [Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace") for pid in (herd.pid, *herd.children())]


@pytest.mark.timeout(600)
def test_unencrypted_secret_is_in_no_log_list_metric_title_or_error(database, tmp_path):
    (tmp_path / "jobs.py").write_text(HANDLERS)
    secret = psycopg.conninfo.make_conninfo(database, password=CANARY)
    env = {"JOBHERD_DSN": secret, "PAYMENT_KEY": CANARY}
    with (
        Client(database) as client,
        Herd("", tmp_path, "--http", "127.0.0.1:0", "--log-level", "DEBUG", env=env) as herd,
    ):
        well = client.enqueue("open:work", {"card": CANARY, "token": 7})
        misfit = client.enqueue("open:work", {"card": "x", "token": CANARY})
        unknown = client.enqueue("open:unknown", {"card": CANARY})
        rows = client.wait_many([well, misfit], timeout="60s")
        assert rows[misfit]["state"] == "failed"
        assert CANARY not in rows[misfit]["error"]
        until(lambda: (client.job(unknown) or {})["error_code"] is not None)
        address = (
            herd.wait_event(lambda event: event.message.startswith("the dashboard is "))
            .message.removeprefix("the dashboard is ")
            .rstrip("/")
        )
        until(
            lambda: is_up(address + "/readyz")
        )  # the supervisor may not have published its state to the web process yet
        # The list of jobs shows payloads, but not of a kind that no worker has declared: it may be redacted.
        for path in (
            "/metrics",
            "/readyz",
            "/livez",
            "/",
            "/jobs?kind=open:unknown",
            "/queues",
            "/kinds",
            "/fleet",
            "/audit",
        ):
            with urllib.request.urlopen(address + path, timeout=60) as answer:
                assert CANARY not in answer.read().decode(), path
        for words in (("jobs",), ("doctor",)):
            answer = jobherd(*words, dsn=secret, PAYMENT_KEY=CANARY)
            assert CANARY not in answer.out + answer.err, words
        assert not [title for title in titles(herd) if CANARY in title]
        herd.stop()
    assert not [event.line for event in herd.events if CANARY in event.line]
    lost = jobherd("jobs", dsn=f"postgresql://app:{CANARY}@127.0.0.1:1/nowhere")
    assert lost.code == 69
    assert CANARY not in lost.out + lost.err


LOOKS = """
import os, subprocess
from pathlib import Path
from jobherd import handler

@handler("look:environment")
def look(canary: str) -> list[str]:
    pids = {"worker": "self", "supervisor": str(os.getppid())}
    texts = {name: Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace") for name, pid in pids.items()}
    texts["os.environ"] = repr(dict(os.environ))
    texts["a program"] = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
    siblings = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split()
    texts["other children"] = "".join(Path(f"/proc/{pid}/environ").read_text(errors="replace") for pid in siblings)
    return sorted(name for name, text in texts.items() if canary in text)
"""


def test_handlers_and_their_programs_do_not_see_secrets_of_the_environment(database, tmp_path):
    (tmp_path / "jobs.py").write_text(LOOKS)
    secret = "canary-0123456789-canary"
    env = {
        "JOBHERD_DASHBOARD_OPERATE_TOKEN": secret,
        "JOBHERD_DASHBOARD_VIEW_TOKEN": f"bob={secret}b",
        "JOBHERD_WEBHOOK_SECRET": f"{secret}w",
    }
    with Client(database) as client, Herd(database, tmp_path, env=env) as herd:
        job = client.enqueue("look:environment", {"canary": secret})
        row = client.wait(job, timeout="60s")
        assert (row["state"], row["result"]) == ("completed", [])
        herd.stop()
