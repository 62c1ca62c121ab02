"""A wheel built from the tree works outside the checkout: the SQL travels with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.fleet import ROOT
from tests.support.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTS = ("supervisor", "workers", "handlers", "sql", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")
HANDLER = """
from handlers import handler

@handler("wheel:add")
def add(a: int, b: int) -> int:
    return a + b
"""


def shell(*words: object, cwd: Path, **environment: str) -> str:
    """Run a command without anything of the checkout in its environment; return what it said."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JOBHERD", "PYTHON")) and name != "DATABASE_URL"}
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env=kept | environment, capture_output=True, text=True, timeout=100, check=False
    )  # fmt: skip
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The wheel, built from a copy of the tree: a build leaves folders behind."""
    place = tmp_path_factory.mktemp("tree")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, place / part, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / part).exists():
            shutil.copy(ROOT / part, place / part)
    shell(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--skip-dependency-check", "--outdir", place / "dist", cwd=place)
    (found,) = (place / "dist").glob("*.whl")
    yield found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel. What the wheel needs from others is borrowed from ours: no network."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(place), "platbase": str(place)}))
    lent = site / "lent"
    lent.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        # Not our own editable install: the checkout would be found through it, and the test would prove nothing.
        if "jobherd" not in entry.name.lower() and entry.suffix != ".pth" and not entry.name.startswith("__editable__"):
            (lent / entry.name).symlink_to(entry)
    (site / "lent.pth").write_text(f"{lent}\n")
    shell(
        sys.executable, "-m", "pip", "--python", place / "bin" / "python", "install", "--quiet", "--no-deps", "--no-index",
        "--disable-pip-version-check", wheel, cwd=place,
    )  # fmt: skip
    return place / "bin" / "python"


def test_every_statement_and_migration_of_the_tree_is_in_the_wheel(wheel: Path):
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    for path in (ROOT / "sql").rglob("*.sql"):
        assert str(path.relative_to(ROOT)) in names, path
    for package in ("supervisor", "workers", "handlers", "sql"):
        for path in (ROOT / package).rglob("*.py"):
            assert str(path.relative_to(ROOT)) in names, path
        assert f"{package}/py.typed" in names
    for path in [file for part in ("templates", "static") for file in (ROOT / "workers" / "page" / part).rglob("*") if file.is_file()]:
        assert str(path.relative_to(ROOT)) in names, path
    assert not [name for name in names if name.startswith(("tests", "deploy", "docs"))]


@pytest.mark.promise("A1", "A3", "C1", "C7", "C42", "E2")
def test_a_run_from_an_empty_folder_makes_the_schema_and_drains_the_queue(python: Path, empty_database: str, tmp_path: Path):
    command = python.parent / "jobherd"
    folder = tmp_path / "my_handlers"
    folder.mkdir()
    (folder / "sums.py").write_text(HANDLER)
    where = shell(python, "-c", "import supervisor, sql; print(supervisor.__file__, sql.__file__)", cwd=tmp_path)
    assert str(ROOT) not in where
    job = int(shell(command, "enqueue", "wheel:add", '{"a": 1, "b": 2}', cwd=tmp_path, JOBHERD_DSN=empty_database))
    shell(
        command,
        "run",
        "--handlers",
        "./my_handlers",
        "--until-empty",
        "--http",
        "off",
        "--workers",
        "1",
        cwd=tmp_path,
        JOBHERD_DSN=empty_database,
    )
    with Queue(empty_database) as queue:
        row = queue.job(job)
        assert (row["state"], row["result"]) == ("completed", 3)
    shell(command, "check", "--handlers", "./my_handlers", cwd=tmp_path)
