"""Upgrade supervisors one after another under load.

Supervisors of an earlier commit run while this version migrates their database; then supervisors of
this version replace them one after another.

The earlier code is a `git worktree` of the last commit with fewer migrations (--behind N: the last
commit before the latest N migrations). The contract: migrations are forward only, and the newer
version migrates. Running older supervisors continue, woken by notifications or their poll, until
they are replaced. An older supervisor does not start on a newer schema, and logs why. Nothing is lost
and nothing ends twice.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from tests.faults.campaign import QUICK, WORK, Campaign
from tests.support.checkout import import_path
from tests.support.figures import Report
from tests.support.ground import SETTINGS, arguments
from tests.support.herd import ROOT, Herd
from tests.support.postgres import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

LATER = sorted(str(path) for path in (ROOT / "sql" / "migrations").glob("*.sql"))
"""The migrations after the baseline."""
MIGRATE = "import sys, psycopg, jobherd.sql.migrate as m; c = psycopg.connect(sys.argv[1], autocommit=True); print(m.migrate(c), m.__file__)"


def main() -> int:
    given = arguments(__doc__, rate=30.0, behind=1)
    with earlier(given.behind) as (commit, old), Cluster(SETTINGS) as cluster, cluster.database() as dsn:
        report = Report(f"upgrade: from {commit} to this version, under load", given.seed)
        steps, place = run(old, MIGRATE, dsn).split()
        assert place.startswith(str(old)), place
        report.fact("migrations of the earlier version", steps)
        report.on(dsn)
        with Campaign(report, dsn, seed=given.seed, rate=given.rate, herds=2, root=old) as field:
            field.work_on(20)
            report.fact("migrations applied under them", run(ROOT, MIGRATE, dsn).split()[0])
            took = field.work_on(20)
            report.fact("seconds to 20 more jobs by the earlier version on the newer schema", f"{took:.1f}")
            refused = Herd(dsn, WORK, *QUICK, workers=1, wait=False, root=old)
            with refused:
                code = refused.wait()
            said = " ".join(event.line for event in refused.events)
            report.holds("the earlier version no longer starts", code == 78, code)
            report.holds(
                "the earlier version logs the reason",
                "a newer version has migrated it; upgrade this one" in said,
                said[:200],
            )
            before = list(field.herds)
            for number, herd in enumerate(before):
                newer = Herd(dsn, WORK, *QUICK, workers=2)
                field.adopt(newer)
                report.holds(f"supervisor {number + 1} of the earlier version exited with 0", herd.stop() == 0)
                field.herds.remove(herd)
                field.work_on(20)
            field.families = [herd.children() for herd in field.herds]
            field.finish()
            bad = field.audit.run(
                "SELECT id, state, attempts FROM jobherd.history WHERE state <> 'completed' OR attempts > 1"
            )
            report.holds("every job completed in its first attempt", not bad, bad[:5] if bad else "")
            tracebacks = [event.line for herd in before for event in herd.events if "Traceback" in event.line]
            report.holds("no traceback in the log of the earlier version", not tracebacks, tracebacks[:1] or "")
    return report.end()


def run(root: Path, program: str, *words: str) -> str:
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run(
            [sys.executable, "-c", program, *words],
            cwd=elsewhere,
            env={"PYTHONPATH": import_path(root)},
            capture_output=True,
            text=True,
            check=True,
        )
    return done.stdout


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@contextlib.contextmanager
def earlier(behind: int) -> Iterator[tuple[str, Path]]:
    """Yield the last commit before the latest `behind` migrations, and a checkout of it."""
    added = git("log", "--first-parent", "--diff-filter=A", "--format=%h", "--", *LATER).split() if LATER else []
    if len(added) < behind:
        sys.exit("there is no migration after the baseline yet: nothing to upgrade")
    commit = git("rev-parse", "--short", f"{added[behind - 1]}^")
    with tempfile.TemporaryDirectory(prefix="jobherd-earlier-") as folder:
        place = Path(folder, "checkout")
        git("worktree", "add", "--detach", str(place), commit)
        try:
            yield commit, place
        finally:
            git("worktree", "remove", "--force", str(place))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except psycopg.OperationalError as problem:
        sys.exit(f"the script itself lost the database: {problem}")
