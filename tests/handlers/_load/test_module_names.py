"""Names under which handler modules are loaded.

Each module is loaded once, under the application's own name if it has one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from jobherd.handlers._load.registry import load
from tests.support.patience import LIMIT

PLAIN = "from jobherd import handler\n@handler\ndef send(n: int): ...\n"


@pytest.fixture
def app(tmp_path):
    """A folder of an application, with methods that run code in a new process which can import from the folder."""
    return App(tmp_path)


class App:
    def __init__(self, folder) -> None:
        self.folder = folder

    def write(self, **files: str) -> None:
        for name, text in files.items():
            path = self.folder / (name.replace("__in__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))

    def python(self, *words: str, path: str) -> list[str]:
        """Run Python in the folder with `path` on the import path; return the lines it prints."""
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([path, os.getcwd()]), "PYTHONDONTWRITEBYTECODE": "1"}
        ran = subprocess.run(
            [sys.executable, "-P", *words],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.split("\n")[:-1]

    def loaded(self, source: str, *more: str, path: str = ".") -> list[str]:
        """Load a source in a new process; return the names of its modules, then its problems and notes, then what `more` prints."""
        # before sys.path is extended: the folder may contain a json.py
        lines = ["import os, sys", "from jobherd.handlers._load.registry import load"]
        lines += [
            f"sys.path[:0] = map(os.path.abspath, {path.split(':')!r})",
            f"loaded = load([{source!r}])",
            "print(*loaded.modules)",
        ]
        lines += ["for each in (*loaded.problems, *loaded.notes): print(each)", *more]
        return self.python("-c", "\n".join(lines), path="/nowhere")


def test_importable_folder_is_loaded_under_the_name_the_application_uses(app):
    app.write(my_handlers__in__mail=PLAIN, my_handlers__in__deep__in__news=PLAIN.replace("send", "news"))
    assert app.loaded("my_handlers") == ["my_handlers.deep.news my_handlers.mail"]
    assert app.loaded("./my_handlers/mail.py") == ["my_handlers.mail"]
    assert app.loaded("my_handlers", path="elsewhere")[0].startswith("jobherd_user.my_handlers_")


def test_module_that_another_module_imports_by_name_exists_once(app):
    app.write(
        my_handlers__in__mail=PLAIN + "class MailError(Exception): ...\nSENT = []\nassert 'twice' not in globals()\n",
        my_handlers__in__shop="from jobherd import handler\nfrom my_handlers.mail import MailError, SENT\nfrom . import mail\n"
        "@handler('shop:order')\ndef order():\n    assert mail.MailError is MailError and mail.SENT is SENT\n",
    )
    said = app.loaded(
        "my_handlers",
        "loaded.kinds['shop:order']()",
        "import sys",
        "print([n for n in sys.modules if n.endswith('.mail')])",
    )
    assert said == ["my_handlers.mail my_handlers.shop", "['my_handlers.mail']"]


def test_module_name_starts_at_the_top_package_and_is_the_shortest(app):
    app.write(
        src__in__shop____init__="",
        src__in__shop__in____init__="NAME = 'shop'",
        src__in__shop__in__jobs__in____init__="",
        src__in__shop__in__jobs__in__mail="from .. import NAME\n" + PLAIN,
    )
    (app.folder / "src" / "shop____init__.py").unlink(missing_ok=True)
    assert app.loaded("src/shop/jobs", path="src") == ["shop.jobs shop.jobs.mail"]
    assert app.loaded("src/shop/jobs", path=".:src") == ["shop.jobs shop.jobs.mail"]
    assert app.loaded("src/shop/jobs", path=".:src:src/shop") == ["shop.jobs shop.jobs.mail"]
    assert app.loaded("src/shop/jobs/mail.py", path="src") == ["shop.jobs shop.jobs.mail"]


def test_folder_loads_even_if_a_package_above_it_does_not(app):
    app.write(
        shop__in____init__="raise RuntimeError('needs the application')",
        shop__in__jobs__in__mail=PLAIN,
        shop__in__jobs__in____init__="",
    )
    (said,) = app.loaded("shop/jobs")
    assert all(name.startswith("jobherd_user.jobs_") for name in said.split())


def test_folder_on_the_import_path_is_loaded_as_top_level_modules_if_its_imports_allow(app):
    app.write(
        mail=PLAIN,
        shop="from mail import send\nfrom jobherd import handler\n@handler\ndef order(): ...",
        deep__in__a="from . import b",
        deep__in__b="",
    )
    assert app.loaded(".") == ["deep.a deep.b mail shop"]
    app.write(shop="from .mail import send")  # cannot be imported as a top-level module
    (said,) = app.loaded(".")
    assert all(name.startswith("jobherd_user.") for name in said.split())
    app.write(shop="", deep__in__a="from .. import mail")
    (said,) = app.loaded(".")
    assert all(name.startswith("jobherd_user.") for name in said.split())


def test_file_named_like_an_existing_module_shadows_nothing(app):
    app.write(json=PLAIN, mail=PLAIN.replace("send", "post"), handlers__in__json=PLAIN, sql__in__a=PLAIN)
    said = app.loaded(".", "import json; print(json.loads('3'))")
    names = said[0].split()
    assert said[1:] == ["3"] or "declared twice" in said[1]
    assert "mail" in names
    assert "json" not in names
    assert app.loaded(
        "handlers", "import json; from jobherd import handlers; print(json.loads('3'), handlers.handler.__name__)"
    )[1:] == ["3 handler"]
    assert app.loaded("sql", "from jobherd import sql; print(sql.SCHEMA)")[1:] == ["jobherd"]


def test_note_names_a_module_that_is_loaded_under_two_names(app):
    app.write(
        lib__in__my_jobs__in__mail=PLAIN,
        lib__in__my_jobs__in__shop="import sys\nsys.path.insert(0, 'elsewhere')\nfrom tasks import other",
        elsewhere__in__tasks="import sys, os\nsys.path.insert(0, 'lib')\nimport my_jobs.mail as other",
    )
    names, note = app.loaded("lib/my_jobs", path="none")
    assert all(name.startswith("jobherd_user.my_jobs_") for name in names.split())
    assert "is loaded twice, also as my_jobs.mail" in note
    assert "--app-dir or PYTHONPATH" in note


def test_default_kind_is_the_same_in_producer_worker_and_script(app):
    app.write(my_handlers__in__mail=PLAIN + "if __name__ == '__main__': print(send.kind)\n")
    assert app.loaded("my_handlers", "print(*loaded.kinds)")[-1] == "mail:send"
    assert app.loaded("my_handlers.mail", "print(*loaded.kinds)")[-1] == "mail:send"
    assert app.loaded("my_handlers", "print(*loaded.kinds)", path="elsewhere")[-1] == "mail:send"
    assert app.python("-c", "from my_handlers.mail import send; print(send.kind)", path=".") == ["mail:send"]
    assert app.python("-c", "import mail; print(mail.send.kind)", path="my_handlers") == ["mail:send"]
    assert app.python("my_handlers/mail.py", path="/nowhere") == ["mail:send"]


def test_file_in_two_sources_is_loaded_once(tmp_path):
    (tmp_path / "jobs" / "deep").mkdir(parents=True)
    (tmp_path / "jobs" / "deep" / "mail.py").write_text(PLAIN)
    loaded = load([tmp_path / "jobs", tmp_path / "jobs" / "deep"])
    assert loaded.problems == ()
    assert len([name for name in loaded.modules if name.endswith("mail")]) == 1
