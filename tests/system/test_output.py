"""What handlers print under a real supervisor.

The supervisor drains floods of output and keeps the last output of a dead worker.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.shell import jobherd

if TYPE_CHECKING:
    from tests.support.fleet import Stage

TALKING = Path(__file__).parents[1] / "workers" / "talking.py"


def logs(stage: Stage, job: int) -> list[tuple[str, object]]:
    return stage.connection.execute(
        "SELECT output, entries FROM jobherd.logs WHERE job = %s ORDER BY at", [job]
    ).fetchall()


@pytest.mark.promise("B28", "B59")
def test_flood_of_output_is_truncated_and_the_last_output_of_a_dead_worker_is_kept(stage: Stage):
    fleet = stage.run_fleet(workers=1, handlers=TALKING)
    flood = stage.enqueue("talk:says", '{"how": "program floods"}')
    stage.wait_state(flood, "completed")
    ((output, entries),) = logs(stage, flood)
    assert output.endswith("yythe end\n")
    assert len(output) <= 65536
    assert entries is None
    dies = stage.enqueue("talk:says", '{"how": "dies"}')
    stage.wait(lambda: len(logs(stage, dies)) >= 1, "the log of the first attempt")
    output, entries = logs(stage, dies)[0]
    assert output == "last words\n"
    assert [(entry["key"], entry["out"]) for entry in entries] == [("step", "of mine")]
    fleet.wait_ready(2)
    shown = jobherd("job", flood, dsn=stage.dsn)
    assert "log of attempt 1" in shown.out
    assert "yythe end" in shown.out


def test_output_is_not_stored_if_log_capture_is_false(stage: Stage):
    fleet = stage.run_fleet(workers=1, handlers=TALKING, log_capture="false")
    job = stage.enqueue("talk:says", '{"how": "print"}')
    stage.wait_state(job, "completed")
    assert logs(stage, job) == []
    fleet.wait_log("printed print")


ODD = """
import sys
from jobherd import handler

class Odd:
    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        raise RuntimeError("not today")

sys.stdout = sys.stderr = Odd()

@handler("o:odd")
def odd() -> None:
    print("before")
    sys.stdout = Odd()
    sys.stderr = None
"""


@pytest.mark.parametrize("log_capture", ["true", "false"])
def test_replaced_standard_output_whose_flush_raises_ends_neither_worker_nor_job(stage: Stage, log_capture: str):
    fleet = stage.run_fleet(workers=1, handlers=stage.write("odd.py", ODD), log_capture=log_capture, claim_size=1)
    jobs = [stage.enqueue("o:odd") for _ in range(3)]
    stage.wait_all(jobs, "completed")
    assert [stage.job(job)["attempts"] for job in jobs] == [1, 1, 1]
    assert len(fleet.workers()) == 1
    assert fleet.stop() == 0
    assert not fleet.said("exited with code")
