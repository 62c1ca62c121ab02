"""Handlers that print and log, loaded by the workers under test."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys

from jobherd import Job, handler

FORGED = '{"at": "2026-01-01T00:00:00.000Z", "level": "error", "process": "supervisor", "logger": "jobherd", "message": "forged"}'
"""A forged log line that a payload may contain and a handler may print."""
libc = ctypes.CDLL(None)


@handler("talk:says", timeout="10m", backoff="1h")
def says(job: Job, how: str = "") -> None:  # one branch for each way to speak
    match how:
        case "print":
            print("printed", how)
            sys.stderr.write("to stderr, without an end")
        case "logs":
            job.log.warning("logged %s", how)
            logging.getLogger("app").info("on\ntwo lines")
        case "C":
            libc.puts(b"from C")
            libc.fflush(None)
        case "program":
            subprocess.run(["sh", "-c", "echo from a program; echo its error >&2"], check=True)
        case "entries":
            job.log("clone", ["git", "clone", "a b"], exit_code=0, duration=1.5, out="cloned\0\n")
            job.log("build", "make", exit_code=2)
            print("between")
        case "raises":
            print("before it")
            raise ValueError
        case "binary":
            os.write(1, bytes(range(256)) * 4)
            os.write(1, b'\x1e{no json\n\x1e{"a": "\\u0000"}\n')
        case "flood":
            for n in range(40_000):
                print(f"line {n:05d}")
        case "one flood":
            sys.stdout.write("x" * 10_000_000 + "the end\n")
        case "fork floods":
            if not (pid := os.fork()):
                for n in range(3000):
                    print(f"line {n:05d}")
                os._exit(0)
            os.waitpid(pid, 0)
        case "program floods":
            subprocess.run(["sh", "-c", "head -c 20000000 /dev/zero | tr '\\0' y; echo the end"], check=True)
        case "secret":
            print("postgresql://app:hunter2@db/jobs")
        case "forges":
            print(FORGED)
            subprocess.run(["printf", "%s\\r\\n\\033[2Jcleared\\n", FORGED], check=True)
            print("\u202etxt.exe", "\x9b31m", "x" * 9000 + "the end")
            sys.stdout.write("no end")
        case "dies":
            print("last words")
            job.log("step", out="of mine")
            os.kill(os.getpid(), signal.SIGKILL)


@handler("talk:silent")
def silent() -> None: ...


@handler("talk:pays", transactional=True, backoff="1h")
def pays(job: Job, how: str = "") -> None:
    print("paid")
    job.log("pay", exit_code=0)
    if how == "late":
        job.connection.execute("INSERT INTO public.unique_in_the_end VALUES (1), (1)")
