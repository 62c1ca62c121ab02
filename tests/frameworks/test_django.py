"""Tests a sample Django project end to end: its pages enqueue jobs, its workers run and die, its tests pass."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import django
import psycopg
import pytest

from tests.support.checkout import import_path
from tests.support.patience import LIMIT
from tests.support.ports import spare_port

NOTED = """
import os
import pytest
from django.db import connection

@pytest.fixture(autouse=True)
def seen(request, db):
    yield
    with open(os.environ["SEEN"], "a") as notes:
        notes.write(f"{request.node.name} {connection.settings_dict['NAME']}\\n")
"""
"""A conftest.py that records the database of each test."""

SAMPLE = Path(__file__).parent / "django_project"


def eventually(condition) -> None:
    """Return once the condition holds. Fail after three times LIMIT: some conditions need several new processes."""
    end = time.monotonic() + 3 * LIMIT
    while not condition():
        assert time.monotonic() < end, "the condition has not become true"
        time.sleep(0.05)


class Project:
    """A copy of the sample project, and the processes started from it."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder = shutil.copytree(SAMPLE, folder / "project")
        self.dsn = dsn
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("JOBHERD_", "DATABASE_URL"))}
        self.environment = kept | {
            "SHOP_DSN": dsn,
            "PYTHONPATH": f"{self.folder}{os.pathsep}{import_path()}",
            "DJANGO_SETTINGS_MODULE": "site_of_shop.settings",
            "JOBHERD_SPAWN_TIMEOUT": "60s",  # for a slow machine: each worker loads Django
            "JOBHERD_HTTP": "127.0.0.1:0",
            "DJANGO_SUPERUSER_PASSWORD": "correct-horse",
        }
        self.browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        self.started: list[subprocess.Popen[bytes]] = []

    def manage(self, *words: str) -> str:
        """Run `manage.py` to its end, from another folder."""
        done = self._run(str(self.folder / "manage.py"), *words)
        return done.stdout.decode()

    def test(self, *words: str) -> str:
        tests = str(self.folder / "shop" / "tests.py")
        return self._run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", *words, tests).stdout.decode()

    def _run(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [sys.executable, *words],
            env=self.environment,
            cwd=self.folder.parent,
            capture_output=True,
            timeout=3 * LIMIT,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr).decode()
        return done

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a program of the project. `stop` ends it with SIGTERM."""
        with (self.folder / f"log{len(self.started)}").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *words], env=self.environment, cwd=self.folder.parent, stdout=log, stderr=log
            )
        self.started.append(process)
        return process

    def open(self, path: str, **form: str) -> str:
        data = urllib.parse.urlencode(form).encode() if form else None
        with self.browser.open(self.site + path, data, timeout=LIMIT) as answer:
            return answer.read().decode()

    def serve(self) -> None:
        port = spare_port()
        self.site = f"http://127.0.0.1:{port}"
        self.start("-m", "uvicorn", "site_of_shop.asgi:application", "--port", str(port), "--lifespan", "off")
        eventually(self.answers)

    def answers(self) -> bool:
        try:
            return bool(self.open("/admin/login/"))
        except OSError:
            return False

    def log_in(self) -> None:
        page = self.open("/admin/login/")
        token = page.split('csrfmiddlewaretoken" value="')[1].split('"')[0]
        assert "Log out" in self.open(
            "/admin/login/", csrfmiddlewaretoken=token, username="root", password="correct-horse", next="/admin/"
        )

    def row(self, statement: str) -> tuple:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(statement).fetchone()

    def stop(self) -> None:
        for process in self.started:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(timeout=2 * LIMIT) for process in self.started]
        logs = "\n".join((self.folder / f"log{number}").read_text() for number in range(len(codes)))
        assert set(codes) <= {0, -signal.SIGTERM}, logs


@pytest.fixture
def project(empty_database, tmp_path):
    made = Project(tmp_path, empty_database)
    yield made
    made.stop()


@pytest.mark.system
def test_site_enqueues_in_its_transactions_and_survives_the_kill_of_a_worker(project):
    project.manage("migrate", "--verbosity", "0")
    project.manage("createsuperuser", "--noinput", "--username", "root", "--email", "root@example.com")
    checked = project.manage("jobherd", "check")
    for kind in ("shop:count", "shop:fail", "shop:finish", "shop:receipt"):
        assert kind in checked
    project.serve()
    project.start(str(project.folder / "manage.py"), "jobherd", "run", "--workers", "2")

    json.loads(project.open("/order/1/undo/"))
    kept = json.loads(project.open("/order/10/commit/"))["id"]
    waiting = "SELECT worker FROM shop_order WHERE number = 10 AND state = 'waiting'"
    eventually(lambda: project.row(waiting))
    os.kill(project.row(waiting)[0], signal.SIGKILL)
    eventually(lambda: json.loads(project.open(f"/state/{kept}/"))["status"] == "SUCCESSFUL")
    ended = json.loads(project.open(f"/state/{kept}/"))
    assert (ended["value"], ended["attempts"]) == ({"number": 10, "attempt": 2}, 2)
    eventually(lambda: project.row("SELECT 1 FROM shop_order WHERE number = 11 AND state = 'receipt'"))
    assert project.row("SELECT count(*) FROM shop_order") == (2,)
    assert project.row("SELECT count(*) FROM jobherd.jobs") == (2,)

    names = json.loads(
        project.manage(
            "shell",
            "--verbosity",
            "0",
            "-c",
            "import json; from shop.tasks import count, fail, stuck; "
            "print(json.dumps([task.enqueue().id for task in (fail, stuck)] + [count.enqueue(2).id]))",
        )
    )
    failed, timed_out, counted = ((lambda name=name: json.loads(project.open(f"/state/{name}/"))) for name in names)
    eventually(lambda: failed()["status"] == timed_out()["status"] == "FAILED" and counted()["status"] == "SUCCESSFUL")
    assert timed_out()["attempts"] == 1  # the decorator sets max_attempts to 1, the settings have 3
    assert failed()["errors"] == ["shop.models.Order.DoesNotExist"]
    assert counted()["value"] == [2, 0, 1]

    with pytest.raises(urllib.error.HTTPError, match="403"):
        project.open(f"/jobherd/jobs/{kept}")
    project.log_in()
    assert "shop:finish" in project.open(f"/jobherd/jobs/{kept}")
    assert "<title>Overview" in project.open("/jobherd")  # also without the slash, as users type it
    assert "shop:finish" in project.open("/admin/jobherd/job/")


@pytest.mark.system
def test_tests_of_a_project_run_with_the_schema(project):
    assert project.test().splitlines()[-1].startswith("12 passed")


@pytest.mark.system
def test_each_process_of_pytest_xdist_has_its_own_database(project, tmp_path):
    """Both processes migrate at the same time, and a test finds only its own jobs."""
    (project.folder / "conftest.py").write_text(NOTED)
    project.environment["SEEN"] = str(tmp_path / "seen")
    said = project.test("-n", "2", "--dist", "load")
    assert said.splitlines()[-1].startswith("12 passed"), said
    names = {line.split()[1] for line in (tmp_path / "seen").read_text().splitlines()}
    assert {name.rpartition("_")[2] for name in names} == {"gw0", "gw1"}


@pytest.mark.skipif(django.VERSION >= (6, 0), reason="Django has tasks")
def test_error_without_django_tasks_names_the_package_to_install():
    """The extra `django` installs it only for Python 3.11. A newer Python gets Django 6, unless 5.2 is installed."""
    code = "import sys; sys.modules['django_tasks'] = None; import jobherd.django.versions"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT, check=False)
    assert "ImportError: Django before 6.0 has no tasks. Install the package: pip install 'django-tasks" in done.stderr
