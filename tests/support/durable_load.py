"""Publishers and consumers that keep a node busy until it is killed, and the audit afterwards.

The queues are `QUEUES`; all but `direct` are bound to the fanout exchange `EXCHANGE`. `backlog` is
not consumed from. Besides there are the queues of `mortal_ledger.py`, whose messages die.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Thread

from bulk_client import (
    DELIVER,
    PUBLISHER_ACK,
    PUBLISHER_NACK,
    QOS_OK,
    TX_COMMIT,
    TX_COMMIT_OK,
    BulkClient,
    Closed,
    ack,
    content,
    delivery,
    method,
    nack,
    publish,
)
from message_ledger import (
    Consumed,
    Marked,
    Published,
    QueueLedger,
    decode_body,
    encode_body,
)
from mortal_ledger import (
    EMPTY_IN_THE_END,
    GRAVES,
    MORTAL,
    ON_THE_WAY,
    MortalLedger,
    mortal_queue,
)

EXCHANGE = "all"
QUEUES: dict[str, dict[str, str | int | bool]] = {
    "default": {},
    "lazy": {"x-queue-mode": "lazy"},
    "priority": {"x-max-priority": 3},
    "backlog": {},
    "direct": {},
}
CONSUMED = ("default", "default", "lazy", "priority", "direct")

SIZES = (14, 100, 1000, 3900, 4000, 4095, 4096, 4097, 4200, 6000)
HUGE_BYTES = 200_000
HUGE_SHARE = 0.002
LARGEST_BYTES = (1_000_000, 2_500_000, 5_000_000)
"""One batch of the log has room for 2 MB of them."""
LARGEST_SHARE = 0.0003
TRANSIENT_SHARE = 0.1
BATCH = 20
BATCHES_A_TRANSACTION = 3
WINDOWS = (20, 200, 1000)
"""Messages that may wait for their confirms, one for each publisher."""

PREFETCH = 300

PAUSES_S = (0, 0, 0.03, 0.2)
"""Between what a consumer settles; one that takes none leaves nothing in its queue."""


class Publisher:
    """Publishes until the connection ends; `window` messages may wait for their confirms."""

    def __init__(self, number: int, exchange: str, key: str, window: int, seed: str) -> None:
        self.exchange = exchange
        self.published = Published()
        self._number = number
        self._window = window
        self._random = random.Random(seed)
        self._key = key
        self._settled = 0
        self._upto = 0
        self._singles: set[int] = set()
        self._sent_at: deque[tuple[int, float]] = deque()

    def run(self, client: BulkClient) -> None:
        client.confirm_select()
        published = self.published
        while True:
            self.send_batch(client)
            while client.has_input() or len(published.sent) - self._settled > self._window:
                self._hear(client)

    def send_batch(self, client: BulkClient) -> None:
        published = self.published
        batch = [self._next(len(published.sent) + at) for at in range(BATCH)]
        octets = b"".join([self._octets(marked) for marked in batch])
        self._sent_at.append((len(published.sent) + BATCH, time.monotonic()))
        # Whatever comes of it, they may have arrived.
        published.sent += batch
        client.send(octets)

    def _next(self, sequence: int) -> Marked:
        chance = self._random
        persistent = chance.random() >= TRANSIENT_SHARE
        return Marked(self._number << 32 | sequence, chance.randrange(5), persistent)

    def _octets(self, marked: Marked) -> bytes:
        body = encode_body(marked, self._size())
        return publish(self.exchange, self._key) + content(
            body, persistent=marked.persistent, priority=marked.priority
        )

    def _size(self) -> int:
        chance = self._random
        kind = chance.random()
        if kind < LARGEST_SHARE:
            return chance.choice(LARGEST_BYTES)
        return HUGE_BYTES if kind < LARGEST_SHARE + HUGE_SHARE else chance.choice(SIZES)

    def _hear(self, client: BulkClient) -> None:
        for said in client.receive():
            assert said.name in (PUBLISHER_ACK, PUBLISHER_NACK), said
            tag = int.from_bytes(said.fields[:8], "big")
            multiple = said.fields[8] & 1
            for settled in range(self._upto + 1, tag + 1) if multiple else (tag,):
                if settled not in self._singles and settled > self._upto:
                    self._settle(settled, said.name == PUBLISHER_ACK)
            if multiple:
                self._upto = max(self._upto, tag)

    def _settle(self, tag: int, confirmed: bool) -> None:
        self._settled += 1
        self._singles.add(tag)
        if not confirmed:
            return
        marked = self.published.sent[tag - 1]
        self.published.confirmed.add(marked.message)
        if not marked.persistent:
            # It waits for no disk.
            return
        while self._sent_at and self._sent_at[0][0] < tag:
            self._sent_at.popleft()
        if self._sent_at:
            self.published.witnessed_at = max(self.published.witnessed_at, self._sent_at[0][1])


class MortalPublisher(Publisher):
    """Publishes to the queues whose messages die; some have a time to live of their own."""

    def __init__(self, number: int, window: int, seed: str) -> None:
        super().__init__(number, "", "", window, seed)

    def _octets(self, marked: Marked) -> bytes:
        chance = self._random
        queue = mortal_queue(marked.message)
        expires = queue == "expiring" and chance.random() < 0.5
        return publish("", queue) + content(
            encode_body(marked, self._size()),
            persistent=marked.persistent,
            priority=marked.priority,
            expiration=str(chance.randrange(300)) if expires else "",
        )


def run_in_transactions(publisher: Publisher, client: BulkClient) -> None:
    """Publish with transactions of some batches instead of confirms, until the connection ends."""
    client.tx_select()
    published = publisher.published
    while True:
        began = time.monotonic()
        for _ in range(BATCHES_A_TRANSACTION):
            publisher.send_batch(client)
        client.call(method(*TX_COMMIT), TX_COMMIT_OK)
        published.confirmed.update(marked.message for marked in published.sent)
        published.witnessed_at = began


class Consumer:
    """Acknowledges in every way there is, or nothing at all, until the connection ends.

    Some consumers do it in transactions.
    """

    def __init__(self, queue: str, seed: str) -> None:
        self.queue = queue
        self.consumed = Consumed()
        self._random = random.Random(seed)
        self._pause_s = self._random.choice(PAUSES_S)
        self._in_transactions = self._random.random() < 0.3
        self._unacked: dict[int, int] = {}
        self._unknown: deque[list[int]] = deque()

    def run(self, client: BulkClient) -> None:
        client.qos(PREFETCH)
        if self._in_transactions:
            client.tx_select()
        client.consume(self.queue)
        while True:
            for said in client.receive():
                if said.name in (QOS_OK, TX_COMMIT_OK):
                    now = time.monotonic()
                    self.consumed.acked.update(dict.fromkeys(self._unknown.popleft(), now))
                elif said.name == DELIVER:
                    tag, redelivered, body = delivery(said)
                    marked = decode_body(body)
                    self.consumed.seen.append((marked, redelivered))
                    self._unacked[tag] = marked.message
            if self._unacked:
                self._settle_some(client)
                time.sleep(self._pause_s)

    def _settle_some(self, client: BulkClient) -> None:
        chance = self._random
        kind = chance.random()
        if kind < 0.05 and len(self._unacked) < PREFETCH // 2:
            return
        self._settle(client, *self._verdicts(kind))

    def _verdicts(self, kind: float) -> tuple[list[int], bytes]:
        """The deliveries that are to be gone, and what says so; others may be requeued."""
        chance = self._random
        tags = list(self._unacked)
        acked: list[int] = []
        if kind < 0.5:
            last = chance.choice(tags)
            octets = ack(last, multiple=True)
            acked = [tag for tag in tags if tag <= last]
        elif kind < 0.85:
            acked = chance.sample(tags, max(1, len(tags) // 2))
            octets = b"".join([ack(tag) for tag in acked])
        elif kind < 0.9:
            acked = [chance.choice(tags)]
            octets = nack(acked[0], requeue=False)
        else:
            requeued = chance.sample(tags, max(1, len(tags) // 10))
            octets = b"".join([nack(tag, requeue=True) for tag in requeued])
            for tag in requeued:
                del self._unacked[tag]
        return acked, octets

    def _settle(self, client: BulkClient, acked: list[int], octets: bytes) -> None:
        messages = [self._unacked.pop(tag) for tag in acked]
        # From now on nobody can say whether they are there.
        self.consumed.acked.update(dict.fromkeys(messages, float("inf")))
        self._unknown.append(messages)
        end = method(*TX_COMMIT) if self._in_transactions else client.qos_bytes(PREFETCH)
        client.send(octets + end)


class Rejecter(Consumer):
    """Rejects most of what it gets, one by one and many at once."""

    def _verdicts(self, kind: float) -> tuple[list[int], bytes]:
        chance = self._random
        tags = list(self._unacked)
        if kind < 0.2:
            return super()._verdicts(chance.uniform(0.5, 0.85))
        if kind < 0.6:
            last = chance.choice(tags)
            octets = nack(last, requeue=False, multiple=True)
            rejected = [tag for tag in tags if tag <= last]
        else:
            requeue = kind > 0.9
            rejected = chance.sample(tags, max(1, len(tags) // 2))
            octets = b"".join([nack(tag, requeue=requeue) for tag in rejected])
        for tag in rejected:
            del self._unacked[tag]
        return [], octets


@dataclass
class Life:
    """What the clients of a node did while it lived."""

    publishers: list[Publisher]
    consumers: list[Consumer]
    mortal_publishers: list[Publisher]
    mortal_consumers: list[Consumer]

    @property
    def all_publishers(self) -> list[Publisher]:
        return self.publishers + self.mortal_publishers

    @property
    def all_consumers(self) -> list[Consumer]:
        return self.consumers + self.mortal_consumers

    @property
    def confirmed(self) -> int:
        return sum(len(one.published.confirmed) for one in self.all_publishers)


class Load:
    """Clients in threads. To be ended by an end of the node."""

    def __init__(self, port: int, number: int, seed: str) -> None:
        publishers = [
            Publisher(number << 4 | at, exchange, key, window, f"{seed}/p{at}")
            for at, (exchange, key, window) in enumerate(
                zip((EXCHANGE, EXCHANGE, ""), ("", "", "direct"), WINDOWS, strict=True)
            )
        ]
        in_transactions = Publisher(number << 4 | 3, EXCHANGE, "", 0, f"{seed}/p3")
        consumers = [Consumer(queue, f"{seed}/c{at}") for at, queue in enumerate(CONSUMED)]
        mortal = MortalPublisher(number << 4 | 4, 500, f"{seed}/m0")
        mortal_in_transactions = MortalPublisher(number << 4 | 5, 0, f"{seed}/m1")
        self.life = Life(
            [*publishers, in_transactions],
            consumers,
            [mortal, mortal_in_transactions],
            [Rejecter("rejected", f"{seed}/m2"), Consumer(GRAVES, f"{seed}/m3")],
        )
        self.errors: list[BaseException] = []
        works = [client.run for client in (*publishers, mortal, *self.life.all_consumers)]
        works.append(partial(run_in_transactions, in_transactions))
        works.append(partial(run_in_transactions, mortal_in_transactions))
        self._threads = [Thread(target=self._run, args=(work, port), daemon=True) for work in works]
        for thread in self._threads:
            thread.start()

    def _run(self, work: Callable[[BulkClient], None], port: int) -> None:
        try:
            client = BulkClient(port).open()
        except Closed:
            return
        try:
            work(client)
        except Closed:
            return
        except BaseException as error:
            self.errors.append(error)
        finally:
            client.close()

    def wait_for_confirms(self, count: int, patience_s: float = 30.0) -> None:
        """Until so many messages were confirmed; with patience, not with trust."""
        deadline = time.monotonic() + patience_s
        while self.life.confirmed < count and not self.errors:
            assert time.monotonic() < deadline, f"{self.life.confirmed} of {count} confirms"
            time.sleep(0.002)

    def ended(self) -> Life:
        """What was done, after the node has ended. Raises what a client complained of."""
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()
        if self.errors:
            raise self.errors[0]
        return self.life


def declare(port: int) -> None:
    client = BulkClient(port).open()
    for queue, arguments in {GRAVES: {}, **QUEUES, **MORTAL, **ON_THE_WAY}.items():
        client.declare(queue, arguments)
    client.declare_fanout(EXCHANGE, [queue for queue in QUEUES if queue != "direct"])
    client.close()


def ledgers() -> dict[str, QueueLedger]:
    return {
        queue: QueueLedger(queue, int(arguments.get("x-max-priority", 0)))
        for queue, arguments in QUEUES.items()
    }


def take_in(life: Life, known: dict[str, QueueLedger], mortal: MortalLedger) -> None:
    """Tell the ledgers what happened."""
    # Nothing of `backlog` is removed: who was told that a message is safe was told of its disk.
    known_at = max(one.published.witnessed_at for one in life.publishers if one.exchange)
    for queue, ledger in known.items():
        exchange = "" if queue == "direct" else EXCHANGE
        ledger.life_ended(
            [one.published for one in life.publishers if one.exchange == exchange],
            [one.consumed for one in life.consumers if one.queue == queue],
            known_at,
        )
    mortal.life_ended(
        [one.published for one in life.mortal_publishers],
        {one.queue: one.consumed for one in life.mortal_consumers},
    )


def contents(port: int, queue: str, *, drain: bool) -> list[tuple[Marked, bool]]:
    """All messages of a queue that nobody else uses, in order; they stay there unless drained."""
    client = BulkClient(port).open()
    try:
        count = client.ready(queue)
        seen: list[tuple[Marked, bool]] = []
        client.consume(queue)
        last = 0
        while len(seen) < count:
            for said in client.receive():
                if said.name == DELIVER:
                    last, redelivered, body = delivery(said)
                    seen.append((decode_body(body), redelivered))
        client.send(client.qos_bytes(0))
        told = False
        while not told:
            for said in client.receive():
                assert said.name != DELIVER, f"{queue}: more messages than the queue says it has"
                told |= said.name == QOS_OK
        if drain and seen:
            client.send(ack(last, multiple=True))
            client.qos(0)
    finally:
        client.close()
    return seen


def audit(port: int, ledger: QueueLedger, *, drain: bool) -> int:
    """Compare a queue with what is known of it; returns how many messages are in it."""
    seen = contents(port, ledger.name, drain=drain)
    ledger.audited(seen)
    if drain:
        ledger.drained()
    return len(seen)


def audit_mortal(port: int, ledger: MortalLedger, *, drain: bool) -> dict[str, int]:
    """The same for the queues whose messages die, after all that are to die have."""
    await_burials(port, ledger)
    drained = [GRAVES, "rejected"] if drain else []
    found = {
        queue: contents(port, queue, drain=queue in drained)
        for queue in (GRAVES, *MORTAL, *ON_THE_WAY)
    }
    ledger.audited(found, drained)
    return {queue: len(seen) for queue, seen in found.items() if queue not in EMPTY_IN_THE_END}


def await_burials(port: int, ledger: MortalLedger) -> None:
    """Until messages are in the graves that died after all others in their queues."""
    markers = {ledger.next_marker(queue) for queue in ("expiring", "hop-0")}
    client = BulkClient(port).open()
    try:
        client.consume(GRAVES)
        for marked in markers:
            octets = content(encode_body(marked, 0), persistent=True, priority=0)
            client.send(publish("", mortal_queue(marked.message)) + octets)
        while markers:
            for said in client.receive():
                if said.name == DELIVER:
                    markers.discard(decode_body(delivery(said).body))
    finally:
        client.close()
