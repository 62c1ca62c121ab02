"""The order in which a worker checks the queues when they take turns."""

import random
from collections import Counter

import pytest

from jobherd.workers.claim.queue_turns import MOST, QueueTurns


class Worker:
    """Takes turns over queues that never run empty. Tests change `queues` to add or remove some.

    takes: seconds that a job takes, by queue.
    """

    def __init__(self, queues, *, served=(), weights=None, tiers=None, takes=None):
        self.queues = set(queues)
        self.turns = QueueTurns(served, weights or {}, tiers or {})
        self.takes = takes or {}
        self.served = served
        self.spent = 0.0
        self.time = Counter()
        self.claims = []

    def claim(self):
        if self.served:
            order = self.turns.order_served(self.spent)
            found = next((queue for queue in order if queue in self.queues), "")
        else:
            order = self.turns.order(self.spent)
            unknown = sorted(self.queues - set(order))
            found = random.choice(unknown) if unknown else next((queue for queue in order if queue in self.queues), "")
        self.turns.note(found)
        self.spent = self.takes.get(found, 0.05)
        self.time[found] += self.spent
        self.claims.append(found)
        return found

    def work(self, claims):
        for _ in range(claims):
            self.claim()
        return self


@pytest.mark.parametrize("served", [(), ("a", "b", "c")])
@pytest.mark.parametrize("takes", [{}, {"a": 0.002, "b": 3.0}, {"a": 5.0, "b": 0.05, "c": 0.01}])
def test_queues_share_the_time_by_weight(served, takes):
    """The duration of the jobs makes no difference: long jobs do not displace short ones."""
    worker = Worker("abc", served=served, weights={"a": 1, "b": 2, "c": 5}, takes=takes)
    while sum(worker.time.values()) < 1000:
        worker.claim()
    shares = {queue: time / sum(worker.time.values()) for queue, time in worker.time.items()}
    assert shares == pytest.approx({"a": 0.125, "b": 0.25, "c": 0.625}, abs=0.01)


def test_queue_that_gets_jobs_is_claimed_from_next():
    worker = Worker({"mail"}).work(1000)
    worker.queues |= {"default", "media"}
    assert {worker.claim(), worker.claim()} == {"default", "media"}


def test_empty_queue_saves_up_no_turns():
    worker = Worker({"mail", "default"}).work(10)
    worker.queues.remove("default")
    worker.work(1000)
    worker.queues.add("default")
    assert Counter(worker.work(100).claims[-100:])["default"] in range(49, 53)


def test_time_used_before_an_idle_period_does_not_delay_a_queue_afterwards():
    worker = Worker({"media"}, takes={"media": 3600.0}).work(3)
    worker.queues.clear()
    worker.claim()
    worker.queues |= {"media", "mail"}
    assert {worker.claim(), worker.claim()} == {"media", "mail"}


def test_queues_of_a_lower_tier_come_first_and_queues_of_one_tier_take_turns():
    worker = Worker({"a", "b", "late"}, served=("late", "a", "b"), tiers={"late": 5})
    assert Counter(worker.work(100).claims) == {"a": 50, "b": 50}
    worker.queues -= {"a", "b"}
    assert worker.claim() == "late"
    assert worker.turns.tiers == [5, 0, 0]


def test_weight_of_a_queue_name_overrides_the_weight_of_a_prefix():
    worker = Worker({"batch-a", "batch-b", "x"}, weights={"batch*": 4, "batch-b": 1})
    found = Counter(worker.work(600).claims)
    assert (found["batch-a"], found["batch-b"], found["x"]) == pytest.approx((400, 100, 100), abs=6)


def test_each_of_many_queues_gets_turns():
    """With more queues than `MOST`, none waits for long, and the order that a claim sends stays short."""
    queues = {f"q-{number}" for number in range(5 * MOST)}
    worker = Worker(queues).work(40 * len(queues))
    assert len(worker.turns.order(0.0)) <= MOST
    found = Counter(worker.claims)
    assert min(found[queue] for queue in queues) >= 10


def test_workers_that_start_together_do_not_start_with_the_same_queue():
    first = Counter(Worker("abcd", served=("a", "b", "c", "d")).claim() for _ in range(400))
    assert min(first[queue] for queue in "abcd") > 50
