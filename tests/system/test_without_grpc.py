"""Processes that need no gateway load neither grpc nor protobuf.

grpc starts threads, which a process that forks or runs users' code must not have.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.checkout import import_path

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fleet import Stage

LOADED = "[name for name in sys.modules if name.split('.')[0] in ('google', 'grpc')]"
HANDLER = f"""
import os, sys
from jobherd import handler

def libraries(pid):
    with open(f"/proc/{{pid}}/maps") as file:
        return sorted({{line.split("/")[-1].strip() for line in file if "grpc" in line or "upb" in line}})

@handler("t:loaded")
def loaded() -> list:
    return [{LOADED}, libraries("self"), libraries(os.getppid())]
"""


def shown(code: str, folder: Path) -> str:
    """Return what a new interpreter prints that can import only this checkout."""
    command = [sys.executable, "-P", "-c", code]
    return subprocess.run(command, cwd=folder, env={"PYTHONPATH": import_path()}, capture_output=True, text=True, check=True).stdout  # fmt: skip


def test_importing_the_client_and_handlers_loads_neither_grpc_nor_protobuf(tmp_path: Path):
    code = f"import sys, jobherd; from jobherd import Client, handler; import jobherd.testing; print({LOADED})"
    assert shown(code, tmp_path) == "[]\n"


def test_gateway_messages_load_protobuf_without_grpc(tmp_path: Path):
    """A worker that gets its tasks over a Unix socket has no grpc."""
    code = (
        f"import sys; from jobherd.handlers._remote import messages; print({{name.split('.')[0] for name in {LOADED}}})"
    )
    assert shown(code, tmp_path) == "{'google'}\n"


def test_supervisor_and_worker_load_neither_grpc_nor_protobuf(stage: Stage):
    fleet = stage.run_fleet(workers=1, handlers=stage.write("loaded.py", HANDLER))
    job = stage.enqueue("t:loaded")
    assert stage.wait_state(job, "completed")["result"] == [[], [], []]
    assert fleet.stop() == 0
