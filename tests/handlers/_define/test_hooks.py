"""Hooks: declaration, discovery, choice by kind, order, and errors at the decorator."""

from __future__ import annotations

import pytest

from jobherd import Child, Job, after_job, before_job, handler, middleware, on_child_exit, on_child_start
from jobherd.handlers._define.hook_calls import Hooks
from jobherd.handlers._load.registry import all_hooks, load


@handler("hook:double")
def double(n: int) -> int:
    return 2 * n


def test_hooks_of_a_kind_without_hooks_are_none():
    assert Hooks().of_kind("hook:double") is None
    assert Hooks([before_job("mail:receipt")(lambda: None)]).of_kind("hook:double") is None


def test_first_declared_middleware_is_outermost_and_middleware_can_change_the_result():
    @middleware
    def outer(job, call_next):
        return ["outer", call_next()]

    @middleware("hook:double")
    def inner(job, call_next):
        return ["inner", call_next()]

    @middleware("mail:receipt")
    def another(job, call_next):
        raise AssertionError

    hooks = Hooks([outer, inner, another]).of_kind("hook:double")
    assert hooks is not None
    assert hooks.call(double, Job(id=1, kind="hook:double"), {"n": 2}) == ["outer", ["inner", 4]]
    assert outer(None, lambda: 1) == ["outer", 1], "a middleware is still a function"


def test_after_job_hooks_run_in_reverse_order():
    told = []
    first, second = after_job(lambda: told.append(1)), after_job(lambda: told.append(2))
    hooks = Hooks([first, second]).of_kind("hook:double")
    assert hooks is not None
    for hook in hooks.after:
        hook.call_with(Job(id=1, kind="hook:double"), None)
    assert told == [2, 1]


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda: on_child_start("mail:receipt"), "on_child_start is not about jobs and takes no kinds"),
        (lambda: before_job("no kind"), "no kind"),
        (lambda: before_job(lambda job, other: None), r"before_job calls its function as \(job\)"),
        (lambda: middleware(lambda job: None), r"middleware calls its function as \(job, call_next\)"),
        (lambda: after_job(lambda *, job: None), "cannot be called so"),
    ],
)
def test_invalid_hook_is_rejected_at_the_decorator(declare, words):
    with pytest.raises((TypeError, ValueError), match=words):
        declare()


def test_before_job_rejects_coroutines_and_generators():
    async def coroutine(job): ...

    def generator(job):
        yield

    with pytest.raises(TypeError, match="async def"):
        before_job(coroutine)
    with pytest.raises(TypeError, match="only on_child_start may yield"):
        before_job(generator)


def test_child_start_hooks_end_in_reverse_order_even_if_a_later_one_raises():
    told = []

    @on_child_start
    def one():
        yield {"one": 1}
        told.append("one ends")

    @on_child_start
    def two(child):
        assert child.resources == {"one": 1}
        yield
        told.append("two ends")
        yield

    @on_child_start
    def three():
        return ["no mapping"]

    exits = on_child_exit(lambda: told.append("exit"))
    for declared, expected in (
        ([one, two, exits], ["exit", "two ends", "one ends"]),
        ([one, two, three, exits], ["two ends", "one ends"]),
    ):
        hooks, child = Hooks(declared), Child()
        told.clear()
        if three in declared:
            with pytest.raises(TypeError, match="gave a list: give a dict"):
                hooks.start(child)
        else:
            hooks.start(child)
        for hook, step in hooks.ends(child):
            if hook is two:
                with pytest.raises(RuntimeError, match="yielded twice"):
                    step()
            else:
                step()
        assert told == expected
        assert child.resources == {"one": 1}


def test_hooks_are_found_like_handlers_and_only_once_if_loaded_twice(tmp_path, monkeypatch):
    tmp_path.chmod(0o755)
    (tmp_path / "_shared.py").write_text("from jobherd import before_job\n@before_job\ndef shared(): ...\n")
    (tmp_path / "trace_these.py").write_text(
        "from jobherd import after_job, before_job\nfrom ._shared import shared\n"
        "@after_job('mail:receipt')\ndef later(): ...\n@before_job\ndef sooner(): ...\n"
    )
    found = load([tmp_path])
    assert found.problems == ()
    assert [(hook.event, hook.function.__name__) for hook in found.hooks] == [
        ("after_job", "later"),
        ("before_job", "sooner"),
    ]
    assert found.hooks[0].kinds == {"mail:receipt"}
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "trace_these.py").write_text(
        (tmp_path / "trace_these.py").read_text().replace("from ._shared import shared\n", "\n")
    )
    assert len(all_hooks(load(["trace_these"]), found)) == 2
