"""Fill the disk under PostgreSQL, then slow it down.

The disk of the tables is full, then the disk of the WAL, and the server panics. Then each sync takes
0.2 s and 2 s longer.

With full tables, enqueues are rejected as a whole and outcomes are written later. With a full WAL
disk the server ends, and is started again once there is space. On a slow disk everything is late,
and no lease is lost. Needs root for the small file systems, and strace for the delay. Without root
it prints that it skips the campaign; without strace it skips the delays.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from jobherd import sql
from jobherd.sql.migrate import migrate
from tests.faults.campaign import Campaign
from tests.support.figures import Report
from tests.support.ground import AHEAD, arguments
from tests.support.postgres import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
LIMIT = 120.0
SETTINGS = {
    "shared_buffers": "16MB",
    "max_wal_size": "96MB",
    "min_wal_size": "32MB",
    "wal_recycle": "off",
    "wal_init_zero": "on",
}


def main() -> int:
    given = arguments(__doc__, full=10.0, slow=20.0, rate=60.0)
    report = Report("disk: full tables, a full log, and a slow one", given.seed)
    if os.geteuid() != 0:
        print("skipped: small file systems are mounted by root alone")
        return 0
    with ExitStack() as stack:
        cluster = Cluster(SETTINGS)
        stack.callback(cluster.close)
        tables = stack.enter_context(small(cluster, 96))
        log = stack.enter_context(small(cluster, 224))
        move_log(cluster, log)
        cluster.start()
        with psycopg.connect(cluster.dsn(), autocommit=True) as owner:
            owner.execute(f"CREATE TABLESPACE small LOCATION '{tables}'")
            owner.execute("CREATE DATABASE kept TABLESPACE small")
        dsn = cluster.dsn("kept")
        with psycopg.connect(dsn, autocommit=True) as connection:
            migrate(connection)
            connection.execute(sql.load("maintenance/keep_partitions"), {"ahead": AHEAD, "most": None})
        report.on(dsn)
        with Campaign(report, dsn, seed=given.seed, rate=given.rate) as field:
            field.work_on(20)
            full_tables(report, field, dsn, tables, given.full)
            full_log(report, field, cluster, log, given.full)
            before = field.audit.run("SELECT id FROM jobherd.supervisors ORDER BY id")
            for delay in (0.2, 2.0):
                slow(report, field, cluster, delay, given.slow)
            report.holds(
                "no supervisor lost its lease because of a slow disk",
                field.audit.run("SELECT id FROM jobherd.supervisors ORDER BY id") == before,
            )
            reclaimed = [line for herd in field.herds for line in herd.messages("were reclaimed")]
            report.holds("no jobs were reclaimed", not reclaimed, reclaimed[:3] or "")
            field.work_on(20)
            field.finish(told=400)
            bad = field.audit.run("SELECT id, state, attempts FROM jobherd.history WHERE state <> 'completed'")
            report.holds("every job completed", not bad, bad[:5] if bad else "")
    return report.end()


def full_tables(report: Report, field: Campaign, dsn: str, place: Path, seconds: float) -> None:
    """Fill the disk of the tables: enqueues are rejected, and none of their rows exist."""
    marks = [herd.mark() for herd in field.herds]
    refused = taken = 0
    with filled(place), psycopg.connect(dsn, autocommit=True) as producer:
        until = time.monotonic() + seconds
        payload = '{"text": "%s"}' % ("x" * 8000)
        while time.monotonic() < until:
            try:
                producer.execute("SELECT jobherd.enqueue('fault:unknown', %s::jsonb, '{\"delay\": 86400}')", [payload])
                taken += 1
            except psycopg.errors.DiskFull:
                refused += 1
                time.sleep(0.05)
    said = [herd.mark() - mark for herd, mark in zip(field.herds, marks, strict=True)]
    field.audit.reconnect()
    back = field.work_on(5, LIMIT)
    stored = field.audit.run("SELECT count(*) FROM jobherd.scheduled WHERE kind = 'fault:unknown'")[0][0]
    field.audit.run("DELETE FROM jobherd.scheduled WHERE kind = 'fault:unknown'")
    report.fact(
        "full tables",
        f"{refused} enqueues refused, {taken} taken; {back:.1f} s to 5 more jobs; lines a supervisor: {said}",
    )
    report.holds("full tables: some enqueues were rejected", refused > 0, refused)
    report.holds("full tables: accepted jobs exist, rejected ones do not", stored == taken, f"{stored} of {taken}")
    report.holds("full tables: few log lines", max(said) <= 60, said)


def full_log(report: Report, field: Campaign, cluster: Cluster, place: Path, seconds: float) -> None:
    """Fill the disk of the WAL.

    The server panics each time it starts, until there is space again.
    """
    size = cluster.log.stat().st_size
    with filled(place):
        until = time.monotonic() + LIMIT
        while (b"PANIC" not in (said := cluster.log.read_bytes()[size:])) and time.monotonic() < until:
            with (
                psycopg.connect(cluster.dsn(), autocommit=True, connect_timeout=5)
                if alive(cluster)
                else ExitStack() as filler
            ):
                try:
                    filler.execute("SELECT pg_logical_emit_message(false, 'fill', repeat('x', 4000000))")  # type: ignore[union-attr]
                except (psycopg.Error, AttributeError):
                    time.sleep(0.2)
        report.holds("full log: the server panicked", b"PANIC" in said)
        time.sleep(seconds)
    if not ended(cluster):
        cluster.kill()
    cluster.start()
    field.audit.reconnect()
    report.fact("full log", f"{field.work_on(5, LIMIT):.1f} s from the server's start to 5 more jobs")


def slow(report: Report, field: Campaign, cluster: Cluster, delay: float, seconds: float) -> None:
    """Make each sync of the server take `delay` seconds longer."""
    if shutil.which("strace") is None:
        report.fact(f"each sync {delay:g} s later", "skipped: there is no strace")
        return
    pids = [word for pid in (cluster.pid, *backends(cluster.pid)) for word in ("-p", str(pid))]
    what = [
        "strace",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "trace=fsync,fdatasync",
        "-e",
        f"inject=fsync,fdatasync:delay_exit={delay * 1e6:.0f}",
        *pids,
    ]
    tracer = subprocess.Popen(what, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    done = field.completed()
    time.sleep(seconds)
    done = field.completed() - done
    told = tracer.poll()
    tracer.send_signal(signal.SIGINT)
    _, words = tracer.communicate(timeout=LIMIT)
    report.fact(
        f"each sync {delay:g} s later",
        f"{done} jobs in {seconds:g} s" if told is None else f"strace ended: {words.decode()[:200]}",
    )


def backends(postmaster: int) -> list[int]:
    with open(f"/proc/{postmaster}/task/{postmaster}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def alive(cluster: Cluster) -> bool:
    try:
        psycopg.connect(cluster.dsn(), connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


def ended(cluster: Cluster) -> bool:
    """Return whether the postmaster has exited without a request; if so, drop its process."""
    process = cluster._postmaster
    if process is None or process.poll() is None:
        return False
    cluster._postmaster = None
    return True


@contextmanager
def small(cluster: Cluster, mib: int) -> Iterator[Path]:
    """Mount a file system of `mib` MiB that belongs to the server's user."""
    owner = cluster.data.stat()
    place = Path(tempfile.mkdtemp(prefix="jobherd-disk-", dir="/tmp"))
    subprocess.run(
        [
            "mount",
            "-t",
            "tmpfs",
            "-o",
            f"size={mib}m,mode=700,uid={owner.st_uid},gid={owner.st_gid}",
            "jobherd-test",
            place,
        ],
        check=True,
    )
    try:
        yield place
    finally:
        if cluster._postmaster is not None:
            cluster.stop("immediate")
        subprocess.run(["umount", "--lazy", place], check=False)
        place.rmdir()


def move_log(cluster: Cluster, place: Path) -> None:
    inside = place / "pg_wal"
    shutil.copytree(cluster.data / "pg_wal", inside)
    owner = cluster.data.stat()
    for folder, names, files in os.walk(inside):
        for name in (".", *names, *files):
            os.chown(Path(folder, name), owner.st_uid, owner.st_gid)
    shutil.rmtree(cluster.data / "pg_wal")
    (cluster.data / "pg_wal").symlink_to(inside)


@contextmanager
def filled(place: Path) -> Iterator[None]:
    """Fill the file system until the end of the block."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(MIB // 16))
        except OSError:
            pass
    try:
        yield
    finally:
        ballast.unlink()


if __name__ == "__main__":
    sys.exit(main())
