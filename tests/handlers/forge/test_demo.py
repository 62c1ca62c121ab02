"""The pushes of `jobherd forge demo`, with and without a git history."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from typing import TYPE_CHECKING

import psycopg
import pytest

from jobherd import handlers
from jobherd.handlers.forge import demo as made_up
from jobherd.supervisor.cli import demo
from jobherd.supervisor.cli.database import Session, connect
from jobherd.testing import inline, run, run_payload
from tests.cli.rows import child, supervisor
from tests.cli.shell import jobherd
from tests.handlers.forge.conftest import Forge
from tests.support.repositories import generated, git, push

if TYPE_CHECKING:
    from pathlib import Path


def checkout(at: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (at / "handlers").mkdir(parents=True)
    (at / "handlers" / "__init__.py").touch()
    (at / "setup.cfg").touch()
    monkeypatch.setattr(handlers, "__file__", str(at / "handlers" / "__init__.py"))
    return at


def test_demo_generates_a_history_if_the_tree_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout(tmp_path / "tree", monkeypatch)
    source, words = demo._source(tmp_path)
    assert "made-up" in words
    assert git("rev-list", "--count", "--all", at=source) == "120"
    assert demo._source(tmp_path) == (source, words)


@pytest.mark.parametrize("kind", ["no commit", "shallow"])
def test_demo_does_not_push_an_empty_or_shallow_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    tree = checkout(tmp_path / "tree", monkeypatch)
    if kind == "shallow":
        whole = generated(tmp_path / "whole.git", 5)
        git("clone", "--quiet", "--depth=1", f"file://{whole}", str(tmp_path / "clone"))
        shutil.move(tmp_path / "clone" / ".git", tree / ".git")
    else:
        git("init", "--quiet", at=tree)
    assert "made-up" in demo._source(tmp_path)[1]


def test_demo_without_workers_times_out_and_pushes_nothing(forge: Forge) -> None:
    said = jobherd("forge", "demo", "--dir", forge.folder / "demo", "--timeout", "0", dsn=forge.dsn)
    assert said.code == 124
    assert "no worker came" in said.err
    assert not (forge.folder / "demo").exists()


def test_demo_reports_missing_workers_and_continues_when_they_start(
    forge: Forge, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "PATIENCE", 0.0)
    expired = supervisor(forge.dsn, lease=-60)
    child(forge.dsn, expired)  # dead, but not yet reclaimed
    looks = 0

    def is_wanted() -> bool:
        nonlocal looks
        looks += 1
        if looks == 3:
            child(forge.dsn, supervisor(forge.dsn), slot=2)
        return True

    with connect(forge.dsn, name="test") as connection:
        assert demo.await_workers(Session(connection, "jobherd"), 60, is_wanted=is_wanted)
        assert not demo.await_workers(Session(connection, "jobherd"), 60, is_wanted=lambda: False)
    assert capsys.readouterr().err == f"jobherd: {demo.NO_WORKER}\n"
    assert looks > demo.STEADY


def test_demo_pushes_a_history_in_several_pushes_and_later_only_the_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = checkout(tmp_path / "tree", monkeypatch)
    git("clone", "--quiet", "--bare", str(generated(tmp_path / "whole.git", 40)), str(tree / ".git"))
    source, words = demo._source(tmp_path)
    assert words == "this project's history"
    remote = tmp_path / "remote.git"
    git("init", "--quiet", "--bare", "--initial-branch=main", str(remote))
    first = list(demo._pushes(source, str(remote)))
    assert len(first) == demo.PUSHES + 1
    for refs in first:
        push(tree, remote, *refs, force=True)
    tip = git("rev-parse", "HEAD", at=tree)
    assert git("rev-parse", "main", "demonstration", at=remote).split() == [tip, tip]
    again = list(demo._pushes(source, str(remote)))
    assert again == [[":refs/heads/demonstration"], [f"{tip}:refs/heads/demonstration"]]
    assert all(re.fullmatch(r"[0-9a-f]{40}:refs/heads/main", ref) for (ref,) in first[:-1])


def test_demo_enqueues_several_kinds_of_jobs_and_some_fail_first(forge: Forge) -> None:
    with inline(forge.dsn) as jobs:
        for number in range(30):
            made_up.enqueue_one(number)
        assert [len(jobs.enqueued(kind)) for kind in (made_up.resize, made_up.mail, made_up.report)] == [10, 15, 5]
        mails = jobs.enqueued(made_up.mail)
        assert Counter(mail.get("failures", 0) for mail in mails if isinstance(mail, dict)) == {0: 10, 1: 4, 9: 1}


def test_demo_jobs_succeed_or_fail_as_their_payload_says() -> None:
    assert run(made_up.resize, width=2).outcome.label == "ok"
    assert run(made_up.report, seconds=0.0).result == {"seconds": 0.0}
    assert run_payload(made_up.mail, {"to": "a", "failures": 1}).outcome.label == "retry"
    assert run_payload(made_up.mail, {"to": "a", "failures": 1}, attempt=2).outcome.label == "ok"


def test_demo_feeder_continues_after_a_database_error_and_ends_on_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enqueued: list[int] = []

    def enqueue(number: int) -> int:
        enqueued.append(number)
        if number == 1:
            raise psycopg.OperationalError("the database is away")
        return number

    monkeypatch.setattr(made_up, "enqueue_one", enqueue)
    monkeypatch.setattr(demo, "GLANCE", 0.0)
    demo.feed(0.001, is_wanted=lambda: len(enqueued) < 4)
    assert enqueued == [0, 1, 2, 3]
