"""Write the results of the campaigns into docs/project/fault-campaigns.md, between its markers.

`python -m tests.faults.publish`, or `make chaos-page`.

All recorded runs count, including the failed ones; those of `points` are kept, and add up. The text
outside the markers is written by hand and not changed, and neither is a part without a run.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.bench.picture import panels
from tests.faults import ledger
from tests.support.figures import POINTS, at, show
from tests.support.herd import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PAGE = ROOT / "docs" / "project" / "fault-campaigns.md"
PICTURE = "reliability-soak.svg"
OFTEN = 100
"""Kills to reach at each point."""
FEW = 10
"""Most points that the page lists by name. With more, the campaign has not finished."""
SHORT = 60
"""Seconds. Shorter runs belong to the test suite, and would replace results that took hours."""
ADD_UP = ("points",)
"""Campaigns whose aim needs several runs."""


def table(head: list[str], rows: Iterable[list[object]]) -> list[str]:
    return ["| " + " | ".join(map(str, row)) + " |" for row in (head, ["---"] * len(head), *rows)]


def days(found: list[dict[str, Any]]) -> str:
    """Text with the dates of the runs and the machine of the last one."""
    first, last = (time.strftime("%Y-%m-%d %H:%M", time.gmtime(found[number]["at"])) for number in (0, -1))
    _, _, where = found[-1]["machine"].partition(", ")
    return f"{first} to {last} UTC, {where.rpartition(', load')[0]}"


def judged(found: list[dict[str, Any]]) -> str:
    """Text with the number of runs in which an invariant was broken."""
    red = [run for run in found if run["broken"]]
    told = "; ".join(f"seed {run['seed']}: {', '.join(run['broken'])}" for run in red)
    return f"In {len(red)} of {len(found)} runs an invariant was broken" + (f" ({told})." if red else ".")


def chaos(found: list[dict[str, Any]]) -> list[str]:
    faults: Counter[str] = Counter()
    deeds: Counter[str] = Counter()
    recoveries: dict[str, list[float]] = {}
    for run in found:
        faults.update(run["faults"])
        deeds.update(run["deeds"])
        for name, values in run["recoveries"].items():
            recoveries.setdefault(name, []).extend(values)
    seconds = sum(run["seconds"] for run in found)
    seeds = ", ".join(str(seed) for seed in sorted({run["seed"] for run in found}))
    spread = [
        [name, f"{len(values):,}", *(show(at(values, share)) for share in POINTS.values())]
        for name, values in recoveries.items()
        if values
    ]
    return [
        (f"**{faults.total():,} faults** in {seconds / 60:.0f} minutes ({faults.total() / seconds * 60:.0f} a minute), and beside them "
        f"{deeds.total():,} deeds of operators, under {sum(run['jobs'] for run in found):,} acknowledged jobs. {judged(found)} Seeds: {seeds}. {days(found)}."),
        "",
        *table(["fault", "times"], ([name, f"{count:,}"] for name, count in faults.most_common())),
        "",
        f"Deeds: {', '.join(f'{name} {count:,}' for name, count in deeds.most_common())}.",
        "",
        *table(["from, until", "n", *(f"{name}, ms" for name in POINTS)], spread),
    ]  # fmt: skip


def points(found: list[dict[str, Any]]) -> list[str]:
    kills: Counter[str] = Counter()
    for run in found:
        kills.update(run["kills"])
    reached = {name: count for name, count in kills.items() if count}
    parents = sum(count for name, count in reached.items() if name.startswith("parent:"))
    seldom = [f"`{name}` {count}" for name, count in sorted(reached.items(), key=lambda item: item[1]) if count < OFTEN]
    spread = (
        f"from {min(reached.values())} to {max(reached.values())} at each, {median(reached.values()):.0f} in the middle"
    )
    return [
        (
            f"**{kills.total():,} kills** at {len(reached)} points ({spread}), {parents:,} of them of the parent, in {sum(run['seconds'] for run in found) / 3600:.1f} hours, "
            f"under {sum(run['jobs'] for run in found):,} acknowledged jobs. {judged(found)} {days(found)}."
            + (f" Fewer than {OFTEN}: {', '.join(seldom)}." if 0 < len(seldom) <= FEW else "")
        )
    ]


def soak(found: list[dict[str, Any]]) -> list[str]:
    run = max(found, key=lambda each: each["seconds"])
    samples = [json.loads(line) for line in (ledger.folder("soak") / run["file"]).read_text().splitlines()]

    def curve(value: Callable[[dict[str, Any]], float | None]) -> list[tuple[float, float]]:
        drawn = [(each["at"] / 60, value(each)) for each in samples]
        return [(x, y) for x, y in drawn if y is not None]

    roles = ("parent", "maintenance", "worker")
    parts = [
        ("memory, MB (PSS, all processes of a role together), over minutes", {role: curve(lambda each, role=role: each["memory"].get(role, 0) / 1024) for role in roles}),
        ("descriptors, the most of any process", {role: curve(lambda each, role=role: each["files"].get(role, 0)) for role in roles}),
        ("waiting for the start, ms, of the jobs of each window", {"p99": curve(lambda each: each["p99"]), "p50": curve(lambda each: each["p50"])}),
        ("dead rows of the live tables, thousands", {"dead": curve(lambda each: each["dead"] / 1000), "pinned": curve(lambda each: 1.0 * each["pinned"])}),
        ("size of the live tables with their indexes, MB", {"MB": curve(lambda each: each["bytes"] / 1e6)}),
    ]  # fmt: skip
    (PAGE.parent / PICTURE).write_text(
        panels("Half load, with respawns, a pinned xmin and a VACUUM now and then", parts)
    )
    slopes = ", ".join(f"{role} {value:+.2f}" for role, value in run["slopes"].items())
    zombies = sum(each["zombies"] > 0 for each in samples)
    pinned = sum(each["pinned"] for each in samples)
    return [
        (
            f"The longest run: {run['seconds'] / 60:.0f} minutes at {run['rate']:.0f} jobs a second, {run['jobs']:,} jobs, {run['children']} children one after the "
            f"other; {len(samples)} samples, {pinned} of them with a pinned xmin, {zombies} that saw a zombie (none twice). Memory in the second half, MB an hour: "
            f"{slopes}. {judged([run | {'seed': '-'}])} {days([run])}."
        ),
        "",
        f"![Five pictures over the minutes of the run: memory by role, descriptors by role, waiting times, dead rows, size of tables.]({PICTURE})",
    ]


def main() -> int:
    page = PAGE.read_text()
    for name, write in (("chaos", chaos), ("points", points), ("soak", soak)):
        found = ledger.keep(name) if name in ADD_UP else [run for run in ledger.runs(name) if run["seconds"] >= SHORT]
        if found:
            begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
            before, _, rest = page.partition(begin)
            page = "\n".join([before + begin, "", *write(found), "", end + rest.partition(end)[2]])
    PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
