"""Stores of several nodes over one simulated history, under every order of deliveries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest
from metadata_contract import MetadataContract, Opened, keys, vhost
from metadata_history import Writers, check, final_table
from shared_metadata import SharedHistory, SimulatedMetadataStore

from warren.core.ports import Conflict, Key, Precondition, Write
from warren.mirror.definitions.shared_definitions import (
    OPERATIONS_MAX,
    PIECE_BYTES_MAX,
    PRECONDITIONS_MAX,
    TransactionTooLarge,
)


class Steps:
    """A schedule that delivers when, and in the order in which, the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, Callable[[], None]]] = []

    def __call__(self, line: str, step: Callable[[], None]) -> None:
        self.waiting.append((line, step))

    def run(self, *lines: str) -> None:
        """Deliver what is under way on these lines, or on all, and what follows from it."""
        while True:
            due = [entry for entry in self.waiting if not lines or entry[0] in lines]
            if not due:
                return
            self.waiting.remove(due[0])
            due[0][1]()

    def run_any(self, random: Random) -> bool:
        """Deliver something; False when nothing is under way."""
        if self.waiting:
            self.waiting.pop(random.randrange(len(self.waiting)))[1]()
        return bool(self.waiting)


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.fixture
def history(steps: Steps) -> SharedHistory:
    return SharedHistory(steps)


class TestContract(MetadataContract):
    @pytest.fixture
    def opened(self, history: SharedHistory, steps: Steps) -> Iterator[Opened]:
        store = history.open("node")
        yield Opened(store, steps.run)
        store.close()


class TestCommits:
    def test_nothing_is_visible_before_the_history_has_it(
        self, history: SharedHistory, steps: Steps
    ) -> None:
        store = history.open("a")
        commit = store.transact([Write(("vhost", "v"), vhost())])
        steps.run("a/requests", "a/answers")
        assert not commit.done and not commit.visible and keys(store) == []
        assert store.uncommitted() is commit
        steps.run("a/history")
        assert commit.done and commit.visible and keys(store) == [("vhost", "v")]

    def test_a_revision_that_overtakes_its_answer_is_visible_but_not_known_to_be_ours(
        self, history: SharedHistory, steps: Steps
    ) -> None:
        store = history.open("a")
        commit = store.transact([Write(("vhost", "v"), vhost())])
        steps.run("a/requests", "a/history")
        assert keys(store) == [("vhost", "v")] and not commit.done
        steps.run("a/answers")
        assert commit.done

    def test_who_is_refused_sees_why(self, history: SharedHistory, steps: Steps) -> None:
        a, b = history.open("a"), history.open("b")
        key: Key = ("vhost", "v")
        first = a.transact([Write(key, vhost("a"))], [Precondition(key, 0)])
        second = b.transact([Write(key, vhost("b"))], [Precondition(key, 0)])
        seen: list[object] = []
        second.then(lambda: seen.append(b.get(key)))
        steps.run("a/requests", "b/requests", "b/answers")
        assert not second.done, "it would not see yet what it lost against"
        steps.run()
        assert first.visible and second.refused and not second.visible
        assert seen == [(key, vhost("a"), 1)]
        with pytest.raises(Conflict):
            b.transact([Write(key, vhost("b"))], [Precondition(key, 0)])

    def test_what_was_to_change_a_definition_does_not_change_another_one_of_its_key(
        self, history: SharedHistory, steps: Steps
    ) -> None:
        """A node that was cut off does not know that it was deleted and made anew."""
        a, b = history.open("a"), history.open("b")
        key: Key = ("vhost", "v")
        a.transact([Write(key, vhost("first"))])
        steps.run()
        first = b.get(key)
        assert first is not None
        for record in (None, vhost("anew")):
            a.transact([Write(key, record)])
        change = b.transact([Write(key, vhost("changed"))], [Precondition(key, first.version)])
        steps.run("a/requests", "a/answers", "a/history")
        steps.run()
        stored = b.get(key)
        assert change.refused and stored is not None and stored.record == vhost("anew")

    def test_a_transaction_may_only_check(self, history: SharedHistory, steps: Steps) -> None:
        a, b = history.open("a"), history.open("b")
        a.transact([Write(("vhost", "v"), vhost())])
        steps.run("a/requests")
        check = b.transact([], [Precondition(("vhost", "v"), 0)])
        steps.run()
        assert check.refused

    def test_writes_of_one_key_are_decided_in_order(
        self, history: SharedHistory, steps: Steps
    ) -> None:
        store = history.open("a")
        for text in "abc":
            store.transact([Write(("vhost", "v"), vhost(text))])
            store.transact([Write(("vhost", text), vhost(text))])
        steps.run()
        stored = store.get(("vhost", "v"))
        assert stored is not None and stored.record == vhost("c")
        assert [len(changes) for changes in history.revisions] == [1, 3, 2]

    def test_of_several_writes_of_a_key_in_a_transaction_the_last_counts(
        self, history: SharedHistory, steps: Steps
    ) -> None:
        store = history.open("a")
        store.transact([Write(("vhost", "v"), vhost(text)) for text in "ab"])
        steps.run()
        stored = store.get(("vhost", "v"))
        assert stored is not None and stored.record == vhost("b")

    def test_a_watcher_that_raises_stops_nothing(
        self, history: SharedHistory, steps: Steps, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = history.open("a")
        told: list[Key] = []
        store.watch((), lambda key, record: {}["missing"])
        store.watch((), lambda key, record: told.append(key))
        commit = store.transact([Write(("vhost", name), vhost()) for name in "ab"])
        steps.run()
        assert commit.visible and told == [("vhost", "a"), ("vhost", "b")]
        assert "definition_watcher_failed kind=vhost" in caplog.text


class TestLargeTransactions:
    def test_more_than_one_piece_is_done_when_all_are(
        self, history: SharedHistory, steps: Steps
    ) -> None:
        store = history.open("a")
        names = [f"{number:04}" for number in range(2 * OPERATIONS_MAX + 1)]
        commit = store.transact([Write(("vhost", name), vhost()) for name in names])
        later = store.transact([Write(("vhost", "later"), vhost())])
        while store.revision < 2:
            steps.run("a/requests")
            steps.run("a/history")
            steps.run("a/answers")
            assert commit.done == (store.revision == 3)
        steps.run()
        assert commit.visible and later.visible
        assert [len(changes) for changes in history.revisions] == [
            OPERATIONS_MAX,
            OPERATIONS_MAX,
            2,
        ]

    def test_nothing_follows_a_first_piece_that_is_refused(
        self, history: SharedHistory, steps: Steps
    ) -> None:
        a, b = history.open("a"), history.open("b")
        a.transact([Write(("vhost", "0000"), vhost())])
        steps.run("a/requests")
        names = [f"{number:04}" for number in range(300)]
        commit = b.transact(
            [Write(("vhost", name), vhost()) for name in names],
            [Precondition(("vhost", "0000"), 0)],
        )
        after = b.transact([Write(("vhost", "after"), vhost())])
        steps.run()
        assert commit.refused and after.visible
        assert keys(b) == [("vhost", "0000"), ("vhost", "after")]

    def test_what_no_store_could_take_is_refused_before_it_is_sent(
        self, history: SharedHistory, steps: Steps
    ) -> None:
        store = history.open("a")
        with pytest.raises(TransactionTooLarge, match="takes"):
            store.transact([Write(("vhost", "v"), vhost("d" * PIECE_BYTES_MAX))])
        many = [Precondition(("vhost", str(number)), 0) for number in range(PRECONDITIONS_MAX + 1)]
        with pytest.raises(TransactionTooLarge, match="preconditions"):
            store.transact([], many)
        assert steps.waiting == [] and store.uncommitted() is None


class TestDeaths:
    def test_a_request_of_a_node_that_died_may_still_be_decided(
        self, history: SharedHistory, steps: Steps
    ) -> None:
        a, b = history.open("a"), history.open("b")
        commit = a.transact([Write(("vhost", "v"), vhost())])
        a.close()
        steps.run()
        assert not commit.done and keys(b) == [("vhost", "v")]

    def test_but_not_after_the_node_has_started_again(
        self, history: SharedHistory, steps: Steps
    ) -> None:
        a = history.open("a")
        a.transact([Write(("vhost", "v"), vhost())])
        a.close()
        again = history.open("a")
        steps.run()
        assert keys(again) == [] and history.revisions == []


@pytest.mark.parametrize("seed", range(30))
def test_every_store_converges_and_every_outcome_is_true(seed: int) -> None:
    random = Random(seed)
    steps = Steps()
    history = SharedHistory(steps)
    writers = Writers(seed)
    stores: dict[str, SimulatedMetadataStore] = {}
    for _ in range(400):
        node = random.choice("abc")
        if node not in stores or random.random() < 0.01:
            if node in stores and random.random() < 0.5:
                stores[node].close()
            stores[node] = history.open(node)
        if random.random() < 0.5:
            writers.write(node, stores[node])
        for _ in range(random.randint(0, 4)):
            steps.run_any(random)
    while steps.run_any(random):
        pass
    outcomes = check(writers.made, history.revisions)
    assert outcomes["visible"] > 50 and outcomes["refused"] > 5, outcomes
    for store in stores.values():
        assert store.uncommitted() is None
        assert list(store.records(())) == final_table(history.revisions)
