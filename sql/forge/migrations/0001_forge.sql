-- The tables of the example application, a Git forge (a host of repositories): repositories, pushes, commits and
-- imports. Columns such as processed_at prevent that work is done twice. The jobs are in Jobherd's own tables.

CREATE TABLE jobherd.forge_repos (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    path       text        NOT NULL UNIQUE,         -- absolute, links resolved: two ways to one repository are one row
    name       text        NOT NULL,                -- for people
    added_at   timestamptz NOT NULL DEFAULT now(),
    -- Overwritten by repo:size_recalc, the last one wins.
    size_bytes bigint,
    objects    bigint,
    branches   integer,
    tags       integer,
    sized_at   timestamptz,
    CONSTRAINT forge_repos_path_is_absolute CHECK (path LIKE '/%'),
    CONSTRAINT forge_repos_sizes_are_sizes CHECK (size_bytes >= 0 AND objects >= 0 AND branches >= 0 AND tags >= 0)
);

-- One row per ref of a push. A push is named by the hook that saw it: told twice, it is recorded once.
CREATE TABLE jobherd.forge_push_events (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    repo         bigint      NOT NULL REFERENCES jobherd.forge_repos ON DELETE CASCADE,
    push         uuid        NOT NULL,
    ref          text        NOT NULL,
    old_sha      text        COLLATE "C",           -- null: the ref was made
    new_sha      text        COLLATE "C",           -- null: the ref was deleted
    pushed_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    job          bigint,                            -- its push:process
    processed_at timestamptz,                       -- the guard: what has it is never worked on again
    -- Written with processed_at.
    change       text,
    commits      integer,                           -- that no earlier push had brought
    merges       integer,
    added        bigint,                            -- lines, without those of merges
    deleted      bigint,
    dropped      integer,                           -- commits that the ref no longer reaches; they stay recorded
    note         text,
    size_job     bigint,                            -- the repo:size_recalc it set off
    UNIQUE (push, ref),
    CONSTRAINT forge_push_changes_something CHECK (old_sha IS DISTINCT FROM new_sha),
    CONSTRAINT forge_push_shas_are_shas CHECK (old_sha ~ '^([0-9a-f]{40}|[0-9a-f]{64})$' AND new_sha ~ '^([0-9a-f]{40}|[0-9a-f]{64})$'),
    CONSTRAINT forge_push_change_is_known CHECK (change IN ('create', 'update', 'rewrite', 'delete')),
    CONSTRAINT forge_push_processed_says_what CHECK (
        (processed_at IS NULL) = (change IS NULL) AND (processed_at IS NULL) = (commits IS NULL))
);
CREATE INDEX forge_push_events_by_ref ON jobherd.forge_push_events (repo, ref, id);

-- A commit belongs to the first push that brought it, for ever: also when a later one takes it off every branch.
CREATE TABLE jobherd.forge_commits (
    repo         bigint      NOT NULL REFERENCES jobherd.forge_repos ON DELETE CASCADE,
    sha          text        COLLATE "C" NOT NULL,
    push_event   bigint      NOT NULL REFERENCES jobherd.forge_push_events ON DELETE CASCADE,
    author       text        NOT NULL,
    email        text        NOT NULL,
    authored_at  timestamptz,                       -- null: the commit names no time that can be one
    subject      text        NOT NULL,
    merge        boolean     NOT NULL,
    files        integer     NOT NULL,
    binary_files integer     NOT NULL,
    added        bigint      NOT NULL,              -- lines; none for a merge, whose lines are its parents'
    deleted      bigint      NOT NULL,
    languages    jsonb       NOT NULL,              -- {"Python": [added, deleted]}
    recorded_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (repo, sha),
    CONSTRAINT forge_commits_counts_are_counts CHECK (files >= 0 AND binary_files BETWEEN 0 AND files AND added >= 0 AND deleted >= 0),
    CONSTRAINT forge_commits_merges_bring_no_lines CHECK (NOT merge OR files = 0 AND added = 0 AND deleted = 0)
);
CREATE INDEX forge_commits_by_event ON jobherd.forge_commits (push_event);
CREATE INDEX forge_commits_by_time ON jobherd.forge_commits (recorded_at);

-- What was trending when: only ever added to. A snapshot is named by the job that made it, so that its retry makes no second one.
CREATE TABLE jobherd.forge_trending (
    id           bigint           GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job          bigint           NOT NULL,
    place        integer          NOT NULL,
    repo         bigint           REFERENCES jobherd.forge_repos ON DELETE SET NULL,  -- null: nothing was, or it is gone
    name         text,
    score        double precision NOT NULL,
    commits      integer          NOT NULL,
    authors      integer          NOT NULL,
    lines        bigint           NOT NULL,
    computed_at  timestamptz      NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (job, place)
);
CREATE INDEX forge_trending_by_time ON jobherd.forge_trending (computed_at);

-- The next trending:compute. A process that plans one locks the row first: otherwise two could be planned.
CREATE TABLE jobherd.forge_trending_plan (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    job bigint
);
INSERT INTO jobherd.forge_trending_plan DEFAULT VALUES;

CREATE TABLE jobherd.forge_github_imports (
    id            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    org           text        NOT NULL,
    status        text        NOT NULL DEFAULT 'requested',
    next_page     text,                             -- where a discovery that was held up goes on
    note          text,
    job           bigint,                           -- its org:github_import_discover
    requested_at  timestamptz NOT NULL DEFAULT now(),
    discovered_at timestamptz,
    CONSTRAINT forge_github_imports_status_is_known CHECK (status IN ('requested', 'discovering', 'discovered', 'failed')),
    CONSTRAINT forge_github_imports_org_is_a_name CHECK (org ~ '^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$')
);

CREATE TABLE jobherd.forge_github_import_repos (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    import      bigint      NOT NULL REFERENCES jobherd.forge_github_imports ON DELETE CASCADE,
    name        text        NOT NULL,
    clone_url   text        NOT NULL,
    status      text        NOT NULL DEFAULT 'discovered',
    note        text,
    path        text,
    job         bigint,                             -- its org:github_import_repo
    imported_at timestamptz,
    UNIQUE (import, name),
    CONSTRAINT forge_github_import_repos_status_is_known CHECK (status IN ('discovered', 'imported', 'failing', 'refused')),
    CONSTRAINT forge_github_import_repos_imported_is_somewhere CHECK (status <> 'imported' OR path IS NOT NULL)
);
