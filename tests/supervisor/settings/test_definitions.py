"""Settings: their sources, allowed values, errors and reference page."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from jobherd.supervisor.policy.child_kinds import KINDS
from jobherd.supervisor.settings.child import child_settings, for_kind
from jobherd.supervisor.settings.definitions import Settings, specifications
from jobherd.supervisor.settings.page import render_settings_markdown
from jobherd.supervisor.settings.sources import SettingsError, flag_of, variable_of
from jobherd.workers.process.spec import SECRETS

ROOT = Path(__file__).resolve().parents[3]


def load(flags=None, environ=None, directory=Path("/nonexistent")) -> Settings:
    return Settings.load(flags or {}, environ=environ or {}, directory=directory)


def refused(flags=None, environ=None, directory=Path("/nonexistent")) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        load(flags, environ, directory)
    return caught.value.problems


@pytest.mark.promise("A44", "D25")
def test_settings_have_their_defaults_if_none_is_given():
    assert load() == Settings()
    assert (Settings().workers, Settings().lease, Settings().http, Settings().queues) == (
        4,
        15.0,
        ("127.0.0.1", 8790),
        (),
    )


@pytest.mark.promise("A45", "A46", "C43")
def test_flags_override_environment_which_overrides_file_which_overrides_defaults(tmp_path):
    (tmp_path / "jobherd.toml").write_text("workers = 1\nclaim_size = 1\npoll = 1\n")
    found = load({"workers": "3"}, {"JOBHERD_WORKERS": "2", "JOBHERD_CLAIM_SIZE": "2"}, tmp_path)
    assert (found.workers, found.claim_size, found.poll, found.lease) == (3, 2, 1.0, 15.0)
    assert [found.source(name) for name in ("workers", "claim_size", "poll", "lease")] == [
        "--workers", "JOBHERD_CLAIM_SIZE", "jobherd.toml", "default",
    ]  # fmt: skip


def test_value_equal_to_the_default_still_overrides_the_next_source(tmp_path):
    (tmp_path / "jobherd.toml").write_text("workers = 9\n")
    assert load({"workers": "4"}, {"JOBHERD_WORKERS": "7"}, tmp_path).workers == 4
    assert load({}, {"JOBHERD_WORKERS": "4"}, tmp_path).workers == 4
    assert load({"max_jobs": "0"}, {"JOBHERD_MAX_JOBS": "5"}).max_jobs == 0
    assert load({}, {"JOBHERD_UNTIL_EMPTY": "no"}).source("until_empty") == "JOBHERD_UNTIL_EMPTY"


def test_folder_handlers_is_the_default_unless_it_is_jobherds_own(tmp_path):
    (tmp_path / "handlers").mkdir()
    assert (load(directory=tmp_path).handlers, load(directory=tmp_path).source("handlers")) == (
        ("handlers",),
        "default",
    )
    assert load({}, {"JOBHERD_HANDLERS": "jobs"}, tmp_path).handlers == ("jobs",)
    (tmp_path / "jobherd.toml").write_text("handlers = []\n")
    assert load(directory=tmp_path).handlers == load(directory=ROOT).handlers == ()


def test_empty_environment_variable_counts_as_not_set():
    found = load({}, {"JOBHERD_WORKERS": "", "JOBHERD_DSN": "", "DATABASE_URL": "postgresql:///app"})
    assert (found.workers, found.dsn, found.source("dsn")) == (4, "postgresql:///app", "DATABASE_URL")


@pytest.mark.promise("C43")
def test_jobherd_dsn_overrides_database_url():
    both = {"JOBHERD_DSN": "dbname=a", "DATABASE_URL": "dbname=b"}
    assert load({}, both).dsn == "dbname=a"
    assert load({"dsn": "dbname=c"}, both).dsn == "dbname=c"
    assert load({}, {"DATABASE_URL": "postgresql+asyncpg://u@h/d"}).dsn == "postgresql://u@h/d"


def test_pyproject_is_read_only_if_there_is_no_jobherd_toml(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "x"\n[tool.jobherd]\nmax-jobs = 7\nqueues = ["a", "b"]\n'
    )
    assert (load(directory=tmp_path).max_jobs, load(directory=tmp_path).queues) == (7, ("a", "b"))
    (tmp_path / "jobherd.toml").write_text("max_jobs = 8\n")
    assert (load(directory=tmp_path).max_jobs, load(directory=tmp_path).queues) == (8, ())


def test_error_names_setting_source_value_and_range(tmp_path):
    (tmp_path / "jobherd.toml").write_text("lease = 1\n")
    assert refused({"workers": "65"}, {"JOBHERD_CLAIM_SIZE": "many"}, tmp_path) == (
        'lease = 1 (from jobherd.toml): must be a duration from 3s to 1h ("30s", "5m", or a number of seconds)',
        "claim_size = 'many' (from JOBHERD_CLAIM_SIZE): must be a whole number from 1 to 1,000",
        "workers = '65' (from --workers): must be a whole number from 0 to 64",
    )


def test_error_for_an_unknown_setting_suggests_the_closest_name(tmp_path):
    (tmp_path / "jobherd.toml").write_text("worker = 3\n")
    assert refused(directory=tmp_path) == ("worker (from jobherd.toml): unknown setting; did you mean workers?",)


def test_error_names_a_settings_file_that_cannot_be_parsed(tmp_path):
    (tmp_path / "jobherd.toml").write_text("workers = \n")
    assert "jobherd.toml cannot be read" in refused(directory=tmp_path)[0]
    (tmp_path / "jobherd.toml").unlink()
    (tmp_path / "pyproject.toml").write_text("[tool]\njobherd = 3\n")
    assert "must be a table" in refused(directory=tmp_path)[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("workers = " + "9" * 5000, "cannot be read"),
        ("workers = 0x" + "f" * 5000, "too long"),
        ("queues = " + "[" * 5000 + "]" * 5000, "cannot be read"),
    ],
)
def test_file_with_values_that_python_cannot_parse_is_rejected(tmp_path, text, says):
    (tmp_path / "jobherd.toml").write_text(text)
    assert says in refused(directory=tmp_path)[0]


def test_errors_and_repr_never_contain_the_password_of_a_dsn():
    problems = refused({"dsn": "hunter2 is my password"}, {"JOBHERD_LISTEN_DSN": "postgresql://u:hunter2@[h/d"})
    assert len(problems) == 2
    assert not any("hunter2" in problem for problem in problems)
    assert "hunter2" not in repr(load({"dsn": "postgresql://u:hunter2@h/d"}))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("workers", "0", 0), ("workers", "64", 64), ("workers", " 8 ", 8), ("workers", 8, 8),
        ("drain_timeout", "10m", 600.0), ("drain_timeout", 2.5, 2.5), ("drain_timeout", "1h30m", 5400.0), ("drain_timeout", "0", 0.0),
        ("max_rss", "900MB", 900_000_000), ("max_rss", "2GiB", 2 << 30), ("max_rss", "64M", 64 << 20), ("max_rss", 32_000_000, 32_000_000),
        ("max_rss", "0", 0), ("max_age", "1d", 86400.0), ("max_age", "0", 0.0), ("jitter", "0.25", 0.25),
        ("queues", "a, b,,a", ("a", "b")), ("queues", ["a", "b"], ("a", "b")),
        ("queues", "high:2,batch*,*", ("high:2", "batch*", "*")), ("queue_priorities", "a=-1, b*=2", (("a", -1), ("b*", 2))),
        ("queue_weights", "mail=1,b*=3", (("mail", 1), ("b*", 3))), ("queue_order", "strict", "strict"),
        ("queue_max_concurrency", "media=2", (("media", 2),)), ("queue_max_concurrency", {"media": 2}, (("media", 2),)),
        ("handlers", "./a:/b:c.d", ("./a", "/b", "c.d")), ("handlers", ["./a:b", "c"], ("./a:b", "c")),
        ("http", "0.0.0.0:80", ("0.0.0.0", 80)), ("http", ":8790", ("0.0.0.0", 8790)), ("http", "[::1]:1", ("::1", 1)),
        ("http", "off", None), ("http", False, None), ("http", "localhost:0", ("localhost", 0)),
        ("log_level", "debug", "DEBUG"), ("log_format", "JSON", "json"), ("until_empty", "yes", True), ("until_empty", False, False),
        ("app_dir", "/srv/app", Path("/srv/app")), ("schema", "jobs_eu", "jobs_eu"),
        ("gateway", "10.0.0.1:9000", ("10.0.0.1", 9000)), ("gateway", "jobs.example", ("jobs.example", 9091)),
        ("gateway", ":9092", ("0.0.0.0", 9092)), ("gateway", "[::1]", ("::1", 9091)), ("gateway", "[::1]:7", ("::1", 7)),
        ("gateway", "unix:/run/jobs.sock", "unix:/run/jobs.sock"), ("gateway", "off", None), ("gateway", False, None),
        ("gateway_access", "/etc/access.toml", Path("/etc/access.toml")), ("gateway_linger", "0", 0.0),
    ],
)  # fmt: skip
def test_valid_values_are_parsed(name, text, value):
    found = getattr(load({name: text}), name)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("workers", "-1"), ("workers", "4.0"), ("workers", 4.0), ("workers", True), ("workers", "9" * 5000), ("workers", ""),
        ("max_workers", "0"), ("claim_size", "0"), ("claim_size", "1001"), ("poll", "0.5"), ("poll", "nan"), ("poll", "inf"), ("poll", True),
        ("poll", "5 parsecs"), ("lease", "2s"), ("max_age", "0.5"), ("max_age", "-1"), ("max_rss", "1MB"), ("max_rss", "1XB"),
        ("max_rss", "-900MB"), ("jitter", "0.6"), ("jitter", "nan"), ("queues", "A"), ("queues", ["a", 3]), ("queues", 3),
        ("queues", "a:0"), ("queues", "a*b"), ("queue_max_concurrency", "a=0"), ("queue_max_concurrency", "a"), ("queue_priorities", "a=x"),
        ("queue_weights", "a=0"), ("queue_order", "fifo"),
        ("coalesce_notifies", "0"), ("max_claim_batch", "1001"), ("max_claim_per_worker", "-1"),
        ("http", "8790"), ("http", "a:b"), ("http", "a:70000"), ("http", "::1:80"), ("http", True), ("http", 8790),
        ("log_level", "loud"), ("log_format", 3), ("until_empty", "maybe"), ("app_dir", ""), ("app_dir", 3), ("schema", "pg_x"),
        ("schema", "a; drop"), ("schema", 3), ("dsn", " "), ("dsn", 5), ("handlers", 3),
        ("app_dir", "~nobody-of-that-name/app"),
        ("gateway", "a:b"), ("gateway", "::1"), ("gateway", "a:"), ("gateway", ""), ("gateway", "a:70000"), ("gateway", 9091),
        ("gateway", "unix:"), ("gateway", "unix:/" + "x" * 107), ("gateway_access", ""), ("gateway_streams", "0"),
    ],
)  # fmt: skip
def test_invalid_values_are_rejected_with_the_allowed_range(name, value):
    (problem,) = refused({name: value})
    assert problem.startswith(name)
    assert f"(from {flag_of(name)}): must be {specifications()[name].reader.allowed}" in problem


@pytest.mark.parametrize("port", ["abc", "0", "70000", "5432,x", "-1"])
@pytest.mark.parametrize("name", ["dsn", "listen_dsn"])
def test_error_for_an_invalid_port_omits_the_password(name, port):
    (problem,) = refused({name: f"host=a,b port={port} password=hunter2"})
    assert problem.endswith("; a port is a whole number from 1 to 65,535")
    assert "hunter2" not in problem


def test_dsn_may_omit_ports_or_list_one_for_each_host():
    for dsn in (
        "host=a,b port=5432,6432",
        "host=a,b port=,6432",
        "postgresql://a:1,b/x",
        "host=a port=' 5432 '",
        "dbname=x",
    ):
        assert load({"dsn": dsn}).dsn == dsn


def test_error_names_an_unknown_connection_parameter_and_omits_the_password():
    """Other libraries add their own parameters to DATABASE_URL. libpq's own message would repeat the address."""
    for dsn, name in (
        ("postgresql://app:hunter2@db/jobs?pgbouncer=true&connection_limit=1", "pgbouncer"),
        ("postgresql://app:hunter2@db/jobs?schema=public", "schema"),
        ("host=db password=hunter2 pool_size=5", "pool_size"),
    ):
        (problem,) = refused({"dsn": dsn})
        assert f"PostgreSQL has no connection parameter '{name}'; remove it from the address" in problem
        assert "hunter2" not in problem


def test_undefined_or_invalid_service_is_rejected(tmp_path, monkeypatch):
    services = tmp_path / "services"
    services.write_text(
        "[app]\nhost=a,b\nport=1,2\nhostaddr=192.0.2.1,192.0.2.2\npassword=hunter2\n[broken]\nno_option=1\n"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    assert load({"dsn": "service=app"}).dsn == "service=app"
    for service in ("nope", "broken"):
        (problem,) = refused({"dsn": f"postgresql://ada:hunter2@a/x?service={service}"})
        assert "must be a PostgreSQL address" in problem
        assert "hunter2" not in problem
    assert "no service 'nope' can be read" in refused({"dsn": "service=nope"})[0]


def test_contradicting_settings_are_rejected():
    (problem,) = refused({"workers": "9"}, {"JOBHERD_MAX_WORKERS": "8"})
    assert "workers = 9 (from --workers) is more than max_workers = 8 (from JOBHERD_MAX_WORKERS)" in problem
    assert "respawn_max" in refused({"respawn_initial": "50"})[0]
    assert "db_retry_max" in refused({"db_retry_initial": "50"})[0]
    (problem,) = refused({"queues": "high:3,low:1,other", "workers": "4"})
    assert (
        "queues = high:3,low:1,other (from --queues) reserves 4 workers for single queues, workers = 4 (from --workers)"
        in problem
    )


@pytest.mark.promise("C21")
def test_queues_are_served_in_the_given_order_or_by_queue_priorities():
    assert load({"queues": "b,a:1", "workers": "2"}).served == ("b", "a")
    assert load({"queues": "b,a,c", "queue_priorities": "a=-1,b=9"}).served == ("a", "c", "b")
    assert load({"queue_priorities": "bulk=5,high=-1"}).served == ("high", "*", "bulk"), (
        "all other queues are served with priority 0"
    )


def test_queue_weights_are_rejected_with_strict_queue_order():
    (problem,) = refused({"queue_weights": "a=2", "queue_order": "strict"})
    assert problem == (
        "queue_weights (from --queue-weights) has no effect with queue_order = strict (from --queue-order): remove one of them"
    )


@pytest.mark.promise("C19", "C20")
def test_claim_size_is_the_lowest_of_its_limits():
    assert child_settings(load({}), dsn="x").most_claimed == 500
    assert child_settings(load({"max_claim_batch": "20"}), dsn="x").most_claimed == 20
    assert child_settings(load({"max_claim_batch": "20", "max_claim_per_worker": "7"}), dsn="x").most_claimed == 7


def test_serves_matches_queue_names_and_prefixes():
    served = load({"queues": "high:1,batch*"})
    assert [queue for queue in ("high", "higher", "batch", "batch-eu", "b") if served.serves(queue)] == [
        "high",
        "batch",
        "batch-eu",
    ]
    assert load({}).serves("any")


def test_schema_named_like_a_reserved_word_is_rejected_with_the_reason():
    assert "'order' is a reserved word of SQL" in refused({"schema": "order"})[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [("queue_max_concurrency", "a=1,a=2"), ("queue_priorities", "b*=1,a=2,b*=0"), ("queues", "a:1,b,a:2")],
)
def test_queue_that_is_named_twice_is_rejected(name, value):
    assert "is named twice" in refused({name: value})[0]


def test_load_reads_only_the_settings_in_only():
    found = Settings.load(
        {}, environ={"JOBHERD_WORKERS": "many", "JOBHERD_SCHEMA": "x"}, directory=Path("/nonexistent"), only=("schema",)
    )
    assert (found.schema, found.workers) == ("x", 4)


def test_reload_reads_the_changed_file_and_keeps_the_flags(tmp_path, monkeypatch):
    monkeypatch.delenv("JOBHERD_WORKERS", raising=False)
    file = tmp_path / "jobherd.toml"
    file.write_text("claim_size = 2\n")
    first = Settings.load({"workers": "3"}, directory=tmp_path)
    file.write_text("claim_size = 5\nworkers = 9\n")
    second = first.again()
    assert (first.claim_size, second.claim_size, second.workers) == (2, 5, 3)
    file.write_text("claim_size = 0\n")
    with pytest.raises(SettingsError):
        first.again()


def test_reload_fails_if_the_settings_file_is_gone(tmp_path, monkeypatch):
    for name in ("WORKERS", "CLAIM_SIZE"):
        monkeypatch.delenv(f"JOBHERD_{name}", raising=False)
    ours, other = tmp_path / "jobherd.toml", tmp_path / "pyproject.toml"
    other.write_text("[tool.jobherd]\nworkers = 7\n")
    first = Settings.load(directory=tmp_path)
    other.write_text("[tool.other]\n")
    with pytest.raises(SettingsError, match=r"pyproject\.toml is gone, or holds no settings any more: put it back"):
        first.again()
    ours.write_text("workers = 8\n")  # overrides pyproject.toml
    second = first.again()
    other.write_text("[tool.jobherd]\nworkers = 7\n")
    ours.unlink()
    with pytest.raises(SettingsError, match=r"jobherd\.toml is gone"):
        second.again()
    ours.write_text("")
    assert (second.workers, second.again().workers) == (8, 4)


def test_reload_keeps_and_lists_settings_that_need_a_restart(tmp_path, monkeypatch):
    """If a child used another schema than the supervisor, it would claim without a registration there."""
    for name in ("WORKERS", "MAX_WORKERS", "SCHEMA", "DSN", "HTTP"):
        monkeypatch.delenv(f"JOBHERD_{name}", raising=False)
    file = tmp_path / "jobherd.toml"
    file.write_text("max_workers = 4\nschema = 'one'\n")
    first = Settings.load(directory=tmp_path)
    file.write_text("max_workers = 8\nschema = 'two'\nhttp = '127.0.0.1:1'\ndsn = 'dbname=other'\nworkers = 3\n")
    second = first.again()
    assert (second.max_workers, second.schema, second.http, second.dsn) == (4, "one", first.http, None)
    assert second.workers == 3
    assert second.given.waiting == ("dsn", "schema", "max_workers", "http")
    file.write_text("max_workers = 8\nworkers = 5\n")
    with pytest.raises(
        SettingsError,
        match=r"workers = 5 \(from .*\) is more than max_workers = 4 \(from the start of this supervisor\)",
    ):
        first.again()


def test_child_settings_contain_what_children_need():
    told = child_settings(
        load({"dsn": "dbname=a", "queues": "x,y", "db_retry_max": "9", "log_format": "json"}), dsn="dbname=b"
    )
    assert (told.dsn, told.served, told.db_retry_max, told.log_format, told.grace) == (
        "dbname=b",
        ("x", "y"),
        9.0,
        "json",
        5.0,
    )


def test_settings_are_immutable():
    with pytest.raises(FrozenInstanceError):
        Settings().workers = 5


def test_every_field_is_a_setting_with_a_valid_default():
    told = specifications()
    assert set(told) == {each.name for each in fields(Settings)} - {"given"}
    for each in fields(Settings):
        if each.name in told and each.default not in (None, ()):
            value = f"{each.default[0]}:{each.default[1]}" if each.name == "http" else each.default
            assert told[each.name].reader.read(value) == each.default


def test_settings_page_is_up_to_date():
    page = render_settings_markdown()
    assert (ROOT / "docs" / "reference" / "settings.md").read_text() == page, (
        "run: python -m jobherd.supervisor.settings.page > docs/reference/settings.md"
    )
    for name, told in specifications().items():
        for words in (f"### `{name}`", flag_of(name), variable_of(name), told.explanation, told.reader.allowed):
            assert words in page


@pytest.mark.promise("C26", "C29", "C30", "C31", "C32")
@pytest.mark.parametrize(
    ("name", "default", "least", "most", "beyond"),
    [
        ("db_retry_initial", 0.5, "100ms", "60s", ("99ms", "61s")),
        ("db_retry_max", 30.0, "500ms", "300s", ("499ms", "301s")),
        ("db_retry_max_attempts", 0, "0", "10000", ("-1", "10001")),
        ("poll", 5.0, "1s", "300s", ("999ms", "301s")),
    ],
)
def test_reconnect_and_poll_settings_have_the_documented_defaults_and_ranges(name, default, least, most, beyond):
    assert getattr(Settings(), name) == default
    others = {"db_retry_max": "300s"} if name == "db_retry_initial" else {"db_retry_initial": "100ms"}
    for value in (least, most):
        load({name: value, **others})
    for value in beyond:
        (problem,) = refused({name: value, **others})
        assert f"{name} = " in problem
        assert f"must be {specifications()[name].reader.allowed}" in problem


def test_settings_load_in_a_working_directory_that_was_removed(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert Settings.load({"workers": "3"}, environ={}).again().workers == 3


DATABASE_ADDRESSES = {"dsn", "listen_dsn"}


def secret_settings():
    """Return the names of all secret settings but the addresses of the database."""
    return {name for name, told in specifications().items() if told.secret} - DATABASE_ADDRESSES


def test_each_secret_reaches_one_kind_of_child_only():
    settings = load({"dsn": "postgresql:///x", **dict.fromkeys(secret_settings(), "s" * 20)})
    given = {kind.name: for_kind(child_settings(settings), kind.name) for kind in KINDS}
    reached = {name: [kind for kind, each in given.items() if getattr(each, name)] for name in secret_settings()}
    assert reached == {
        "dashboard_view_token": ["web"],
        "dashboard_operate_token": ["web"],
        "webhook_secret": ["worker"],
        "gateway_token": ["gateway"],
    }
    assert all(each.webhooks for each in given.values())


def test_every_secret_except_database_addresses_is_removed_from_childrens_environment():
    assert {variable_of(name) for name in secret_settings()} == set(SECRETS)
