"""Runs Debian's pgbouncer in front of a server, without settings for Jobherd.

`with Pooler(dsn, "transaction") as pooler:`, then `pooler.dsn`.

It runs as the OS user `nobody`, which cannot enter a test server's folder. So it connects by TCP,
through a `Network`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Literal, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.network import PATIENCE, Network
from tests.support.ports import spare_port

PROGRAM = "/usr/sbin/pgbouncer"
SETTINGS = """
[databases]
* = host=127.0.0.1 port={there} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {here}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 200
ignore_startup_parameters = extra_float_digits,options
logfile = {folder}/log
server_check_delay = 0
"""


class Pooler:
    """A pgbouncer process."""

    def __init__(self, dsn: str, mode: Literal["transaction", "session"], *, size: int = 5) -> None:
        self._network = Network(dsn)
        self._folder = Path(tempfile.mkdtemp(prefix="jobherd-pooler-", dir="/tmp"))
        port = spare_port()
        self.dsn = make_conninfo(dsn, host="127.0.0.1", port=port, sslmode="disable")
        user = conninfo_to_dict(dsn)["user"]
        text = SETTINGS.format(
            there=self._network.port, here=port, mode=mode, size=size, folder=self._folder, user=user
        )
        (self._folder / "ini").write_text(text)
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            shutil.chown(self._folder, "nobody")

    def start(self) -> None:
        """Start pgbouncer and wait until it accepts connections."""
        words = [PROGRAM, *(["-u", "nobody"] if os.geteuid() == 0 else []), "-q", str(self._folder / "ini")]
        self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + PATIENCE
        while True:
            try:
                psycopg.connect(self.dsn).close()
            except psycopg.OperationalError as problem:
                if time.monotonic() > until or self._process.poll() is not None:
                    log = self._folder / "log"
                    raise TimeoutError(
                        f"pgbouncer: {problem}; {log.read_text()[-2000:] if log.exists() else ''}"
                    ) from None
                time.sleep(0.02)  # pgbouncer does not report when it is ready
            else:
                return

    def turn(self) -> None:
        """Make the next client get another backend than the last one, if all clients need at most two.

        pgbouncer assigns the backend that was released last.
        """
        with psycopg.connect(self.dsn, autocommit=True) as one, psycopg.connect(self.dsn, autocommit=True) as two:
            for each, word in ((one, b"BEGIN"), (two, b"BEGIN"), (one, b"COMMIT"), (two, b"COMMIT")):
                each.execute(word)

    def kill(self) -> None:
        """Kill pgbouncer: connections to its clients and to the server break."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self._network.__exit__()
        shutil.rmtree(self._folder)
