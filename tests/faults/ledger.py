"""What each run of a campaign has found, a line each: what docs/project/fault-campaigns.md is made from.

A run leaves its line in `.bench/CAMPAIGN/runs.jsonl`, which git does not know. `keep` takes new
ones over into `docs/project/campaigns/CAMPAIGN.jsonl`, so that a campaign of many hours adds up over
machines and days. Without the second a run in a checkout that is thrown away would count for
nothing; without the first every `make test` would change a file of the repository.
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
    """Where a campaign leaves its things."""
    found = ROOT / ".bench" / campaign
    found.mkdir(parents=True, exist_ok=True)
    return found


def note(campaign: str, **found: object) -> None:
    """Add the line of one run, whatever came of it: a red one counts too."""
    with (folder(campaign) / "runs.jsonl").open("a") as file:
        file.write(json.dumps({"at": time.time(), "commit": _commit(), **found}) + "\n")


def runs(campaign: str) -> list[dict[str, Any]]:
    """Every run in this checkout, oldest first."""
    return _read(folder(campaign) / "runs.jsonl")


def keep(campaign: str) -> list[dict[str, Any]]:
    """Take over what was run here and is not kept yet; return all that is kept, oldest first."""
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
    """What was run; empty where that is no checkout."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return said.stdout.strip()


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
