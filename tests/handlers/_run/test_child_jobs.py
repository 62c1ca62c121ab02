"""Child jobs in tests without a database: a dict provides their results."""

from __future__ import annotations

import pytest

from jobherd import ChildJobFailed, Job, handler
from jobherd.testing import run_payload


@handler("family:child")
def child(number: int) -> str:
    return f"child {number}"


@handler("family:parent", max_attempts=1)
def parent(job: Job, how: str = "") -> object:
    if how == "nonsense":
        job.spawn(child.call(1), on_parent_cancel="stop")  # type: ignore[call-overload]
    if how == "handler":
        job.spawn(child)  # type: ignore[call-overload]
    if how == "handlers":
        job.spawn_many("many", [child])  # type: ignore[list-item]
    if how == "misfit":
        job.spawn(child.call(other=1))
    if how == "twice":
        job.spawn(child.call(1), "a")
        job.spawn(child.call(2), "a")
    one = job.spawn(child.call(1))
    many = job.spawn_many("many", [child.call(n) for n in range(2)])
    return [job.gather(one), job.gather(many), len(many)]


def test_steps_dict_provides_the_results_of_child_jobs():
    assert run_payload(parent, {}).outcome.label == "suspended"
    assert run_payload(parent, {}, steps={"spawn:1": ["x"]}).outcome.label == "suspended"
    ran = run_payload(parent, {}, steps={"spawn:1": ["x"], "many": ["y", "z"]})
    assert ran.result == ["x", ["y", "z"], 2]


@pytest.mark.parametrize(
    ("how", "steps", "error"),
    [
        ("nonsense", {}, "on_parent_cancel is 'cancel' or 'leave', not 'stop'"),
        ("handler", {}, "spawn: the argument is the handler 'family:child', not a call: write child.call"),
        ("handlers", {}, "spawn_many: item 1 is the handler 'family:child', not a call: write child.call"),
        ("misfit", {}, "other"),
        ("twice", {}, "the name 'a' is used twice in one attempt"),
        ("", {"spawn:1": "x"}, r"steps\['spawn:1'\] must be the list of the results of 1 child jobs"),
        ("", {"spawn:1": [1]}, "what step 'spawn:1' has recorded"),
    ],
)
def test_invalid_use_of_child_jobs_raises_a_clear_error(how: str, steps: dict[str, object], error: str):
    with pytest.raises(Exception, match=error):
        assert run_payload(parent, {"how": how}, steps=steps).exception is None


def test_error_names_the_failed_child_job_and_the_number_that_did_not_complete():
    one = ChildJobFailed(7, "a:b", "failed", "ValueError: no", failed=2, jobs=3)
    assert str(one) == "child job 7 (a:b) failed: ValueError: no; 2 of 3 child jobs have not completed"
    assert (one.code, one.job_id, one.kind, one.state, one.error) == (
        "CHILD_JOB_FAILED",
        7,
        "a:b",
        "failed",
        "ValueError: no",
    )
    assert str(ChildJobFailed(7, "a:b", "cancelled")) == "child job 7 (a:b) was canceled"
    assert str(ChildJobFailed()) == "a child job whose record is deleted failed"
