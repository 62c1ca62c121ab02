"""How commands print paths."""

from __future__ import annotations

from jobherd.supervisor.cli import console, demo


def test_path_below_the_working_directory_is_printed_relative_to_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert console.near(str(tmp_path / "mail.py")) == "mail.py"
    assert console.near("/elsewhere/mail.py") == "/elsewhere/mail.py"


def test_path_is_printed_in_full_if_the_working_directory_was_removed(tmp_path, monkeypatch, capsys):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert console.near(str(tmp_path / "mail.py")) == str(tmp_path / "mail.py")
    demo.say_what_next(tmp_path, "jobherd", http=None)
    assert f"git push {tmp_path}/forge.git HEAD" in capsys.readouterr().out
