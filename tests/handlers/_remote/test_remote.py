"""The public client `jobherd.remote` against a scripted gateway, see `scenarios.py`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkout import import_path
from tests.support.patience import LIMIT

SCENES = re.findall(r"^@scene\ndef (\w+)", Path(__file__).with_name("scenarios.py").read_text(), re.MULTILINE)


def run(*arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": import_path()},
        capture_output=True,
        text=True,
        timeout=3 * LIMIT,
        check=False,
    )


@pytest.mark.parametrize("scene", SCENES)
def test_scene(scene):
    done = run("-m", "tests.handlers._remote.scenarios", scene)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["grpc", "google"])
def test_import_error_names_the_missing_extra(package):
    done = run("-c", f"import sys; sys.modules[{package!r}] = None; import jobherd.remote")
    assert done.stderr.endswith(
        "ImportError: jobherd.remote requires grpcio and protobuf. Install them with: pip install 'jobherd[grpc]'\n"
    )


def test_importing_jobherd_loads_neither_grpc_nor_protobuf():
    code = "import sys, jobherd, jobherd.handlers, jobherd.testing; sys.exit('grpc' in sys.modules or 'google.protobuf' in sys.modules)"
    assert run("-c", code).returncode == 0


def test_every_public_name_of_the_remote_client_has_an_example():
    code = """
import jobherd.remote as remote
for name in ("Worker", "Producer", "Task"):
    assert "Example:" in getattr(remote, name).__doc__, name
for name in ("enqueue", "enqueue_many", "cancel", "get", "wait"):
    assert "Example:" in getattr(remote.Producer, name).__doc__, name
"""
    done = run("-c", code)
    assert done.returncode == 0, done.stderr
