"""The post-receive hook and its installation.

A push is recorded in one transaction, exactly once, without showing secrets.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from jobherd import sql
from jobherd.handlers.forge._database import transaction
from jobherd.handlers.forge._pushes import MISSED, Change, Push, catch_up, keep, read_push, tell
from jobherd.handlers.forge._repository import CONFIG, Place, RepositoryError, init_repository, read_place, write_place
from tests.handlers.forge.conftest import Forge
from tests.support.patience import LIMIT
from tests.support.repositories import ENVIRONMENT, bare, commit, generated, git, push

if TYPE_CHECKING:
    from pathlib import Path

EVENTS = "SELECT ref, old_sha, new_sha, job FROM jobherd.forge_push_events ORDER BY id"
ZEROS = "0" * 40
A, B, C = "a" * 40, "b" * 40, "c" * 40


def write_dsn(remote: Path, dsn: str) -> None:
    write_place(str(remote), Place(dsn, "jobherd"))


@pytest.mark.promise("A4")
def test_push_records_each_ref_with_a_job_and_prints_the_job_ids(forge: Forge) -> None:
    source, remote = bare(forge.folder / "source.git"), forge.repository()
    sha = commit(source, "refs/heads/main", {"a.py": b"1\n"})
    said = push(source, remote, "main", "main:refs/heads/other")
    jobs = forge.waiting()
    assert f"remote: jobherd: recorded, 2 jobs enqueued: {jobs[0]['id']}, {jobs[1]['id']}" in said
    assert forge.rows(EVENTS) == [
        {"ref": "refs/heads/main", "old_sha": None, "new_sha": sha, "job": jobs[0]["id"]},
        {"ref": "refs/heads/other", "old_sha": None, "new_sha": sha, "job": jobs[1]["id"]},
    ]
    assert [job["kind"] for job in jobs] == ["push:process"] * 2


@pytest.mark.promise("A4", "A9")
def test_push_of_many_refs_sends_one_notification(forge: Forge) -> None:
    source, remote = bare(forge.folder / "source.git"), forge.repository()
    commit(source, "refs/heads/main", {"a.py": b"1\n"})
    with psycopg.connect(forge.dsn, autocommit=True) as ears:
        ears.execute(sql.load("wake/listen_jobs"))
        ears.execute(sql.load("wake/enable_notify"))
        push(source, remote, *(f"main:refs/heads/branch-{number}" for number in range(30)))
        heard = [one.payload for one in ears.notifies(timeout=LIMIT, stop_after=1)]
        heard += [one.payload for one in ears.notifies(timeout=0)]
    assert heard == ["default"]
    assert len(forge.rows(EVENTS)) == 30


def test_hook_needs_neither_path_nor_home(forge: Forge) -> None:
    remote = forge.repository()
    done = subprocess.run(
        [remote / "hooks" / "post-receive"],
        cwd=remote,
        env={"GIT_DIR": "."},
        input=f"{ZEROS} {A} refs/heads/main\n".encode(),
        capture_output=True,
        timeout=LIMIT,
    )
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"recorded, 1 job enqueued" in done.stderr
    assert [event["new_sha"] for event in forge.rows(EVENTS)] == [A]


def test_python_module_in_the_repository_is_not_imported(forge: Forge) -> None:
    remote = forge.repository()
    (remote / "handlers.py").write_text("raise SystemExit('foreign code')")
    (remote / "psycopg.py").write_text("raise SystemExit('foreign code')")
    said = push(generated(forge.folder / "source.git", 3), remote, "main")
    assert "recorded, 1 job enqueued" in said


def test_dsn_is_stored_in_a_file_that_only_its_owner_can_read(forge: Forge) -> None:
    old = os.umask(0)
    try:
        remote = forge.repository()
    finally:
        os.umask(old)
    assert stat.S_IMODE((remote / CONFIG).stat().st_mode) == 0o600
    assert json.loads((remote / CONFIG).read_text()) == {"dsn": forge.dsn, "schema": "jobherd"}
    hook = remote / "hooks" / "post-receive"
    assert stat.S_IMODE(hook.stat().st_mode) == 0o755
    assert "dbname" not in hook.read_text()
    assert "dbname" not in repr(read_place(str(remote)))


def test_push_without_a_database_succeeds_and_is_recorded_with_the_next_push(forge: Forge) -> None:
    source, remote = bare(forge.folder / "source.git"), forge.repository()
    first = commit(source, "refs/heads/main", {"a.py": b"1\n"})
    write_dsn(remote, make_conninfo(host=str(forge.folder), dbname="nowhere", user="somebody", password="hidden-word"))
    said = push(source, remote, "main")
    assert "this push is stored in the repository, but not recorded" in said
    assert f"jobherd forge catch-up {remote}" in said
    assert "hidden-word" not in said
    assert git("rev-parse", "main", at=remote) == first
    (note,) = (remote / MISSED).iterdir()
    assert stat.S_IMODE((remote / MISSED).stat().st_mode) == 0o700
    assert forge.rows(EVENTS) == []

    write_dsn(remote, forge.dsn)
    second = commit(source, "refs/heads/main", {"a.py": b"2\n"}, parents=(first,))
    assert "recorded, 2 jobs enqueued" in push(source, remote, "main")
    assert not note.exists()
    assert [(event["old_sha"], event["new_sha"]) for event in forge.rows(EVENTS)] == [(None, first), (first, second)]
    forge.run_waiting()
    assert forge.one("SELECT count(*) FROM jobherd.forge_commits") == 2


def test_push_with_a_broken_configuration_file_is_kept_and_the_error_is_printed(forge: Forge) -> None:
    source, remote = generated(forge.folder / "source.git", 3), forge.repository()
    (remote / CONFIG).write_text("{}")
    said = push(source, remote, "main")
    assert "does not name a database: run jobherd forge init-repo" in said
    (remote / CONFIG).unlink()
    assert "cannot be read" in push(source, remote, "main:refs/heads/again")
    assert len(list((remote / MISSED).iterdir())) == 2
    write_dsn(remote, forge.dsn)
    assert len(catch_up(str(remote))) == 2
    assert list((remote / MISSED).iterdir()) == []


def test_push_is_kept_if_the_forge_schema_is_missing(forge: Forge, database: str) -> None:
    source, remote = generated(forge.folder / "source.git", 3), forge.repository()
    write_dsn(remote, database)
    said = push(source, remote, "main")
    assert 'not recorded: relation "jobherd.forge_repos" does not exist' in said
    assert len(list((remote / MISSED).iterdir())) == 1


def test_hook_without_its_python_says_so_and_catch_up_finds_the_push(forge: Forge) -> None:
    source, remote = generated(forge.folder / "source.git", 3), forge.repository()
    hook = remote / "hooks" / "post-receive"
    lines = ["python=/gone/python" if line.startswith("python=") else line for line in hook.read_text().splitlines()]
    hook.write_text("\n".join(lines) + "\n")
    assert "remote: jobherd: /gone/python is gone" in push(source, remote, "main")
    assert not (remote / MISSED).exists()
    assert len(catch_up(str(remote))) == 1
    assert catch_up(str(remote)) == []
    assert [event["new_sha"] for event in forge.rows(EVENTS)] == [git("rev-parse", "main", at=remote)]


def test_catch_up_records_moved_and_deleted_refs(forge: Forge) -> None:
    source, remote = bare(forge.folder / "source.git"), forge.repository()
    first = commit(source, "refs/heads/main", {"a.py": b"1\n"})
    push(source, remote, "main", "main:refs/heads/side")
    second = commit(remote, "refs/heads/main", {"a.py": b"2\n"}, parents=(first,))
    git("update-ref", "-d", "refs/heads/side", at=remote)
    assert len(catch_up(str(remote))) == 2
    assert [(event["ref"], event["old_sha"], event["new_sha"]) for event in forge.rows(EVENTS)[2:]] == [
        ("refs/heads/main", first, second),
        ("refs/heads/side", first, None),
    ]


def test_push_that_is_reported_twice_is_recorded_once(forge: Forge) -> None:
    remote = forge.repository()
    one = Push((Change("refs/heads/main", None, A), Change("refs/heads/side", None, B)))
    assert len(tell(str(remote), one)) == 2
    assert tell(str(remote), one) == []
    keep(str(remote), one)  # as a hook does that is killed after its commit
    assert tell(str(remote), Push((Change("refs/heads/main", A, C),))) == [forge.waiting()[-1]["id"]]
    assert len(forge.rows(EVENTS)) == len(forge.waiting()) == 3


@pytest.mark.promise("A4")
def test_push_event_and_job_are_recorded_in_one_transaction(forge: Forge) -> None:
    remote = forge.repository()
    forge.rows("ALTER TABLE jobherd.ready ADD CONSTRAINT nothing_more CHECK (false) NOT VALID")
    with pytest.raises(psycopg.errors.CheckViolation):
        tell(str(remote), Push((Change("refs/heads/main", None, A),)))
    assert forge.rows(EVENTS) == []


def test_unreadable_kept_push_is_reported_and_blocks_recording_until_removed(forge: Forge) -> None:
    source, remote = generated(forge.folder / "source.git", 3), forge.repository()
    (remote / MISSED).mkdir()
    (remote / MISSED / "1.json").write_text('{"push": "no", "changes": []}')
    said = push(source, remote, "main")
    assert "1.json does not hold a push" in said
    assert len(list((remote / MISSED).iterdir())) == 2
    assert forge.rows(EVENTS) == []
    (remote / MISSED / "1.json").unlink()
    assert len(catch_up(str(remote))) == 1


def test_concurrent_pushes_are_all_recorded(forge: Forge) -> None:
    source = generated(forge.folder / "source.git", 30)
    bare(forge.folder / "project.git")
    remote = forge.repository()
    with ThreadPoolExecutor(6) as people:
        said = list(people.map(lambda number: push(source, remote, f"main:refs/heads/branch-{number}"), range(6)))
    assert all("recorded, 1 job enqueued" in one for one in said)
    assert {event["ref"] for event in forge.rows(EVENTS)} == {f"refs/heads/branch-{number}" for number in range(6)}
    assert forge.one("SELECT count(*) FROM jobherd.forge_repos") == 1
    forge.run_waiting()
    assert forge.one("SELECT count(*) FROM jobherd.forge_commits") == int(git("rev-list", "--count", "main", at=source))


def test_hook_waits_for_a_lock_only_for_a_limited_time(forge: Forge) -> None:
    remote = forge.repository()
    with psycopg.connect(forge.dsn) as somebody:
        somebody.execute("LOCK TABLE jobherd.forge_push_events")
        with pytest.raises(psycopg.errors.QueryCanceled):
            tell(str(remote), Push((Change("refs/heads/main", None, A),)), patience=0.2)
    assert len(tell(str(remote), Push((Change("refs/heads/main", None, A),)))) == 1


@pytest.mark.parametrize(
    "lines",
    [
        [b"what is this\n"],
        [f"{A} {B}\n".encode()],
        [f"{A} short refs/heads/main\n".encode()],
        [f"{A.upper()} {B} refs/heads/x\n".encode()],
    ],
)
def test_invalid_hook_input_is_rejected(lines: list[bytes]) -> None:
    with pytest.raises((ValueError, TypeError)):
        read_push(lines)


def test_sha_of_zeros_means_a_created_or_deleted_ref() -> None:
    made, deleted = read_push(
        [f"{ZEROS} {A} refs/heads/x\n".encode(), f"{A} {'0' * 64} refs/heads/a b\n".encode()]
    ).changes
    assert (made, deleted) == (Change("refs/heads/x", None, A), Change("refs/heads/a b", A, None))


# -- installing


def test_init_of_an_existing_repository_adds_the_hook_and_keeps_its_refs(forge: Forge) -> None:
    there = generated(forge.folder / "project.git", 10)
    before = git("for-each-ref", at=there)
    remote = forge.repository()
    assert git("for-each-ref", at=remote) == before
    assert len(catch_up(str(remote))) == len(before.splitlines())
    forge.run_waiting()
    assert forge.one("SELECT count(*) FROM jobherd.forge_commits") == 10


def test_second_init_changes_nothing(forge: Forge) -> None:
    remote = forge.repository()
    before = (remote / "hooks" / "post-receive").read_text()
    assert forge.repository() == remote
    assert (remote / "hooks" / "post-receive").read_text() == before
    assert sorted(os.listdir(remote / "hooks")) == ["post-receive"]


def test_symlink_and_its_target_are_one_repository(forge: Forge) -> None:
    remote = forge.repository()
    (forge.folder / "link.git").symlink_to(remote)
    assert forge.repository("link.git") == remote
    push(generated(forge.folder / "source.git", 3), forge.folder / "link.git", "main")
    assert forge.one("SELECT path FROM jobherd.forge_repos") == str(remote)


def test_existing_foreign_hook_is_not_replaced(forge: Forge) -> None:
    remote = bare(forge.folder / "project.git")
    (remote / "hooks").mkdir(exist_ok=True)
    (remote / "hooks" / "post-receive").write_text("#!/bin/sh\necho mine\n")
    with pytest.raises(RepositoryError, match="was not written by Jobherd: rename it"):
        forge.repository()
    assert (remote / "hooks" / "post-receive").read_text() == "#!/bin/sh\necho mine\n"


def test_folder_with_other_files_is_rejected(forge: Forge) -> None:
    (forge.folder / "things").mkdir()
    (forge.folder / "things" / "letter.txt").write_text("dear")
    with pytest.raises(RepositoryError, match="is not a git repository"):
        forge.repository("things")
    assert os.listdir(forge.folder / "things") == ["letter.txt"]


def test_global_hooks_path_of_the_user_does_not_disable_the_hook(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    own = forge.folder / "gitconfig"
    own.write_text(f"[core]\n hooksPath = {forge.folder}/elsewhere\n")
    monkeypatch.setenv("HOME", str(forge.folder))
    (forge.folder / ".gitconfig").write_text(own.read_text())
    remote = forge.repository()
    source = generated(forge.folder / "source.git", 3)
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "GIT_CONFIG_GLOBAL"} | {
        "HOME": str(forge.folder)
    }
    done = subprocess.run(
        ["git", "-C", source, "push", "-q", remote, "main"], env=environment, capture_output=True, timeout=LIMIT
    )
    assert b"recorded, 1 job enqueued" in done.stderr


def test_folder_name_with_a_leading_dash_is_not_an_option(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(forge.folder)
    remote = init_repository("--bare", dsn=forge.dsn, schema="jobherd")
    assert remote == str(forge.folder / "--bare")
    assert os.path.exists(os.path.join(remote, "HEAD"))


def test_interrupted_transaction_leaves_a_usable_connection(forge: Forge) -> None:
    with pytest.raises(KeyboardInterrupt), transaction() as database:
        database.rows("forge/add_repo", path="/x", name="x")
        raise KeyboardInterrupt
    forge.rows("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'jobherd forge'")
    with transaction() as database:
        assert database.rows("forge/show_repo", id=1) == []
