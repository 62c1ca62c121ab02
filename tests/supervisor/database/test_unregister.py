"""How long an exiting supervisor waits until its registration is deleted. The test simulates the time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from jobherd.supervisor.database import unregister as module
from jobherd.supervisor.database.connection import Link

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(("commits_after", "heard"), [(4.0, True), (60.0, False)])
def test_exiting_supervisor_waits_for_a_slow_commit_but_gives_up_within_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, commits_after: float, heard: bool
):
    clock, asked, answers = [0.0], [], []

    def ask(name: str, parameters: dict[str, Any], on_answer: Callable[[Any], None]) -> None:
        asked.append((name, parameters))
        answers.append((clock[0] + commits_after, on_answer))

    def step(_now: float) -> None:
        clock[0] += 0.5
        while answers and clock[0] >= answers[0][0]:
            answers.pop(0)[1]([])

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    db: Any = SimpleNamespace(link=Link.UP, ask=ask, close=lambda: None)
    lease: Any = SimpleNamespace(underway=False)
    slot_table: Any = SimpleNamespace(supervisor=7)
    selector: Any = SimpleNamespace(select=lambda _seconds: [])
    module.unregister(db, SimpleNamespace(step=step), lease, slot_table, selector)  # type: ignore[arg-type]
    assert asked == [("recover/unregister_supervisor", {"supervisor": 7})]
    assert (not answers) is heard
    assert clock[0] < 10
