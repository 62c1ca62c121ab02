"""org:github_import_discover and org:github_import_repo: mirror an organization's repositories.

A discovery runs page by page. Each page's repositories, their jobs and the address of the next page
are written in one transaction, so a discovery that is delayed by GitHub's rate limit continues
where it was. The import's status guards the discovery. Each repository has its own job, guarded by
its own status. JOBHERD_GITHUB_URL and JOBHERD_GITHUB_TOKEN configure the address and the token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobherd import Failed, Job, Nack, Poison, Snooze, handler
from jobherd.handlers.forge import _git, _github, _mirror
from jobherd.handlers.forge._database import transaction
from jobherd.handlers.forge._pushes import repository_id
from jobherd.handlers.forge.size import size_recalc

if TYPE_CHECKING:
    from jobherd.handlers.forge._database import Database, Row
    from jobherd.handlers.forge._github import GitHub


def request_import(org: str) -> tuple[int, int]:
    """Store an import request for an organization and enqueue the discovery.

    Return the ids of the import and the job.
    Raises ValueError for a name that no organization can have.
    """
    try:
        _github.GitHub(_github.PUBLIC).first_page(org)
    except _github.NotFoundError as problem:
        raise ValueError(str(problem)) from None
    with transaction() as database:
        wanted = int(database.one("forge/insert_import", org=org)["id"])
        job = discover.options(connection=database.connection).enqueue(import_id=wanted)
        database.rows("forge/store_import_job", id=wanted, job=job)
    return wanted, job


@handler("org:github_import_discover", timeout="30m", max_attempts=20)
def discover(job: Job, import_id: int) -> dict[str, Any]:
    """Find an organization's repositories and enqueue an import of each.

    Return how many were found.

    import_id: id of the import's row, which `jobherd forge import ORG` creates. If GitHub's rate
    limit is reached, the job is retried after it ends. Raises Poison if the row or the organization
    does not exist.

    >>> discover.enqueue(import_id=3)  # doctest: +SKIP
    42
    """
    with transaction() as database:
        row = database.row("forge/show_import", id=import_id)
    if row is None:
        raise Poison(f"import {import_id} does not exist", code="IMPORT_VANISHED")
    if row["status"] == "discovered":
        return {"skipped": "this organization was discovered before", "import": import_id}
    try:
        github = _github.from_environment()
        return _discover(job, row, github)
    except _github.RateLimitError as problem:
        _note(row, str(problem), status="discovering")
        raise Nack(problem.wait, str(problem)) from None
    except _github.NotFoundError as problem:
        _note(row, str(problem), status="failed")
        raise Poison(str(problem), code="GITHUB_NOT_FOUND") from None
    except _github.GitHubError as problem:
        _note(row, str(problem), status="failed" if job.is_last_attempt else "discovering")
        raise Failed(str(problem), code="GITHUB_UNAVAILABLE") from None


def _discover(job: Job, row: Row, github: GitHub) -> dict[str, Any]:
    following: str | None = row["next_page"] or github.first_page(row["org"])
    pages = 0
    while following is not None:
        page = github.page(following)
        pages += 1
        with transaction() as database:
            status = "discovering" if page.following else "discovered"
            if (
                database.row(
                    "forge/store_discovery_progress", id=row["id"], status=status, next_page=page.following, note=None
                )
                is None
            ):
                return {"skipped": "this organization was discovered meanwhile", "import": row["id"]}
            for name, clone_url in page.repositories:
                _add(database, row["id"], github, name=name, clone_url=clone_url)
            found = database.one("forge/count_import_repos", **{"import": row["id"]})
        job.progress(0.5, f"{found['repos']} repositories on {pages} pages so far")
        following = page.following
    return {"import": row["id"], "repositories": int(found["repos"]), "refused": int(found["refused"])}


def _add(database: Database, wanted: int, github: GitHub, *, name: str, clone_url: str) -> None:
    refusal = None
    try:
        _mirror.check_name(name)
        _mirror.check_address(clone_url, scheme=github.origin[0], host=github.web_host)
    except _mirror.NameRefusedError as problem:
        refusal = str(problem)
    values = {
        "import": wanted,
        # As ASCII: a rejected name may contain anything, even a NUL, and then the database would
        # reject the whole page.
        "name": name if refusal is None else ascii(name[:200]),
        "clone_url": clone_url if refusal is None else ascii(clone_url[:500]),
        "status": "discovered" if refusal is None else "refused",
        "note": refusal,
    }
    fresh = database.row("forge/insert_import_repo", **values)
    if fresh is not None and refusal is None:
        job = import_repo.options(connection=database.connection).enqueue(import_repo_id=fresh["id"])
        database.rows("forge/store_import_repo_job", id=fresh["id"], job=job)


def _note(row: Row, note: str, *, status: str) -> None:
    """Store a note about a discovery's state for people.

    The page at which it is stays unchanged.
    """
    with transaction() as database:
        now = database.row("forge/show_import", id=row["id"])
        page = now["next_page"] if now is not None else None
        database.rows("forge/store_discovery_progress", id=row["id"], status=status, next_page=page, note=note)


@handler("org:github_import_repo", timeout="2h", priority=10)
def import_repo(job: Job, import_repo_id: int) -> dict[str, Any]:
    """Mirror one repository, and enqueue its measurement. Return the path of the mirror.

    import_repo_id: id of its row, which the discovery created. Raises Poison if the row is gone, if
    its name or address cannot be used, or if GitHub has no such repository.

    >>> import_repo.enqueue(import_repo_id=12)  # doctest: +SKIP
    42
    """
    with transaction() as database:
        row = database.row("forge/show_import_repo", id=import_repo_id)
    if row is None:
        raise Poison(f"repository {import_repo_id} to import does not exist", code="IMPORT_VANISHED")
    if row["status"] == "imported":
        return {"skipped": "this repository was imported before", "path": row["path"]}
    try:
        github = _github.from_environment()
        path = _mirror.path_of(row["org"], row["name"])
        url = _mirror.check_address(row["clone_url"], scheme=github.origin[0], host=github.web_host)
        with _mirror.alone(path):
            how = _mirror.mirror(url, path, timeout=min(job.remaining(), 7000), more=github.git_settings(url))
    except _mirror.BusyError:
        raise Snooze("1m") from None
    except _mirror.NameRefusedError as problem:
        _move(row, "refused", note=str(problem))
        raise Poison(str(problem), code="NAME_REFUSED") from None
    except _git.GitError as problem:
        gone = "not found" in problem.said.lower()
        _move(row, "failing", note=str(problem))
        if gone:
            raise Poison(str(problem), code="GITHUB_NOT_FOUND") from None
        raise
    with transaction() as database:
        if (
            database.row("forge/store_import_repo_result", id=row["id"], status="imported", note=None, path=path)
            is not None
        ):
            size_recalc.options(connection=database.connection).enqueue(repo=repository_id(database, path))
    return {"path": path, "how": how}


def _move(row: Row, status: str, *, note: str) -> None:
    with transaction() as database:
        database.rows("forge/store_import_repo_result", id=row["id"], status=status, note=note, path=None)
