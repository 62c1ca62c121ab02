"""A worker's life: load the handlers, find the database, say READY; then wait, claim, run, settle until dismissed.

A claim that was made is always ended: each of its jobs is run, or handed back. Between an empty claim and the sleep nothing may slip
through: the epoch on the parent's page is noted before the claim and read again once this child shows itself idle. The settlement of
the last claim and the next claim travel together, so a batch costs one round trip and one wait for the disk. What was finished is not
kept for long: after 50 ms, or before a job that may take longer than what is left of them, it is written by itself.
"""

from __future__ import annotations

import _thread
import logging
import os
import random
import sys
import time
from typing import TYPE_CHECKING, Final

from handlers._client import Client, configure
from handlers._hooks import Child, Hooks, before_claim
from handlers._registry import all_hooks, load
from handlers._sanitize import describe_exception
from handlers._tables import TableHandler
from workers.board import Now, Phase, Reason, fence
from workers.connection import Left, Session
from workers.declaration import kinds_of, policy_of
from workers.execute import LEAST, Claimed
from workers.hooks import Caller
from workers.link import EXIT_HANDLERS, EXIT_LEFT, EXIT_WORN, Idle, More, Problem, Ready, Stores, send
from workers.logs import set_up
from workers.output import Output
from workers.settle import Clerk, Finished, UnsettledError
from workers.stride import LONG, SOUGHT, WALKS, Stride
from workers.tables import Tables, tables_of
from workers.tidiness import Tidiness
from workers.together import TogetherExecutor
from workers.transactions import Transactions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from handlers._handler import AnyHandler
    from workers.connection import Row
    from workers.main import Body
    from workers.seat import ChildSettings

_log = logging.getLogger("jobherd.worker")

HELD: Final = 0.05
"""Seconds that an outcome may wait for its settlement while other jobs of its claim run."""
_LOOK: Final = 0.0002
"""Seconds between two looks at the wake pipe while a batch runs: a look costs a microsecond."""
_EXIT_UNSETTLED: Final = 70
_EXIT_HOOKS: Final = 71
_LAPSED: Final = 0.2
_HELD_BY_OTHERS: Final = 0.25
"""Seconds before a child looks again at a queue whose every waiting row somebody has locked."""
_OWN_POLL: Final = 12
"""The parent nudges one child each poll; a child asks by itself, should its parent hang, so many polls after it last heard anything:
sixty-four idle children must not ask sixty-four times as often as one."""


def run(body: Body) -> int:
    """Live as a worker and return the exit code. Signals are unblocked, nothing of the parent's is left."""
    settings = body.seat.settings
    # What handlers enqueue goes where this job came from. One connection, and only once a handler asks for it.
    configure(client=Client(settings.dsn, schema=settings.schema, max_size=1))
    loaded = load_handlers(body)
    if loaded is None:
        return EXIT_HANDLERS
    handlers, hooks = loaded
    caller = Caller(hooks, Child(body.seat.slot, settings.host), body.alarm)
    if not begin(body, caller):
        return _EXIT_HOOKS
    worker = None
    try:
        worker = worker_of(body, handlers, caller)
        return worker.live()
    except Left as reason:
        _log.info("leaving: %s", reason)
        return EXIT_LEFT
    except UnsettledError as problem:
        _log.error("leaving it to the supervisor: %s", problem)
        return _EXIT_UNSETTLED
    finally:
        caller.leave()
        if worker is not None:
            worker.pass_on()


def load_handlers(body: Body) -> tuple[dict[str, AnyHandler], Hooks] | None:
    """Load handlers and hooks; if any module is broken, or none holds a job, say why to the parent and return None."""
    settings = body.seat.settings
    sys.path.insert(0, str(settings.app_dir.resolve()))
    found, more = load(settings.handlers), load(settings.hooks)
    problems = [str(problem) for problem in found.problems + more.problems]
    if not found.kinds and not problems:
        problems.append(say_none_found(settings.handlers))
    for problem in problems:
        _say_problem(body, problem)
    return None if problems else (found.kinds | own_handlers(settings), Hooks(all_hooks(more, found)))


def own_handlers(settings: ChildSettings) -> dict[str, AnyHandler]:
    """Return the handlers that every worker has whose settings ask for them: none, for most."""
    if not settings.webhook_secret:
        return {}
    from handlers import jobs_webhook  # noqa: PLC0415 - http and ssl are 2 MB that few children need

    jobs_webhook.set_rules(jobs_webhook.Rules(settings.webhook_secret, settings.webhook_allow, settings.webhook_timeout))
    return {jobs_webhook.deliver.kind: jobs_webhook.deliver}


def begin(body: Body, caller: Caller) -> bool:
    """Run `on_child_start`, for as long as a child may take until it is ready. False if a hook raised: then the parent has been told."""
    try:
        caller.hooks.start(caller.child)
    except BaseException as problem:  # what a hook needs may be away for a while: the child ends and is tried again
        message, trace = describe_exception(problem)
        _say_problem(body, f"on_child_start raised {message}\n{trace}")
        caller.leave()
        return False
    if not body.alarm.is_intact():
        body.alarm.restore()
        _log.warning("on_child_start has changed signal handlers; they are put back: a job could not be interrupted")
    return True


def _say_problem(body: Body, problem: str) -> None:
    if not send(body.seat.report, Problem(problem)):  # the parent logs it, once for all workers
        _log.error("%s", problem)


def say_none_found(sources: Sequence[str]) -> str:
    """Return the sentence for sources that hold no job; `jobherd check` says the same."""
    if not sources:
        return "no handler was found, since none is named: say where they are with --handlers PATH or JOBHERD_HANDLERS"
    return f"no handler was found in {', '.join(sources)}: decorate a function with @handler(...), in a module whose name begins with no underscore"


def worker_of(body: Body, handlers: Mapping[str, AnyHandler], hooks: Caller) -> Worker:
    """Return the worker that this child is: one that asks before it claims only if a hook wants to be asked or there is a budget."""
    if hooks.hooks.at(before_claim) or body.seat.settings.budget:
        from workers.selective import SelectiveWorker  # noqa: PLC0415  # only in such a child

        return SelectiveWorker(body, handlers, hooks)
    return Worker(body, handlers, hooks)


class Worker:
    """What a worker holds: its session, the claim it works on, and what it has not written yet."""

    def __init__(self, body: Body, handlers: Mapping[str, AnyHandler], hooks: Caller) -> None:
        self._body = body
        self._hooks = hooks
        self._seat = body.seat
        self._board = body.seat.board
        self._notice = body.seat.notice
        self._wake = body.wake
        self._alarm = body.alarm
        self._handlers = {kind: handler for kind, handler in handlers.items() if not isinstance(handler, TableHandler)}
        self._token = 0
        self._wanted = 1 if body.seat.settings.hold else body.seat.settings.batch
        """How many jobs the next claim asks for. It locks so many, though it may take fewer."""
        self._fewest = 1
        self._kinds: list[str] | None = [] if body.seat.settings.hold else None
        self._shares: list[float] | None = [] if body.seat.settings.hold else None
        """How much of a batch a job of each of these kinds fills; without them the number alone counts."""
        self._short: list[str] = []
        self._batch: list[Claimed] = []
        settings = body.seat.settings
        self._gated = bool(settings.limits) or any(queue.endswith("*") for queue in settings.queues)
        """Whether gates, prefixes or limits of our own are to be looked at: the settings ask for it, or a claim has said so."""
        self._paused: set[str] = set()
        """Kinds of own tables that nobody works now; * for all."""
        self._pauses_epoch, self._pauses_at = -1, 0.0
        self._last = ("", "")
        """Queue and kind of the job that was claimed last under gates: its slot may be wanted by others."""
        self._held: set[int] = set()
        """The ids of the claim's jobs."""
        self._unsettled: list[Finished] = []
        self._first_at = 0.0
        self._woken = False
        self._worn = ""
        self._looked_at = 0.0
        self._claimed_at = 0.0
        self._session = Session(self._seat, self._wake, self._holding)
        self._stride = Stride()
        ran_on = f"{settings.host}/{os.getpid()}"
        self._clerk = Clerk(self._session, ran_on=ran_on)
        self._transactions = Transactions(self._session, self._seat, self._alarm, ran_on=ran_on, be_alone=self._be_alone)
        self._output = None
        if body.seat.output is not None:
            reading, writing = body.seat.output
            self._output = Output(self._board, reading=reading, writing=writing, size=settings.log_size)
            hooks.pass_on = self._output.take
        self._executor = TogetherExecutor(
            handlers=handlers,
            numbers=self._board.declare([policy_of(handler) for handler in handlers.values()]),
            board=self._board,
            notice=self._notice,
            alarm=self._alarm,
            transactions=self._transactions,
            settings=settings,
            title=body.title,
            hooks=hooks,
            output=self._output,
        )
        self._together = self._executor.sizes
        if self._together and settings.hold:
            # A claim that is too small for a call would never be found to be: a kind that was not seen yet is taken for long.
            self._wanted = self._fewest = min(settings.batch, max(self._together.values()))
        set_up(
            who=f"worker {self._seat.slot}",
            log_format=settings.log_format,
            level=settings.log_level,
            stream=None if self._output is None else self._output.stream,
            board=self._board,
            ids=self._ids,
        )
        if self._output is not None:
            logging.getLogger().addHandler(self._output.handler(f"worker {self._seat.slot}", self._ids))
        self._tidy = Tidiness(body)
        self._weigh()
        stores = tables_of(handlers)
        self._tables = (
            Tables(
                stores,
                seat=self._seat,
                session=self._session,
                executor=self._executor,
                alarm=self._alarm,
                taken=self._tell_of_more,
                hooks=hooks,
            )
            if stores
            else None
        )

    def pass_on(self) -> None:
        """Pass on what was printed since the last job, by hooks of the child's end for the most: afterwards nobody reads it."""
        if self._output is not None:
            self._output.take()

    def live(self) -> int:
        """Connect, say READY, and work until dismissed. Returns the exit code. Raises Left and UnsettledError."""
        self._session.connect()
        kinds = kinds_of(self._handlers)
        self._session.run("register_kinds", kinds)
        self._session.run("declare_caps", kinds)
        if self._tables is not None and not self._tables.fit():
            return EXIT_HANDLERS
        self._executor.seat_child(self._session.child)
        self._say(Phase.IDLE)
        if self._tables is not None:
            send(self._seat.report, Stores(alone=not self._handlers))  # first: who is READY and idle must not be taken for all there is
        send(self._seat.report, Ready(self._session.child, self._session.backend))
        while (batch := self._next()) is not None:
            self._work(batch)
        self._say(Phase.SETTLING, keep_job=True)
        self._settle()
        if self._last[0]:
            self._session.run("tell_sleepers", {"queue": "*"})  # of the slot that no claim of ours will take again
        self._say(Phase.LEAVING)
        self._body.title("leaves")
        self._transactions.close()
        if self._tables is not None:
            self._tables.close()
        self._session.close()
        if self._worn:
            _log.info("leaving, to be replaced: %s", self._worn)
            return EXIT_WORN
        return EXIT_LEFT

    # -- waiting and claiming ---------------------------------------------------------------------------------------

    def _next(self) -> list[Claimed] | None:
        """Return the jobs of the next claim, however long they take to come; None when it is time to leave."""
        avoided: list[str] = []
        epoch = 0
        rested = False
        """Just out of idleness: all was looked at before it, and somebody waits for this job to start."""
        tabled = False
        """A record was worked: now it is the queue's turn."""
        while True:
            if not rested:
                self._look(time.monotonic())
                self._worn = self._worn or self._tidy.look()
            if self._wake.dismissed or self._worn:
                return None
            if self._notice.draining or time.monotonic() >= self._notice.lease_deadline - self._seat.settings.lease / 5:
                # Whoever cannot renew the lease claims nothing: others may be about to take the jobs. And where an exclusive job would
                # be ended, none is begun: it would be claimed and torn out, child after child, until the lease is renewed.
                self._settle()
                self._sleep(_LAPSED)
                rested = False
                continue
            if not avoided:
                epoch = self._notice.epoch
            if self._tables is not None and not rested and not tabled and self._tables.is_due():
                self._settle()
                if tabled := self._work_table():
                    continue  # it may have taken long: is there still a claim to be made?
            tabled = False
            rows = self._claim(avoided, rested=rested)
            rested = False
            batch = self._sort(rows)
            if batch:
                if self._woken and batch[0].more:
                    send(self._seat.report, More())
                self._woken = False
                return batch
            if rows and not rows[-1].id and not rows[-1].queue:
                self._gated, self._last = not self._gated, ("", "")  # gates have appeared, or the last one has gone
                continue
            if rows and not rows[-1].id:
                # Every waiting job of that queue is in other hands, which may be slow: what about the other queues?
                avoided.append(rows[-1].queue)
                continue
            if not rows and self._work_table():
                avoided.clear()
                continue
            if not rows:
                # Nobody calls when a lock is let go of, so whoever found one asks again soon.
                self._idle(epoch, _HELD_BY_OTHERS if avoided else self._seat.settings.poll * _OWN_POLL)
                rested = True
            avoided.clear()

    def _idle(self, epoch: int, longest: float) -> None:
        longest *= random.uniform(0.9, 1.1)
        self._rest(epoch, self._stride.rest(longest, time.monotonic()) if self._stride.left_out else longest)
        self._woken = True

    def _rest(self, epoch: int, longest: float) -> bool:
        """Sleep as one who can be called, unless somebody was called since `epoch`; return whether we were."""
        called = False
        self._board.set_idle(idle=True)
        fence()
        if self._notice.epoch == epoch and not self._wake.dismissed:  # who was dismissed during the claim hears nothing more
            if not self._notice.hearing:
                send(self._seat.report, Idle())  # or nobody would notify of a job: the parent took us for busy
            self._say(Phase.IDLE)
            self._executor.show("idle")
            called = self._wake.wait(longest)
        self._board.set_idle(idle=False)
        return called

    def _sleep(self, seconds: float) -> None:
        if self._wake.wait(seconds):
            self._woken = True  # a nudge that came while this child was not idle after all

    def _claim(self, avoided: Sequence[str], *, rested: bool) -> list[Claimed]:
        """Settle what is not settled and claim, together."""
        if not self._handlers:
            return []  # only tables are worked here: the queue's jobs are for others
        stride = self._stride
        if stride.doubt and not rested:  # somebody waits for the job of whoever was just called
            self._settle()  # or, told to leave while the database is away, we would leave with what is not written
            dead = {table: dead for table, dead, _ in self._session.run("measure_dead")}
            stride.note_dead(dead["ready"], named=bool(self._seat.settings.queues), now=time.monotonic())
        by, claim = self._statement(avoided, rested=rested)
        rows = None
        begun, together = time.monotonic(), bool(self._unsettled)
        if together:
            self._say(Phase.SETTLING, keep_job=True)
            rows = self._clerk.settle_and_claim(self._token, self._unsettled, claim, by=by, relieved=self._is_relieved)
            self._forget()
        if rows is None:
            if not rested:
                self._say(Phase.CLAIMING)
            rows = self._send_claim(by, claim, eager=rested)
        self._claimed_at = self._looked_at = time.monotonic()
        self._board.count_claim(empty=not rows)
        if not rested:
            self._executor.look_at_clock()
        found = [Claimed._make(row) for row in rows]
        took = self._claimed_at - begun
        if (stride.until or took > LONG) and (by == SOUGHT or by in WALKS):
            stride.note_claim(found, sought=by == SOUGHT, took=took, together=together, now=self._claimed_at)
        return found

    def _send_claim(self, by: str, claim: Mapping[str, object], *, eager: bool) -> list[Row]:
        return self._session.hurry(by, claim) if eager else self._session.run(by, claim)

    def _is_relieved(self) -> bool:
        """Whether the parent has taken the rest of the claim in hand, because a job of it ran long."""
        return self._board.revoked == self._token

    def _work_table(self) -> bool:
        """Work a record of the application's own tables, if one waits; return whether there was one."""
        if self._tables is None or self._wake.dismissed or self._worn:
            return False
        if self._pauses_epoch != self._notice.epoch or time.monotonic() >= self._pauses_at:
            # Their claims are the application's statements, and look at no gate. News of gates changes the epoch, as news of jobs does.
            self._pauses_epoch, self._pauses_at = self._notice.epoch, time.monotonic() + self._seat.settings.poll
            self._paused = {row[0] for row in self._session.run("find_pauses")}
        worked = self._tables.work(lambda kind: self._paused.isdisjoint((kind, "*")) and self._admits(kind))
        if worked:
            self._examine()
        self._worn = self._worn or self._hooks.torn
        return worked

    def _admits(self, _kind: str) -> bool:
        """Whether records of that store may be taken now."""
        return True

    def _tell_of_more(self) -> None:
        if self._woken:
            send(self._seat.report, More())
            self._woken = False

    def _statement(self, avoided: Sequence[str], *, rested: bool) -> tuple[str, dict[str, object]]:
        """Return by which statement the next claim is made, and its parameters; all of them answer with the rows of claim_jobs.sql."""
        settings = self._seat.settings
        claim: dict[str, object] = {
            "supervisor": self._seat.supervisor,
            "child": self._session.child,
            "served": settings.queues or None,
            "avoided": avoided or None,
            "wanted": self._wanted,
            "kinds": self._kinds,
            "shares": self._shares,
            "short": self._short,
        }
        if self._gated:
            claim["limited"], claim["limits"] = map(list, zip(*settings.limits, strict=True)) if settings.limits else (None, None)
            claim["left_queue"], claim["left_kind"] = self._last if self._last[0] else (None, None)
            claim["narrowed"] = False
            return self._narrow("claim_gated", claim)
        alone = rested and settings.hold and not self._together
        by, claim = self._narrow("claim_job" if alone else "claim_jobs", claim)
        if self._stride.until and self._stride.seeks(by, time.monotonic()):
            place = self._stride.place or (None, None, None)
            claim |= dict(zip(("past_queue", "past_priority", "past_id"), place, strict=True)) | ({"wanted": 1} if alone else {})
            return SOUGHT, claim
        return by, claim

    def _narrow(self, by: str, claim: dict[str, object]) -> tuple[str, dict[str, object]]:
        """Return a statement that claims, and its parameters, so that it takes only what this child may take: here, everything."""
        return by, claim

    def _sort(self, rows: Sequence[Claimed]) -> list[Claimed]:
        """Return the jobs to run."""
        batch = [row for row in rows if row.token is not None]
        if batch:
            self._token = batch[0].token
            if self._gated:
                self._last = (batch[0].queue, batch[0].kind)
            surplus = batch[self._wanted :]
            if surplus:
                # A plan that locks a LIMIT again and again can do this: see claim_jobs.sql.
                _log.error("the claim took %d jobs, %d more than asked: handing them back", len(batch), len(surplus))
                self._hand_back(surplus)
                del batch[len(batch) - len(surplus) :]
        return batch

    # -- running and settling ---------------------------------------------------------------------------------------

    def _work(self, batch: list[Claimed]) -> None:
        alarm, executor, board, together = self._alarm, self._executor, self._board, self._together
        self._batch = batch
        self._held = {row.id for row in batch}
        alarm.begin(self._token, self._held)
        among = len(batch) > 1
        board.open_ledger(self._token, len(batch) - 1)
        now = self._claimed_at  # between two jobs it is the end of the first: a job reads the clock twice
        for place, row in enumerate(batch):
            self._look(now)
            if alarm.unheard:
                alarm.hear()
            if self._wake.dismissed or self._notice.draining or self._worn:
                self._hand_back(batch[place:])
                return
            reason = alarm.told.get(row.id, Reason.NONE) if alarm.told else Reason.NONE
            if reason is Reason.LOST:
                self._lose(len(batch) - place)
                return
            if reason is not Reason.NONE:
                self._note(executor.unstarted(row, cancelled=reason is Reason.CANCEL))
                continue
            soon = not self._unsettled or now - self._first_at + executor.expected(row.kind) <= HELD
            if not soon and not self._settle(more=True):
                # The claim may be lost: nothing more of it may start. If it is ours after all, the rest is given back.
                self._hand_back(batch[place:])
                return
            if together and row.kind in together:
                if not self._work_together(batch, place):
                    return
                now = time.monotonic()
                continue
            finished = executor.execute(row, claimed_at=self._claimed_at, among=among)
            self._examine()
            if finished is None:
                self._lose(len(batch) - place)
                return
            now = finished.ended
            if executor.committed:
                executor.committed = False
                self._forget()  # it was the only one
                break
            stands = self._enter(finished, more=place + 1 < len(batch))
            if not stands or (among and board.revoked == self._token):
                # Revoked: it took longer than it was expected to, and the parent has given the others back. Those it has not, we do.
                self._hand_back(batch[place + 1 :])
                return
        self._adapt(batch)

    def _be_alone(self) -> None:
        """The job that runs begins a transaction, which holds the row of its claim: nobody else's outcome may have to wait for that."""
        batch, running = self._batch, self._executor.running
        place = next(place for place, row in enumerate(batch) if row is running)
        rest = batch[place + 1 :]
        del batch[place + 1 :]
        self._board.set_held(0)
        self._hand_back(rest)
        self._settle(more=True)
        self._say(Phase.RUNNING, keep_job=True)

    def _work_together(self, batch: list[Claimed], place: int) -> bool:
        """Call the handler of the job at `place` with what goes along, which is taken out of the claim. Return whether to go on with it."""
        rows = self._executor.gather(batch, place)
        among = place + 1 < len(batch)
        linger = self._handlers[rows[0].kind].policy.linger
        lingers = linger and not among and not rows[-1].more and not self._executor.is_called_alone(rows[0])
        if lingers and not self._linger(rows, time.monotonic() + linger):
            self._hand_back(rows)
            return False
        self._board.set_held(len(batch) - place - 1)
        finished = self._executor.execute_together(rows, claimed_at=self._claimed_at, among=among)
        self._examine()
        if finished is None:
            self._lose(len(rows) + len(batch) - place - 1)
            return False
        stands = True
        for one in finished:
            stands = stands and self._enter(one, more=among)
        if not stands or (among and self._board.revoked == self._token):
            self._hand_back(batch[place + 1 :])
            return False
        return True

    def _linger(self, rows: list[Claimed], until: float) -> bool:
        """Wait for more jobs to call with these, until then, or until the call is full, somebody else has to be served, or we leave.

        Each is claimed when it comes. While it waits this child counts as idle, so it is called for new jobs as its siblings are.
        Return whether the jobs may be run.
        """
        if not self._settle(more=True):
            return False
        session, kind, called = self._session, rows[0].kind, False
        more: dict[str, object] = {"supervisor": self._seat.supervisor, "child": session.child, "token": self._token, "kind": kind}
        while True:
            epoch, sessions = self._notice.epoch, session.sessions
            found = session.run(*self._narrow("claim_more", {**more, "wanted": self._together[kind] - len(rows)}))
            now = time.monotonic()
            since = now - self._claimed_at  # what the database said of them counts from now, and not from our claim
            for row in map(Claimed._make, found):
                good_for = None if row.good_for is None else row.good_for + since
                rows.append(row._replace(good_for=good_for, waited=row.waited - since))
                self._held.add(row.id)
            self._board.count_claim(empty=not found)
            self._alarm.hear()  # who cancelled one of them before we knew of it was not listened to
            if session.sessions != sessions:
                self._worn = "a claim's answer was lost"  # what it took stands in our claim, and only our end gives it back
            if called and not found:
                send(self._seat.report, More())  # it was for somebody else: an idle sibling, or us as soon as these are through
                return True
            expires = min((self._claimed_at + row.good_for for row in rows if row.good_for is not None), default=until)
            left = min(until, expires, self._notice.lease_deadline - self._seat.settings.lease / 5) - now
            if self._wake.dismissed or self._notice.draining:
                return False
            if len(rows) >= self._together[kind] or left <= 0 or self._worn:
                return True
            called = self._rest(epoch, left)

    def _adapt(self, batch: Sequence[Claimed]) -> None:
        """Ask next time for as many as jobs like these would fill a batch: reckoned now, for the next claim may be waited for."""
        settings = self._seat.settings
        self._short = self._executor.short()
        self._weigh()
        if self._output is not None and len(batch) > 1 and self._output.is_pending():
            self._output.take()  # of a job that was too short to be asked: it is passed on, and not the next one's
        if settings.hold:
            expected = sum(self._executor.expected(row.kind) for row in batch) / len(batch)
            self._wanted = max(self._fewest, min(settings.batch, 1 + int(settings.hold / max(expected, LEAST))))

    def _weigh(self) -> None:
        """Say how much of the next claim a job of each kind fills; of those that must be alone nothing is said, and they are taken alone."""
        executor, hold = self._executor, self._seat.settings.hold
        if hold or executor.alone:
            shares = executor.shares(hold) if hold else dict.fromkeys(self._handlers.keys() - executor.alone, 0.0)
            self._kinds, self._shares = list(shares), list(shares.values())

    def _enter(self, finished: Finished, *, more: bool) -> bool:
        """Note what became of a job, on the board too, before the next one starts: should this process die, it is not run again.

        Return whether the claim still stands, as far as that was seen.
        """
        self._note(finished)
        try:
            entered = self._board.enter(finished.as_entry())
        except (TypeError, ValueError):
            entered = False
        return entered or not more or self._settle(more=True)

    def _examine(self) -> None:
        """Look whether the job has left this process as it found it; cheap, for it is done after each."""
        alarm = self._alarm
        if alarm.raised is not None:
            self._worn = f"a job was torn out by {type(alarm.raised).__name__}"
        elif not alarm.is_intact():
            alarm.restore()
            self._worn = "a job changed signal handlers"
        elif _thread._count() != self._tidy.threads and (left := self._tidy.threads_left()):  # noqa: SLF001 - all others make a list
            self._worn = f"a job left a thread behind: {left}"

    def _note(self, finished: Finished) -> None:
        if not self._unsettled:
            self._first_at = finished.ended or time.monotonic()
        self._unsettled.append(finished)

    def _hand_back(self, rows: Sequence[Claimed]) -> None:
        told = self._alarm.told
        for row in rows:
            self._note(self._executor.unstarted(row, cancelled=told.get(row.id) is Reason.CANCEL))

    def _settle(self, *, more: bool = False) -> bool:
        """Write what is not written; return whether the claim stood. `more`: further jobs of the claim are still to run."""
        whole = True
        if self._unsettled:
            # Or the board says that a job runs, for as long as the database is away, and the parent ends it at its deadline.
            self._say(Phase.SETTLING, keep_job=True)
            whole = self._clerk.settle(self._token, self._unsettled, relieved=self._is_relieved)
            if more:
                self._unsettled = []
                self._board.clear_ledger()
            else:
                self._forget()
        return whole

    def _lose(self, jobs: int) -> None:
        _log.warning("the claim was lost, dropping %d jobs of it", jobs, extra={"token": self._token})
        self._forget()

    def _forget(self) -> None:
        self._unsettled = []
        self._token = 0
        self._alarm.end()
        self._board.close_ledger()

    # -- small things -----------------------------------------------------------------------------------------------

    def _holding(self) -> list[int]:
        return [self._token] if self._token else []

    def _look(self, now: float) -> None:
        """See whether the parent has let go of us; not after every job of a few microseconds."""
        if now - self._looked_at > _LOOK:
            self._looked_at = now
            if self._wake.look():
                self._woken = True

    def _say(self, phase: Phase, *, keep_job: bool = False) -> None:
        if keep_job and (now := self._board.now()) is not None and now.token == self._token:
            # If the process dies before the outcome is written, the attempt must count as one that ran.
            self._board.say(now._replace(phase=phase))
        else:
            self._board.say(Now(phase, self._session.child))

    def _ids(self) -> dict[str, object]:
        running = self._executor.running
        return {} if running is None else {"job": running.id, "kind": running.kind, "attempt": running.attempts}
