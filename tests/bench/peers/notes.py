"""What the Python adapters share.

Their words, what their jobs do, and the notes by which the driver sees that they did.

An adapter knows `setup`, `load N`, `work` and `offer N GAP`; PEER_DSN is its database, PEER_NOTES a
folder. This runs in the environment of the peers, where nothing of Jobherd is installed.
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
    """About 100 bytes, the same for all."""
    return {"n": number, "user_id": 1234567, "action": "send_welcome_email", "locale": "en_GB", "ref": "ab12cd34ef56"}


def noop():
    """Do nothing; the first of a process notes when that was."""
    global _begun
    if not _begun:
        _begun = True
        with open(f"{NOTES}/first.{os.getpid()}", "w") as file:
            file.write(repr(time.time()))


def stamp(number):
    """Note when this job started."""
    now = time.time()
    with open(f"{NOTES}/stamps.{os.getpid()}", "a") as file:
        file.write(f"{number} {now!r}\n")


def offer(put, count, gap):
    """Put one job in after the other, and print when, just before each call."""
    sent = []
    for number in range(count):
        sent.append((number, time.time()))
        put(payload(number))
        time.sleep(gap)
    print(json.dumps(sent))


def slices(count):
    """The payloads of so many jobs, as they are put in."""
    for first in range(0, count, SLICE):
        yield [payload(number) for number in range(first, min(first + SLICE, count))]


def main(setup, load, work, offering):
    """Do what the command line says. offering.

    Gives, as a context, the function that puts one job in.
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
