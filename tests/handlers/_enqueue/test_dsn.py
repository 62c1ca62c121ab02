"""Producers search for the database address in the same places as the command line, in the same order."""

from __future__ import annotations

import os
import socket

import psycopg
import pytest

from jobherd import Client, NotConfiguredError, enqueue_on
from jobherd.handlers._enqueue import default
from jobherd.handlers._enqueue.dsn import find_dsn, find_listen_dsn, find_schema
from jobherd.handlers._enqueue.embedded import FOLDER, SOCKET, link_folders, link_name
from jobherd.sql.migrate import migrate
from jobherd.supervisor.settings.definitions import Settings
from jobherd.supervisor.settings.sources import SettingsError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory without any configuration."""
    for name in ("JOBHERD_DSN", "DATABASE_URL", "JOBHERD_LISTEN_DSN", "JOBHERD_SCHEMA", "JOBHERD_EMBEDDED_DIR"):
        monkeypatch.delenv(name, raising=False)
    place = tmp_path / "app"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def answering(folder):
    """Listen on the socket that an embedded server in this folder would use."""
    data = folder / FOLDER / "postgres"
    data.mkdir(parents=True)
    server = socket.socket(socket.AF_UNIX)
    before = os.getcwd()
    os.chdir(data)  # the path may be too long for a socket
    try:
        server.bind(SOCKET)
    finally:
        os.chdir(before)
    server.listen()
    return server


def test_producer_and_command_line_search_for_the_dsn_in_the_same_order(folder, monkeypatch):
    def both() -> str | None:
        found = find_dsn()
        assert Settings.load().dsn == found
        return found

    (folder / "pyproject.toml").write_text('[tool.jobherd]\ndsn = "dbname=pyproject"\n')
    assert both() == "dbname=pyproject"
    place = folder / "deeper"
    place.mkdir()
    monkeypatch.chdir(place)
    (place / "pyproject.toml").write_text('[tool.jobherd]\ndsn = "dbname=pyproject"\n')
    (place / "jobherd.toml").write_text('dsn = "postgresql+psycopg://u@h/file"\n')
    assert both() == "postgresql://u@h/file"
    monkeypatch.setenv("DATABASE_URL", "postgresql+asyncpg://u@h/url")
    assert both() == "postgresql://u@h/url"
    monkeypatch.setenv("JOBHERD_DSN", "dbname=own")
    assert both() == "dbname=own"
    assert find_dsn("dbname=given") == "dbname=given"
    monkeypatch.setenv("JOBHERD_DSN", "")
    assert both() == "postgresql://u@h/url"


def test_jobherd_toml_without_a_dsn_hides_pyproject_for_producer_and_command_line(folder):
    (folder / "jobherd.toml").write_text("workers = 2\n")
    (folder / "pyproject.toml").write_text('[tool.jobherd]\ndsn = "dbname=pyproject"\n')
    assert Settings.load().dsn is None
    with pytest.raises(NotConfiguredError, match=r"jobherd\.toml \(has no dsn\)"):
        find_dsn()


def test_error_names_every_place_searched_for_a_dsn(folder):
    (folder / "pyproject.toml").write_text("[project]\n")
    with Client() as client, pytest.raises(NotConfiguredError) as caught:
        client.enqueue("a:b")
    assert str(caught.value) == (
        f"no database is configured. Searched: JOBHERD_DSN and DATABASE_URL (not set), {folder}/jobherd.toml (not found), "
        f"{folder}/pyproject.toml (has no [tool.jobherd]), the embedded PostgreSQL in {folder}/.jobherd (not running). "
        "Start `jobherd run` in this folder, set JOBHERD_DSN, or pass dsn='postgresql://user@host/name'"
    )


def test_dsn_is_found_in_a_file_written_after_an_earlier_error(folder):
    with pytest.raises(NotConfiguredError):
        find_dsn()
    (folder / "jobherd.toml").write_text('dsn = "dbname=late"\n')
    assert find_dsn() == "dbname=late"


@pytest.mark.parametrize("text", ["dsn = 5", 'dsn = "hunter2 is my password"', 'dsn = ""'])
def test_invalid_dsn_in_a_file_is_rejected_and_its_text_is_not_shown(folder, text):
    (folder / "jobherd.toml").write_text(text + "\n")
    with pytest.raises(NotConfiguredError, match=r"dsn \(from jobherd\.toml\): must be a PostgreSQL address") as caught:
        find_dsn()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        (
            "postgresql://u:hunter2@h/jobs?pgbouncer=true",
            "PostgreSQL has no connection parameter 'pgbouncer'; remove it from the address",
        ),
        (
            "host=h password=hunter2 pool_mode=session",
            "PostgreSQL has no connection parameter 'pool_mode'; remove it from the address",
        ),
        (
            "hunter2 is my password",
            'must be a PostgreSQL address ("postgresql://user@host/name" or "host=... dbname=...")',
        ),
    ],
)
def test_invalid_address_gets_the_error_of_the_command_line_from_every_source(folder, monkeypatch, address, reason):
    with Client(address) as client, pytest.raises(NotConfiguredError) as caught:
        client.enqueue("a:b")
    assert str(caught.value) == f"dsn: {reason}"
    with Client(address) as client, pytest.raises(NotConfiguredError):
        client.wait(1)
    for name in ("JOBHERD_DSN", "DATABASE_URL"):
        monkeypatch.setenv(name, address)
        with pytest.raises(NotConfiguredError) as caught:
            find_dsn()
        assert str(caught.value) == f"dsn (from {name}): {reason}"
        monkeypatch.delenv(name)
    monkeypatch.setenv("JOBHERD_LISTEN_DSN", address)
    with pytest.raises(NotConfiguredError) as caught:
        find_listen_dsn()
    assert str(caught.value) == f"listen_dsn (from JOBHERD_LISTEN_DSN): {reason}"
    monkeypatch.setenv("JOBHERD_DSN", address)
    with pytest.raises(SettingsError) as refused:
        Settings.load(only=("dsn",))
    assert reason.partition(" (")[0] in str(refused.value)  # the command line reports the same reason


def test_error_names_a_configuration_file_that_cannot_be_parsed(folder):
    (folder / "jobherd.toml").write_text("workers = \n")
    with pytest.raises(NotConfiguredError, match=r"jobherd\.toml cannot be read"):
        find_dsn()


def test_listen_dsn_is_read_from_the_file_or_the_environment(folder, monkeypatch):
    (folder / "jobherd.toml").write_text('dsn = "dbname=pooled"\nlisten-dsn = "dbname=direct"\n')
    assert find_listen_dsn() == ("dbname=direct", True)
    assert find_listen_dsn("dbname=given") == ("dbname=given", False)
    monkeypatch.setenv("JOBHERD_LISTEN_DSN", "dbname=mine")
    assert find_listen_dsn() == ("dbname=mine", True)


def test_schema_is_read_from_the_file_the_environment_or_the_argument(folder, monkeypatch):
    assert find_schema() == Settings.load().schema == "jobherd"
    (folder / "jobherd.toml").write_text('schema = "jobs_file"\n')
    assert find_schema() == Settings.load().schema == Client().schema == "jobs_file"
    monkeypatch.setenv("JOBHERD_SCHEMA", "jobs_env")
    assert find_schema() == Settings.load().schema == Client().schema == "jobs_env"
    assert Client(schema="jobs_given").schema == "jobs_given"
    monkeypatch.setenv("JOBHERD_SCHEMA", "pg_x")
    with pytest.raises(ValueError, match="schema"):
        Client()


def test_enqueue_on_uses_the_schema_from_the_configuration_file(folder, empty_database, monkeypatch):
    monkeypatch.setattr(default, "_chosen", None)
    (folder / "jobherd.toml").write_text('schema = "jobs_eu"\n')
    with psycopg.connect(empty_database, autocommit=True) as connection:
        migrate(connection, schema="jobs_eu")
        assert enqueue_on(connection, "a:b", {}) == 1


def test_running_embedded_server_is_found_and_a_stale_socket_file_is_ignored(folder, monkeypatch):
    with answering(folder):
        assert find_dsn() == f"host={folder}/.jobherd/postgres dbname=postgres user=jobherd"
        monkeypatch.setenv("JOBHERD_EMBEDDED_DIR", str(folder / "other"))
        with pytest.raises(NotConfiguredError, match=r"other/\.jobherd \(not running\)"):
            find_dsn()
        monkeypatch.chdir("/")
        monkeypatch.setenv("JOBHERD_EMBEDDED_DIR", str(folder))
        assert find_dsn() == f"host={folder}/.jobherd/postgres dbname=postgres user=jobherd"
    with pytest.raises(NotConfiguredError, match="not running"):  # the socket file still exists
        find_dsn()


def test_embedded_server_with_a_long_path_is_found_through_a_private_symlink(folder, monkeypatch):
    deep = folder / ("d" * 120)
    deep.mkdir()
    monkeypatch.chdir(deep)
    data = deep / FOLDER / "postgres"
    private = folder / "private"
    private.mkdir(mode=0o700)
    monkeypatch.setattr("jobherd.handlers._enqueue.embedded.link_folders", lambda: (folder / "none", private))
    with answering(deep):
        (private / link_name(data)).symlink_to(data)
        assert find_dsn() == f"host={private / link_name(data)} dbname=postgres user=jobherd"
        private.chmod(0o777)  # any user could have created the link now
        with pytest.raises(NotConfiguredError):
            find_dsn()
    assert len(link_folders()) == 2


def test_embedded_server_of_another_os_user_is_not_used(folder, monkeypatch):
    with answering(folder):
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(NotConfiguredError):
            find_dsn()
