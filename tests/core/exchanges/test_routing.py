"""Routing: through exchanges to queues, each queue once, and nowhere for ever."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.core.exchanges.binding import Binding
from warren.core.exchanges.exchange import Exchange, make_exchange
from warren.core.exchanges.routing import Routed, route
from warren.core.field import Field, Table, longstr
from warren.core.scheduling.turns import Unfinished


class Topology:
    """Exchanges and queues of one virtual host, by name."""

    def __init__(self, *queues: str) -> None:
        self.queues = set(queues)
        self.exchanges: dict[str, Exchange] = {}
        self.headers_read = 0
        self.declare("", "direct")

    def declare(self, name: str, kind: str, alternate: str | None = None) -> None:
        self.exchanges[name] = make_exchange(kind, name, random=Random(0))
        self.exchanges[name].alternate = alternate

    def bind(self, source: str, queue: str, key: str = "", arguments: Table | None = None) -> None:
        self.exchanges[source].add(Binding(source, "queue", queue, key, arguments or {}))

    def bind_exchange(self, source: str, destination: str, key: str = "") -> None:
        self.exchanges[source].add(Binding(source, "exchange", destination, key, {}))

    def publish(self, exchange: str, *routing_keys: str, headers: Table | None = None) -> Routed:
        def read_headers(names: Container[bytes]) -> Table:
            self.headers_read += 1
            return {n: field for n, field in (headers or {}).items() if n.encode() in names}

        return route(
            self.exchanges.get,
            self.exchanges[exchange],
            routing_keys,
            read_headers,
            lambda name: None,
            self.queues.__contains__,
        )

    def decided(self, exchange: str, *routing_keys: str, headers: Table | None = None) -> Routed:
        """The answer without the exchanges on the way, and what they cost."""
        routed = self.publish(exchange, *routing_keys, headers=headers)
        return routed._replace(exchanges=(), cost_us=0)

    def reached(self, exchange: str, *routing_keys: str) -> Sequence[str]:
        return self.publish(exchange, *routing_keys).queues


def test_the_default_exchange_reaches_the_queues_named() -> None:
    topology = Topology("a", "b")
    assert topology.decided("", "a") == Routed(("a",), True)
    assert topology.decided("", "missing") == Routed((), True)
    assert topology.reached("", "b", "missing", "a", "b") == ("b", "a")


def test_every_routing_key_counts_and_a_queue_is_reached_once() -> None:
    topology = Topology()
    topology.declare("direct", "direct")
    for queue, key in (("q1", "a"), ("q2", "b"), ("q1", "b"), ("q3", "c")):
        topology.bind("direct", queue, key)
    assert topology.reached("direct", "b", "a", "other") == ("q2", "q1")


def test_two_bindings_to_one_queue_are_one_copy() -> None:
    topology = Topology()
    topology.declare("fanout", "fanout")
    topology.bind("fanout", "q", "a")
    topology.bind("fanout", "q", "b")
    assert topology.reached("fanout", "x") == ("q",)


def test_one_destination_is_chosen_however_many_keys_there_are() -> None:
    topology = Topology()
    for kind in ("x-random", "x-consistent-hash"):
        topology.declare(kind, kind)
        for number in range(20):
            topology.bind(kind, f"q{number}", "1")
        assert len(topology.reached(kind, "a", "b", "c", "d")) == 1
    assert topology.reached("x-consistent-hash", "a") == topology.reached(
        "x-consistent-hash", "a", "b"
    )


def test_exchanges_bound_to_exchanges_are_followed_with_the_same_key() -> None:
    topology = Topology()
    topology.declare("first", "direct")
    topology.declare("second", "topic")
    topology.declare("third", "fanout")
    topology.bind("first", "near", "a.b")
    topology.bind_exchange("first", "second", "a.b")
    topology.bind("second", "middle", "a.*")
    topology.bind("second", "unmatched", "c.*")
    topology.bind_exchange("second", "third", "#")
    topology.bind("third", "far")
    assert topology.decided("first", "a.b") == Routed(("near", "middle", "far"), True)


def test_cycles_end_and_each_queue_is_reached_once() -> None:
    topology = Topology()
    topology.declare("a", "fanout")
    topology.declare("b", "fanout")
    topology.bind_exchange("a", "a")
    topology.bind_exchange("a", "b")
    topology.bind_exchange("b", "a")
    topology.bind("a", "q")
    topology.bind("b", "q")
    assert topology.reached("a", "") == ("q",)
    assert topology.reached("b", "") == ("q",)


def test_a_bound_exchange_that_is_gone_is_passed_over() -> None:
    topology = Topology()
    topology.declare("a", "fanout")
    topology.bind_exchange("a", "gone")
    topology.bind("a", "q")
    assert topology.reached("a", "") == ("q",)


def test_the_alternate_exchange_takes_what_matched_nothing() -> None:
    topology = Topology()
    topology.declare("main", "direct", alternate="other")
    topology.declare("other", "fanout")
    topology.bind("main", "q", "a")
    topology.bind("other", "unmatched")
    assert topology.reached("main", "a") == ("q",)
    assert topology.reached("main", "b") == ("unmatched",)
    assert topology.reached("main", "b", "a") == ("q",)


def test_alternate_exchanges_form_chains_that_may_end_nowhere_or_in_a_circle() -> None:
    topology = Topology()
    topology.declare("1", "direct", alternate="2")
    topology.declare("2", "direct", alternate="3")
    topology.declare("3", "direct", alternate="missing")
    assert topology.decided("1", "k") == Routed((), True)
    topology.exchanges["3"].alternate = "1"
    assert topology.reached("1", "k") == ()
    topology.bind("3", "q", "k")
    assert topology.reached("1", "k") == ("q",)


def test_the_alternate_of_an_exchange_on_the_way_counts_for_that_exchange() -> None:
    topology = Topology()
    topology.declare("main", "fanout", alternate="unused")
    topology.declare("unused", "fanout")
    topology.bind("unused", "not reached")
    topology.declare("next", "direct", alternate="other")
    topology.declare("other", "fanout")
    topology.bind("other", "q")
    topology.bind_exchange("main", "next")
    assert topology.reached("main", "k") == ("q",)


def test_a_binding_that_leads_nowhere_is_still_a_match() -> None:
    topology = Topology()
    topology.declare("main", "fanout", alternate="other")
    topology.declare("other", "fanout")
    topology.bind("other", "not reached")
    topology.declare("empty", "fanout")
    topology.bind_exchange("main", "empty")
    assert topology.reached("main", "k") == ()


def test_the_default_exchange_may_be_an_alternate() -> None:
    topology = Topology("a")
    topology.declare("main", "direct", alternate="")
    assert topology.reached("main", "a") == ("a",)
    assert topology.reached("main", "b") == ()


def test_headers_are_read_only_where_they_count_and_then_nothing_is_remembered() -> None:
    topology = Topology()
    topology.declare("main", "topic")
    topology.declare("headers", "headers")
    topology.bind("main", "q", "a")
    topology.bind_exchange("main", "headers", "b")
    topology.bind("headers", "h", "", {"k": longstr("v")})
    assert topology.decided("main", "a", headers={"k": longstr("v")}) == Routed(("q",), True)
    assert topology.headers_read == 0
    assert topology.decided("main", "b", headers={"k": longstr("v")}) == Routed(("h",), False)
    assert topology.decided("main", "b", headers={"k": Field("V", None)}) == Routed((), False)
    assert topology.headers_read == 2


def test_an_alternate_behind_headers_is_not_remembered() -> None:
    topology = Topology()
    topology.declare("headers", "headers", alternate="other")
    topology.declare("other", "fanout")
    topology.bind("headers", "h", "", {"k": Field("V", None)})
    topology.bind("other", "q")
    assert topology.decided("headers", "a") == Routed(("q",), False)


NAMES = ["a", "b", "c", "d"]


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=10),
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from([*NAMES, "missing"])),
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from("xyz")), max_size=6),
)
def test_every_graph_is_walked_to_its_end(
    edges: list[tuple[str, str]], alternates: dict[str, str], queues: list[tuple[str, str]]
) -> None:
    topology = Topology()
    for name in NAMES:
        topology.declare(name, "fanout", alternates.get(name))
    for source, destination in edges:
        topology.bind_exchange(source, destination)
    for source, queue in queues:
        topology.bind(source, queue)
    expected: set[str] = set()
    seen: set[str] = set()
    waiting = ["a"]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in NAMES:
            continue
        seen.add(name)
        expected |= {queue for source, queue in queues if source == name}
        waiting += [destination for source, destination in edges if source == name]
        if not any(source == name for source, _ in edges + queues) and name in alternates:
            waiting.append(alternates[name])
    found = topology.reached("a", "k")
    assert set(found) == expected
    assert len(found) == len(expected)


def test_exchanges_on_the_way_are_told_each_once() -> None:
    topology = Topology()
    topology.declare("first", "fanout")
    topology.declare("second", "direct", alternate="third")
    topology.declare("third", "x-recent-history")
    topology.declare("aside", "fanout")
    topology.bind_exchange("first", "second")
    topology.bind_exchange("third", "first")
    assert [one.name for one in topology.publish("first", "k").exchanges] == [
        "first",
        "second",
        "third",
    ]


def test_keys_that_lead_to_the_same_bindings_are_followed_once_and_unfinished_ones_first() -> None:
    exchange = make_exchange("topic", "t", random=Random(0))
    exchange.add(Binding("t", "queue", "q", "#", {}))
    followed: list[str] = []

    class Followed(tuple[Binding, ...]):
        def __iter__(self) -> Iterator[Binding]:
            followed.append("bindings")
            return super().__iter__()

    answer = Followed([Binding("t", "queue", "q", "#", {})])
    unfinished = ["b"]

    def match(key: str) -> tuple[Binding, ...]:
        if key in unfinished:
            unfinished.remove(key)
            raise Unfinished
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange.patterns, "match", match)  # type: ignore[attr-defined]
        ask = partial(
            route, {}.get, exchange, ["a", "b", "c"], dict, lambda name: None, lambda name: True
        )
        with pytest.raises(Unfinished):
            ask()
        assert not followed
        assert ask().queues == ("q",) and len(followed) == 1
