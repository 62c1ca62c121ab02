"""Measure the memory of a gateway with clients that stop reading, and with thousands of short streams.

Some clients request large tasks and read nothing. Others work normally, and one client opens one
stream after another and ends it. The campaign reads the gateway's resident memory each second.

Checked: the memory is limited by what gRPC buffers for each stream, it does not grow in the last two
thirds of the run, the clients that read get their jobs, and each job finishes once.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from tests.faults.gateway import DONE, FLAGS, KINDS, Workers, gateway_of
from tests.support.audit import Audit
from tests.support.checkout import import_path
from tests.support.figures import Report
from tests.support.ground import arguments, ground
from tests.support.herd import LIMIT, ROOT, Herd
from tests.support.ports import spare_port
from tests.support.processes import become_reaper
from tests.support.producer import Producer

WORK = Path(__file__).with_name("work.py")
LARGE = 450_000
"""Bytes of a payload that no client reads."""
MOST = 256 << 20
"""Most bytes of memory of a gateway, some clients of which do not read."""
GROWTH = 1.1
"""Highest ratio of the memory in the last third to that in the second third."""


def resident(pid: int) -> int:
    """Resident memory of a process, in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def client(where: str, mode: str):
    """Run one of this module's clients until the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults.gateway_memory", f"--{mode}", where],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": import_path()},
        stdin=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def run_client(mode: str, where: str) -> None:
    """Stop reading after Hello, or connect and disconnect repeatedly."""
    import grpc

    from jobherd.handlers._remote import messages as m
    from jobherd.handlers._remote.grpc_methods import client_call
    from jobherd.handlers._remote.schema import WORKER

    wide = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
    while True:
        with grpc.insecure_channel(where, wide) as channel:

            def requests():
                yield m.WorkRequest(hello=m.Hello(worker_id=mode))
                if mode == "deaf":
                    for number in range(1, 65):
                        yield m.WorkRequest(ready=m.Ready(number=number, count=1, kinds=["remote:large"]))
                    time.sleep(86400)

            call = client_call(channel, WORKER.methods["Work"])(requests())
            try:
                next(call)
                if mode == "deaf":
                    while call.is_active():
                        time.sleep(0.5)
                for _ in call:
                    pass
            except grpc.RpcError:
                pass
        time.sleep(0.02)


def main() -> int:
    given = arguments(__doc__, minutes=10.0, deaf=4, workers=2, rate=50.0)
    become_reaper()
    report = Report(
        f"gateway: memory over {given.minutes:g} min with {given.deaf} clients that stop reading", given.seed
    )
    where = f"127.0.0.1:{spare_port()}"
    sizes: list[int] = []
    with tempfile.TemporaryDirectory() as folder, ground() as (_, dsn), contextlib.ExitStack() as stack:
        report.on(dsn)
        audit = Audit(dsn)
        herd = stack.enter_context(Herd(dsn, WORK, "--gateway", where, *FLAGS, workers=1, wait=False))
        herd.wait_event(lambda event: event.message.startswith("gateway on "))
        workers = Workers(given.workers, where, Path(folder, "workers.log"))
        with psycopg.connect(dsn, autocommit=True) as connection:
            # Random text: gRPC may compress.
            connection.execute(
                "SELECT jobherd.enqueue('remote:large', jsonb_build_object('x',"
                " (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, %s))),"
                ' \'{"queue": "remote", "max_attempts": 1000}\') FROM generate_series(1, 300)',
                [LARGE // 32],
            )
        for _ in range(given.deaf):
            stack.enter_context(client(where, "deaf"))
        stack.enter_context(client(where, "guest"))
        pid = gateway_of(herd)
        with Producer(dsn, Path(folder, "acknowledged"), seed=given.seed, rate=given.rate, kinds=KINDS) as producer:
            until = time.monotonic() + 60 * given.minutes
            while time.monotonic() < until:
                time.sleep(1)
                sizes.append(resident(pid))
            acknowledged = producer.stop()
        served = audit.run(DONE)[0][0]
        sessions = audit.run("SELECT last_value FROM jobherd.supervisors_id_seq")[0][0]
        same = gateway_of(herd) == pid
        last = time.monotonic() + LIMIT
        missing = "SELECT count(*) FROM unnest(%s::bigint[]) AS id WHERE id NOT IN (SELECT id FROM jobherd.history)"
        while (left := audit.run(missing, acknowledged)[0][0]) and time.monotonic() < last:
            time.sleep(0.5)
        codes = workers.stop()
        stack.close()
        audit.close()
    third = len(sizes) // 3
    middle, end = sorted(sizes[third : 2 * third]), sorted(sizes[2 * third :])
    typical = middle[len(middle) // 2], end[len(end) // 2]
    report.fact(
        "resident, MiB: first, median of the second third, of the last third, most",
        [each >> 20 for each in (sizes[0], *typical, max(sizes))],
    )
    report.fact("jobs served meanwhile, sessions opened", (served, sessions))
    report.holds(f"never above {MOST >> 20} MiB", max(sizes) < MOST)
    report.holds("the last third is not larger than the second", typical[1] <= GROWTH * typical[0])
    report.holds("the same process as before", same)
    report.holds("every job of the reading workers is finished", not left, left)
    report.holds("the workers exited with 0", not any(codes), codes)
    return report.end()


if __name__ == "__main__":
    if sys.argv[1:2] in (["--deaf"], ["--guest"]):
        run_client(sys.argv[1].removeprefix("--"), sys.argv[2])
    else:
        sys.exit(main())
