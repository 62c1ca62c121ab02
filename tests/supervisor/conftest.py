"""The fixture `supervisor`: built with default settings, but not running."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from jobherd.supervisor.assembly import Supervisor
from jobherd.supervisor.settings.definitions import Settings


@pytest.fixture
def supervisor(request):
    supervisor = Supervisor(replace(Settings(), schema=getattr(request, "param", "jobherd")), "host=/nowhere")
    yield supervisor
    supervisor.selector.close()
    supervisor.signal_pipe.close()
    for board in supervisor.boards:
        board.close()
    os.close(supervisor.control.fd)
