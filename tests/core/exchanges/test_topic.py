"""The topic trie against a matcher that tries every way to read a pattern."""

from __future__ import annotations

import time
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.core.exchanges import topic
from warren.core.exchanges.binding import Binding
from warren.core.exchanges.topic import TopicTrie, pattern_of, words_of
from warren.core.scheduling.turns import Unfinished


def binding(pattern: str, queue: str = "q") -> Binding:
    return Binding("topic", "queue", queue, pattern, {})


def fits(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(fits(pattern[1:], words[skipped:]) for skipped in range(len(words) + 1))
    if not words or pattern[0] not in ("*", words[0]):
        return False
    return fits(pattern[1:], words[1:])


some_words = st.sampled_from(["a", "b", "ab", "", "A", "a*"])
routing_keys = st.lists(some_words, max_size=6).map(".".join)
patterns = st.lists(st.one_of(some_words, st.sampled_from(["*", "#"])), max_size=5).map(".".join)


@given(st.lists(patterns, max_size=12), st.lists(routing_keys, min_size=1, max_size=5))
def test_the_trie_matches_what_the_plain_matcher_matches(
    bound: list[str], published: list[str]
) -> None:
    trie = TopicTrie()
    for pattern in bound:
        trie.add(binding(pattern))
    for routing_key in published:
        matched = [found.routing_key for found in trie.match(routing_key)]
        expected = {p for p in bound if fits(words_of(p), words_of(routing_key))}
        assert sorted(matched) == sorted(expected)


@given(st.lists(patterns, max_size=12), st.lists(routing_keys, min_size=1, max_size=12))
def test_it_matches_the_same_when_hardly_anything_is_kept(
    bound: list[str], published: list[str]
) -> None:
    trie = TopicTrie()
    for pattern in bound:
        trie.add(binding(pattern))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic, "KEPT_MAX", 2)
        for routing_key in published:
            matched = [found.routing_key for found in trie.match(routing_key)]
            expected = {p for p in bound if fits(words_of(p), words_of(routing_key))}
            assert sorted(matched) == sorted(expected)


def test_what_is_kept_grows_with_the_bindings_and_not_with_the_keys() -> None:
    trie = TopicTrie()
    for pattern in ("orders.#", "orders.*.created", "#.urgent", "a.b.c"):
        trie.add(binding(pattern))
    for number in range(5000):
        assert len(trie.match(f"orders.{number}.created")) == 2
        assert len(trie.match(f"{number}.{number}.urgent")) == 1
        assert not trie.match(f"a.{number}.c")
    assert len(trie._reached) < 30
    assert sum(len(reached.after) for reached in trie._reached.values()) < 30


def test_keys_that_fit_the_same_patterns_get_the_same_answer() -> None:
    trie = TopicTrie()
    trie.add(binding("orders.#"))
    first = trie.match("orders.1.created")
    assert trie.match("orders.2.deleted") is first
    trie.add(binding("orders.*.created"))
    assert len(trie.match("orders.1.created")) == 2


@given(st.lists(patterns, unique=True, max_size=12), st.data())
def test_removing_bindings_leaves_the_others_and_at_last_nothing(
    bound: list[str], data: st.DataObject
) -> None:
    trie = TopicTrie()
    for pattern in bound:
        trie.add(binding(pattern))
    left = list(bound)
    for pattern in data.draw(st.permutations(bound)):
        trie.remove(binding(pattern))
        left.remove(pattern)
        routing_key = data.draw(routing_keys)
        matched = [found.routing_key for found in trie.match(routing_key)]
        expected = [p for p in left if fits(words_of(p), words_of(routing_key))]
        assert sorted(matched) == sorted(expected)
        assert bool(trie) == bool(left)


@given(st.lists(patterns, max_size=6), patterns)
def test_removing_what_is_not_bound_changes_nothing(bound: list[str], other: str) -> None:
    trie = TopicTrie()
    for pattern in bound:
        trie.add(binding(pattern))
    trie.remove(binding(other, "another queue"))
    for pattern in bound:
        words = ["a" if word in ("*", "#") else word for word in words_of(pattern)]
        assert binding(pattern) in trie.match(".".join(words))


@pytest.mark.parametrize(
    ("pattern", "routing_key", "matches"),
    [
        ("a.*.b", "a..b", True),
        ("*.*", "a.", True),
        ("*.*", ".", True),
        ("*", "", False),
        ("#", "", True),
        ("", "", True),
        ("", ".", False),
        ("#.#", "", True),
        ("a.#", "a", True),
        ("#.a", "a", True),
        ("a.#.#.b", "a.b", True),
        ("a*", "ab", False),
        ("a*", "a*", True),
        ("a.b", "a.B", False),
        ("*", "#", True),
        ("a", "*", False),
        ("a.b", "#", False),
    ],
)
def test_words_and_wildcards(pattern: str, routing_key: str, matches: bool) -> None:
    trie = TopicTrie()
    trie.add(binding(pattern))
    assert bool(trie.match(routing_key)) is matches


def test_bindings_of_one_pattern_come_in_the_order_they_were_added() -> None:
    trie = TopicTrie()
    for queue in ("c", "a", "b"):
        trie.add(binding("x.#", queue))
    assert [found.destination for found in trie.match("x.y")] == ["c", "a", "b"]


def seconds_for(trie: TopicTrie, routing_key: str) -> float:
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        for _ in range(200):
            trie.match(routing_key)
        best = min(best, time.process_time() - start)
    return best


def test_ten_thousand_bindings_do_not_slow_a_match() -> None:
    few, many = TopicTrie(), TopicTrie()
    few.add(binding("stock.*.7"))
    few.add(binding("#.7"))
    for number in range(5000):
        many.add(binding(f"stock.*.{number}"))
        many.add(binding(f"#.{number}"))
    assert len(many.match("stock.nyse.7")) == 2
    assert seconds_for(many, "stock.nyse.7") < 10 * seconds_for(few, "stock.nyse.7")


def test_patterns_of_many_wildcards_do_not_explode() -> None:
    trie = TopicTrie()
    for count in range(1, 60):
        trie.add(binding(".".join(["#", "a"] * count)))
        trie.add(binding(".".join(["#"] * count)))
    start = time.process_time()
    assert len(trie.match(".".join(["a"] * 120 + ["b"]))) == 59
    assert time.process_time() - start < 2


def in_turns(trie: TopicTrie, routing_key: str) -> tuple[tuple[Binding, ...], int]:
    """The bindings a key fits, and in how many turns they were found."""
    turns = 1
    while True:
        try:
            return trie.match(routing_key), turns
        except Unfinished:
            turns += 1


@given(st.lists(patterns, max_size=12), st.lists(routing_keys, min_size=1, max_size=5))
def test_it_matches_the_same_a_few_nodes_a_turn(bound: list[str], published: list[str]) -> None:
    trie = TopicTrie()
    for pattern in bound:
        trie.add(binding(pattern))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic, "WIDE", 1)
        patch.setattr(topic, "NODES_A_TURN", 2)
        for routing_key in published:
            found, _ = in_turns(trie, routing_key)
            expected = {p for p in bound if fits(words_of(p), words_of(routing_key))}
            assert sorted([one.routing_key for one in found]) == sorted(expected)


def test_a_key_that_is_under_way_in_very_many_nodes_is_matched_in_turns() -> None:
    trie = TopicTrie()
    random = Random(1)
    for _ in range(300):
        words = [random.choice(["a", "*"]) for _ in range(100)]
        trie.add(binding(".".join(["#", *words])))
    looked_at: list[int] = []
    step = topic._step

    def counted(nodes: list[object], word: str, following: dict[object, None]) -> None:
        looked_at.append(len(nodes))
        step(nodes, word, following)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic, "_step", counted)
        found, turns = in_turns(trie, ".".join(["a"] * 120))
    assert len(found) == 300
    assert sum(looked_at) > 1_000_000
    assert turns * (topic.NODES_A_TURN + topic.WIDE) > sum(looked_at)
    # A key that fits the same patterns gets the same answer; asked again, nothing is looked at.
    assert in_turns(trie, ".".join(["a"] * 119))[0] is found
    assert in_turns(trie, ".".join(["a"] * 120)) == (found, 1)


def test_a_binding_that_comes_while_a_key_is_under_way_counts() -> None:
    trie = TopicTrie()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic, "WIDE", 0)
        patch.setattr(topic, "NODES_A_TURN", 1)
        trie.add(binding("#.a"))
        with pytest.raises(Unfinished):
            trie.match("a.a")
        trie.add(binding("a.#"))
        assert len(in_turns(trie, "a.a")[0]) == 2


def test_keys_that_are_not_asked_for_any_more_are_forgotten() -> None:
    trie = TopicTrie()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic, "WIDE", 0)
        patch.setattr(topic, "WALKS_MAX", 8)
        trie.add(binding("#.a"))
        for number in range(100):
            in_turns(trie, f"{number}.a")
        assert len(trie._walks) == 8


@given(st.lists(st.sampled_from(["*", "#"]), min_size=1, max_size=8))
def test_wildcards_side_by_side_are_written_in_one_way(wildcards: list[str]) -> None:
    written = pattern_of(".".join(wildcards))
    stars = ["*"] * wildcards.count("*")
    assert written == ([*stars, "#"] if "#" in wildcards else stars)
    for count in range(10):
        assert fits(written, ["a"] * count) == fits(wildcards, ["a"] * count)
