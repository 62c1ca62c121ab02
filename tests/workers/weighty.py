"""Handlers with costs, most of which wait at the test's gate, loaded by the workers under test."""

from __future__ import annotations

import os

from jobherd import handler
from tests.support.gate import at_gate


@handler("weigh:gate", timeout="10m", cost={"memory_mb": 600})
def gated(name: str) -> str:
    return at_gate(name)


@handler("weigh:computed", timeout="10m", cost=lambda payload: {"memory_mb": payload["size"]})
def computed(name: str, size: float) -> str:
    return at_gate(name)


@handler("weigh:free", timeout="10m")
def free(name: str) -> str:
    return at_gate(name)


@handler("weigh:noted", cost={"memory_mb": 600})
def noted() -> None:
    with open(os.environ["WEIGHED"], "ab", buffering=0) as file:
        file.write(b"+")
        for _ in range(10_000):
            pass
        file.write(b"-")


@handler("weigh:huge", cost={"memory_mb": 5000})
def huge() -> None:
    pass
