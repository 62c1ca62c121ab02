"""Settings about which jobs workers claim, how many, and from which queues."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jobherd.supervisor.settings import queue_readers
from jobherd.supervisor.settings import readers as values
from jobherd.supervisor.settings.field import setting


@dataclass(frozen=True)
class WorkSettings:
    """Settings about which jobs workers claim, how many, and from which queues."""

    handlers: tuple[str, ...] = setting(
        (),
        values.words("folders, files or dotted modules", ":"),
        "Where the handlers are. You can repeat the flag; in a variable, separate the values with colons.",
        group="Work", metavar="PATH", says="the folder `handlers` of the working directory, if there is one",
    )  # fmt: skip
    hooks: tuple[str, ...] = setting(
        (),
        values.words("folders, files or dotted modules", ":"),
        "Where hooks are, in addition to those in the modules of `handlers`. Handlers in these modules are not "
        "served. Their middleware is the outermost.",
        group="Work", metavar="PATH", says="none",
    )  # fmt: skip
    reload: bool = setting(
        False,
        values.switch(),
        "For development: reload when a Python file changes in `handlers`, `hooks` or `app_dir`. If the new code "
        "does not load, the old "
        "workers stay.",
        group="Work", for_good=True,
    )  # fmt: skip
    app_dir: Path = setting(  # noqa: RUF009  # a path never changes
        Path(),
        values.path(),
        "The folder that is first on the import path of workers, so that handlers can import your code.",
        group="Work", metavar="PATH", says="the working directory",
    )  # fmt: skip
    code_version: str = setting(
        "",
        values.label(),
        "The version of your code that post-mortems show: a commit, a tag, an image.",
        group="Work", metavar="NAME", says="the commit that the git repository of `app_dir` is at",
    )  # fmt: skip
    queues: tuple[str, ...] = setting(
        (),
        queue_readers.queues(),
        "The queues to serve. `batch*` is every queue whose name begins with `batch`. `high:2` reserves two of the "
        "workers for that queue. "
        "`queue_order` says how workers choose between the queues.",
        group="Work", metavar="NAMES", says="all",
    )  # fmt: skip
    queue_priorities: tuple[tuple[str, int], ...] = setting(
        (),
        queue_readers.numbers(-32768, 32767),
        "Strict tiers: workers claim from the queues with the lowest number first, whatever the weights. A queue "
        "without a number has 0.",
        group="Work", metavar="NAMES", says="none",
    )  # fmt: skip
    queue_order: str = setting(
        "turns",
        values.choice("turns", "strict"),
        "turns: workers take turns between the queues that hold jobs, by `queue_weights`. strict: workers claim from "
        "the first queue in "
        "`queues` that holds a job; without `queues`, the most urgent job of all queues comes first.",
        group="Work", metavar="ORDER",
    )  # fmt: skip
    queue_weights: tuple[tuple[str, int], ...] = setting(
        (),
        queue_readers.numbers(1, 1000),
        "The share of each queue in the time of the workers: with `mail=1,default=3`, `default` gets three times as "
        "much as `mail` while both "
        "hold jobs. A queue without a weight has 1.",
        group="Work", metavar="NAMES", says="none",
    )  # fmt: skip
    queue_max_concurrency: tuple[tuple[str, int], ...] = setting(
        (),
        queue_readers.numbers(1, 100_000),
        "The most jobs of a queue that this supervisor runs at a time. For a limit over all hosts, use `jobherd "
        "limit`.",
        group="Work", metavar="NAMES", says="none",
    )  # fmt: skip
    max_claim_batch: int = setting(
        0,
        values.whole(1, 1000, zero="the value of `claim_size`"),
        "The most jobs of one queue that a worker claims at a time. A claim never mixes queues.",
        group="Work", metavar="N", says="0: the value of `claim_size`",
    )  # fmt: skip
    max_claim_per_worker: int = setting(
        0,
        values.whole(1, 1000, zero="the value of `claim_size`"),
        "The most claimed jobs that a worker has at a time, including the one that runs.",
        group="Work", metavar="N", says="0: the value of `claim_size`",
    )  # fmt: skip
    coalesce_notifies: int = setting(
        1,
        values.whole(1, 1000),
        "How many notifications that arrive together wake one worker. A notification names a queue that has jobs, "
        "but not their number.",
        group="Work", metavar="N",
    )  # fmt: skip
    claim_size: int = setting(
        500,
        values.whole(1, 1000),
        "The most jobs that a worker claims at a time. It claims no more than it expects to run within "
        "`claim_window`. If the whole host fails, "
        "the finished jobs of a claim whose outcomes are not yet written run again: 1 limits that to one job.",
        group="Work", metavar="N",
    )  # fmt: skip
    claim_window: float = setting(
        0.05,
        values.span(0.001, 60, zero="whole batches, whatever they take"),
        "How much work a worker claims at a time, estimated from recent durations of the kinds. If a job takes "
        "longer, the worker's claimed, "
        "unstarted jobs are released and the outcomes of its finished jobs are written.",
        group="Work", metavar="TIME",
    )  # fmt: skip
    budget: tuple[str, ...] = setting(
        (),
        queue_readers.amounts(),
        "The resources that all running jobs of this supervisor may use together, by their `cost`. A job that does "
        "not fit is skipped until enough is free.",
        group="Work", metavar="NAME=AMOUNT", says="none: no budget",
    )  # fmt: skip
    budget_patience: float = setting(
        60.0,
        values.span(0.1, 86400),
        "Time that a job with a cost waits before its share of the budget is reserved, so that smaller jobs do not "
        "overtake it indefinitely.",
        group="Work", metavar="TIME",
    )  # fmt: skip
    poll: float = setting(
        5.0,
        values.span(1, 300),
        "Backstop: interval, varied by up to a tenth, after which one worker looks for jobs although no notification "
        "arrived.",
        group="Work", metavar="TIME",
    )  # fmt: skip
    unknown_delay: float = setting(
        60.0,
        values.span(1, 86400),
        "Time after which a job of an unknown kind is due again: a supervisor that has no handler for the kind "
        "releases the job, since another host may have one.",
        group="Work", metavar="TIME",
    )  # fmt: skip
    unknown_for: float = setting(
        86400.0,
        values.span(60, 30 * 86400),
        "Age at which a job of an unknown kind fails.",
        group="Work",
        metavar="TIME",
    )
    sweep: float = setting(
        2.0,
        values.span(0.2, 60),
        "How often the maintenance process looks for running jobs whose worker no longer exists.",
        group="Work", metavar="TIME",
    )  # fmt: skip
    long_transaction: float = setting(
        60.0,
        values.span(0.001, 86400),
        "Jobherd logs a warning about a job's transaction that was open longer. While a transaction is open, "
        "PostgreSQL cannot vacuum any row "
        "that was updated or deleted since the transaction began.",
        group="Work", metavar="TIME",
    )  # fmt: skip
    until_empty: bool = setting(
        False,
        values.switch(),
        "Run all jobs in the queues, then exit: with 0, or with 1 if a job failed. For CI, cron and tests.",
        group="Work",
    )
    ignore_failures: bool = setting(
        False, values.switch(), "With `until_empty`: exit with 0 even if jobs failed.", group="Work"
    )
