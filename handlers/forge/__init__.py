"""The jobs of a git forge: push processing, trending repositories, and imports from GitHub.

A working example. Load them with `--handlers jobherd.handlers.forge` (`make run` does). They are
never loaded by default. `docs/project/forge.md` is the guide. The kinds:

    push:process                one per pushed ref, enqueued by the post-receive hook (`_hook`); guarded by processed_at
    repo:size_recalc            after each push; overwrites, the last one wins
    trending:compute            enqueues its own next run, exactly one; appends snapshots
    org:github_import_discover  one per requested organization; guarded by the import's status
    org:github_import_repo      one per discovered repository; guarded by its status
    demo:resize, :mail, :report simulated work of `jobherd forge demo --keep`; changes nothing

Rules of this package: any job may run twice, or stop halfway. Rows written by a guarded statement
record what was done, never the fact that a job ran. No transaction is open while git or the network
works. Nothing from a repository or the network (a ref, an author, a repository's name) becomes a
command's option, a part of a path or a piece of SQL.
"""
