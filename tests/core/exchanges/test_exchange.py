"""Exchanges: bindings come and go as a set, and each type takes the messages it should."""

from __future__ import annotations

from random import Random

import pytest

from warren.core.errors import CommandInvalid, PreconditionFailed
from warren.core.exchanges.binding import Binding, fingerprint
from warren.core.exchanges.exchange import EXCHANGE_TYPES, Exchange, make_exchange
from warren.core.field import Field, Table, longstr

ONE = Field("l", 1)


NEEDED: dict[str, Table] = {
    "x-federation-upstream": {"x-max-hops": ONE},
    "x-delayed-message": {"x-delayed-type": longstr("direct")},
}
"""Arguments without which there is no exchange of that type."""


def exchange(kind: str, arguments: Table | None = None, seed: int = 0) -> Exchange:
    arguments = {**NEEDED.get(kind, {}), **(arguments or {})}
    return make_exchange(kind, "x", arguments=arguments, random=Random(seed))


def binding(queue: str, key: str = "", arguments: Table | None = None) -> Binding:
    return Binding("x", "queue", queue, key, arguments or {})


def taken(
    made: Exchange,
    key: str = "",
    headers: Table | None = None,
    properties: dict[str, bytes] | None = None,
) -> list[str]:
    found = made.destinations(
        key,
        lambda names: {n: f for n, f in (headers or {}).items() if n.encode() in names},
        (properties or {}).get,
    )
    return [each.destination for each in found]


def fill(made: Exchange, *bindings: Binding) -> Exchange:
    for each in bindings:
        made.check_binding(each)
        assert made.add(each)
    return made


def test_bindings_are_equal_by_value() -> None:
    assert binding("q", "k", {"a": ONE, "b": ONE}) == binding("q", "k", {"b": ONE, "a": ONE})
    assert len({binding("q", "k"), binding("q", "k")}) == 1
    others = [
        binding("q", "k"),
        binding("q", "j"),
        binding("p", "k"),
        binding("q", "k", {"a": ONE}),
        binding("q", "k", {"a": Field("s", 1)}),
        binding("q", "k", {"a": Field("t", True)}),
        binding("q", "k", {"a": Field("F", {"a": ONE})}),
        binding("q", "k", {"a": Field("A", [ONE])}),
        Binding("y", "queue", "q", "k", {}),
        Binding("x", "exchange", "q", "k", {}),
    ]
    assert len(set(others)) == len(others)
    assert binding("q") != "q"


def test_arguments_that_are_no_number_equal_themselves() -> None:
    assert binding("q", "k", {"a": Field("d", float("nan"))}) == binding(
        "q", "k", {"a": Field("d", float("nan"))}
    )


def test_a_fingerprint_is_the_same_in_every_process_and_release() -> None:
    assert fingerprint({}) == ""
    table = {"\udcff": longstr("a"), "n": Field("F", {"l": Field("A", [ONE])})}
    assert fingerprint(table) == "28a48d1268d634dda1961ec90695cb34"


@pytest.mark.parametrize("kind", EXCHANGE_TYPES)
def test_a_binding_is_there_once_and_goes_once(kind: str) -> None:
    made = exchange(kind)
    assert (made.name, made.type) == ("x", kind)
    assert taken(made, "1") == []
    assert made.add(binding("q", "1"))
    assert not made.add(binding("q", "1"))
    assert list(made.bindings) == [binding("q", "1")]
    assert taken(made, "1") == ["q"]
    assert made.remove(binding("q", "1"))
    assert not made.remove(binding("q", "1"))
    assert not made.bindings
    assert taken(made, "1") == []


@pytest.mark.parametrize("kind", EXCHANGE_TYPES)
def test_removing_one_binding_leaves_the_other(kind: str) -> None:
    made = fill(exchange(kind), binding("a", "1"), binding("b", "1"), binding("b", "1", {"c": ONE}))
    made.remove(binding("a", "1"))
    made.remove(binding("b", "1", {"c": ONE}))
    assert taken(made, "1") == ["b"]


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(CommandInvalid) as error:
        exchange("x-what")
    assert error.value.text == "unknown exchange type 'x-what'"


def test_direct_takes_equal_keys() -> None:
    made = fill(exchange("direct"), binding("a", "k"), binding("b", "k"), binding("c", "K"))
    assert taken(made, "k") == ["a", "b"]
    assert taken(made, "k.") == []


def test_fanout_takes_everything() -> None:
    made = fill(exchange("fanout"), binding("a", "k"), binding("b", "j"))
    assert taken(made, "other") == ["a", "b"]


def test_topic_takes_patterns() -> None:
    made = fill(exchange("topic"), binding("a", "k.*"), binding("b", "#"), binding("c", "j"))
    assert sorted(taken(made, "k.j")) == ["a", "b"]


def test_headers_takes_by_arguments_and_refuses_a_bad_x_match() -> None:
    made = fill(exchange("headers"), binding("a", "", {"k": ONE}), binding("b", "", {}))
    assert taken(made, "", {"k": ONE}) == ["a", "b"]
    assert taken(made, "", {}) == ["b"]
    with pytest.raises(PreconditionFailed):
        made.check_binding(binding("c", "", {"x-match": longstr("none")}))


def test_consistent_hash_takes_one_by_routing_key_header_or_property() -> None:
    queues = [binding(f"q{number}", "1") for number in range(10)]
    by_key = fill(exchange("x-consistent-hash"), *queues)
    by_header = fill(exchange("x-consistent-hash", {"hash-header": longstr("user")}), *queues)
    by_property = fill(
        exchange("x-consistent-hash", {"hash-property": longstr("message_id")}), *queues
    )
    for number in range(30):
        text = str(number)
        expected = taken(by_key, text)
        assert len(expected) == 1
        assert taken(by_header, "other", {"user": longstr(text)}) == expected
        assert taken(by_header, "other", {"user": Field("s", number)}) == expected
        assert taken(by_property, "other", {}, {"message_id": text.encode()}) == expected
    assert taken(by_header, "1", {}) == taken(by_property, "2") == taken(by_key, "")
    assert len({taken(by_key, str(number))[0] for number in range(100)}) == 10


def test_consistent_hash_refuses_weights_and_arguments_that_make_no_sense() -> None:
    with pytest.raises(PreconditionFailed):
        exchange("x-consistent-hash").check_binding(binding("q", "heavy"))
    with pytest.raises(PreconditionFailed):
        exchange("x-consistent-hash", {"hash-property": longstr("app_id")})


def test_random_takes_one_at_a_time_and_each_at_times() -> None:
    made = fill(exchange("x-random"), *(binding(queue, queue) for queue in "abc"))
    picks = [taken(made) for _ in range(100)]
    assert all(len(pick) == 1 for pick in picks)
    assert {pick[0] for pick in picks} == {"a", "b", "c"}
    again = fill(exchange("x-random"), *(binding(queue, queue) for queue in "abc"))
    assert [taken(again) for _ in range(100)] == picks


def test_random_forgets_what_is_unbound_and_nothing_else() -> None:
    bindings = [binding(queue, queue) for queue in "abcd"]
    made = fill(exchange("x-random"), *bindings)
    for gone in (bindings[0], bindings[3], bindings[1]):
        assert made.remove(gone)
    assert {taken(made)[0] for _ in range(20)} == {"c"}
    assert made.remove(bindings[2])
    assert taken(made) == []


def test_what_may_be_remembered_for_a_routing_key() -> None:
    remembered = {kind for kind in EXCHANGE_TYPES if exchange(kind).by_key_only}
    assert remembered == {"direct", "fanout", "topic", "x-consistent-hash", "x-modulus-hash"}
    for argument, value in (("hash-header", "user"), ("hash-property", "timestamp")):
        assert not exchange("x-consistent-hash", {argument: longstr(value)}).by_key_only


def test_modulus_hash_takes_one_for_each_key_whatever_the_order_of_bindings() -> None:
    bindings = [binding(queue, "ignored") for queue in "dbca"]
    made = fill(exchange("x-modulus-hash"), *bindings)
    again = fill(exchange("x-modulus-hash"), *reversed(bindings))
    keys = [f"key{number}" for number in range(400)]
    chosen = [taken(made, key) for key in keys]
    assert chosen == [taken(again, key) for key in keys]
    assert {len(one) for one in chosen} == {1}
    shares = [sum(one == [queue] for one in chosen) for queue in "abcd"]
    assert min(shares) > 60, shares
    for one in bindings:
        made.remove(one)
    assert taken(made, "key1") == []
