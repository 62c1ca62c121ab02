"""Modules of handlers that the application can import too, and reports about handlers that are not served."""

from __future__ import annotations

import textwrap

import psycopg

from jobherd import Client
from tests.cli.shell import jobherd

MAIL = """
from jobherd import handler

class MailError(Exception): ...

SENT = []

@handler
def send(to: str) -> None:
    raise MailError(to)
"""
SHOP = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from jobherd import handler
from my_handlers.mail import MailError, SENT, send

def square(number: int) -> int:
    return number * number

@handler(max_attempts=1)
def spawn(method: str) -> list[int]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        return list(pool.map(square, range(4)))

@handler(max_attempts=1)
def order() -> str:
    from . import mail
    try:
        mail.send("a")
    except MailError:
        return f"{mail.SENT is SENT} {send.kind}"
"""


def write(folder, **files: str) -> None:
    (folder / "my_handlers").mkdir()
    for name, text in files.items():
        (folder / "my_handlers" / f"{name}.py").write_text(textwrap.dedent(text))


def test_handler_modules_are_loaded_once_and_spawned_processes_can_import_them(tmp_path, database):
    write(tmp_path, mail=MAIL, shop=SHOP)
    with Client(database) as client:
        ids = [
            client.enqueue("shop:spawn", {"method": "spawn"}),
            client.enqueue("shop:spawn", {"method": "forkserver"}),
        ]
        ids.append(client.enqueue("shop:order"))
    words = ("run", "--handlers", "my_handlers", "--workers", 1, "--until-empty", "--http", "off")
    ran = jobherd(*words, cwd=tmp_path, dsn=database)
    assert ran.code == 0, ran
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT id, state, result FROM jobherd.jobs ORDER BY id").fetchall()
    assert found == [
        (ids[0], "completed", [0, 1, 4, 9]),
        (ids[1], "completed", [0, 1, 4, 9]),
        (ids[2], "completed", "True mail:send"),
    ]


def test_run_and_check_report_unserved_kinds_and_check_reports_unchecked_parameters(tmp_path, database):
    private = "from jobherd import handler\n@handler('a:private')\ndef hidden(): ...\n"
    typed = (
        "from typing import TYPE_CHECKING\nfrom jobherd import handler\nfrom . import _defs\n"
        "if TYPE_CHECKING:\n    from decimal import Decimal\n@handler('a:pay')\ndef pay(amount: 'Decimal'): ...\n"
    )
    write(tmp_path, _defs=private, pay=typed)
    words = ("--handlers", "my_handlers")
    checked = jobherd("check", *words, cwd=tmp_path)
    assert checked.code == 0, checked
    assert (
        "note: my_handlers/_defs.py:2: kind 'a:private' would not be served: the name of its module or folder begins"
        in checked.err
    )
    assert "note: my_handlers/pay.py:6: parameter 'amount' of a:pay is not checked or converted" in checked.err
    told = jobherd("check", *words, "--json", cwd=tmp_path).json
    assert (told["ok"], len(told["notes"]), told["problems"]) == (True, 2, [])
    ran = jobherd("run", *words, "--workers", 1, "--until-empty", "--http", "off", cwd=tmp_path, dsn=database)
    assert ran.code == 0, ran
    assert ran.err.count("kind 'a:private' would not be served") == 1


def test_run_and_check_fail_if_no_name_of_a_module_holds_a_handler(tmp_path, database):
    lost = "from jobherd import handler\n@(lambda handler: None)\n@handler('a:lost')\ndef lost(): ...\n"
    write(tmp_path, lost=lost)
    words = ("--handlers", "my_handlers")
    for ran in (
        jobherd("check", *words, cwd=tmp_path),
        jobherd("run", *words, "--http", "off", cwd=tmp_path, dsn=database),
    ):
        assert ran.code in {1, 78}, ran
        assert "kind 'a:lost' would not be served: no name of its module holds it" in ran.err
        assert "no handler was found" not in ran.err
