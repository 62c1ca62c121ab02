"""push:process with real repositories and the real hook.

Each push is recorded once, and the totals equal those of git.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from jobherd import Poison
from jobherd.handlers.forge import push as module
from jobherd.handlers.forge._commits import parse
from jobherd.handlers.forge.push import push_process
from jobherd.testing import run, run_payload
from tests.handlers.forge.conftest import Forge
from tests.support.repositories import bare, commit, generated, git, push, story, truth

if TYPE_CHECKING:
    from pathlib import Path

EVENTS = "SELECT * FROM jobherd.forge_push_events ORDER BY id"
TOTALS = """
    SELECT count(*) AS commits, count(*) FILTER (WHERE merge) AS merges, sum(added)::bigint AS added, sum(deleted)::bigint AS deleted,
           sum(binary_files)::bigint AS binary_files
      FROM jobherd.forge_commits"""
AUTHORS = "SELECT email, count(*) AS commits FROM jobherd.forge_commits GROUP BY email"
PYTHON = "SELECT sum((languages #>> '{Python,0}')::bigint + (languages #>> '{Python,1}')::bigint)::bigint FROM jobherd.forge_commits"


def assert_same_as_git(forge: Forge, source: Path) -> None:
    expected = truth(source)
    totals = forge.one(TOTALS)
    assert totals == {name: getattr(expected, name) for name in totals}
    assert {row["email"]: row["commits"] for row in forge.rows(AUTHORS)} == expected.by_author
    assert forge.one(PYTHON) == expected.python


def only_event(forge: Forge) -> dict[str, Any]:
    return forge.rows("SELECT * FROM jobherd.forge_push_events ORDER BY id DESC LIMIT 1")[0]


@pytest.mark.parametrize("backwards", [False, True], ids=["in order", "latest first"])
def test_each_push_of_200_commits_is_recorded_once_and_the_totals_equal_gits(forge: Forge, backwards: bool) -> None:
    source = generated(forge.folder / "source.git", 200)
    remote = forge.repository()
    steps = story(source)
    for step in steps:
        forge.push(source, remote, step)
    forge.run_waiting(backwards=backwards)

    events = forge.rows(EVENTS)
    assert len(events) == sum(len(step.refs) for step in steps)
    assert all(event["processed_at"] for event in events)
    assert_same_as_git(forge, source)
    assert truth(source).commits == 201
    assert truth(source).merges > 5
    assert len(truth(source).by_author) == 5
    assert sum(event["commits"] for event in events) == 201
    changes = [event["change"] for event in events]
    assert {change: changes.count(change) for change in changes} == {
        "create": len(events) - 4,
        "update": 2,
        "rewrite": 1,
        "delete": 1,
    }


def test_push_of_a_commit_does_not_depend_on_the_order_of_the_jobs(forge: Forge) -> None:
    source = generated(forge.folder / "source.git", 60)
    steps = story(source)
    found = []
    for backwards in (False, True):
        remote = forge.repository(f"remote-{backwards}.git")
        for step in steps:
            forge.push(source, remote, step)
        forge.run_waiting(backwards=backwards)
        found.append(
            forge.rows(
                "SELECT c.sha, e.ref, e.id - min(e.id) OVER () AS place FROM jobherd.forge_commits c JOIN jobherd.forge_push_events e"
                " ON e.id = c.push_event JOIN jobherd.forge_repos r ON r.id = c.repo WHERE r.path = %s ORDER BY c.sha",
                str(remote),
            )
        )
    assert found[0] == found[1]
    assert len(found[0]) == 61


@pytest.mark.promise("A12", "A39")
def test_processed_push_is_not_processed_again(forge: Forge) -> None:
    source = generated(forge.folder / "source.git", 20)
    push(source, forge.repository(), "main")
    forge.run_waiting(kinds=("push:process",))
    before = only_event(forge)
    again = run(push_process, push_event=before["id"])
    assert again.result == {"skipped": "this push was processed before", "push_event": before["id"]}
    assert only_event(forge) == before
    assert [job["kind"] for job in forge.waiting()] == ["repo:size_recalc"]


@pytest.mark.promise("A12", "A13", "A19")
def test_two_concurrent_runs_of_a_push_enqueue_one_size_job(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    source = generated(forge.folder / "source.git", 20)
    push(source, forge.repository(), "main")
    event = only_event(forge)["id"]
    record = module._record

    def overtaken(*args: Any, **kwargs: Any) -> None:
        record(*args, **kwargs)
        monkeypatch.setattr(module, "_record", record)
        assert run(push_process, push_event=event).outcome.label == "ok"  # the other attempt, from start to end

    monkeypatch.setattr(module, "_record", overtaken)
    assert run(push_process, push_event=event).result == {
        "skipped": "this push was processed meanwhile",
        "push_event": event,
    }
    assert [job["kind"] for job in forge.waiting()].count("repo:size_recalc") == 1


def test_interrupted_push_job_is_finished_by_the_next_attempt_without_duplicates(
    forge: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 7)
    source = generated(forge.folder / "source.git", 60)
    push(source, forge.repository(), "refs/heads/*:refs/heads/*")
    told = []

    def cut_off(fraction: float, note: str, data: object) -> None:
        told.append(note)
        if len(told) == 3:
            raise ConnectionResetError("in the middle")

    jobs = [job for job in forge.waiting() if job["kind"] == "push:process"]
    big = max(jobs, key=lambda job: job["payload"]["push_event"] == 1)
    half = run_payload(push_process, big["payload"], id=big["id"], on_progress=cut_off)
    assert half.outcome.label == "retry"
    assert 0 < forge.one("SELECT count(*) FROM jobherd.forge_commits") < 60
    assert forge.one("SELECT processed_at FROM jobherd.forge_push_events WHERE id = 1") is None
    forge.run_waiting()
    assert_same_as_git(forge, source)


def test_progress_reports_the_number_of_processed_commits(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 8)
    source = generated(forge.folder / "source.git", 20)
    push(source, forge.repository(), "main")
    ((_, _, ran),) = forge.run_waiting(kinds=("push:process",))
    count = only_event(forge)["commits"]
    assert ran.progress[0][1] == f"8 of {count} commits"
    assert ran.progress[-1][:2] == (1.0, f"{count} of {count} commits")


def test_commits_dropped_by_a_force_push_stay_recorded(forge: Forge) -> None:
    source, remote = bare(forge.folder / "source.git"), forge.repository()
    first = commit(source, "refs/heads/main", {"a.py": b"1\n"})
    second = commit(source, "refs/heads/main", {"a.py": b"2\n"}, parents=(first,))
    push(source, remote, "main")
    other = commit(source, "refs/heads/main", {"a.py": b"3\n"}, parents=(first,))
    push(source, remote, "main", force=True)
    forge.run_waiting()
    event = only_event(forge)
    assert (event["change"], event["commits"], event["dropped"]) == ("rewrite", 1, 1)
    assert "1 commit is no longer on this ref" in event["note"]
    assert {row["sha"] for row in forge.rows("SELECT sha FROM jobherd.forge_commits")} == {first, second, other}


def test_deleted_branch_counts_dropped_commits_and_keeps_them_recorded(forge: Forge) -> None:
    source, remote = bare(forge.folder / "source.git"), forge.repository()
    first = commit(source, "refs/heads/main", {"a.py": b"1\n"})
    commit(source, "refs/heads/side", {"b.py": b"1\n"}, parents=(first,))
    push(source, remote, "main", "side")
    push(source, remote, ":side")
    forge.run_waiting()
    event = only_event(forge)
    assert (event["change"], event["commits"], event["dropped"], event["new_sha"]) == ("delete", 0, 1, None)
    assert forge.one("SELECT count(*) FROM jobherd.forge_commits") == 2


def test_annotated_tag_counts_its_commit_and_a_tag_on_a_file_counts_none(forge: Forge) -> None:
    source, remote = bare(forge.folder / "source.git"), forge.repository()
    commit(source, "refs/heads/main", {"a.py": b"1\n"})
    git("tag", "--annotate", "-m", "a release", "v1", "main", at=source)
    git("tag", "file", "main:a.py", at=source)
    push(source, remote, "refs/tags/v1", "refs/tags/file")
    forge.run_waiting()
    events = {event["ref"]: event for event in forge.rows(EVENTS)}
    assert events["refs/tags/v1"]["commits"] + events["refs/tags/file"]["commits"] == 1
    assert "does not point to a commit" in events["refs/tags/file"]["note"]


def test_merge_commit_adds_no_lines(forge: Forge) -> None:
    source, remote = bare(forge.folder / "source.git"), forge.repository()
    base = commit(source, "refs/heads/main", {"a.py": b"1\n"})
    left = commit(source, "refs/heads/left", {"a.py": b"1\n", "l.py": b"1\n2\n"}, parents=(base,))
    right = commit(source, "refs/heads/right", {"a.py": b"1\n", "r.c": b"1\n2\n3\n"}, parents=(base,))
    merged = commit(
        source, "refs/heads/main", {"a.py": b"1\n", "l.py": b"1\n2\n", "r.c": b"1\n2\n3\n"}, parents=(left, right)
    )
    push(source, remote, "main")
    ((_, _, ran), *_) = forge.run_waiting()
    assert ran.result["languages"] == {"C": [3, 0], "Python": [3, 0]}  # type: ignore[index]
    assert forge.one("SELECT merge FROM jobherd.forge_commits WHERE sha = %s", merged) is True
    assert forge.one(TOTALS) == {"commits": 4, "merges": 1, "added": 6, "deleted": 0, "binary_files": 0}


HOSTILE_NAMES = [
    "with\ttab.py",
    "with\nline.py",
    'with"quote.py',
    "--output=x.py",
    "ünïcode.py",
    "{a => b}.py",
    " .py",
    "1\t2\tfake.py",
]


def test_hostile_file_names_do_not_change_the_numbers(forge: Forge) -> None:
    source, remote = bare(forge.folder / "source.git"), forge.repository()
    first = commit(source, "refs/heads/main", dict.fromkeys(HOSTILE_NAMES, b"1\n"))
    commit(source, "refs/heads/main", {f"moved/{name}": b"1\n" for name in HOSTILE_NAMES}, parents=(first,))
    push(source, remote, "main")
    forge.run_waiting()
    rows = forge.rows("SELECT files, added, deleted, languages FROM jobherd.forge_commits ORDER BY added DESC")
    assert rows[0] == {"files": len(HOSTILE_NAMES), "added": 8, "deleted": 0, "languages": {"Python": [8, 0]}}
    assert rows[1]["files"] == len(HOSTILE_NAMES)  # as renames
    assert (rows[1]["added"], rows[1]["deleted"], rows[1]["languages"]) == (0, 0, {})


def test_invalid_authors_dates_and_encodings_are_recorded_as_far_as_possible(forge: Forge) -> None:
    source, remote = bare(forge.folder / "source.git"), forge.repository()
    tree = git("rev-parse", f"{commit(source, 'refs/heads/main', {'a.py': b'1'})}^{{tree}}", at=source)
    raw = (
        f"tree {tree}\nauthor J\xf6rg\t%s <a\xe9@x> 99999999999999 +0000\ncommitter C <c@x> 1 +0000\nencoding ISO-8859-1\n\nsubj\xe9ct\n".encode(
            "latin-1"
        ),
        f"tree {tree}\nauthor \xff\xfe <> 18446744073709551615 +0000\ncommitter C <c@x> 1 +0000\n\n\xff\n".encode(
            "latin-1"
        ),
    )
    shas = [git("hash-object", "-t", "commit", "-w", "--stdin", "--literally", at=source, given=one) for one in raw]
    for sha in shas:
        git("update-ref", f"refs/heads/odd-{sha[:7]}", sha, at=source)
    push(source, remote, "refs/heads/*:refs/heads/*")
    forge.run_waiting()
    rows = {row["sha"]: row for row in forge.rows("SELECT * FROM jobherd.forge_commits")}
    assert rows[shas[0]]["author"] == "Jörg\t%s"
    assert rows[shas[0]]["subject"] == "subjéct"
    assert rows[shas[0]]["authored_at"] is None
    assert rows[shas[1]]["author"] == "\ufffd\ufffd"
    assert rows[shas[1]]["authored_at"] is None


def test_ref_that_looks_like_an_option_or_is_not_utf8_is_only_a_name(forge: Forge) -> None:
    source, remote = bare(forge.folder / "source.git"), forge.repository()
    sha = commit(source, "refs/heads/main", {"a.py": b"1\n"})
    push(source, remote, f"{sha}:refs/heads/--upload-pack=touch", f"{sha}:refs/heads/x;y'$(id)")
    push(source, remote, f"{sha}:refs/heads/latin-\udce9")
    forge.run_waiting()
    assert [event["ref"] for event in forge.rows(EVENTS)] == [
        "refs/heads/--upload-pack=touch",
        "refs/heads/x;y'$(id)",
        "refs/heads/latin-\\xe9",
    ]
    assert forge.one("SELECT count(*) FROM jobherd.forge_commits") == 1


def test_git_configuration_and_environment_do_not_change_the_numbers(forge: Forge) -> None:
    source, remote = generated(forge.folder / "source.git", 40), forge.repository()
    push(source, remote, "refs/heads/*:refs/heads/*")
    configuration = "[diff]\n renames = false\n noprefix = true\n[log]\n showRoot = false\n showSignature = true\n follow = true\n[color]\n ui = always\n"
    (forge.folder / "attributes").write_text("*.py -diff\n")
    configuration += f"[core]\n attributesFile = {forge.folder}/attributes\n"
    (remote / "config").write_text((remote / "config").read_text() + configuration)
    own = forge.folder / "home"
    own.write_text(configuration)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CONFIG_GLOBAL", str(own))
        for name in ("GIT_DIR", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE", "GIT_WORK_TREE"):
            patch.setenv(name, "/nowhere")
        forge.run_waiting()
    assert_same_as_git(forge, source)


def test_missing_push_event_or_repository_is_poison(forge: Forge) -> None:
    nothing = run(push_process, push_event=4711)
    assert (nothing.outcome.label, nothing.outcome.code) == ("poison", "PUSH_EVENT_VANISHED")
    remote = forge.repository()
    push(generated(forge.folder / "source.git", 5), remote, "main")
    shutil.rmtree(remote)
    ((_, _, ran),) = forge.run_waiting(expect="poison")
    assert ran.outcome.code == "REPOSITORY_VANISHED"
    assert isinstance(ran.exception, Poison)
    remote.mkdir()
    ran = run(push_process, push_event=only_event(forge)["id"])
    assert (ran.outcome.label, ran.outcome.code) == ("poison", "REPOSITORY_VANISHED")


def test_commits_deleted_before_they_were_read_are_noted(forge: Forge) -> None:
    source, remote = bare(forge.folder / "source.git"), forge.repository()
    commit(source, "refs/heads/main", {"a.py": b"1\n"})
    push(source, remote, "main")
    commit(source, "refs/heads/main", {"a.py": b"2\n"})
    push(source, remote, "main", force=True)
    git("gc", "--quiet", "--prune=now", at=remote)
    forge.run_waiting()
    first, second = forge.rows(EVENTS)
    assert (first["change"], first["commits"]) == ("create", 0)
    assert "were deleted before Jobherd read them" in first["note"]
    assert (second["change"], second["commits"], second["dropped"]) == ("rewrite", 1, None)


def test_push_missed_by_the_hook_is_included_in_the_next_one(forge: Forge) -> None:
    source, remote = bare(forge.folder / "source.git"), forge.repository()
    first = commit(source, "refs/heads/main", {"a.py": b"1\n"})
    hook = remote / "hooks" / "post-receive"
    hook.rename(remote / "aside")
    push(source, remote, "main")
    (remote / "aside").rename(hook)
    commit(source, "refs/heads/main", {"a.py": b"2\n"}, parents=(first,))
    push(source, remote, "main")
    forge.run_waiting()
    assert only_event(forge)["commits"] == 2


def test_commit_belongs_to_the_push_that_recorded_it_first(forge: Forge) -> None:
    source, remote = bare(forge.folder / "source.git"), forge.repository()
    sha = commit(source, "refs/heads/main", {"a.py": b"1\n"})
    push(source, remote, "main")
    forge.run_waiting()
    # PostgreSQL assigns ids before the commit. An earlier push may become visible after a later one was processed.
    forge.rows(
        "INSERT INTO jobherd.forge_push_events (id, repo, push, ref, new_sha) OVERRIDING SYSTEM VALUE"
        " VALUES (0, 1, gen_random_uuid(), 'refs/heads/side', %s)",
        sha,
    )
    assert run(push_process, push_event=0).result["commits"] == 0  # type: ignore[index]
    assert forge.one("SELECT push_event FROM jobherd.forge_commits") == 1


@pytest.mark.parametrize(
    "cut", [[b"1\t2\tfile"], [b"a" * 40, b"", b"author"], [b"a" * 40, b"", b"n", b"e", b"1", b"s", b"1\t1\t", b"old"]]
)
def test_truncated_git_output_raises_an_error(cut: list[bytes]) -> None:
    with pytest.raises(ValueError, match="git log"):
        list(parse(cut))
