"""The commands of `jobherd forge`."""

from __future__ import annotations

import pytest

from jobherd import configure
from jobherd.handlers.forge.push import push_process
from jobherd.handlers.forge.size import size_recalc
from jobherd.handlers.forge.trending import trending_compute
from jobherd.testing import run
from tests.cli.shell import jobherd
from tests.handlers.forge.conftest import Forge
from tests.support.repositories import generated, push


def test_init_repo_creates_the_schema_and_prints_the_path(empty_database: str, forge: Forge) -> None:
    path = forge.folder / "new.git"
    said = jobherd("forge", "init-repo", path, dsn=empty_database)
    assert (said.code, said.out, said.err) == (0, f"{path}\n", "")
    assert "remote: jobherd: recorded, 1 job enqueued" in push(generated(forge.folder / "source.git", 3), path, "main")
    listed = jobherd("jobs", "--json", dsn=empty_database).json
    assert "push:process" in str(listed)
    assert "trending:compute" in str(listed)


def test_init_repo_enqueues_jobs_for_existing_commits_and_says_so(forge: Forge) -> None:
    there = generated(forge.folder / "project.git", 10)
    said = jobherd("forge", "init-repo", there, "--dsn", forge.dsn)
    assert said.code == 0
    assert "counts as pushed just now" in said.err
    forge.run_waiting()
    assert forge.one("SELECT count(*) FROM jobherd.forge_commits") == 10
    again = jobherd("forge", "init-repo", there, "--dsn", forge.dsn)
    assert (again.code, again.err) == (0, "")


def test_init_repo_rejects_a_folder_that_is_not_a_repository(forge: Forge) -> None:
    (forge.folder / "letter.txt").write_text("dear")
    said = jobherd("forge", "init-repo", forge.folder, dsn=forge.dsn)
    assert said.code == 1
    assert "is not a git repository: name another folder" in said.err


def test_catch_up_records_pushes_that_the_hook_missed(forge: Forge) -> None:
    remote = forge.repository()
    (remote / "hooks" / "post-receive").chmod(0o644)
    push(generated(forge.folder / "source.git", 3), remote, "main")
    assert jobherd("forge", "catch-up", remote, dsn=forge.dsn).out == "1 job enqueued\n"
    assert jobherd("forge", "catch-up", remote, dsn=forge.dsn).out == "nothing was missing\n"
    assert jobherd("forge", "catch-up", forge.folder / "nowhere", dsn=forge.dsn).code == 1


def test_import_prints_the_job_id(forge: Forge) -> None:
    said = jobherd("forge", "import", "example-org", dsn=forge.dsn)
    (waiting,) = forge.waiting()
    assert (said.code, said.out) == (0, f"{waiting['id']}\n")
    assert waiting["kind"] == "org:github_import_discover"
    assert jobherd("forge", "import", "a/b", dsn=forge.dsn).code == 2


def test_init_repo_without_a_database_fails_and_hides_the_password(forge: Forge) -> None:
    said = jobherd("forge", "init-repo", forge.folder / "x.git", dsn="host=/nowhere dbname=x password=hidden-word")
    assert said.code == 69
    assert "hidden-word" not in said.err
    assert not (forge.folder / "x.git").exists()


@pytest.mark.parametrize("part", [(), ("init-repo",), ("catch-up",), ("import",), ("demo",)])
def test_help_has_an_example_and_fits_80_columns(part: tuple[str, ...]) -> None:
    said = jobherd("forge", *part, "--help")
    assert said.code == 0
    assert "example:" in said.out
    assert max(map(len, said.out.splitlines())) <= 80


def test_forge_works_in_a_schema_with_another_name(empty_database: str, forge: Forge) -> None:
    path = forge.folder / "new.git"
    assert jobherd("forge", "init-repo", path, "--schema", "elsewhere", dsn=empty_database).code == 0
    assert "recorded, 1 job enqueued" in push(generated(forge.folder / "source.git", 3), path, "main")
    client = configure(empty_database, schema="elsewhere")
    try:
        assert run(push_process, push_event=1).result["commits"] == 1  # type: ignore[index]
        assert run(size_recalc, repo=1).outcome.label == "ok"
        assert [one["name"] for one in run(trending_compute).result["best"]] == ["new"]  # type: ignore[index]
        assert client.job(1) is not None
    finally:
        client.close()
