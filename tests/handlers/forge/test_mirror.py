"""org:github_import_repo: mirrors of local repositories, cloned over HTTP."""

from __future__ import annotations

import base64
import fcntl
import os
import stat
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jobherd.handlers.forge import _git, _mirror
from jobherd.handlers.forge.github import import_repo
from jobherd.testing import Ran, run_payload
from tests.handlers.forge.conftest import Forge
from tests.support.patience import LIMIT
from tests.support.repositories import bare, commit, generated, git

if TYPE_CHECKING:
    from collections.abc import Iterator

REPO = "SELECT status, note, path, imported_at FROM jobherd.forge_github_import_repos"


class Hub:
    """A web server for the repositories in a folder, as git's plain files. It stores the requests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[dict[str, str]] = []
        self.status = 0
        folder.mkdir()
        outer = self

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append({name.lower(): value for name, value in self.headers.items()} | {"path": self.path})
                if outer.status:
                    self.send_error(outer.status)
                else:
                    super().do_GET()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def publish(self, name: str) -> Path:
        path = self.folder / f"{name}.git"
        if not path.exists():
            generated(path, 20)
        git("update-server-info", at=path)
        return path


@pytest.fixture
def hub(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub(forge.folder / "hub")
    monkeypatch.setenv("JOBHERD_GITHUB_URL", server.url)
    monkeypatch.delenv("JOBHERD_GITHUB_TOKEN", raising=False)
    monkeypatch.setenv("JOBHERD_IMPORT_FOLDER", str(forge.folder / "imports"))
    monkeypatch.setenv("no_proxy", "*")
    yield server
    server.close()


def row(forge: Forge, name: str, url: str, *, org: str = "example") -> int:
    found = forge.rows(
        "WITH i AS (INSERT INTO jobherd.forge_github_imports (org) VALUES (%s) RETURNING id)"
        " INSERT INTO jobherd.forge_github_import_repos (import, name, clone_url) SELECT id, %s, %s FROM i RETURNING id",
        org, name, url,
    )  # fmt: skip
    return int(found[0]["id"])


def run(repo_id: int, **fields: Any) -> Ran:
    return run_payload(import_repo, {"import_repo_id": repo_id}, **fields)


def again(forge: Forge) -> None:
    """Request the import again."""
    forge.rows("UPDATE jobherd.forge_github_import_repos SET status = 'discovered', imported_at = NULL")


@pytest.mark.promise("A15")
def test_repository_is_mirrored_once_with_every_ref_and_its_size_computed(forge: Forge, hub: Hub) -> None:
    source = hub.publish("project")
    one = row(forge, "project", f"{hub.url}/project.git")
    ran = run(one)
    mirror = forge.folder / "imports" / "example" / "project.git"
    assert ran.result == {"path": str(mirror), "how": "cloned"}
    assert git("for-each-ref", at=mirror) == git("for-each-ref", at=source)
    assert git("rev-list", "--all", "--count", at=mirror) == "20"
    stands = forge.one(REPO)
    assert (stands["status"], stands["path"]) == ("imported", str(mirror))
    assert [job["kind"] for job in forge.waiting()] == ["repo:size_recalc"]
    forge.run_waiting()
    assert forge.one("SELECT objects FROM jobherd.forge_repos WHERE path = %s", str(mirror)) > 20

    hub.asked.clear()
    assert run(one).result == {"skipped": "this repository was imported before", "path": str(mirror)}
    assert hub.asked == []


@pytest.mark.promise("A15")
def test_existing_mirror_is_updated(forge: Forge, hub: Hub) -> None:
    source = hub.publish("project")
    one = row(forge, "project", f"{hub.url}/project.git")
    run(one)
    tip = git("rev-parse", "main", at=source)
    commit(source, "refs/heads/main", {"new.py": b"1\n"}, parents=(tip,))
    git("update-ref", "-d", "refs/heads/topic-1", at=source)
    hub.publish("project")
    again(forge)
    assert run(one).result["how"] == "updated"  # type: ignore[index]
    mirror = forge.folder / "imports" / "example" / "project.git"
    assert git("for-each-ref", at=mirror) == git("for-each-ref", at=source)


def test_partial_clone_and_stale_locks_of_a_killed_git_do_not_prevent_an_import(forge: Forge, hub: Hub) -> None:
    source = hub.publish("project")
    one = row(forge, "project", f"{hub.url}/project.git")
    mirror = forge.folder / "imports" / "example" / "project.git"
    half = mirror.with_name("project.git.new")
    half.mkdir(parents=True)
    (half / "HEAD").write_text("half of")
    assert run(one).result["how"] == "cloned"  # type: ignore[index]
    assert not half.exists()

    (mirror / "packed-refs.lock").write_text("")
    (mirror / "refs" / "heads").mkdir(parents=True, exist_ok=True)
    (mirror / "refs" / "heads" / "main.lock").write_text("")
    commit(source, "refs/heads/main", {"new.py": b"1\n"}, parents=(git("rev-parse", "main", at=source),))
    git("update-ref", "-d", "refs/heads/topic-1", at=source)
    hub.publish("project")
    again(forge)
    assert run(one).result["how"] == "updated"  # type: ignore[index]
    assert git("rev-parse", "main", at=mirror) == git("rev-parse", "main", at=source)


def test_incomplete_mirror_is_cloned_again(forge: Forge, hub: Hub) -> None:
    hub.publish("project")
    mirror = forge.folder / "imports" / "example" / "project.git"
    mirror.mkdir(parents=True)
    (mirror / "HEAD").write_text("half of")
    assert run(row(forge, "project", f"{hub.url}/project.git")).result["how"] == "cloned"  # type: ignore[index]
    assert git("rev-list", "--all", "--count", at=mirror) == "20"


def test_import_is_snoozed_while_another_one_has_the_lock_of_its_mirror(forge: Forge, hub: Hub) -> None:
    hub.publish("project")
    one = row(forge, "project", f"{hub.url}/project.git")
    (forge.folder / "imports" / "example").mkdir(parents=True)
    with open(forge.folder / "imports" / "example" / "project.git.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ran = run(one)
        assert (ran.outcome.label, ran.outcome.delay) == ("snoozed", 60)
        assert hub.asked == []
    assert run(one).outcome.label == "ok"


def test_repository_or_row_that_does_not_exist_is_poison(forge: Forge, hub: Hub) -> None:
    ran = run(row(forge, "nothing", f"{hub.url}/nothing.git"))
    assert (ran.outcome.label, ran.outcome.code) == ("poison", "GITHUB_NOT_FOUND")
    assert forge.one(REPO)["status"] == "failing"
    assert run(4711).outcome.code == "IMPORT_VANISHED"
    assert not (forge.folder / "imports" / "example" / "nothing.git.new").exists()


def test_server_error_is_retried_and_recorded(forge: Forge, hub: Hub) -> None:
    hub.publish("project")
    one = row(forge, "project", f"{hub.url}/project.git")
    hub.status = 503
    assert run(one).outcome.label == "retry"
    assert "503" in forge.one(REPO)["note"]
    hub.status = 0
    assert run(one).outcome.label == "ok"
    assert forge.one(REPO)["note"] is None


def test_server_that_requests_a_password_is_retried_later(forge: Forge, hub: Hub) -> None:
    hub.publish("project")
    hub.status = 401
    ran = run(row(forge, "project", f"{hub.url}/project.git"))
    assert ran.outcome.label == "retry"


def test_git_that_exceeds_its_timeout_is_terminated(forge: Forge, hub: Hub, tmp_path: Path) -> None:
    own = tmp_path / "bin"
    own.mkdir()
    slow = own / "git"
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(stat.S_IRWXU)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{own}:{os.environ['PATH']}")
        with pytest.raises(TimeoutError, match="git version did not finish within 0.1 s"):
            _git.run("version", timeout=0.1)


def test_token_is_sent_to_github_in_a_header_and_written_to_no_file(
    forge: Forge, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBHERD_GITHUB_TOKEN", "secret-word")
    hub.publish("project")
    one = row(forge, "project", f"{hub.url}/project.git")
    assert run(one).outcome.label == "ok"
    word = base64.b64encode(b"x-access-token:secret-word").decode()
    assert {asked["authorization"] for asked in hub.asked} == {f"Basic {word}"}
    mirror = forge.folder / "imports" / "example" / "project.git"
    files = [path.read_bytes() for path in mirror.rglob("*") if path.is_file()]
    assert not any(b"secret-word" in text or word.encode() in text for text in files)
    again(forge)
    hub.asked.clear()
    assert run(one).outcome.label == "ok"
    assert {asked["authorization"] for asked in hub.asked} == {f"Basic {word}"}


def test_clone_url_of_another_host_is_poison_and_gets_no_token(
    forge: Forge, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBHERD_GITHUB_TOKEN", "secret-word")
    other = Hub(forge.folder / "other")
    try:
        other.publish("project")
        ran = run(row(forge, "project", f"http://localhost:{other.url.rsplit(':', 1)[1]}/project.git"))
        assert (ran.outcome.label, ran.outcome.code) == ("poison", "NAME_REFUSED")
        assert other.asked == []
    finally:
        other.close()


@pytest.mark.parametrize("name", ["..", "../../outside", "a/b", ".", "", "a\nb"])
def test_unsafe_repository_name_in_a_row_is_poison(forge: Forge, hub: Hub, name: str) -> None:
    hub.publish("project")
    ran = run(row(forge, name, f"{hub.url}/project.git"))
    assert (ran.outcome.label, ran.outcome.code) == ("poison", "NAME_REFUSED")
    assert forge.one(REPO)["status"] == "refused"
    assert not (forge.folder / "imports").exists()


@pytest.mark.parametrize("name", ["-rf", ".github", "--upload-pack"])
def test_repository_name_that_looks_like_an_option_is_only_a_name(forge: Forge, hub: Hub, name: str) -> None:
    hub.publish("project")
    assert run(row(forge, name, f"{hub.url}/project.git")).outcome.label == "ok"
    assert os.listdir(forge.folder / "imports" / "example") == [f"{name}.git", f"{name}.git.lock"] or {
        f"{name}.git",
        f"{name}.git.lock",
    } == set(os.listdir(forge.folder / "imports" / "example"))


def test_git_rejects_file_and_ext_urls(forge: Forge) -> None:
    source = bare(forge.folder / "source.git")
    commit(source, "refs/heads/main", {"a.py": b"1\n"})
    for url in (f"file://{source}", f"ext::sh -c touch% {forge.folder}/touched", str(source)):
        with pytest.raises(_git.GitError, match="not allowed"):
            _mirror.mirror(url, str(forge.folder / "mirror.git"), timeout=LIMIT, more={})
    assert not (forge.folder / "touched").exists()
    assert not (forge.folder / "mirror.git").exists()
