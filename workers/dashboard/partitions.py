"""Sets the rules for the partitions of a queue: fair turns, limits of each partition. The page is in `queues.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from jobherd.handlers._policy.names import check_partition
from jobherd.handlers._policy.rates import check_burst, check_rate, check_refill
from jobherd.workers.dashboard.actions import Done

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobherd.workers.dashboard.database import Database

ACTIONS: Final = ("fair", "unfair", "each", "uneach", "each_rate", "uneach_rate")


async def divide(db: Database, what: str, queue: str, actor: str, form: Mapping[str, str]) -> Done:
    """Set or remove one rule. form: the fields, without spaces around them."""
    named = {"queue": queue, "actor": actor}
    try:
        match what:
            case "fair" | "unfair":
                weights = _weights(form["weights"]) if what == "fair" else {}
                asked = {"weights": orjson.dumps(weights).decode(), "off": what == "unfair"}
                [row] = await db.act("control/set_turns", {**named, **asked})
                now = "take turns" if what == "fair" else "take no turns any more"
                more = ((name, weight) for name, weight in weights.items() if weight > 1)
                now += "".join(f"; {name} takes {weight} jobs at its turn" for name, weight in more)
                return Done(f"Partitions of queue {queue} {now}.")
            case "each" | "uneach":
                most = _count(form["each"]) if what == "each" else None
                strict = what == "each" and bool(form["strict"])
                if strict and most != 1:
                    return Done("Strict order requires 1 job of each partition at a time.", well=False)
                [row] = await db.act("control/limit_each", {**named, "max_running": most, "strict": strict})
                now = (
                    "has no limit of each partition any more"
                    if most is None
                    else f"runs at most {most} of each partition at a time" + ", in strict order" * strict
                )
            case _:
                rate, burst = _rate(form["each_rate"], form["each_burst"]) if what == "each_rate" else (None, None)
                [row] = await db.act("control/limit_each_rate", {**named, "rate": rate, "burst": burst})
                now = (
                    "has no rate limit of each partition any more"
                    if rate is None
                    else f"starts at most {rate} of each partition"
                )
    except ValueError as problem:
        return Done(f"{problem}.", well=False)
    was = "there was none before" if row["before"] is None else f"it was {row['before']}"
    return Done(f"Queue {queue} {now}; {was}.")


def _weights(text: str) -> dict[str, int]:
    """Return the weights in a text such as `acme=3, globex=2`. Raises ValueError."""
    weights = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = part.rpartition("=")
        if not (name and number.isascii() and number.isdigit() and len(number) < 4 and int(number)):
            message = f"{part[:80]!r} is not a partition and a number from 1 to 999, such as acme=3"
            raise ValueError(message)
        weights[check_partition(name)] = int(number)
    return weights


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text)):
        message = "A limit of each partition is a number from 1. To run nothing, pause the queue"
        raise ValueError(message)
    return int(text)


def _rate(rate: str, burst: str) -> tuple[str, int | None]:
    number: Any = int(burst) if burst.isascii() and burst.isdigit() else burst
    most = check_burst(number, field="the burst") if burst else None
    check_refill(check_rate(rate, field="the rate"), most)
    return rate, most
