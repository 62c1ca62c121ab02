"""The common part of the Python adapters.

It has their commands, what their jobs do, and the files by which the driver sees that jobs ran.

The commands of an adapter are `setup`, `load N`, `work` and `offer N GAP`. PEER_DSN is its database,
PEER_NOTES a folder. This runs in the environment of the peers, where nothing of Jobherd is installed.
"""

import json
import os
import sys
import time

DSN = os.environ["PEER_DSN"]
NOTES = os.environ["PEER_NOTES"]
SLICE = 5000
_begun = False


def payload(number):
    """Return a payload of about 100 bytes, the same for all peers."""
    return {"n": number, "user_id": 1234567, "action": "send_welcome_email", "locale": "en_GB", "ref": "ab12cd34ef56"}


def noop():
    """Do nothing. The first job of a process records its time."""
    global _begun
    if not _begun:
        _begun = True
        with open(f"{NOTES}/first.{os.getpid()}", "w") as file:
            file.write(repr(time.time()))


def stamp(number):
    """Record when this job started."""
    now = time.time()
    with open(f"{NOTES}/stamps.{os.getpid()}", "a") as file:
        file.write(f"{number} {now!r}\n")


def offer(put, count, gap):
    """Enqueue one job after another, and print the times just before each call."""
    sent = []
    for number in range(count):
        sent.append((number, time.time()))
        put(payload(number))
        time.sleep(gap)
    print(json.dumps(sent))


def slices(count):
    """Yield the payloads of `count` jobs, in slices for one call each."""
    for first in range(0, count, SLICE):
        yield [payload(number) for number in range(first, min(first + SLICE, count))]


def main(setup, load, work, offering):
    """Run the command of the command line.

    offering: a context manager that yields the function that enqueues one job.
    """
    word, *rest = sys.argv[1:]
    match word:
        case "setup":
            setup()
        case "load":
            load(int(rest[0]))
        case "work":
            work(rest[0])
        case "offer":
            with offering() as put:
                offer(put, int(rest[0]), float(rest[1]))
