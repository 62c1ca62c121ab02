"""The protocol over a real grpc server and client."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from tests.support.checkout import import_path


@pytest.mark.parametrize("runtime", ["upb", "python"])
def test_every_message_and_call_type_works_over_a_real_connection(runtime):
    """Protobuf also has a runtime in pure Python, for platforms without a binary wheel."""
    command = [sys.executable, "-W", "error", "-m", "tests.handlers._remote.exchange"]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": import_path(), "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": runtime},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"protobuf {version('protobuf')} grpcio {version('grpcio')}: ok\n"
