"""What queues may hold together, counted only when it matters."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from manual_clock import ManualClock

from warren.core.access.quotas import Quotas, VhostQuotas, name_of
from warren.core.errors import PreconditionFailed
from warren.core.messages.stock import Stock
from warren.core.scheduling.turns import Turns
from warren.core.scheduling.waiting import run


@dataclass(eq=False)
class Held:
    """A queue as quotas see it, and how often it was counted."""

    name: str
    messages: int = 0
    octets: int = 0
    declared_by: str = ""
    is_here: bool = True
    vhost_name: str = "v"
    counted: int = 0

    def stock(self) -> Stock:
        self.counted += 1
        return Stock(self.messages, self.octets)


class Vhost:
    """A virtual host `v` with some queues, on a clock that does not go on by itself."""

    def __init__(self, *queues: Held) -> None:
        self.queues = list(queues)
        self.clock = ManualClock()
        self.quotas = Quotas(self.clock, lambda vhost: self.queues, lambda: ["v"])

    def limited(self, **limits: int) -> VhostQuotas:
        named = {name.replace("_", "-"): value for name, value in limits.items()}
        found = self.quotas.of_vhost("v", named)
        assert found is not None
        return found

    def held_here(self) -> dict[str, Stock]:
        found: list[dict[str, Stock]] = []
        run(self.quotas.held_here(Turns(self.clock)), lambda result: found.append(result()))
        self.clock.settle()
        return found[0]


def publish(quotas: VhostQuotas, *queues: Held, messages: int = 1, octets: int = 1) -> None:
    """What is taken is in the queues afterwards, if they are here."""
    quotas.take(wanted(*queues, messages=messages, octets=octets))
    for queue in queues:
        queue.messages += messages
        queue.octets += octets


def wanted(*queues: Held, messages: int = 1, octets: int = 1) -> dict[Held, Stock]:
    return dict.fromkeys(queues, Stock(messages, octets))


def test_without_such_limits_there_is_nothing_to_keep() -> None:
    assert Vhost().quotas.of_vhost("v", {"max-queues": 1, "max-messages": -1}) is None


def test_a_virtual_host_may_hold_so_many_messages() -> None:
    one, two = Held("one", 3), Held("two", 5)
    quotas = Vhost(one, two).limited(max_messages=10)
    publish(quotas, one)
    publish(quotas, two)
    with pytest.raises(PreconditionFailed) as refused:
        publish(quotas, two)
    assert refused.value.text == (
        "cannot publish to queue 'two' in vhost 'v': message limit (10) of vhost 'v' is reached"
    )


def test_octets_count_for_each_queue_that_gets_the_message() -> None:
    one, two = Held("one"), Held("two")
    quotas = Vhost(one, two).limited(max_bytes=100)
    publish(quotas, one, two, octets=50)
    with pytest.raises(PreconditionFailed, match=r"byte limit \(100\) of vhost 'v' is reached"):
        publish(quotas, one)


def test_a_limit_of_zero_allows_nothing() -> None:
    queue = Held("q")
    with pytest.raises(PreconditionFailed, match=r"message limit \(0\)"):
        Vhost(queue).limited(max_messages=0).take(wanted(queue))
    Vhost(queue).limited(max_messages=0).take({})


def test_queues_are_counted_again_only_when_it_matters() -> None:
    queue = Held("q")
    vhost = Vhost(queue)
    quotas = vhost.limited(max_messages=100)
    for _ in range(100):
        publish(quotas, queue)
    assert queue.counted == 1
    # All but ten have been consumed meanwhile.
    queue.messages = 10
    vhost.clock.advance(0.001)
    for _ in range(90):
        quotas.take(wanted(queue))
    assert queue.counted == 2
    # So little time has passed that another count would take too large a part of it.
    queue.messages = 0
    with pytest.raises(PreconditionFailed):
        quotas.take(wanted(queue))
    vhost.clock.advance(0.001)
    publish(quotas, queue)


def test_every_queue_may_hold_so_much() -> None:
    full, other = Held("full", 5, 70), Held("other")
    quotas = Vhost(full, other).limited(max_queue_messages=5, max_queue_bytes=100)
    publish(quotas, other)
    with pytest.raises(PreconditionFailed, match=r"'full' .* message limit \(5\) of queues"):
        publish(quotas, other, full)
    full.messages = 1
    with pytest.raises(PreconditionFailed, match=r"byte limit \(100\) of queues in vhost"):
        publish(quotas, full, octets=31)
    publish(quotas, full, octets=30)


def test_the_queues_a_user_has_declared_may_hold_so_much() -> None:
    hers, also_hers, his = (
        Held("a", 1, declared_by="ann"),
        Held("b", 1, declared_by="ann"),
        Held("c"),
    )
    vhost = Vhost(hers, also_hers, his)
    vhost.quotas.set_user_limits("ann", {"max-messages": 3})
    quotas = vhost.limited()
    publish(quotas, his, messages=100)
    publish(quotas, hers, his)
    with pytest.raises(PreconditionFailed, match=r"message limit \(3\) of user 'ann' is reached"):
        publish(quotas, also_hers)
    vhost.quotas.set_user_limits("ann", {})
    assert vhost.quotas.of_vhost("v", {}) is None


def test_whether_there_is_room_is_answered_without_counting_the_publish() -> None:
    queue = Held("q")
    vhost = Vhost(queue)
    quotas = vhost.limited(max_messages=10)
    for _ in range(20):
        assert quotas.has_room(wanted(queue, messages=10))
    assert not quotas.has_room(wanted(queue, messages=11))
    quotas.add(wanted(queue, messages=10))
    queue.messages = 10
    assert not quotas.has_room(wanted(queue))


def test_what_other_nodes_lead_counts_as_they_have_told() -> None:
    here, there = Held("here", 1), Held("there", 99, is_here=False)
    vhost = Vhost(here, there)
    quotas = vhost.limited(max_messages=10, max_queue_messages=8)
    vhost.quotas.told("b", {"vhost 'v'": Stock(7, 0), name_of(there): Stock(7, 0)})
    publish(quotas, there)
    vhost.clock.advance(1.0)
    with pytest.raises(PreconditionFailed, match=r"of queues in vhost 'v' is reached"):
        publish(quotas, there, messages=2)
    publish(quotas, here)
    with pytest.raises(PreconditionFailed, match=r"of vhost 'v' is reached"):
        publish(quotas, here, messages=2)
    vhost.quotas.told("b", {})
    publish(quotas, there, messages=7)


def test_others_are_told_what_is_held_here_and_of_single_queues_what_is_near_its_limit() -> None:
    near, far = Held("near", 5, 10, "ann"), Held("far", 4, 10)
    elsewhere = Held("elsewhere", 100, is_here=False)
    vhost = Vhost(near, far, elsewhere)
    vhost.quotas.set_user_limits("ann", {"max-bytes": 1000})
    vhost.limited(max_messages=100, max_queue_messages=9)
    assert vhost.held_here() == {
        "vhost 'v'": Stock(9, 20),
        "user 'ann'": Stock(5, 10),
        name_of(near): Stock(5, 10),
    }
    vhost.quotas.forget_vhost("v")
    vhost.quotas.set_user_limits("ann", {})
    assert vhost.held_here() == {}


def test_counting_for_others_takes_its_turns() -> None:
    vhost = Vhost(*[Held(f"q{number}", 1) for number in range(20_000)])
    vhost.limited(max_messages=1 << 30)
    turns = Turns(vhost.clock)
    found: list[dict[str, Stock]] = []
    run(vhost.quotas.held_here(turns), lambda result: found.append(result()))
    assert not found, "all in one turn"
    vhost.clock.settle()
    assert found == [{"vhost 'v'": Stock(20_000, 0)}]
