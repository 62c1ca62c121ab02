"""Tests that everything that the pages name exists.

This covers links, settings, flags, signals, exit codes, metrics, options and outcomes.
"""

from __future__ import annotations

import argparse
import re

import pytest

from jobherd import Backoff, handlers
from jobherd.handlers._policy.policy import OPTIONS
from jobherd.handlers._run.dispositions import SignalledOutcome
from jobherd.supervisor.cli import commands
from jobherd.supervisor.cli.codes import ExitCode
from jobherd.supervisor.cli.command import add_common
from jobherd.supervisor.process.signals import HANDLED
from jobherd.supervisor.settings.definitions import Settings, specifications
from jobherd.supervisor.settings.sources import variable_of
from tests.docs.pages import PAGES, ROOT, anchors, code_words, links, named, prose, table

SOURCES = "\n".join(
    file.read_text()
    for package in ("supervisor", "workers", "handlers", "sql")
    for file in (ROOT / package).rglob("*.py")
)
MAKE = (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_existing_files_and_headings(page):
    for link in links(page):
        if re.match(r"https?://", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}: there is no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_environment_variables_on_a_page_are_known(page):
    known = {variable_of(name) for name in specifications()} | {
        name for each in specifications().values() for name in each.variables
    }
    for variable in re.findall(r"\bJOBHERD_[A-Z_]+\b", page.read_text()):
        assert variable in known or f'"{variable}' in SOURCES, f"{page.name}: {variable}"


def flags():
    """Return every flag of every command."""
    found = {"--version", "--help"}
    for command in commands().values():
        parser = argparse.ArgumentParser()
        add_common(parser, command)
        command.arguments(parser)
        parts = [
            part
            for action in parser._actions
            if isinstance(action, argparse._SubParsersAction)
            for part in action.choices.values()
        ]
        found.update(
            option for each in (parser, *parts) for action in each._actions for option in action.option_strings
        )
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_flags_and_commands_are_known(page):
    known = flags() | {"--time", "--preload"}  # docker's, gunicorn's
    for word in code_words(page):
        if word.startswith("--"):
            flag = re.split(r"[ =]", word)[0]
            assert flag in known, f"{page.name}: {word}"
        if (command := re.match(r"jobherd ([a-z]+)", word)) and not word.endswith(".service"):
            assert command[1] in {*commands(), "help", "version"}, f"{page.name}: {word}"
        if target := re.fullmatch(r"make ([a-z0-9-]+)", word):
            assert re.search(rf"^{target[1]}:", MAKE, re.MULTILINE), f"{page.name}: {word}"


def metrics():
    """Return the name of every metric, with the suffixes of its kind."""
    source = "".join(path.read_text() for path in (ROOT / "workers" / "web").glob("*_metrics.py"))
    found = set()
    for kind, name in re.findall(r'(Counter|Gauge|Histogram|Info)MetricFamily\(\s*"(\w+)"', source):
        found |= {
            name + ending
            for ending in {"Counter": ["_total"], "Gauge": [""], "Info": ["_info"]}.get(
                kind, ["", "_bucket", "_sum", "_count"]
            )
        }
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "metrics.md"], ids=lambda page: page.name)
def test_metrics_exist(page):
    known = metrics()
    assert "jobherd_worker_jobs_processed_total" in known
    others = {
        "jobherd_jobs",
        "jobherd_dsn",
        "jobherd_inline",
        "jobherd_connection",
        "jobherd_worker",
        "jobherd_recorder",
        "jobherd_user",
    }  # the channel, fixtures, the package of folders
    roles = {"jobherd_enqueue", "jobherd_work", "jobherd_read", "jobherd_admin"}
    for name in re.findall(r"\bjobherd_\w+", page.read_text()):
        assert name in known | others | roles, f"{page.name}: {name}"


def test_listed_signals_are_those_that_the_supervisor_handles():
    rows = table(named("stop-reload-resize"), heading="Signals")
    listed = {f"SIG{name}" for row in rows for name in re.findall(r"`([A-Z0-9]+)`", row[0])}
    assert listed == {signum.name for signum in HANDLED} - {"SIGCHLD"}


def test_all_exit_codes_are_listed():
    rows = table(named("cli"), heading="Exit codes")
    assert {int(row[0]) for row in rows} == {int(code) for code in ExitCode}


def test_all_handler_options_are_listed_with_their_defaults():
    rows = {row[0].strip("`"): row[1].strip("`") for row in table(named("handler-options"), heading="Options")}
    known = {name: option["default"] for name, option in OPTIONS.items()}
    assert rows.keys() == known.keys()
    for name, shown in rows.items():
        assert eval(shown, {"Backoff": Backoff}) == known[name], name


def test_all_outcomes_are_listed():
    rows = table(named("outcomes"), heading="Outcomes")
    said = {name for row in rows for name in re.findall(r"`([A-Z]\w+)`", row[0])}
    public = {name: getattr(handlers, name) for name in handlers.__all__}
    dispositions = {name for name, of in public.items() if isinstance(of, type) and issubclass(of, SignalledOutcome)}
    assert said == dispositions
    metric_page = prose(named("metrics"))
    for outcome in {word for row in rows for word in re.findall(r"`(\w+)`", row[3])}:
        assert f"`{outcome}`" in metric_page, outcome


def test_all_error_codes_are_listed():
    said = {
        code for row in table(named("outcomes"), heading="Error codes") for code in re.findall(r"`([A-Z_]+)`", row[0])
    }
    files = [
        ROOT / name for name in ("handlers/_values/outcome.py", "handlers/jobs_webhook.py", "workers/gateway/judge.py")
    ]
    stored = "\n".join(file.read_text() for file in (*files, *(ROOT / "sql" / "schema").glob("*.sql")))
    known = set(re.findall(r"[\"']([A-Z]+(?:_[A-Z]+)+)[\"']", stored))
    assert known - said == set(), "docs/reference/outcomes.md lists each code"
    assert said - known == {"POISON", "NACK", "CHILD_JOB_FAILED"}


def test_readme_states_the_actual_defaults():
    text = prose(ROOT / "README.md")
    settings = Settings()
    assert (settings.drain_timeout, settings.grace, settings.lease) == (300, 5, 15)
    assert "running jobs get 5 minutes to finish" in text
    assert "5 s later its process gets SIGTERM, 5 s after that SIGKILL" in text
    assert "lease of 15 s" in text


def test_stop_timeouts_in_deploy_are_longer_than_a_drain():
    settings = Settings()
    least = settings.drain_timeout + 2 * settings.grace + 10
    for file, pattern in (
        ("jobherd.service", r"^TimeoutStopSec=(\d+)$"),
        ("compose.yaml", r"stop_grace_period: (\d+)s$"),
        ("kubernetes.yaml", r"terminationGracePeriodSeconds: (\d+)$"),
    ):
        found = re.search(pattern, (ROOT / "deploy" / file).read_text(), re.MULTILINE)
        assert found is not None, file
        assert int(found[1]) >= least, file


def test_systemd_restarts_the_service_except_after_usage_or_configuration_errors():
    found = re.search(
        r"^RestartPreventExitStatus=(.+)$", (ROOT / "deploy" / "jobherd.service").read_text(), re.MULTILINE
    )
    assert found is not None
    assert {int(code) for code in found[1].split()} == {ExitCode.USAGE, ExitCode.CONFIGURATION}


def test_deploy_files_name_existing_settings_and_health_paths():
    health = (ROOT / "workers" / "web" / "health.py").read_text()
    for file in sorted((ROOT / "deploy").iterdir()):
        if file.is_file():
            text = file.read_text()
            for variable in re.findall(r"\bJOBHERD_[A-Z]+\b", text):
                assert variable.removeprefix("JOBHERD_").lower() in specifications(), f"{file.name}: {variable}"
            for path in re.findall(r"path: (/\w+)|127\.0\.0\.1:8790(/\w+)", text):
                assert f'"{"".join(path)}"' in health, f"{file.name}: {path}"
