"""The simulated network: what arrives, in which order, and who is told what."""

from __future__ import annotations

from random import Random
from typing import Any

from network import Network
from scheduler import Scheduler

SEEDS = range(200)


class Listener:
    """Notes what arrives, and who is down as the name in a list."""

    def __init__(self, network: Network, name: str) -> None:
        self.address = self.site = name
        self.heard: list[Any] = []
        network.attach(self)

    def arrived(self, sender: Any, parcel: Any) -> None:
        self.heard.append(parcel)

    def down(self, peer: Any) -> None:
        self.heard.append([peer])


class Pair:
    def __init__(self, seed: int = 1) -> None:
        self.scheduler = Scheduler(Random(seed))
        self.network = Network(self.scheduler)
        self.a = Listener(self.network, "a")
        self.b = Listener(self.network, "b")
        self.network.monitor("b", "a")

    def send(self, first: int, last: int) -> None:
        for number in range(first, last):
            self.network.send("a", "b", number)


def test_what_is_sent_arrives_in_order() -> None:
    for seed in SEEDS:
        pair = Pair(seed)
        pair.send(0, 20)
        pair.scheduler.run()
        assert pair.b.heard == list(range(20))


def test_a_broken_connection_loses_the_end_and_tells_after_what_still_arrives() -> None:
    lost = set()
    for seed in SEEDS:
        pair = Pair(seed)
        pair.send(0, 5)
        pair.scheduler.run(0.002)
        pair.network.break_connection("a", "b")
        pair.scheduler.run()
        *numbers, down = pair.b.heard
        assert numbers == list(range(len(numbers)))
        assert down == ["a"]
        lost.add(5 - len(numbers))
    assert lost == {0, 1, 2, 3, 4, 5}


def test_a_down_notice_may_be_made_to_overtake() -> None:
    overtaken = 0
    for seed in SEEDS:
        pair = Pair(seed)
        pair.network.down_may_overtake = True
        pair.send(0, 5)
        pair.network.break_connection("a", "b")
        pair.scheduler.run()
        assert ["a"] in pair.b.heard
        overtaken += pair.b.heard[-1] != ["a"]
    assert overtaken


def test_a_new_connection_never_overtakes_the_old_one() -> None:
    for seed in SEEDS:
        pair = Pair(seed)
        pair.send(0, 5)
        pair.network.break_connection("a", "b")
        pair.send(5, 10)
        pair.scheduler.run()
        numbers = [item for item in pair.b.heard if isinstance(item, int)]
        assert numbers == sorted(numbers) and numbers[-5:] == [5, 6, 7, 8, 9]


def test_blocks_have_a_direction() -> None:
    pair = Pair()
    pair.network.monitor("a", "b")
    pair.network.block("a", "b")
    pair.network.send("b", "a", "hello")
    pair.send(0, 3)
    pair.scheduler.run()
    assert pair.a.heard == ["hello", ["b"]]
    assert pair.b.heard == [["a"]]


def test_what_a_short_block_holds_back_arrives_after_it() -> None:
    held = 0
    for seed in SEEDS:
        pair = Pair(seed)
        pair.network.block("a", "b")
        pair.send(0, 3)
        pair.scheduler.run(0.05)
        pair.network.unblock("a", "b")
        pair.scheduler.run()
        assert pair.b.heard in ([0, 1, 2], [["a"]])
        held += pair.b.heard == [0, 1, 2]
    assert 0 < held < len(SEEDS)


def test_while_a_site_is_blocked_no_connection_is_made() -> None:
    pair = Pair()
    pair.network.block("a", "b")
    pair.scheduler.run()
    pair.b.heard.clear()
    pair.network.monitor("b", "a")
    pair.send(0, 3)
    pair.scheduler.run()
    assert pair.b.heard == [["a"]]


def test_a_stalled_process_reads_when_it_goes_on() -> None:
    pair = Pair()
    pair.network.stall("b")
    pair.send(0, 3)
    pair.scheduler.run()
    assert pair.b.heard == []
    pair.network.resume("b")
    pair.scheduler.run()
    assert pair.b.heard == [0, 1, 2]


def test_the_end_of_a_process_is_told_to_who_monitors_it() -> None:
    pair = Pair()
    pair.send(0, 3)
    pair.network.end("a", politely=True)
    pair.scheduler.run()
    assert pair.b.heard == [0, 1, 2, ["a"]]
    pair.network.monitor("b", "a")
    pair.scheduler.run()
    assert pair.b.heard[-1:] == [["a"]] and len(pair.b.heard) == 5


def test_who_does_not_monitor_any_more_is_told_nothing() -> None:
    pair = Pair()
    pair.network.demonitor("b", "a")
    pair.network.end("a", politely=True)
    pair.scheduler.run()
    assert pair.b.heard == []
