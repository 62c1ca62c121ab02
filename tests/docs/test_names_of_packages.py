"""Tests that installed code has only the package name `jobherd`.

setup.cfg lists its packages, and no test loads them under the names of their folders.
"""

from __future__ import annotations

import configparser
import subprocess
import sys

from jobherd.sql.migrate import AREAS
from tests.docs.pages import ROOT

TOPS = ("supervisor", "workers", "handlers", "sql")


def test_setup_cfg_lists_every_package_of_the_tree():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = set(config["options"]["packages"].split())
    found = {
        f"jobherd.{file.parent.relative_to(ROOT)}".replace("/", ".").replace("jobherd.handlers._facade", "jobherd")
        for top in TOPS
        for file in (ROOT / top).rglob("__init__.py")
    }
    assert listed == found


def test_no_package_is_loaded_under_the_name_of_its_folder():
    """A second copy of a module would have its own classes and state."""
    plain = [name for name in sys.modules if name.split(".")[0] in TOPS]
    ours = [name for name in plain if str(ROOT) in str(getattr(sys.modules[name], "__file__", None))]
    assert ours == []


def test_migrations_of_every_area_are_found_outside_the_checkout(tmp_path):
    """Inside the checkout, `sql` can be imported. Only another working folder reveals a use of the plain name."""
    code = f"from jobherd.sql.migrate import migrations; print([len(migrations(area)) for area in {AREAS!r}])"
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "0" not in done.stdout
