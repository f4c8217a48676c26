"""A message that died leaves its queue when its dead letter is safe, and not before."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import pytest
from bare_vhost import new_vhost
from durable_queue import DurableQueue
from manual_clock import ManualClock

from warren.amqp.content_codec import AmqpContentCodec
from warren.core.backing.backing_queue import BackingSpec
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.field import Table, long, longstr
from warren.core.messages.message import Envelope
from warren.core.messages.message_observer import TracedClient
from warren.core.messages.settlement import PENDING, REJECTED, SETTLED, PublishConfirms
from warren.core.messages.succession import AGAIN_S
from warren.core.queues.local_queue import LocalQueue
from warren.core.scheduling.turns import TURN_US
from warren.core.vhosts import burials
from warren.core.vhosts.burials import TOGETHER_MAX, TOGETHER_US
from warren.core.vhosts.vhost import VirtualHost

SOMEBODY = TracedClient("connection", 1, "user")


class Answers(PublishConfirms):
    """A publisher with confirms."""

    def __init__(self) -> None:
        self.settled: list[int] = []
        self.refused: list[int] = []

    def settle(self, publish_seq: int) -> None:
        self.settled.append(publish_seq)

    def refuse(self, publish_seq: int) -> None:
        self.refused.append(publish_seq)


@pytest.fixture
def vhost(store: VolatileMetadataStore, clock: ManualClock) -> VirtualHost:
    def durable(spec: BackingSpec) -> DurableQueue:
        return DurableQueue()

    return new_vhost(store, clock, durable)


def add_queue(
    vhost: VirtualHost, name: str, dead_to: str = "", **arguments: int | str
) -> LocalQueue:
    """A queue whose dead letters go to the queue `dead_to`."""
    table: Table = {
        f"x-{key.replace('_', '-')}": long(value) if isinstance(value, int) else longstr(value)
        for key, value in arguments.items()
    }
    if dead_to:
        table["x-dead-letter-exchange"] = longstr("")
        table["x-dead-letter-routing-key"] = longstr(dead_to)
    vhost.declare_queue(
        name, durable=True, exclusive_owner=None, auto_delete=False, arguments=table
    )
    return vhost.queues[name]


def backing(queue: LocalQueue) -> DurableQueue:
    assert isinstance(queue.backing, DurableQueue)
    return queue.backing


def publish(
    queue: LocalQueue, body: bytes, confirms: PublishConfirms | None = None, number: int = 0
) -> Any:
    header = AmqpContentCodec().content_header(len(body), {})
    return queue.publish(Envelope("", queue.name, header, True, 0, None), body, confirms, number)


def reject(queue: LocalQueue, count: int = 1) -> None:
    queue.reject([m for _ in range(count) if (m := queue.get(False, SOMEBODY)) is not None])


def reject_more_than_a_turn_holds(queue: LocalQueue) -> int:
    """Publish messages and reject them; returns how many."""
    many = 2 * TURN_US // TOGETHER_US
    for number in range(many):
        publish(queue, b"%d" % number)
    reject(queue, many)
    return many


def test_a_rejected_message_leaves_when_its_dead_letter_is_safe(
    vhost: VirtualHost, clock: ManualClock
) -> None:
    new, old = add_queue(vhost, "new"), add_queue(vhost, "old", "new")
    publish(old, b"a")
    reject(old)
    clock.settle()
    assert len(new) == 1 and backing(old).removed == []
    assert [message.body for message in vhost.burials.of_queue(old)] == [b"a"]
    assert not vhost.burials.idle
    backing(new).sync()
    clock.settle()
    assert backing(old).removed == [b"a"]
    assert not list(vhost.burials.of_queue(old)) and vhost.burials.idle


@pytest.mark.parametrize(
    ("arguments", "publishes"), [({"max_length": 1}, 2), ({"message_ttl": 1}, 1)]
)
def test_so_do_those_that_expire_or_are_dropped(
    vhost: VirtualHost, clock: ManualClock, arguments: dict[str, int], publishes: int
) -> None:
    new, old = add_queue(vhost, "new"), add_queue(vhost, "old", "new", **arguments)
    for number in range(publishes):
        publish(old, b"%d" % number)
    clock.advance(0.01)
    assert len(new) == 1 and backing(old).removed == []
    backing(new).sync()
    clock.settle()
    assert backing(old).removed == [b"0"]


@pytest.mark.parametrize("after", [{}, {"dead_to": "elsewhere"}])
def test_dead_letters_go_where_the_settings_said_when_the_messages_died(
    vhost: VirtualHost, clock: ManualClock, after: dict[str, str]
) -> None:
    """A policy may change before they are buried; without an exchange, messages are not dead
    lettered, and do not come back to the queue that their routing key names."""
    new, elsewhere = add_queue(vhost, "new"), add_queue(vhost, "elsewhere")
    old = add_queue(vhost, "old", "new")
    for body in (b"a", b"b", b"c"):
        publish(old, body)
    reject(old, 2)
    old.apply_settings(add_queue(vhost, "like this", **after).settings)
    reject(old)
    clock.settle()
    assert [message.body for message in new.backing.fetch_many(9)] == [b"a", b"b"]
    assert (len(old), len(elsewhere)) == (0, len(after))


def test_without_a_dead_letter_exchange_it_leaves_at_once(vhost: VirtualHost) -> None:
    old = add_queue(vhost, "old")
    publish(old, b"a")
    reject(old)
    assert backing(old).removed == [b"a"]


def test_a_dead_letter_that_no_queue_takes_is_dropped(
    vhost: VirtualHost, clock: ManualClock
) -> None:
    old = add_queue(vhost, "old", "nowhere")
    publish(old, b"a")
    reject(old)
    clock.settle()
    assert backing(old).removed == [b"a"]


def test_every_queue_must_have_it_safe(vhost: VirtualHost, clock: ManualClock) -> None:
    one, other = add_queue(vhost, "one"), add_queue(vhost, "other")
    old = add_queue(vhost, "old", dead_letter_exchange="")
    header = AmqpContentCodec().content_header(1, {})
    old.publish(Envelope("", "one", header, True, 0, None, ("other",)), b"a", None, 0)
    reject(old)
    clock.settle()
    backing(one).sync()
    clock.settle()
    assert (len(one), len(other)) == (1, 1) and backing(old).removed == []
    backing(other).sync()
    clock.settle()
    assert backing(old).removed == [b"a"]


def test_through_queues_with_a_time_to_live_of_0_it_waits_for_the_last(
    vhost: VirtualHost, clock: ManualClock
) -> None:
    last = add_queue(vhost, "last")
    add_queue(vhost, "between", "last", message_ttl=0)
    old = add_queue(vhost, "old", "between")
    publish(old, b"a")
    reject(old)
    clock.settle()
    assert len(last) == 1 and backing(old).removed == []
    backing(last).sync()
    clock.settle()
    assert backing(old).removed == [b"a"]


def test_such_a_chain_may_be_longer_than_the_stack(vhost: VirtualHost, clock: ManualClock) -> None:
    depth = sys.getrecursionlimit() // 2
    for number in range(depth):
        add_queue(vhost, f"q{number}", f"q{number + 1}", message_ttl=0)
    last = add_queue(vhost, f"q{depth}")
    answers = Answers()
    assert publish(vhost.queues["q0"], b"a", answers, 7) is PENDING
    clock.settle()
    backing(last).sync()
    assert answers.settled == [7]


def test_the_confirm_of_what_dies_at_once_waits_for_its_dead_letter(
    vhost: VirtualHost, clock: ManualClock
) -> None:
    last = add_queue(vhost, "last")
    first = add_queue(vhost, "first", "last", message_ttl=0)
    answers = Answers()
    assert publish(first, b"a", answers, 7) is PENDING
    assert answers.settled == []
    backing(last).sync()
    assert answers.settled == [7] and answers.refused == []


def test_what_dies_at_once_and_reaches_no_queue_is_settled(vhost: VirtualHost) -> None:
    first = add_queue(vhost, "first", "nowhere", message_ttl=0)
    assert publish(first, b"a", Answers(), 7) is SETTLED


def test_a_full_queue_refuses_a_publish_when_its_dead_letter_is_safe(vhost: VirtualHost) -> None:
    last = add_queue(vhost, "last")
    full = add_queue(vhost, "full", "last", max_length=0, overflow="reject-publish-dlx")
    answers = Answers()
    assert publish(full, b"a", answers, 7) is PENDING
    backing(last).sync()
    assert answers.settled == [] and answers.refused == [7]
    assert publish(full, b"b") is REJECTED


def test_a_dead_letter_that_a_full_queue_buries_in_turn_is_safe_there(
    vhost: VirtualHost, clock: ManualClock
) -> None:
    last = add_queue(vhost, "last")
    add_queue(vhost, "full", "last", max_length=0, overflow="reject-publish-dlx")
    old = add_queue(vhost, "old", "full")
    publish(old, b"a")
    reject(old)
    clock.settle()
    assert len(last) == 1 and backing(old).removed == []
    backing(last).sync()
    clock.advance(3 * AGAIN_S)
    assert backing(old).removed == [b"a"] and len(last) == 1


def test_a_dead_letter_of_which_nobody_knows_is_published_again(
    vhost: VirtualHost, clock: ManualClock
) -> None:
    new, old = add_queue(vhost, "new"), add_queue(vhost, "old", "new")
    publish(old, b"a")
    reject(old)
    clock.settle()
    backing(new).fail()
    clock.settle()
    assert backing(old).removed == []
    clock.advance(AGAIN_S)
    assert len(new) == 2
    backing(new).sync()
    clock.settle()
    assert backing(old).removed == [b"a"]


def test_a_dead_letter_dies_with_the_queue_it_was_for(
    vhost: VirtualHost, clock: ManualClock
) -> None:
    new, old = add_queue(vhost, "new"), add_queue(vhost, "old", "new")
    publish(old, b"a")
    reject(old)
    clock.settle()
    vhost.delete(queues=[new])
    backing(new).fail()
    clock.settle()
    assert backing(old).removed == [b"a"] and vhost.burials.idle


def test_the_dead_of_a_deleted_queue_are_buried(vhost: VirtualHost, clock: ManualClock) -> None:
    new, old = add_queue(vhost, "new"), add_queue(vhost, "old", "new")
    many = reject_more_than_a_turn_holds(old)
    vhost.delete(queues=[old])
    assert len(new) < many
    clock.settle()
    backing(new).sync()
    clock.settle()
    assert len(new) == many and vhost.burials.idle


def test_a_turn_holds_only_so_many_burials_and_others_come_in_between(
    vhost: VirtualHost, clock: ManualClock
) -> None:
    new, old = add_queue(vhost, "new"), add_queue(vhost, "old", "new")
    many = 4 * TURN_US // TOGETHER_US
    for number in range(many):
        publish(old, b"%d" % number)
    reject(old, many)
    seen: list[int] = []

    def look() -> None:
        seen.append(len(new))
        if len(new) < many:
            clock.call_soon(look)

    clock.call_soon(look)
    clock.settle()
    longest = max(after - before for before, after in pairwise(seen))
    assert longest <= TURN_US // TOGETHER_US + TOGETHER_MAX < many


def test_a_hand_over_can_wait_until_all_are_buried(vhost: VirtualHost, clock: ManualClock) -> None:
    new, old = add_queue(vhost, "new"), add_queue(vhost, "old", "new")
    assert vhost.burials.all_buried(old).happened
    publish(old, b"a")
    reject(old)
    clock.settle()
    all_buried = vhost.burials.all_buried(old)
    assert not all_buried.happened
    backing(new).sync()
    clock.settle()
    assert all_buried.happened and backing(old).removed == [b"a"]


def test_too_many_that_cannot_get_where_they_go_hold_up_only_those_of_their_queue(
    vhost: VirtualHost, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(burials, "ON_THE_WAY_MAX", 10)
    slow, fast = add_queue(vhost, "slow"), add_queue(vhost, "fast")
    one, other = add_queue(vhost, "one", "slow"), add_queue(vhost, "other", "fast")
    for number in range(40):
        publish(one, b"%d" % number)
        publish(other, b"%d" % number)
    reject(one, 25)
    reject(one, 15)
    reject(other, 40)
    clock.settle()
    assert len(slow) == 10 and len(fast) == 10
    for _ in range(20):
        backing(fast).sync()
        clock.settle()
    assert len(slow) == 10 and backing(other).removed == [b"%d" % number for number in range(40)]
    for _ in range(20):
        backing(slow).sync()
        clock.settle()
    assert backing(one).removed == [b"%d" % number for number in range(40)]
    bodies = [m.body for m in iter(lambda: slow.get(True, SOMEBODY), None) if m is not None]
    assert bodies == [b"%d" % number for number in range(40)]
    assert vhost.burials.idle


def test_a_node_that_stops_leaves_in_the_queue_what_it_did_not_bury(
    vhost: VirtualHost, clock: ManualClock
) -> None:
    new, old = add_queue(vhost, "new"), add_queue(vhost, "old", "new")
    many = reject_more_than_a_turn_holds(old)
    clock.turn()
    vhost.burials.hold()
    clock.settle()
    buried = len(new)
    assert 0 < buried < many and not vhost.burials.idle
    backing(new).sync()
    clock.settle()
    assert vhost.burials.idle and len(backing(old).removed) == buried


def test_what_another_object_of_the_queue_has_dies_again_there(
    vhost: VirtualHost, clock: ManualClock
) -> None:
    new, old = add_queue(vhost, "new"), add_queue(vhost, "old", "new")
    reject_more_than_a_turn_holds(old)
    clock.turn()
    old.move_out()
    buried = len(new)
    assert buried
    clock.settle()
    assert len(new) == buried and not list(vhost.burials.of_queue(old))
