"""A mirror counts only when its card is durable: without it, its copy is of no use after a restart.

A card takes a fifth of a second here, so what does not wait for one is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest
from cluster import Cluster
from cluster_disk import Disk, backings_on
from pamqp import commands
from pipe import Client

from warren.core.definitions.records import QueueRecord
from warren.core.field import longstr
from warren.mirror.replication.copies.copy_cards import Card
from warren.mirror.replication.copies.copy_here import LEADER_MAY_COME_S
from warren.mirror.replication.leading.awaited_cards import AwaitedCards


@pytest.fixture(params=["gm", "log", "quorum"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Node a leads queue `q`, which b and c are about to mirror."""
    disks: dict[str, Disk] = {}
    cluster = Cluster("a", "b", "c", new_backing=backings_on(disks), card_sync_s=0.2)
    arguments = {"x-queue-type": longstr("quorum")} if request.param == "quorum" else {}
    if not arguments:
        definition = {"ha-mode": "all", "ha-replication": request.param}
        cluster["a"].node.policies.set("/", "q", "^q$", definition, 0, "queues")
    client = client_at(cluster, "a")
    client.sends(commands.Queue.Declare, queue="q", durable=True, arguments=arguments)
    cluster.clock.advance(0.01)
    return cluster


def client_at(cluster: Cluster, node: str) -> Client:
    client = cluster[node].connects()
    client.opens_channel(1)
    client.selects_confirms()
    return client


def record(cluster: Cluster) -> QueueRecord:
    stored = cluster[cluster.alive[0]].metadata.get(("queue", "/", "q"))
    assert stored is not None and isinstance(stored.record, QueueRecord)
    return stored.record


def epochs_on_disk(cluster: Cluster, node: str) -> set[int]:
    """The epochs that the cards of a node name."""
    cards = cluster.cards[node].values()
    return {msgspec.msgpack.decode(card, type=Card).epoch for card in cards}


def passing(cluster: Cluster, seconds: float) -> Iterator[None]:
    for _ in range(round(seconds * 1000)):
        cluster.clock.advance(0.001)
        yield


def is_confirmed(client: Client) -> bool:
    return any(isinstance(one.method, commands.Basic.Ack) for one in client.frames())


def test_the_definition_calls_no_mirror_in_sync_before_its_card_is_durable(
    cluster: Cluster,
) -> None:
    for _ in passing(cluster, 3):
        now = record(cluster)
        for mirror in now.in_sync:
            assert now.epoch in epochs_on_disk(cluster, mirror)
    assert set(record(cluster).in_sync) == {"b", "c"} - {record(cluster).leader}


def test_a_mirror_that_cannot_be_asked_is_asked_again(cluster: Cluster) -> None:
    """The link between the leader and a mirror breaks while the card is being written."""
    (led,) = cluster["a"].mirroring._led.values()
    for _ in passing(cluster, 3):
        if led._cards:
            break
    cluster.clock.advance(0.01)
    assert not record(cluster).in_sync
    for mirror in "bc":
        cluster.cut("a", mirror)
    cluster.clock.advance(0.3)
    assert not record(cluster).in_sync
    for mirror in "bc":
        cluster.connect("a", mirror)
    cluster.clock.advance(10)
    assert set(record(cluster).in_sync) == {"b", "c"}
    assert not led._cards


def confirmed_by_a_new_leader(cluster: Cluster, body: bytes) -> tuple[str, str]:
    """Have the first leader die, and the next one confirm a message. Return the new leader and its
    mirror at the moment of the confirm."""
    cluster.clock.advance(3)
    first = record(cluster).epoch
    cluster.kill("a")
    for _ in passing(cluster, 15):
        if record(cluster).epoch > first:
            break
    heir = record(cluster).leader
    (other,) = record(cluster).in_sync
    client = client_at(cluster, heir)
    client.publishes("q", body, delivery_mode=2)
    for _ in passing(cluster, 5):
        if is_confirmed(client):
            return heir, other
    pytest.fail("the message is not confirmed")


def test_a_new_leader_confirms_nothing_before_its_mirrors_have_cards_of_its_epoch(
    cluster: Cluster,
) -> None:
    _, other = confirmed_by_a_new_leader(cluster, b"confirmed")
    assert record(cluster).epoch in epochs_on_disk(cluster, other)


@pytest.mark.parametrize("cluster", ["gm", "log"], indirect=True)
def test_a_message_is_found_after_a_restart_right_after_its_confirm(cluster: Cluster) -> None:
    """The new leader stays away, and the leader before it has no mirror's copy."""
    heir, other = confirmed_by_a_new_leader(cluster, b"confirmed")
    for node in (heir, other):
        cluster.kill(node)
    for node in "abc":
        cluster.tidy_after(node)
    cluster.comes_back("a")
    cluster.comes_back(other)
    cluster.clock.advance(LEADER_MAY_COME_S + 20)
    assert record(cluster).leader == other
    got = client_at(cluster, other).gets("q", no_ack=True)
    assert got is not None and got.body == b"confirmed"


class Questions:
    """The mirrors that were asked, with what is to be called with their answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: list[Callable[[bool], None]] = []

    def __call__(self, mirror: str, answer: Callable[[bool], None]) -> None:
        self.asked.append(mirror)
        self.answers.append(answer)


def test_a_card_is_awaited_until_it_is_durable() -> None:
    ask, done = Questions(), list[str]()
    cards = AwaitedCards()
    cards.wait_for("b", ask, lambda: done.append("b"))
    cards.ask_again(ask, lambda mirror: True)
    assert ask.asked == ["b"] and cards
    ask.answers[0](False)
    cards.ask_again(ask, lambda mirror: True)
    assert ask.asked == ["b", "b"] and not done
    ask.answers[1](True)
    assert done == ["b"] and not cards


def test_a_mirror_that_is_not_whole_any_more_is_not_asked_again() -> None:
    ask = Questions()
    cards = AwaitedCards()
    cards.wait_for("b", ask, lambda: pytest.fail("its card is not durable"))
    ask.answers[0](False)
    cards.ask_again(ask, lambda mirror: False)
    assert ask.asked == ["b"] and not cards


def test_an_answer_about_an_earlier_copy_does_not_count() -> None:
    ask, done = Questions(), list[str]()
    cards = AwaitedCards()
    cards.wait_for("b", ask, lambda: done.append("first"))
    cards.wait_for("b", ask, lambda: done.append("second"))
    ask.answers[0](True)
    assert not done
    ask.answers[1](True)
    assert done == ["second"]
