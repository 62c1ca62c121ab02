"""The commit of the handlers' code, read from the files of its Git repository."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

from jobherd.supervisor.crash.revision import revision
from jobherd.supervisor.process.children import Children

GIT = (
    "git",
    "-c",
    "user.name=t",
    "-c",
    "user.email=t@t",
    "-c",
    "commit.gpgsign=false",
    "-c",
    "init.defaultBranch=trunk",
)


def git(folder, *words):
    return subprocess.run([*GIT, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_revision_is_gits_head_for_loose_packed_and_detached_refs_and_in_worktrees(tmp_path):
    main = tmp_path / "main"
    (main / "app").mkdir(parents=True)
    assert revision(main) == "", "no repository"
    git(main, "init")
    assert revision(main) == "", "no commit"
    git(main, "commit", "--allow-empty", "-m", "one")
    one = git(main, "rev-parse", "HEAD")[:12]
    assert (revision(main), revision(main / "app")) == (one, one)
    git(main, "worktree", "add", "-b", "side", str(tmp_path / "side"))
    assert revision(tmp_path / "side") == one
    git(main, "pack-refs", "--all")
    assert (revision(main), revision(tmp_path / "side")) == (one, one)
    git(main, "commit", "--allow-empty", "-m", "two")
    git(main, "checkout", "--detach")
    assert revision(main) == git(main, "rev-parse", "HEAD")[:12] != one


def test_revision_is_read_at_start_and_at_each_reload_not_at_each_fork(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "jobherd.supervisor.process.children.revision", lambda folder: asked.append(folder) or f"version {len(asked)}"
    )
    children = SimpleNamespace(
        _revision_read=(-1, ""), _slot_table=SimpleNamespace(generation=0), settings=SimpleNamespace(app_dir="here")
    )
    assert [Children._revision(children) for _ in range(3)] == ["version 1"] * 3
    children._slot_table.generation += 1
    assert [Children._revision(children) for _ in range(3)] == ["version 2"] * 3
    assert asked == ["here", "here"]
