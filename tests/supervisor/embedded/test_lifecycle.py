"""Start, share and stop the embedded PostgreSQL; the tests use real servers and real kills.

``place`` is in a folder of mode 0700: if root starts the server, the server's OS user cannot enter it by its path.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import importlib.util
import os
import pwd
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psycopg
import pytest

from jobherd.handlers._enqueue.embedded import SOCKET
from jobherd.supervisor.embedded import binaries, lifecycle
from jobherd.supervisor.embedded import server as embedded_server
from jobherd.supervisor.embedded.lifecycle import EmbeddedUnavailable
from tests.support.patience import LIMIT
from tests.support.postgres import quick_place
from tests.support.processes import children_of, is_running, wait_for_exit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PR_SET_CHILD_SUBREAPER = 36
IS_ROOT = os.geteuid() == 0
USER = """
import sys
from pathlib import Path
from jobherd.supervisor.embedded import lifecycle as embedded
server = embedded.start(Path(sys.argv[1]))
print(server.pid, server.started, flush=True)
sys.stdin.readline()
print(server.leave(), flush=True)
"""


@pytest.fixture(autouse=True)
def _no_server_left() -> Iterator[None]:
    """Reap orphans of the servers: process 1 does not reap on every machine."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    yield
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0)
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            found = re.match(rf"(\d+) \((postgres|sh)\) Z {os.getpid()} ", status.read_text())
        except OSError:
            continue
        if found:
            os.waitpid(int(found[1]), 0)


@pytest.fixture
def place() -> Iterator[Path]:
    """A working directory; at the end, a server that a failed test left in it is stopped."""
    with tempfile.TemporaryDirectory(prefix="jobherd-place-", dir=quick_place()) as private:
        folder = Path(private, "work")
        folder.mkdir()
        yield folder
        embedded_server.stop(folder / ".jobherd" / "postgres", time.monotonic() + LIMIT)


class User:
    """Another process that uses the server of a working directory."""

    def __init__(self, place: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, place],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def joined(self) -> tuple[int, bool]:
        assert self.process.stdout is not None
        pid, started = self.process.stdout.readline().split()
        return int(pid), started == "True"

    def leave(self) -> bool:
        said, _ = self.process.communicate("\n", timeout=LIMIT)
        return said.strip() == "True"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def ask(dsn: str, statement: str) -> object:
    with psycopg.connect(dsn) as conn:
        row = conn.execute(statement).fetchone()
        assert row is not None
        return row[0]


def write(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute(statement)


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked child; return its exit code."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


# -- the server


def test_server_is_durable_uses_utf8_and_does_not_listen_on_tcp(place: Path):
    with lifecycle.start(place) as server:
        assert server.started
        assert ask(server.dsn, "SHOW fsync") == "on"
        assert ask(server.dsn, "SHOW synchronous_commit") == "on"
        assert ask(server.dsn, "SHOW full_page_writes") == "on"
        assert ask(server.dsn, "SHOW server_encoding") == "UTF8"
        assert ask(server.dsn, "SHOW listen_addresses") == ""
        assert ask(server.dsn, "SELECT upper('ä')") == "Ä"
        assert ask(server.dsn, "SHOW server_version_num").startswith(str(server.version))


def test_only_the_owner_can_access_socket_data_and_log(place: Path):
    with lifecycle.start(place) as server:
        assert stat.S_IMODE(server.data.stat().st_mode) == 0o700
        assert stat.S_IMODE((server.data / SOCKET).stat().st_mode) == 0o700
        assert stat.S_IMODE(server.log.stat().st_mode) == 0o600


def test_data_is_kept_between_runs(place: Path):
    with lifecycle.start(place) as server:
        write(server.dsn, "CREATE TABLE kept AS SELECT 7 AS n")
    with lifecycle.start(place) as again:
        assert again.started
        assert again.dsn == server.dsn
        assert ask(again.dsn, "SELECT n FROM kept") == 7


def test_failed_statement_leaves_no_payload_in_the_log(place: Path):
    with lifecycle.start(place) as server:
        write(server.dsn, "CREATE TABLE strict (payload text CHECK (payload = ''))")
        with pytest.raises(psycopg.errors.CheckViolation):
            write(server.dsn, "INSERT INTO strict VALUES ('s3cret')")
    log = server.log.read_text()
    assert "violates check constraint" in log
    assert "s3cret" not in log


@pytest.mark.skipif(not IS_ROOT, reason="only a server started by root runs as another user")
def test_server_started_by_root_runs_as_an_unused_user_and_changes_no_folder_modes(place: Path):
    folders = [place, *place.parents]
    before = [folder.stat().st_mode for folder in folders]
    assert any(not mode & stat.S_IXOTH for mode in before), "this test needs a private folder above"
    groups_before = os.getgroups()
    os.setgroups([0, 4])
    try:
        server = lifecycle.start(place)
    finally:
        os.setgroups(groups_before)
    with server:
        uid = Path(f"/proc/{server.pid}").stat().st_uid
        assert uid != 0
        with pytest.raises(KeyError):
            pwd.getpwuid(uid)
        assert {file.stat().st_uid for file in server.data.rglob("*")} == {uid}
        groups = re.search(r"^Groups:(.*)$", Path(f"/proc/{server.pid}/status").read_text(), re.MULTILINE)
        assert groups is not None
        assert groups[1].split() == []
    assert [folder.stat().st_mode for folder in folders] == before


@pytest.mark.skipif(not IS_ROOT, reason="needs root to become another user")
def test_server_started_by_an_ordinary_user_runs_as_that_user():
    if not binaries._open_to_all(binaries.carried().bin):
        pytest.skip("the virtual environment is in a private folder, where the other user cannot read it")
    nobody = pwd.getpwnam("nobody")

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)

        def use() -> None:
            os.setgroups([])
            os.setgid(nobody.pw_gid)
            os.setuid(nobody.pw_uid)
            for started in (True, True):
                server = lifecycle.start(Path(folder))
                assert server.started is started
                assert Path(f"/proc/{server.pid}").stat().st_uid == nobody.pw_uid
                assert ask(server.dsn, "SELECT 1") == 1
                assert server.leave()

        assert in_child(use) == 0


@pytest.mark.skipif(
    not IS_ROOT, reason="only a server started by root runs as a user who may be unable to read the programs"
)
def test_programs_in_a_private_folder_are_copied_to_a_readable_folder(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    installed = binaries.carried()
    source = installed.bin.parent
    private = tmp_path / "site-packages"
    shutil.copytree(source, private / source.parent.name / source.name, ignore=shutil.ignore_patterns("*.a", "include"))
    libraries = source.parent.with_name(source.parent.name + ".libs")
    shutil.copytree(libraries, private / libraries.name)
    hidden = binaries.Programs(private / source.parent.name / source.name / "bin", installed.version)
    monkeypatch.setattr(binaries, "carried", lambda major=None: hidden)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as cache:
        os.chmod(cache, 0o755)
        monkeypatch.setattr(binaries, "CACHE", Path(cache))
        for _ in range(2):
            with lifecycle.start(place) as server:
                program = Path(f"/proc/{server.pid}/exe").readlink()
                assert program.is_relative_to(cache)
                assert ask(server.dsn, "SELECT 1") == 1
        assert len(list(Path(cache).iterdir())) == 1, "the copy is made once"


def test_incomplete_copy_of_the_programs_is_replaced_by_a_process_with_the_same_pid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The first process of a container always has the same pid."""
    private = tmp_path / "site-packages" / "server" / "installed" / "bin"
    private.mkdir(parents=True)
    (private / "postgres").touch()
    programs, account = binaries.Programs(private, "18.1"), binaries.Account(1, 1)
    monkeypatch.setattr(binaries, "CACHE", tmp_path / "cache")

    def no_room(_: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(binaries, "_open_up", no_room)
        with pytest.raises(OSError, match="No space"):
            binaries.readable(programs, account)
    assert (binaries.readable(programs, account).bin / "postgres").exists()
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize(
    "name", ["with,comma", "with space and 'quote'", "long" * 25, "ä" * 60, os.fsdecode(b"latin-\xe4")]
)
def test_server_can_be_reached_whatever_its_path(place: Path, name: str):
    folder = place / name
    folder.mkdir()
    with lifecycle.start(folder) as server:
        assert ask(server.dsn, "SELECT 1") == 1
        with lifecycle.start(folder) as again:
            assert again.dsn == server.dsn
        assert ask(server.dsn, "SELECT 1") == 1
    links = Path(f"/tmp/jobherd-{os.geteuid()}")
    assert not links.exists() or folder / ".jobherd" / "postgres" not in [link.readlink() for link in links.iterdir()]


# -- users


def test_only_the_last_user_stops_the_server(place: Path):
    first, second = lifecycle.start(place), lifecycle.start(place)
    assert (first.started, second.started) == (True, False)
    assert first.pid == second.pid
    assert first.leave() is False
    assert ask(second.dsn, "SELECT 1") == 1
    assert second.leave() is True
    wait_for_exit(second.pid)
    assert second.leave() is False


def test_server_runs_until_the_other_process_leaves(place: Path):
    server = lifecycle.start(place)
    with User(place) as user:
        assert user.joined() == (server.pid, False)
        assert server.leave() is False
        assert is_running(server.pid)
        assert user.leave() is True
    wait_for_exit(server.pid)


def test_killed_user_no_longer_keeps_the_server_running(place: Path):
    server = lifecycle.start(place)
    with User(place) as user:
        user.joined()
        user.kill()
    assert server.leave() is True


def test_server_survives_the_kill_of_its_only_user_and_the_next_user_stops_it(place: Path):
    with User(place) as user:
        pid, started = user.joined()
        assert started
        user.kill()
    server = lifecycle.start(place)
    assert (server.pid, server.started) == (pid, False)
    assert ask(server.dsn, "SELECT 1") == 1
    assert server.leave() is True
    wait_for_exit(pid)


def test_simultaneous_first_users_share_one_server(place: Path):
    with ExitStack() as stack:
        users = [stack.enter_context(User(place)) for _ in range(6)]
        joined = [user.joined() for user in users]
        assert len({pid for pid, _ in joined}) == 1
        assert sum(started for _, started in joined) == 1
        assert [user.leave() for user in users] == [False] * 5 + [True]


def test_ctrl_c_in_the_terminal_does_not_stop_the_server(place: Path):
    with User(place) as user:
        pid, _ = user.joined()
        os.killpg(user.process.pid, signal.SIGINT)
        user.process.wait(LIMIT)
    assert os.getsid(pid) not in (os.getsid(0), user.process.pid)
    with lifecycle.start(place) as server:
        assert (server.pid, server.started) == (pid, False)


def test_forked_child_cannot_leave_for_its_parent_and_does_not_count_as_a_user(place: Path):
    server = lifecycle.start(place)
    assert in_child(lambda: os._exit(3 if server.leave() else 0)) == 0
    assert is_running(server.pid)

    end, hold = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hold)
        os.read(end, 1)
        os._exit(0)
    os.close(end)
    assert server.leave() is True, "a child that inherited the descriptors must not count as a user"
    assert lifecycle.start(place, timeout=LIMIT).leave() is True, "the child must not block a start"
    os.close(hold)
    os.waitpid(child, 0)


def test_lifecycle_leaves_no_thread_exit_hook_child_or_descriptor_behind(place: Path):
    def traces() -> tuple[object, ...]:
        return len(os.listdir("/proc/self/task")), atexit._ncallbacks(), set(os.listdir("/proc/self/fd"))  # type: ignore[attr-defined]

    lifecycle.start(place).leave()  # the first use imports modules
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0)
    before, children = traces(), children_of(os.getpid())
    server = lifecycle.start(place)
    assert children_of(os.getpid()) == children
    server.leave()
    assert traces() == before


# -- after a crash


def test_start_replaces_a_killed_postmaster_and_its_busy_backend_without_losing_commits(place: Path):
    server = lifecycle.start(place)
    write(server.dsn, "CREATE TABLE kept AS SELECT 7 AS n")
    busy = psycopg.connect(server.dsn)
    orphan = busy.info.backend_pid
    busy.pgconn.send_query(b"DO $$ BEGIN RAISE NOTICE 'busy'; LOOP END LOOP; END $$")
    assert busy.pgconn.flush() == 0
    assert select.select([busy], [], [], 30)[0], "no notice: the loop was not entered"
    os.kill(server.pid, signal.SIGKILL)
    wait_for_exit(server.pid)
    assert is_running(orphan)
    again = lifecycle.start(place)
    assert again.started
    assert again.pid != server.pid
    assert not is_running(orphan)
    busy.close()
    assert again.dsn == server.dsn
    assert ask(again.dsn, "SELECT n FROM kept") == 7
    assert again.leave() is False
    assert server.leave() is True, "a user from before the crash still counts"
    wait_for_exit(again.pid)


def test_server_starts_despite_a_stale_postmaster_file_with_another_programs_pid(place: Path):
    with lifecycle.start(place) as server:
        content = (server.data / "postmaster.pid").read_text()
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as stranger:
        (server.data / "postmaster.pid").write_text(content.replace(str(server.pid), str(stranger.pid), 1))
        with lifecycle.start(place) as again:
            assert again.started
            assert ask(again.dsn, "SELECT 1") == 1
        assert stranger.poll() is None
        stranger.communicate()


def test_interrupted_first_start_is_repeated_from_the_beginning(place: Path):
    torn = place / ".jobherd" / "postgres.new"
    (torn / "base").mkdir(parents=True)
    (torn / "PG_VERSION").write_text("18\n")
    with lifecycle.start(place) as server:
        assert ask(server.dsn, "SELECT 1") == 1
    assert not torn.exists()


def test_start_interrupted_by_ctrl_c_leaves_no_server(place: Path, monkeypatch: pytest.MonkeyPatch):
    looks = iter([embedded_server.ready])

    def ready(data: Path, until: float) -> int | None:
        for look in looks:
            return look(data, until)
        raise KeyboardInterrupt  # the second check is of the server that was just launched

    monkeypatch.setattr(embedded_server, "ready", ready)
    with pytest.raises(KeyboardInterrupt):
        lifecycle.start(place)
    assert embedded_server.is_free(place / ".jobherd" / "postgres")
    assert "database system is shut down" in (place / ".jobherd" / "postgres.log").read_text()


def test_user_can_leave_after_the_folder_was_removed(place: Path):
    server = lifecycle.start(place)
    while (place / ".jobherd").exists():
        # the server notices and removes its own files at the same time
        shutil.rmtree(place / ".jobherd", ignore_errors=True)
    assert server.leave() is False
    os.kill(server.pid, signal.SIGKILL)
    wait_for_exit(server.pid)


# -- find


def test_find_creates_nothing_if_there_is_no_server(place: Path):
    assert lifecycle.find(place) is None
    assert list(place.iterdir()) == []


def test_find_joins_a_running_server_and_starts_none(place: Path):
    server = lifecycle.start(place)
    found = lifecycle.find(place)
    assert found is not None
    assert (found.pid, found.started, found.dsn) == (server.pid, False, server.dsn)
    assert server.leave() is False
    assert found.leave() is True
    assert lifecycle.find(place) is None
    wait_for_exit(server.pid)


# -- errors


def test_error_without_the_extra_tells_how_to_install_it(place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(EmbeddedUnavailable, match=r'pip install "jobherd\[embedded\]".*--dsn or JOBHERD_DSN'):
        lifecycle.start(place)


def test_data_of_a_postgresql_version_that_is_not_installed_is_left_unchanged(place: Path):
    with lifecycle.start(place) as server:
        pass
    (server.data / "PG_VERSION").write_text("99\n")
    with pytest.raises(EmbeddedUnavailable, match=r"made by PostgreSQL 99.*carries .*18"):
        lifecycle.start(place)
    assert (server.data / "PG_VERSION").read_text() == "99\n"


@pytest.mark.parametrize("said", [b"", b"eighteen\n", b"\xff"])
def test_data_with_an_unreadable_version_are_rejected(place: Path, said: bytes):
    data = place / ".jobherd" / "postgres"
    data.mkdir(parents=True)
    (data / "PG_VERSION").write_bytes(said)
    with pytest.raises(
        EmbeddedUnavailable, match=r"PG_VERSION does not name the version of PostgreSQL.*--dsn or JOBHERD_DSN"
    ):
        lifecycle.start(place)


def test_error_quotes_the_log_of_a_server_that_does_not_start(place: Path):
    with lifecycle.start(place) as server:
        pass
    with (server.data / "postgresql.conf").open("a") as conf:
        conf.write("no_such_setting = 1\n")
    with pytest.raises(EmbeddedUnavailable, match=r"no_such_setting.*postgres\.log.*--dsn or JOBHERD_DSN"):
        lifecycle.start(place)
    assert embedded_server.is_free(server.data)


def test_start_times_out_at_a_busy_lock_and_names_its_file(place: Path):
    with lifecycle.start(place):
        holder = os.open(place / ".jobherd" / "postgres.lock", os.O_RDWR)
        assert embedded_server.locked(holder, embedded_server.fcntl.LOCK_EX)
        with pytest.raises(EmbeddedUnavailable, match=r"postgres\.lock"):
            lifecycle.start(place, timeout=0.05)
        os.close(holder)
