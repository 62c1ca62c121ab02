"""What each run of a campaign has found, a line each in `.bench/CAMPAIGN/runs.jsonl`: what docs/reliability.md is made from."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from tests.support.herd import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def folder(campaign: str) -> Path:
    """Where a campaign leaves its things."""
    found = ROOT / ".bench" / campaign
    found.mkdir(parents=True, exist_ok=True)
    return found


def note(campaign: str, **found: object) -> None:
    """Add the line of one run, whatever came of it: a red one counts too."""
    with (folder(campaign) / "runs.jsonl").open("a") as file:
        file.write(json.dumps({"at": time.time(), **found}) + "\n")


def runs(campaign: str) -> list[dict[str, Any]]:
    """Every run so far, oldest first."""
    path = folder(campaign) / "runs.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
