"""Tests the FastAPI guide in an empty folder: the browser shows progress, also after the kill of a worker."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect, sync_playwright

from jobherd import Client
from tests.dashboard.support import CHROMIUM, FLAGS
from tests.docs.pages import blocks, named
from tests.support.checkout import import_path
from tests.support.patience import LIMIT
from tests.support.ports import spare_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HOLD = """
import os, signal
from pathlib import Path
from jobherd import middleware

@middleware
def hold(job, call_next):
    result = call_next()
    if job.attempt == 1:
        Path("held.new").write_text(str(os.getpid()))
        Path("held.new").rename("held")
        signal.pause()
    return result
"""
"""Keeps the first attempt running after the guide's handler has returned, until its process is killed."""
PATIENCE = 3 * LIMIT
"""In seconds. Several processes start on a machine that may be busy."""


def eventually(condition: Callable[[], object], process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None and time.monotonic() < end, log.read_text()
        time.sleep(0.05)


@contextlib.contextmanager
def started(folder: Path, dsn: str, name: str, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start a program in the folder, and stop it with SIGTERM in the end."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("JOBHERD_", "DATABASE_URL"))}
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            env=kept
            | {
                "JOBHERD_DSN": dsn,
                "JOBHERD_HTTP": "off",
                "JOBHERD_SPAWN_TIMEOUT": "60s",
                "PYTHONPATH": f"{folder}{os.pathsep}{import_path()}",
            },
            cwd=folder,
            stdout=output,
            stderr=output,
        )
    try:
        yield process, log
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE)


def answers(site: str) -> bool:
    try:
        with urllib.request.urlopen(site, timeout=LIMIT) as answer:
            return bool(answer.read())
    except OSError:
        return False


@pytest.mark.system
def test_page_of_the_guide_shows_progress_and_survives_the_kill_of_a_worker(empty_database, tmp_path):
    if not os.access(CHROMIUM, os.X_OK):
        pytest.skip(f"there is no {CHROMIUM}: make chromium")
    for block in blocks(named("web-frameworks")):
        if block.path in {"my_handlers/shop.py", "shop_api.py"}:
            (tmp_path / block.path).parent.mkdir(exist_ok=True)
            (tmp_path / block.path).write_text(block.text)
    (tmp_path / "hold.py").write_text(HOLD)
    port = str(spare_port())
    site = f"http://127.0.0.1:{port}/"
    run = ("jobherd.supervisor", "run", "--handlers", "./my_handlers", "--hooks", "./hold.py", "--workers", "1")
    serve = ("uvicorn", "shop_api:app", "--port", port)
    with (
        started(tmp_path, empty_database, "run", *run) as (supervisor, log),
        started(tmp_path, empty_database, "site", *serve) as (server, server_log),
        sync_playwright() as playwright,
    ):
        eventually(lambda: "ready" in log.read_text(), supervisor, log)  # it has made the schema
        eventually(lambda: answers(site), server, server_log)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        expect.set_options(timeout=PATIENCE * 1000)
        tab = browser.new_page()
        tab.goto(site)
        tab.get_by_role("button", name="Order").click()
        expect(tab.locator("#note")).to_have_text("half of it")
        expect(tab.locator("#bar")).to_have_js_property("value", 0.5)
        held = tmp_path / "held"
        eventually(held.exists, supervisor, log)
        os.kill(int(held.read_text()), signal.SIGKILL)
        expect(tab.locator("#note")).to_have_text("packed order 7")
        expect(tab.locator("#bar")).to_have_js_property("value", 1)
        browser.close()
    with Client(empty_database) as client:
        row = client.job(1)
    assert row is not None and (row["state"], row["attempts"]) == ("completed", 2)
