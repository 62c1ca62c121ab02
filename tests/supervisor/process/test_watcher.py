"""The files and folders that `--reload` watches."""

from __future__ import annotations

from pathlib import Path

from jobherd.supervisor.process.watcher import look, places_of
from jobherd.supervisor.settings.definitions import Settings


def test_watcher_sees_python_files_except_in_environments_and_caches(tmp_path: Path):
    for name in (
        "a.py",
        "b.txt",
        "sub/c.py",
        ".git/d.py",
        "__pycache__/e.py",
        "node_modules/f.py",
        "env/pyvenv.cfg",
        "env/lib/g.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("x = 1\n")
    seen = look([str(tmp_path)])
    assert {str(Path(name).relative_to(tmp_path)) for name in seen} == {"a.py", "sub/c.py"}
    (tmp_path / "a.py").write_text("x = 1000\n")
    (tmp_path / "sub" / "c.py").unlink()
    now = look([str(tmp_path)])
    assert {Path(name).name for name in seen.keys() | now.keys() if seen.get(name) != now.get(name)} == {"a.py", "c.py"}


def test_files_folders_and_modules_of_the_settings_are_watched(tmp_path: Path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    settings = Settings(handlers=(str(tmp_path / "jobs"), "package.mail", "jobherd.handlers.forge"), app_dir=tmp_path)
    places = places_of(settings)
    assert places[:3] == [str(tmp_path), str(tmp_path / "jobs"), str(tmp_path / "package")]
    assert places[3].endswith("jobherd")
