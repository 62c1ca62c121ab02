"""repo:size_recalc: the size of a repository as git reports it, overwritten each time."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from jobherd.handlers.forge import size
from jobherd.handlers.forge.size import size_recalc
from jobherd.testing import run
from tests.handlers.forge.conftest import Forge
from tests.support.repositories import generated, git, push

REPO = "SELECT size_bytes, objects, branches, tags, sized_at FROM jobherd.forge_repos"


@pytest.mark.promise("A13")
def test_sizes_equal_gits_and_later_ones_replace_earlier_ones(forge: Forge) -> None:
    source, remote = generated(forge.folder / "source.git", 30), forge.repository()
    push(source, remote, "main")
    ran = forge.run_waiting()[-1]
    assert ran[0] == "repo:size_recalc"
    before = forge.one(REPO)
    assert before["objects"] == int(git("rev-list", "--count", "--objects", "--all", at=remote))
    assert (before["branches"], before["tags"]) == (1, 0)
    assert 0 < before["size_bytes"] < 10_000_000

    git("tag", "v1", "main", at=remote)
    git("update-ref", "-d", "refs/heads/main", at=remote)
    for _ in range(2):
        assert run(size_recalc, repo=1).outcome.label == "ok"
    after = forge.one(REPO)
    assert (after["branches"], after["tags"]) == (0, 1)
    assert after["sized_at"] > before["sized_at"]


def test_slow_measurement_does_not_overwrite_a_later_one(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = forge.repository()
    push(generated(forge.folder / "source.git", 3), remote, "main")
    objects = size._objects

    def overtaken(*args: Any, **kwargs: Any) -> int:
        found = objects(*args, **kwargs)
        monkeypatch.setattr(size, "_objects", objects)
        git("tag", "v1", "main", at=remote)
        assert run(size_recalc, repo=1).result["written"] is True  # type: ignore[index]
        return found

    monkeypatch.setattr(size, "_objects", overtaken)
    assert run(size_recalc, repo=1).result["written"] is False  # type: ignore[index]
    assert forge.one(REPO)["tags"] == 1


def test_size_includes_a_large_file(forge: Forge) -> None:
    remote = forge.repository()
    push(generated(forge.folder / "source.git", 3), remote, "main")
    forge.run_waiting()
    before = forge.one(REPO)["size_bytes"]
    (remote / "objects" / "left-over").write_bytes(b"x" * 5_000_000)
    run(size_recalc, repo=1)
    assert forge.one(REPO)["size_bytes"] - before >= 5_000_000


def test_missing_repository_is_poison(forge: Forge) -> None:
    assert run(size_recalc, repo=5).outcome.code == "REPOSITORY_VANISHED"
    remote = forge.repository()
    push(generated(forge.folder / "source.git", 3), remote, "main")
    shutil.rmtree(remote)
    assert run(size_recalc, repo=1).outcome.label == "poison"
