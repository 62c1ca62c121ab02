"""A wheel built from the tree works outside the checkout: it contains the SQL."""

from __future__ import annotations

import email
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

from tests.docs.pages import blocks, prose
from tests.support.fleet import ROOT
from tests.support.patience import LIMIT
from tests.support.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTS = ("supervisor", "workers", "handlers", "sql", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")
HANDLER = """
from jobherd import handler

@handler("wheel:add")
def add(a: int, b: int) -> int:
    return a + b
"""


def shell(*words: object, cwd: Path, **environment: str) -> str:
    """Run a command without anything of the checkout in its environment; return its standard output."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JOBHERD", "PYTHON")) and name != "DATABASE_URL"
    }
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env=kept | environment, capture_output=True, text=True, timeout=5 * LIMIT, check=False
    )  # fmt: skip
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The wheel, built from the sdist of a copy of the tree: a build leaves folders behind."""
    place = tmp_path_factory.mktemp("tree")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, place / part, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / part).exists():
            shutil.copy(ROOT / part, place / part)
    shell(
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--skip-dependency-check",
        "--outdir",
        place / "dist",
        cwd=place,
    )
    (found,) = (place / "dist").glob("*.whl")
    yield found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel.

    Its dependencies are links into the environment of the tests: no network is needed.
    """
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(place), "platbase": str(place)}))
    lent = site / "lent"
    lent.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        # Not the editable install of Jobherd: Python would import the checkout through it, and the test
        # would prove nothing.
        if "jobherd" not in entry.name.lower() and entry.suffix != ".pth" and not entry.name.startswith("__editable__"):
            (lent / entry.name).symlink_to(entry)
    (site / "lent.pth").write_text(f"{lent}\n")
    shell(
        sys.executable, "-m", "pip", "--python", place / "bin" / "python", "install", "--quiet", "--no-deps", "--no-index",
        "--disable-pip-version-check", wheel, cwd=place,
    )  # fmt: skip
    return place / "bin" / "python"


def installed(path: Path) -> str:
    """Return the path in the wheel of a file of the tree."""
    facade = ROOT / "handlers" / "_facade"
    if path.is_relative_to(facade):
        return f"jobherd/{path.relative_to(facade)}"
    return f"jobherd/{path.relative_to(ROOT)}"


def test_every_file_of_the_tree_is_in_the_wheel_under_one_name(wheel: Path):
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"jobherd"}
    for path in (ROOT / "sql").rglob("*.sql"):
        assert installed(path) in names, path
    for package in ("supervisor", "workers", "handlers", "sql"):
        for path in (ROOT / package).rglob("*.py"):
            assert installed(path) in names, f"{path}: name its package in setup.cfg"
        assert f"jobherd/{package}/py.typed" in names
    assert "jobherd/py.typed" in names
    for path in [
        file
        for part in ("templates", "static")
        for file in (ROOT / "workers" / "dashboard" / part).rglob("*")
        if file.is_file()
    ]:
        assert installed(path) in names, path
    protocol = [
        path for path in (ROOT / "handlers" / "_remote").rglob("*") if path.suffix in {".proto", ".binpb", ".pyi"}
    ]
    assert len(protocol) >= 6
    for path in protocol:
        assert installed(path) in names, path
    assert not [name for name in names if "/tests/" in name or "_facade" in name]


@pytest.mark.promise("A1", "A3", "C1", "C7", "C42", "E2")
def test_run_from_an_empty_folder_creates_the_schema_and_completes_the_jobs(
    python: Path, empty_database: str, tmp_path: Path
):
    command = python.parent / "jobherd"
    folder = tmp_path / "my_handlers"
    folder.mkdir()
    (folder / "sums.py").write_text(HANDLER)
    where = shell(
        python,
        "-c",
        "from jobherd import sql; from jobherd import supervisor; print(supervisor.__file__, sql.__file__)",
        cwd=tmp_path,
    )
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


CLASH = """
import handlers, sql, workers, supervisor
from jobherd import handler

@handler("clash:names")
def names() -> list[str]:
    return [handlers.OURS, sql.OURS, workers.OURS, supervisor.OURS]
"""


def test_project_with_packages_of_the_same_names_imports_its_own(python: Path, empty_database: str, tmp_path: Path):
    """The project has its own handlers/, workers/ and sql/; the distribution `supervisor` is installed too."""
    for name in ("handlers", "workers", "sql"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"OURS = 'project {name}'\n")
    (tmp_path / "handlers" / "clash.py").write_text(CLASH)
    other = (
        Path(shell(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
        / "supervisor"
    )
    other.mkdir()
    (other / "__init__.py").write_text("OURS = 'distribution supervisor'\n")
    try:
        command = python.parent / "jobherd"
        job = int(shell(command, "enqueue", "clash:names", cwd=tmp_path, JOBHERD_DSN=empty_database, PYTHONPATH="."))
        words = ("run", "--handlers", "handlers", "--until-empty", "--http", "off", "--workers", "1")
        shell(command, *words, cwd=tmp_path, JOBHERD_DSN=empty_database, PYTHONPATH=".")
        with Queue(empty_database) as queue:
            row = queue.job(job)
        assert row["state"] == "completed", row
        assert row["result"] == ["project handlers", "project sql", "project workers", "distribution supervisor"]
        producer = "import handlers, jobherd; print(handlers.OURS, jobherd.Client.__name__)"
        assert shell(python, "-c", producer, cwd=tmp_path, PYTHONPATH=".") == "project handlers Client\n"
    finally:
        shutil.rmtree(other)


def test_gateway_protocol_loads_from_the_wheel(python: Path, tmp_path: Path):
    code = (
        "from jobherd.handlers._remote import messages, schema;"
        "print(schema.__file__, messages.Task.FromString(messages.Task(id=7).SerializeToString()).id)"
    )
    where, job = shell(python, "-c", code, cwd=tmp_path).split()
    assert job == "7"
    assert str(ROOT) not in where


README = " ".join(prose(ROOT / "README.md").split())


def metadata_of(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(file.read(name))


def test_wheel_and_sdist_have_the_version_and_the_licenses_of_bundled_code(wheel: Path):
    (sdist,) = wheel.parent.glob("*.tar.gz")
    assert (wheel.name, sdist.name) == ("jobherd-0.1.0-py3-none-any.whl", "jobherd-0.1.0.tar.gz")
    static = ROOT / "workers" / "dashboard" / "static"
    licences = {path.with_name(path.name.replace(".min.js", ".LICENSE")) for path in static.glob("*.min.js")}
    assert licences
    stated = {"LICENSE", *(str(path.relative_to(ROOT)) for path in licences)}
    assert set(metadata_of(wheel).get_all("License-File", [])) == stated
    with tarfile.open(sdist) as file:
        assert {f"jobherd-0.1.0/{name}" for name in stated} <= set(file.getnames())
    for name in licences:
        assert name.stem in README, "the README names what is included"


def needed_by(requirements: list[str], extra: str = "") -> dict[str, int]:
    """Return the bytes of each distribution that these requirements install here, without bytecode."""
    found: dict[str, int] = {}
    for requirement in map(Requirement, requirements):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        one = importlib.metadata.distribution(requirement.name)
        files = [Path(file.locate()) for file in one.files or [] if file.suffix != ".pyc"]
        found[one.name] = sum(file.stat().st_size for file in files if file.exists())
        for each in requirement.extras or {""}:
            found |= needed_by(one.requires or [], each)
    return found


def test_dependencies_and_installed_sizes_match_the_readme(wheel: Path):
    requires = metadata_of(wheel).get_all("Requires-Dist", [])
    own = [str(one) for one in map(Requirement, requires) if one.marker is None]
    [said] = re.findall(r"It requires (.*?), all together", README)
    shown = [Requirement(word) for word in re.findall(r"`(.*?)`", said)]
    assert {(one.name, *one.extras) for one in shown} == {(one.name, *one.extras) for one in map(Requirement, own)}
    with zipfile.ZipFile(wheel) as file:
        size = sum(member.file_size for member in file.infolist())
    core = needed_by(own)
    for pattern, found in (
        (r"is `jobherd` \(about (\d+) MB\)", size),
        (r"all together about (\d+) MB", size + sum(core.values())),
        (r"`web` \(dashboard\) adds about (\d+) MB", added(requires, "web", core)),
        (r"`embedded` \(PostgreSQL\) about (\d+) MB", added(requires, "embedded", core)),
    ):
        [told] = re.findall(pattern, README)
        assert found / 1e6 == pytest.approx(int(told), rel=0.25), pattern  # sizes differ between versions of packages


def added(requires: list[str], extra: str, core: dict[str, int]) -> int:
    return sum(size for name, size in needed_by(requires, extra).items() if name not in core)


def test_quick_start_of_the_readme_works_in_an_empty_folder(python: Path, tmp_path: Path):
    """The commands run as a reader types them, from the installed package and with the embedded server."""
    shown = [block for block in blocks(ROOT / "README.md") if "not" not in block.marks]
    handler, run, enqueue, producer = shown
    file = tmp_path / str(handler.path)
    file.parent.mkdir()
    file.write_text(handler.text)
    path = {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "JOBHERD_HTTP": "off"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JOBHERD", "PYTHON", "DATABASE"))}
    [command] = run.commands
    with subprocess.Popen(
        ["bash", "-c", f"exec {command.line}"], cwd=tmp_path, env=kept | path, stderr=subprocess.PIPE, text=True
    ) as supervisor:
        try:
            assert supervisor.stderr is not None
            log = []
            for line in supervisor.stderr:
                log.append(line)
                if "worker 0 is ready" in line:
                    break
            else:
                pytest.fail("".join(log))
            for one in enqueue.commands:
                assert shell("bash", "-c", one.line, cwd=tmp_path, **path).splitlines() == one.shows
            said = shell(python, "-c", producer.text, cwd=tmp_path, **path)
            assert said == "sent the receipt of order 8\n"
        finally:
            supervisor.send_signal(signal.SIGTERM)
            supervisor.stderr.read()
            assert supervisor.wait(LIMIT) == 0


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_wheel_installs_into_a_clean_environment_of_each_python(wheel: Path, version: str, tmp_path: Path):
    """pip also installs the dependencies, from the index that it is configured with."""
    found = [shutil.which(f"python{version}"), *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    interpreters = [name for name in found if name and subprocess.run([name, "-c", ""], check=False).returncode == 0]
    if not interpreters:
        pytest.skip(f"no Python {version} here")
    shell(interpreters[-1], "-m", "venv", tmp_path / "clean", cwd=tmp_path)
    command = tmp_path / "clean" / "bin"
    fetched = subprocess.run(
        [command / "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "0", wheel],
        cwd=tmp_path, capture_output=True, text=True, timeout=5 * LIMIT, check=False,
    )  # fmt: skip
    if "No matching distribution found" in fetched.stderr:
        pytest.skip("the packages that it requires cannot be fetched")
    assert fetched.returncode == 0, fetched.stderr
    assert shell(command / "jobherd", "version", cwd=tmp_path) == "jobherd 0.1.0\n"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sums.py").write_text(HANDLER)
    assert "1 kind, no problems" in shell(command / "jobherd", "check", "--handlers", "./mine", cwd=tmp_path)
