"""Each handler option is declared once: its type, default, check and documentation agree."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from jobherd import handler
from jobherd.handlers._policy import options_table
from jobherd.handlers._policy.policy import OPTIONS, BatchOptions, HandlerOptions, Policy, check_policy

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "handler-options.md"


def test_every_option_has_a_type_and_a_description():
    typed = HandlerOptions.__annotations__ | BatchOptions.__annotations__
    assert typed.keys() == OPTIONS.keys() == {one.name for one in fields(Policy)}
    texts = options_table._texts()
    assert texts.keys() == OPTIONS.keys()
    assert all(text.endswith(".") for text in texts.values())


def test_handler_options_page_contains_the_generated_table():
    assert options_table.render() in PAGE.read_text(encoding="utf-8"), (
        "run python -m jobherd.handlers._policy.options_table docs/reference/handler-options.md"
    )


def test_defaults_pass_their_own_checks():
    assert check_policy() == Policy() == check_policy(**{name: one["default"] for name, one in OPTIONS.items()})
    assert Policy().timeout == 300.0


def test_error_for_an_unknown_option_suggests_the_intended_one():
    with pytest.raises(TypeError, match=r"handler\(\) has no option 'time_out'; did you mean 'timeout'\?"):
        handler("a:b", time_out=5)
    with pytest.raises(
        TypeError, match=r'^overlap is an option of a schedule: schedules=\[Schedule\("a-name", every="15s", overlap='
    ):
        handler("a:b", every="15s", overlap="skip")
    with pytest.raises(TypeError, match=r"has no option 'zzz'$"):
        handler("a:b", zzz=5)
