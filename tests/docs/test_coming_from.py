"""Tests that the script for the tables of django-celery-beat creates the schedules that they describe."""

from __future__ import annotations

import psycopg

from tests.docs.pages import blocks, named

TABLES = """
CREATE TABLE django_celery_beat_crontabschedule (
    id int PRIMARY KEY, minute text, hour text, day_of_week text, day_of_month text, month_of_year text, timezone text);
CREATE TABLE django_celery_beat_intervalschedule (id int PRIMARY KEY, every int, period text);
CREATE TABLE django_celery_beat_periodictask (
    id int PRIMARY KEY, name text, task text, crontab_id int, interval_id int, args text DEFAULT '[]', kwargs text DEFAULT '{}',
    queue text, expires timestamptz, expire_seconds int, one_off bool DEFAULT false, start_time timestamptz,
    enabled bool DEFAULT true);
INSERT INTO django_celery_beat_crontabschedule VALUES
    (1, '0, 30', '3', 'mon-fri', '*', '*', 'Europe/Berlin'), (2, '0', '0', 'fri', '13', '*', 'UTC');
INSERT INTO django_celery_beat_intervalschedule VALUES (1, 15, 'minutes'), (2, 9, 'microseconds');
INSERT INTO django_celery_beat_periodictask (id, name, task, crontab_id, interval_id, kwargs, queue, expire_seconds, start_time) VALUES
    (1, 'Import of contacts', 'proj.tasks.Import_contacts', 1, NULL, '{"region": "eu"}', 'imports', 300, NULL),
    (2, 'poll', 'proj.tasks.poll', NULL, 1, '{}', NULL, NULL, '2030-01-01 00:00+00'),
    (3, 'friday-the-13th', 'a.b', 2, NULL, '{}', NULL, NULL, NULL), (4, 'fast', 'a.b', NULL, 2, '{}', NULL, NULL, NULL),
    (5, 'positional', 'a.b', 1, NULL, '{}', NULL, NULL, NULL), (6, 'disabled', 'a.b', 1, NULL, '{}', NULL, NULL, NULL);
UPDATE django_celery_beat_periodictask SET args = '[7]' WHERE id = 5;
UPDATE django_celery_beat_periodictask SET enabled = false WHERE id = 6;
"""


def test_script_turns_django_celery_beat_tables_into_schedules(database):
    [script] = [block for block in blocks(named("from-celery")) if block.language == "sql"]
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)
        connection.execute(script.text.encode())
        rows = connection.execute(
            "SELECT name, kind, cron, every, tz, payload, options FROM jobherd.schedules ORDER BY name"
        ).fetchall()
    starts = {"starts_at": "2030-01-01T00:00:00+00:00"}
    assert rows == [
        ("import-of-contacts", "proj.tasks.import_contacts", "0,30 3 * * mon-fri", None, "Europe/Berlin", {"region": "eu"},
         {"queue": "imports", "good_for": 300}),
        ("poll", "proj.tasks.poll", None, 900, "UTC", {}, starts),
    ]  # fmt: skip
