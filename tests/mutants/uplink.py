"""The guards of the uplink, and of what it and other producers enqueue through a gateway."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ROUTER = ("tests/workers/uplink/test_router.py",)
TASKS = ("tests/workers/uplink/test_worker_tasks.py",)
SHARED = ("tests/gateway/test_enqueue_stream.py",)
STREAM = ("tests/workers/gateway/test_enqueue_stream.py",)

UPLINK = (
    Mutant(
        "tasks that a worker did not receive wait for the end of their leases",
        "workers/uplink/router.py",
        "        self._abandon(ref for ref in known if ref not in held)\n",
        "",
        ROUTER,
    ),
    Mutant(
        "a worker of a new uplink runs what another worker may have",
        "workers/uplink/router.py",
        '                self._tell_about("lost", link.child, ref)\n',
        "                pass\n",
        ROUTER,
    ),
    Mutant(
        "an uplink believes no worker before its stream is open",
        "workers/uplink/router.py",
        "        if not self.has_started:\n            self.restore(",
        "        if False:\n            self.restore(",
        ROUTER,
    ),
    Mutant(
        "results that come before the stream of a new uplink are lost",
        "workers/uplink/router.py",
        "                self._early[ref] = by_ref[ref]\n",
        "                pass\n",
        ROUTER,
    ),
    Mutant(
        "extensions before the stream of a new uplink are lost",
        "workers/uplink/router.py",
        "self._tasks.due(now) if self.has_started else ()",
        "self._tasks.due(now)",
        ROUTER,
    ),
    Mutant(
        "a worker has two Readys",
        "workers/uplink/router.py",
        "link.child not in self._asked and not self._leaving",
        "not self._leaving",
        ROUTER,
    ),
    Mutant(
        "an uplink that leaves asks for tasks",
        "workers/uplink/router.py",
        "link.child not in self._asked and not self._leaving",
        "link.child not in self._asked",
        ROUTER,
    ),
    Mutant(
        "tasks for a worker that is gone wait for the end of their leases",
        "workers/uplink/router.py",
        "                self._stream.release(claim)\n",
        "                pass\n",
        ROUTER,
    ),
    Mutant(
        "the end of an old connection takes the Ready of the new one back",
        "workers/uplink/router.py",
        "        if self._links.get(link.child) is not link:\n",
        "        if link.child not in self._links:\n",
        ROUTER,
    ),
    Mutant(
        "a new uplink extends what it finds only after a third of its lease",
        "workers/uplink/router.py",
        "now=now - UNKNOWN_LEASE)",
        "now=now)",
        ROUTER,
    ),
    Mutant(
        "a long job is released with what stands behind it",
        "workers/uplink/router.py",
        "claim[claim.index(running) + 1 :]",
        "claim[claim.index(running) :]",
        ROUTER,
    ),
    Mutant(
        "a claim that may have killed its worker is claimed as before",
        "workers/uplink/router.py",
        "if cleared is not None and ref.claim not in cleared]",
        "if False]",
        ROUTER,
    ),
    Mutant(
        "a result that worker and supervisor report is sent twice",
        "workers/uplink/worker_tasks.py",
        "            if self._open.pop(ref, None) is not None:\n",
        "            if self._open.pop(ref, None) is not None or ref in self._waits:\n",
        TASKS,
    ),
    Mutant(
        "a task that its host should have ended is extended",
        "workers/uplink/worker_tasks.py",
        "            if now >= task.until:\n",
        "            if False:\n",
        TASKS,
    ),
    Mutant(
        "the progress of a task that is lost is reported",
        "workers/uplink/session_state.py",
        "        if self._tasks.is_open(ref):\n",
        "        if True:\n",
        ("tests/workers/uplink/test_session_state.py",),
    ),
    Mutant(
        "a new uplink releases the jobs of a worker that has died with the last one",
        "supervisor/uplink/link.py",
        ", *self._fleet.unrecovered]",
        "]",
        ("tests/supervisor/uplink/test_link.py",),
    ),
    Mutant(
        "the answer of a request goes to a later connection of the supervisor",
        "workers/uplink/parent_link.py",
        "            if self._connection is connection:  # Otherwise",
        "            if True:  # Otherwise",
        ("tests/workers/uplink/test_parent_link.py",),
    ),
    Mutant(
        "the end of an earlier connection of the supervisor ends the present one",
        "workers/uplink/parent_link.py",
        "        if self._connection is connection:\n            self._connection = None",
        "        if True:\n            self._connection = None",
        ("tests/workers/uplink/test_parent_link.py",),
    ),
    Mutant(
        "a gateway that drains waits a third of a lease for workers that have moved",
        "workers/gateway/sessions.py",
        "MOVED_EVERY if moves else NEVER",
        "NEVER",
        ("tests/workers/gateway/test_sessions.py",),
    ),
    Mutant(
        "progress is reported at each turn of the uplink",
        "workers/uplink/progress.py",
        "if busy and now >= self._at:",
        "if busy:",
        ("tests/workers/uplink/test_progress.py",),
    ),
    Mutant(
        "a transaction of a stream has a key twice",
        "workers/gateway/enqueue_stream.py",
        " or request.idempotency_key in keys",
        "",
        STREAM,
    ),
    Mutant(
        "requests of a stream wait without end",
        "workers/gateway/enqueue_stream.py",
        "if self._bytes >= MOST_BYTES or len(self._waiting) >= MOST_REQUESTS:",
        "if False:",
        STREAM,
    ),
    Mutant(
        "gRPC reads far ahead of what the gateway reads",
        "workers/gateway/server.py",
        '    ("grpc.http2.bdp_probe", 0),\n',
        "",
        ("tests/workers/gateway/test_server.py",),
    ),
    Mutant(
        "streams together hold any number of bytes",
        "workers/gateway/enqueue_stream.py",
        "return self._memory.is_full and self._bytes + self._taken > 0",
        "return False",
        STREAM,
    ),
    Mutant(
        "a stream waits for the clients of others",
        "workers/gateway/enqueue_stream.py",
        "return self._memory.is_full and self._bytes + self._taken > 0",
        "return self._memory.is_full",
        STREAM,
    ),
    Mutant(
        "a transaction of a stream has any number of jobs",
        "workers/gateway/enqueue_stream.py",
        "jobs > MOST_JOBS or ",
        "",
        STREAM,
    ),
    Mutant(
        "transactions take their keys in any order",
        "workers/gateway/producing.py",
        "sorted((each for each in requests if each.key), key=lambda each: each.key)",
        "[each for each in requests if each.key]",
        SHARED,
    ),
    Mutant(
        "a request that PostgreSQL rejects harms those of its transaction",
        "workers/gateway/producer_service.py",
        "if not isinstance(problem, DuplicateJob | DeadlockDetected) and not _is_about_request(problem):",
        "if True:",
        SHARED,
    ),
)
