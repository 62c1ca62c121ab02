"""The jobs of a git forge: what pushes set off, what is trending, and imports from GitHub. Real work, and an example of it.

They are loaded by `--handlers jobherd.handlers.forge` (and by `make run`), never by default. `docs/forge.md` is the guide. The kinds:

    push:process               one per pushed ref, set off by the post-receive hook (`_hook`); guarded by processed_at
    repo:size_recalc           after each push; overwrites, the last one wins
    trending:compute           plans its own next run, exactly one; appends snapshots
    org:github_import_discover one per wanted organization; guarded by the import's status
    org:github_import_repo     one per discovered repository; guarded by its status
    demo:resize, :mail, :report made-up work of `jobherd forge demo --keep`; touches nothing

The laws of this package: everything may run twice, and half. What was done is told by rows that a guarded statement writes, never by
the job having run. No transaction is open while git or the network is at work. Nothing that comes from a repository or from the
network (a ref, an author, a repository's name) becomes an option of a command, a part of a path or a piece of SQL.
"""
