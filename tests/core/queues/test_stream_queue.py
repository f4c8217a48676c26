"""Streams in a virtual host: readers, credit, dead letters, limits. What clients see is in
`compat_tests/test_stream_*.py`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from bare_vhost import add_queue, new_vhost
from manual_clock import ManualClock
from recorder import Recorder

from warren.amqp.content_codec import AmqpContentCodec
from warren.amqp.properties import encode_properties
from warren.core.backing.queue_store import Batch
from warren.core.backing.stream_log import CHUNK_COUNT, StreamLog
from warren.core.backing.stream_store import MemoryStreamStore
from warren.core.backing.stream_tail import TAIL_BYTES
from warren.core.definitions.records import VirtualHostRecord
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.errors import PreconditionFailed, Unsupported
from warren.core.field import Field, Table, long, longstr
from warren.core.messages.message import Envelope, Message
from warren.core.messages.message_observer import MessageObserver, TracedClient, TracedQueue
from warren.core.messages.settlement import PENDING, SETTLED, PublishConfirms
from warren.core.ports import Write
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.stream_queue import AWAIT_COPY_S, SLICE, StreamingQueue
from warren.core.vhosts.vhost import VirtualHost

CODEC = AmqpContentCodec()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store() -> VolatileMetadataStore:
    return VolatileMetadataStore()


@pytest.fixture
def vhost(store: VolatileMetadataStore, clock: ManualClock) -> VirtualHost:
    store.transact([Write(("vhost", "/"), VirtualHostRecord())])
    return new_vhost(store, clock)


def stream(vhost: VirtualHost, name: str = "s", **arguments: int | str) -> StreamingQueue:
    queue = add_queue(vhost, name, queue_type="stream", **arguments)
    assert isinstance(queue, StreamingQueue)
    return queue


class Reader(Recorder):
    """`offsets` are those its deliveries name."""

    def __init__(
        self, queue: LocalQueue, tag: str, offset: Field | None = None, **options: Any
    ) -> None:
        super().__init__(queue, tag, **{"prefetch": 10} | options)
        self.arguments = {} if offset is None else {"x-stream-offset": offset}
        self.offsets: list[int] = []

    def take(self, message: Message) -> None:
        self.offsets.append(CODEC.headers(message.envelope.header)["x-stream-offset"].value)
        super().take(message)

    def ack_all(self) -> None:
        held, self.held = self.held, []
        self.settled(len(held))
        self.queue.ack(held)
        self.queue.deliver()


def publish(queue: LocalQueue, body: bytes = b"m", headers: Table | None = None) -> Any:
    header = encode_properties(len(body), {"delivery_mode": 1})
    if headers:
        header = CODEC.with_headers(header, headers)
    envelope = Envelope("", queue.name, header, False, 0, None)
    return queue.publish(envelope, body, None, 0)


def publish_many(clock: ManualClock, queue: LocalQueue, count: int) -> None:
    for number in range(count):
        publish(queue, b"%d" % number)
    clock.settle()


def read(clock: ManualClock, queue: LocalQueue, offset: Field | None, **options: Any) -> Reader:
    reader = Reader(queue, "r", offset, **options)
    queue.add_consumer(reader)
    queue.deliver()
    clock.settle()
    return reader


class Waiting(PublishConfirms):
    def __init__(self) -> None:
        self.settled: list[int] = []

    def settle(self, publish_seq: int) -> None:
        self.settled.append(publish_seq)

    def refuse(self, publish_seq: int) -> None:
        raise AssertionError(publish_seq)


def test_publishers_are_told_when_it_is_committed(vhost: VirtualHost, clock: ManualClock) -> None:
    queue, waiting = stream(vhost), Waiting()
    envelope = Envelope("", "s", encode_properties(1, {}), False, 0, None)
    assert queue.publish(envelope, b"a", waiting, 7) is PENDING
    assert queue.publish(envelope, b"b", None, 0) is SETTLED
    assert queue.publish_many([envelope] * 2, [b"c", b"d"], waiting, 8) == (PENDING, PENDING)
    assert waiting.settled == []
    clock.settle()
    assert waiting.settled == [7, 8, 9]


def test_each_reader_has_its_credit(vhost: VirtualHost, clock: ManualClock) -> None:
    queue = stream(vhost)
    publish_many(clock, queue, 25)
    one = read(clock, queue, longstr("first"), prefetch=10)
    other = read(clock, queue, long(20), prefetch=3)
    assert one.offsets == list(range(10))
    assert other.offsets == [20, 21, 22]
    one.ack_all()
    clock.settle()
    assert one.offsets == list(range(20))
    assert other.offsets == [20, 21, 22]
    other.ack_all()
    publish(queue, b"25")
    clock.settle()
    assert other.offsets == [20, 21, 22, 23, 24, 25]
    assert len(queue) == 26
    assert queue.unacked == 0
    assert queue.stats().deliver == 26


def test_long_stream_is_read_in_slices(vhost: VirtualHost, clock: ManualClock) -> None:
    """Others get their turn meanwhile."""
    queue = stream(vhost)
    publish_many(clock, queue, 3 * SLICE)
    reader = Reader(queue, "r", longstr("first"), prefetch=10 * SLICE)
    queue.add_consumer(reader)
    queue.deliver()
    assert 0 < len(reader.offsets) <= SLICE
    other = Reader(queue, "o", long(3 * SLICE - 1))
    queue.add_consumer(other)
    queue.deliver()
    queue.deliver()
    assert other.offsets == [3 * SLICE - 1]
    assert len(reader.offsets) < 3 * SLICE
    clock.settle()
    assert reader.offsets == list(range(3 * SLICE))


def test_nothing_of_what_was_delivered_is_kept(vhost: VirtualHost, clock: ManualClock) -> None:
    queue = stream(vhost)
    publish(queue, bytes(1000))
    clock.settle()
    reader = read(clock, queue, longstr("first"))
    (held,) = reader.held
    assert len(held.body) < 20
    assert held.body_bytes == 1000
    assert not queue.log._chunks


def chunks_read(queue: StreamingQueue, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where the stream begins to read a chunk from its store, from now on."""
    read, starts = queue.log._store.read_stored, []

    def read_stored(start: int, *more: int) -> Batch:
        starts.append(start)
        return read(start, *more)

    monkeypatch.setattr(queue.log._store, "read_stored", read_stored)
    return starts


def test_readers_that_take_a_chunk_bit_by_bit_have_it_read_once(
    vhost: VirtualHost, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = stream(vhost)
    publish_many(clock, queue, 2 * CHUNK_COUNT)
    starts = chunks_read(queue, monkeypatch)
    readers = [read(clock, queue, longstr("first"), prefetch=8) for _ in range(2)]
    for _ in range(2 * CHUNK_COUNT // 8):
        for reader in readers:
            reader.ack_all()
            clock.settle()
    assert all(reader.offsets == list(range(2 * CHUNK_COUNT)) for reader in readers)
    assert starts == [0, CHUNK_COUNT]
    assert not queue.log._chunks


def test_observers_hear_of_deliveries_and_acknowledgements(
    vhost: VirtualHost, clock: ManualClock
) -> None:
    heard: list[tuple[str, bytes | None]] = []

    class Observer(MessageObserver):
        def delivered(
            self,
            queue: TracedQueue,
            recipient: TracedClient,
            envelope: Envelope,
            body: bytes,
            redelivered: bool,
            no_ack: bool,
        ) -> None:
            heard.append(("delivered", CODEC.property_text(envelope.header, "message_id")))

        def acknowledged(self, queue: TracedQueue, messages: Collection[Message]) -> None:
            for message in messages:
                header = message.envelope.header
                heard.append(("acknowledged", CODEC.property_text(header, "message_id")))

    queue = stream(vhost)
    header = encode_properties(1, {"message_id": "the-id"})
    queue.publish(Envelope("", "s", header, False, 0, None), b"m", None, 0)
    publish(queue)
    clock.settle()
    early = read(clock, queue, longstr("first"), prefetch=1)
    queue.trace_with(Observer())
    reader = read(clock, queue, longstr("first"), prefetch=1)
    assert heard == [("delivered", b"the-id")]
    # What was delivered before is unknown.
    queue.ack(early.held)
    queue.ack(reader.held)
    assert heard == [("delivered", b"the-id"), ("acknowledged", b"the-id")]


@pytest.mark.parametrize(
    ("wait_s", "first"), [(-1000.0, 0), (0.0, 0), (15.0, 2), (25.0, 3), (1000.0, 6)]
)
def test_reader_begins_at_a_time(
    vhost: VirtualHost, clock: ManualClock, wait_s: float, first: int
) -> None:
    queue = stream(vhost)
    began = clock.wall_time()
    for number in range(6):
        publish(queue, b"%d" % number)
        clock.settle()
        clock.advance(10)
    reader = read(clock, queue, Field("T", int(began + wait_s)))
    assert reader.offsets == list(range(first, 6))
    publish(queue)
    clock.settle()
    assert reader.offsets == list(range(first, 7))


def test_reader_that_leaves_while_its_place_is_looked_for(
    vhost: VirtualHost, clock: ManualClock
) -> None:
    queue = stream(vhost)
    publish_many(clock, queue, 100)
    vhost.turns.spend(1_000_000)
    reader = Reader(queue, "r", Field("T", 1))
    queue.add_consumer(reader)
    queue.remove_consumer(reader)
    clock.settle()
    assert reader.offsets == []


@pytest.mark.parametrize(
    "field",
    [
        longstr(""),
        longstr("First"),
        longstr("-1h"),
        longstr("bogus"),
        Field("t", True),
        Field("V", None),
        Field("A", []),
        Field("F", {}),
        Field("d", 1.5),
    ],
    ids=str,
)
def test_offset_for_which_rabbitmq_crashes_is_refused(
    vhost: VirtualHost, clock: ManualClock, field: Field
) -> None:
    queue = stream(vhost)
    with pytest.raises(PreconditionFailed, match="invalid arg 'x-stream-offset' for queue 's'"):
        queue.add_consumer(Reader(queue, "r", field))
    assert not queue.consumers


def test_readers_near_the_end_get_messages_from_memory(
    vhost: VirtualHost, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = stream(vhost)
    publish_many(clock, queue, 3)
    reader = read(clock, queue, longstr("next"), prefetch=10)
    store = queue.log._store  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(store, "read_stored", None)
        publish_many(clock, queue, 15)
        assert reader.offsets == list(range(3, 13))
        # It has no room for what is left, and gets that from memory, too.
        reader.ack_all()
        assert reader.offsets == list(range(3, 18))
        assert not len(queue.log.tail)
        publish_many(clock, queue, 15)
        reader.ack_all()
        assert reader.offsets == list(range(3, 33))
    reader.ack_all()
    assert queue.log.tail.is_awaited
    queue.remove_consumer(reader)
    assert not queue.log.tail.is_awaited
    publish_many(clock, queue, 1)
    assert not len(queue.log.tail)


def test_nothing_is_kept_in_memory_for_a_reader_that_does_not_read(
    vhost: VirtualHost, clock: ManualClock
) -> None:
    queue = stream(vhost)
    reader = read(clock, queue, longstr("next"), prefetch=1)
    publish_many(clock, queue, 3)
    assert len(queue.log.tail)
    publish_many(clock, queue, 1)
    publish_many(clock, queue, 1)
    assert not len(queue.log.tail)
    for _ in range(5):
        reader.ack_all()
    assert reader.offsets == list(range(5))


def test_messages_with_large_headers_are_read_few_at_a_time(
    vhost: VirtualHost, clock: ManualClock
) -> None:
    """To put the offset into a table of 100 KB takes tens of milliseconds."""
    queue = stream(vhost)
    large: Table = {"large": Field("A", [Field("V", None)] * 100_000)}
    near = read(clock, queue, longstr("next"), prefetch=1)
    publish_many(clock, queue, 1)
    assert len(queue.log.tail)
    for _ in range(8):
        publish(queue, b"m", large)
    clock.settle()
    assert not len(queue.log.tail)
    assert near.offsets == [0]
    reader = Reader(queue, "r", longstr("first"), prefetch=100)
    queue.add_consumer(reader)
    queue.deliver()
    assert 0 < len(reader.offsets) <= 2
    clock.settle()
    assert reader.offsets == list(range(9))


def test_tail_in_memory_counts_headers(vhost: VirtualHost, clock: ManualClock) -> None:
    queue = stream(vhost)
    read(clock, queue, longstr("next"), prefetch=1)
    large: Table = {"large": Field("S", bytes(4000))}
    for _ in range(3 * TAIL_BYTES // 4000):
        publish(queue, b"m", large)
    clock.settle()
    assert 100 < len(queue.log.tail) < 140


@pytest.mark.parametrize("age", ["D", "-1D", ""])
def test_age_for_which_rabbitmq_crashes_is_refused(vhost: VirtualHost, age: str) -> None:
    with pytest.raises(PreconditionFailed, match="invalid_max_age"):
        stream(vhost, max_age=age)


def test_dead_letters_arrive_in_a_stream(vhost: VirtualHost, clock: ManualClock) -> None:
    """RabbitMQ loses them."""
    target = stream(vhost)
    queue = add_queue(vhost, "q", dead_to="s", message_ttl=1000)
    publish(queue, b"dead")
    clock.advance(2)
    clock.settle()
    assert len(queue) == 0
    reader = read(clock, target, longstr("first"))
    assert reader.got == [(b"dead", False)]


def test_limits_of_policies_count_at_once_and_for_more(
    vhost: VirtualHost, clock: ManualClock
) -> None:
    queue = stream(vhost, max_length_bytes=1000, stream_max_segment_size_bytes=500)
    for _ in range(100):
        publish(queue, bytes(100))
    clock.settle()
    assert 1 <= len(queue) < 20
    policies = vhost._applied._policies
    policies.set("/", "more", "^s$", {"max-length-bytes": 100_000})
    clock.settle()
    publish_many(clock, queue, 100)
    assert len(queue) > 100
    policies.set("/", "less", "^s$", {"max-length-bytes": 0}, 9)
    clock.settle()
    assert 1 <= len(queue) < 20
    first = queue.log.first
    reader = read(clock, queue, longstr("first"), prefetch=1000)
    assert reader.offsets == list(range(first, 200))


def test_policy_with_a_key_of_other_queues_is_not_for_streams(
    vhost: VirtualHost, clock: ManualClock
) -> None:
    queue = stream(vhost)
    for other in ({"message-ttl": 5}, {"ha-mode": "all"}, {"overflow": "drop-head"}):
        vhost._applied._policies.set("/", "p", "^s$", {"max-length-bytes": 1, **other})
        clock.settle()
        assert queue.settings.keeps.keeps_all, other


def test_old_pieces_go_by_themselves(vhost: VirtualHost, clock: ManualClock) -> None:
    queue = stream(vhost, max_age="1m", stream_max_segment_size_bytes=1)
    publish(queue, b"old")
    clock.settle()
    clock.advance(30)
    publish(queue, b"young")
    clock.settle()
    assert len(queue) == 2
    clock.advance(31)
    clock.settle()
    assert len(queue) == 1
    clock.advance(1000)
    clock.settle()
    assert len(queue) == 1


def test_reader_behind_what_was_removed_goes_on_with_what_is_left(
    vhost: VirtualHost, clock: ManualClock
) -> None:
    queue = stream(vhost)
    publish_many(clock, queue, 100)
    reader = read(clock, queue, longstr("first"))
    vhost._applied._policies.set(
        "/", "p", "^s$", {"max-length-bytes": 0, "stream-max-segment-size-bytes": 1}
    )
    clock.settle()
    reader.ack_all()
    clock.settle()
    assert reader.offsets == [*range(10), 99]


def test_what_a_stream_does_not_do(vhost: VirtualHost, clock: ManualClock) -> None:
    queue = stream(vhost)
    publish_many(clock, queue, 3)
    for refused in (queue.purge, lambda: queue.in_hand.take(0, [1])):
        with pytest.raises(Unsupported):
            refused()
    reader = read(clock, queue, longstr("first"))
    queue.abandoned(reader.held)
    assert len(queue) == 3
    queue.delete()
    assert reader.was_cancelled
    assert queue.left_ready == 0


def test_stream_may_be_the_default_of_a_virtual_host(
    store: VolatileMetadataStore, vhost: VirtualHost
) -> None:
    store.transact([Write(("vhost", "/"), VirtualHostRecord(default_queue_type="stream"))])
    arguments = vhost.with_default_type({}, durable=True, exclusive=False, auto_delete=False)
    vhost.declare_queue(
        "q", durable=True, exclusive_owner=None, auto_delete=False, arguments=arguments
    )
    assert isinstance(vhost.queues["q"], StreamingQueue)


def losing(monkeypatch: pytest.MonkeyPatch, *lost: int) -> None:
    """Have the stores of streams find out, when they are read, that these messages are damaged."""
    read_stored = MemoryStreamStore.read_stored

    def read(store: MemoryStreamStore, *where: int) -> Batch:
        batch = read_stored(store, *where)
        left = [message for message in batch.messages if message.position not in lost]
        return batch._replace(messages=left, lost=len(batch.messages) - len(left))

    monkeypatch.setattr(MemoryStreamStore, "read_stored", read)


def test_damaged_messages_are_passed_over_where_no_other_node_has_them(
    vhost: VirtualHost, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = stream(vhost)
    publish_many(clock, queue, 5)
    losing(monkeypatch, 2)
    assert read(clock, queue, longstr("first")).offsets == [0, 1, 3, 4]
    assert len(queue) == 4


def test_a_reader_waits_at_a_damaged_message_that_another_node_may_have(
    vhost: VirtualHost, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = stream(vhost)
    publish_many(clock, queue, 5)
    losing(monkeypatch, 2)
    monkeypatch.setattr(StreamLog, "may_be_elsewhere", lambda log: True)
    reader = read(clock, queue, longstr("first"))
    clock.advance(AWAIT_COPY_S - 1)
    assert reader.offsets == [] and queue.goes_on_at(reader) == 0
    # No other node leads.
    clock.advance(2)
    assert reader.offsets == [0, 1, 3, 4]
    publish_many(clock, queue, 1)
    assert reader.offsets[-1] == 5
