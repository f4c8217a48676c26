"""Consistent hashing: shares follow weights, keys stay where they are, bad bindings are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.core.errors import PreconditionFailed
from warren.core.exchanges.binding import Binding
from warren.core.exchanges.consistent_hash import (
    ConsistentHash,
    HashSource,
    hash_source,
    hashed_value,
    weight_of,
)
from warren.core.field import Field, Table, longstr

KEYS = [b"%d" % number for number in range(20_000)]


def binding(queue: str, weight: int | str = 1, arguments: Table | None = None) -> Binding:
    return Binding("hash", "queue", queue, str(weight), arguments or {})


def hash_over(bindings: Iterable[Binding]) -> ConsistentHash:
    made = ConsistentHash()
    for each in bindings:
        made.add(each)
    return made


def owners(hashing: ConsistentHash) -> dict[bytes, str]:
    chosen = {key: hashing.choose(key) for key in KEYS}
    return {key: found.destination for key, found in chosen.items() if found is not None}


def test_nothing_is_chosen_from_nothing() -> None:
    assert ConsistentHash().choose(b"key") is None


@pytest.mark.parametrize("spell", [b"%d", b"user-%06d", b"%d.event.created", b"aaaaaaaaaaaa%d"])
def test_equal_weights_get_equal_shares(spell: bytes) -> None:
    hashing = hash_over(binding(f"q{number}") for number in range(8))
    shares: Counter[str] = Counter()
    for number in range(40_000):
        found = hashing.choose(spell % number)
        assert found is not None
        shares[found.destination] += 1
    assert len(shares) == 8
    assert all(abs(share - 5000) < 500 for share in shares.values()), shares


def test_shares_follow_the_weights() -> None:
    shares = Counter(
        owners(hash_over([binding("a", 1), binding("b", 2), binding("c", 7)])).values()
    )
    total = len(KEYS)
    for queue, weight in (("a", 1), ("b", 2), ("c", 7)):
        assert abs(shares[queue] / total - weight / 10) < 0.02, shares


def test_an_enormous_weight_takes_everything_at_no_cost() -> None:
    assert set(owners(hash_over([binding("a"), binding("b", "9" * 255)])).values()) == {"b"}


def test_a_removed_destination_moves_only_its_own_keys() -> None:
    bindings = [binding(f"q{number}") for number in range(10)]
    hashing = hash_over(bindings)
    before = owners(hashing)
    hashing.remove(bindings[3])
    after = owners(hashing)
    assert all(after[key] == owner for key, owner in before.items() if owner != "q3")
    assert "q3" not in after.values()
    assert len({after[key] for key, owner in before.items() if owner == "q3"}) == 9


def test_a_new_destination_takes_its_share_and_moves_nothing_else() -> None:
    hashing = hash_over(binding(f"q{number}") for number in range(9))
    before = owners(hashing)
    hashing.add(binding("new"))
    after = owners(hashing)
    moved = {key for key in KEYS if after[key] != before[key]}
    assert {after[key] for key in moved} == {"new"}
    assert abs(len(moved) / len(KEYS) - 0.1) < 0.02


@given(st.permutations([binding(f"q{number}", number + 1) for number in range(5)]))
def test_the_choice_does_not_depend_on_the_order_of_binding(bindings: list[Binding]) -> None:
    hashing = hash_over(bindings)
    reference = hash_over(sorted(bindings, key=lambda each: each.destination))
    assert all(hashing.choose(key) == reference.choose(key) for key in KEYS[:50])


def test_the_choice_is_the_same_in_every_process_and_release() -> None:
    hashing = hash_over(binding(queue) for queue in "abcd")
    chosen = [hashing.choose(key) for key in (b"", b"1", b"key", b"\xff", b"order-7", b"x" * 255)]
    assert "".join(found.destination for found in chosen if found) == "bdcbbc"


def test_only_the_oldest_binding_of_a_destination_counts() -> None:
    first, second, other = binding("a", 1), binding("a", 1000), binding("b", 1)
    hashing = hash_over([first, second, other])
    shares = Counter(owners(hashing).values())
    assert abs(shares["a"] - shares["b"]) < 1000
    assert {hashing.choose(key) for key in KEYS[:100]} == {first, other}
    hashing.remove(first)
    assert Counter(owners(hashing).values())["a"] > 0.99 * len(KEYS)
    hashing.remove(second)
    assert set(owners(hashing).values()) == {"b"}


def test_removing_what_is_not_bound_changes_nothing() -> None:
    hashing = hash_over([binding("a")])
    hashing.remove(binding("a", 2))
    hashing.remove(binding("b"))
    assert hashing.choose(b"key") == binding("a")


def test_a_queue_and_an_exchange_of_one_name_are_two_destinations() -> None:
    exchange = Binding("hash", "exchange", "a", "1", {})
    hashing = hash_over([binding("a"), exchange])
    assert {hashing.choose(key) for key in KEYS[:100]} == {binding("a"), exchange}


@pytest.mark.parametrize(("key", "weight"), [("1", 1), ("+20", 20), ("007", 7)])
def test_a_positive_integer_is_a_weight(key: str, weight: int) -> None:
    assert weight_of(key) == weight


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("", "<<>>"),
        ("one", '<<"one">>'),
        ("1.5", '<<"1.5">>'),
        (" 1", '<<" 1">>'),
        ("1_0", '<<"1_0">>'),
        ("\u0661", "<<217,161>>"),
    ],
)
def test_what_is_no_integer_is_refused(key: str, shown: str) -> None:
    with pytest.raises(PreconditionFailed) as error:
        weight_of(key)
    assert error.value.text == f"The binding key must be an integer: {shown}"


@pytest.mark.parametrize("key", ["0", "-3"])
def test_what_is_not_positive_is_refused(key: str) -> None:
    with pytest.raises(PreconditionFailed) as error:
        weight_of(key)
    assert error.value.text == "The binding key must be greater than 0"


@pytest.mark.parametrize(
    ("arguments", "source"),
    [
        ({}, HashSource(None, None)),
        ({"hash-header": longstr("user")}, HashSource("user", None)),
        ({"hash-property": longstr("message_id")}, HashSource(None, "message_id")),
    ],
)
def test_the_arguments_say_what_is_hashed(arguments: Table, source: HashSource) -> None:
    assert hash_source(arguments) == source


@pytest.mark.parametrize(
    "arguments",
    [
        {"hash-header": longstr("a"), "hash-property": longstr("message_id")},
        {"hash-property": longstr("app_id")},
        {"hash-property": Field("l", 1)},
        {"hash-header": Field("t", True)},
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: Table) -> None:
    with pytest.raises(PreconditionFailed):
        hash_source(arguments)


def test_a_header_hashes_by_its_value_and_not_by_its_type() -> None:
    assert hashed_value(Field("b", 7)) == hashed_value(Field("l", 7)) == b"7"
    assert hashed_value(longstr("a")) == hashed_value(Field("x", b"a")) == b"a"
    assert hashed_value(None) == b""
    assert hashed_value(Field("F", {"\u00e9": Field("V", None)}))
