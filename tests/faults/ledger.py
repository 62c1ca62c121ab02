"""The results of each campaign run, one line each: the source of docs/project/fault-campaigns.md.

A run appends its line to `.bench/CAMPAIGN/runs.jsonl`, which git ignores. `keep` copies new lines to
`docs/project/campaigns/CAMPAIGN.jsonl`, so that a campaign of many hours adds up over machines and
days. Without the second file, a run in a temporary checkout would not count. Without the first file,
every `make test` would change a file of the repository.
"""

from __future__ import annotations

import json
import subprocess
import time
from typing import TYPE_CHECKING, Any

from tests.support.herd import ROOT

if TYPE_CHECKING:
    from pathlib import Path


KEPT = ROOT / "docs" / "project" / "campaigns"


def folder(campaign: str) -> Path:
    """The folder for a campaign's files; it is created if it is missing."""
    found = ROOT / ".bench" / campaign
    found.mkdir(parents=True, exist_ok=True)
    return found


def note(campaign: str, **found: object) -> None:
    """Append the line of one run, whatever its result: failed runs count too."""
    with (folder(campaign) / "runs.jsonl").open("a") as file:
        file.write(json.dumps({"at": time.time(), "commit": _commit(), **found}) + "\n")


def runs(campaign: str) -> list[dict[str, Any]]:
    """Every run in this checkout, oldest first."""
    return _read(folder(campaign) / "runs.jsonl")


def keep(campaign: str) -> list[dict[str, Any]]:
    """Copy the runs of this checkout that are not kept yet; return all kept runs, oldest first."""
    path = KEPT / f"{campaign}.jsonl"
    kept = _read(path)
    known = {(run["at"], run["seed"]) for run in kept}
    kept = sorted(
        [*kept, *(run for run in runs(campaign) if (run["at"], run["seed"]) not in known)], key=lambda run: run["at"]
    )
    if kept:
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(run) + "\n" for run in kept))
    return kept


def _commit() -> str:
    """The commit that was run; empty outside a git checkout."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return said.stdout.strip()


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
