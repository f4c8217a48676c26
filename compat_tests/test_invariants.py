"""Invariants of every history, as far as a client can see them (section 2 of the invariants).

Each test runs a small random workload; its seed is in the name of the test.
"""

import random
from typing import Any

import pytest

from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel

AREA = "Invariants of whole histories"

SEEDS = [1, 2, 3]
MESSAGES = 200


def numbered(number: int) -> bytes:
    return b"%d" % number


@pytest.mark.parametrize("seed", SEEDS)
def test_every_confirmed_message_is_delivered_and_acked_once(
    ch: RawChannel, names: Names, seed: int
) -> None:
    """E1, E3, E4, E5 and E7: whatever consumers refuse and give back meanwhile."""
    chance = random.Random(seed)
    queue = names.new()
    ch.declare(queue, durable=chance.random() < 0.5)
    ch.call("confirm.select")
    for number in range(MESSAGES):
        ch.publish(numbered(number), queue, delivery_mode=chance.choice([1, 2]))
    confirmed = ch.confirms(MESSAGES)
    assert sorted(confirmed) == [("ack", number) for number in range(1, MESSAGES + 1)]

    consumer = ch.client.channel()
    consumer.call("basic.qos", prefetch_count=chance.randint(1, 30))
    consumer.consume(queue)
    acked: list[bytes] = []
    seen: list[bytes] = []
    while len(acked) < MESSAGES:
        delivery = consumer.delivery()
        assert delivery["redelivered"] is (delivery.body in seen)
        if not delivery["redelivered"]:
            seen.append(delivery.body)
        if chance.random() < 0.3:
            consumer.nack(delivery["delivery_tag"], requeue=True)
        else:
            consumer.ack(delivery["delivery_tag"])
            acked.append(delivery.body)
    assert seen == [numbered(number) for number in range(MESSAGES)]
    assert sorted(acked) == sorted(seen)
    consumer.expect_silence(queue)
    consumer.close()
    assert ch.ready(queue) == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_arrive_as_they_were_published(ch: RawChannel, seed: int) -> None:
    """E2: neither bodies nor properties are ever mixed up."""
    chance = random.Random(seed)
    queue = ch.own_queue()
    sent: list[tuple[bytes, dict[str, Any]]] = []
    for number in range(60):
        body = chance.randbytes(chance.choice([0, 1, 100, 4088, 4096, 140_000]))
        properties: dict[str, Any] = {"message_id": str(number)}
        if chance.random() < 0.5:
            properties["headers"] = {str(key): chance.random() for key in range(number % 7)}
        if chance.random() < 0.5:
            properties["timestamp"] = chance.getrandbits(60)
        ch.publish(body, queue, **properties)
        sent.append((body, properties))
    ch.consume(queue, no_ack=True)
    for body, properties in sent:
        delivery = ch.delivery()
        assert (delivery.body, delivery.properties) == (body, properties)


@pytest.mark.parametrize("seed", SEEDS)
def test_order_of_each_publisher_is_kept(ch: RawChannel, seed: int) -> None:
    """E4: messages of several channels mix, but each one's stay in order."""
    chance = random.Random(seed)
    queue = ch.own_queue()
    publishers = [ch.client.channel() for _ in range(4)]
    counts = [0] * len(publishers)
    for _ in range(MESSAGES):
        who = chance.randrange(len(publishers))
        publishers[who].publish(b"%d %d" % (who, counts[who]), queue)
        counts[who] += 1
    for publisher in publishers:
        publisher.ping()
    ch.consume(queue, no_ack=True)
    taken: list[list[int]] = [[] for _ in publishers]
    for _ in range(MESSAGES):
        who, number = map(int, ch.delivery().body.split())
        taken[who].append(number)
    assert taken == [list(range(count)) for count in counts]


@pytest.mark.parametrize("seed", SEEDS)
def test_each_number_is_settled_once(ch: RawChannel, names: Names, seed: int) -> None:
    """E5, E6 and E8: by an ack or a nack; after its return, if it reached no queue."""
    chance = random.Random(seed)
    durable = names.new()
    ch.declare(durable, durable=True)
    full = ch.own_queue(x_max_length=5, x_overflow="reject-publish")
    targets = {durable: 0, full: 0, "nowhere": 0}
    ch.call("confirm.select")
    for number in range(1, MESSAGES + 1):
        target = chance.choice(list(targets))
        targets[target] += 1
        ch.publish(numbered(number), target, mandatory=True, delivery_mode=chance.choice([1, 2]))
    verdicts: dict[int, str] = {}
    returned: set[int] = set()
    while len(verdicts) < MESSAGES:
        method = ch.next_method()
        if method.name == "basic.return":
            assert int(method.body) not in verdicts
            returned.add(int(method.body))
            continue
        last = method["delivery_tag"]
        assert last not in verdicts
        for number in range(1 if method["multiple"] else last, last + 1):
            verdicts.setdefault(number, method.name)
    assert len(returned) == targets["nowhere"]
    assert list(verdicts.values()).count("basic.nack") == max(0, targets[full] - 5)
    assert (ch.ready(durable), ch.ready(full)) == (targets[durable], min(5, targets[full]))
    ch.expect_silence(durable)


@pytest.mark.parametrize("seed", SEEDS)
def test_length_limit_keeps_the_newest(ch: RawChannel, seed: int) -> None:
    """E11, for ready messages, while others are fetched and requeued."""
    chance = random.Random(seed)
    queue = ch.own_queue(x_max_length=10)
    # A plain list as a model of the queue: the ready messages, oldest first.
    model: list[int] = []
    held: dict[int, int] = {}
    for number in range(MESSAGES):
        action = chance.random()
        if action < 0.6:
            ch.publish(numbered(number), queue)
            model.append(number)
        elif action < 0.8 and model:
            delivery = ch.got(queue, numbered(model.pop(0)), no_ack=False)
            held[delivery["delivery_tag"]] = int(delivery.body)
        elif held:
            tag = chance.choice(list(held))
            model = sorted([*model, held.pop(tag)])
            ch.nack(tag)
        del model[:-10]
        ch.becomes_ready(queue, len(model))
    assert ch.bodies(queue) == [numbered(number) for number in model]
