"""The pager: who gets how many seconds, and how much is paged out at a time."""

from __future__ import annotations

import pytest
from fake_queue_store import FakeQueueStore
from manual_clock import ManualClock

from warren.core.backing.paging import INTERVAL_S, SLICE, VISITS, Pager, desired_duration
from warren.core.backing.queue_rates import QueueRates, Totals
from warren.core.backing.variable_queue import REDUCE_INTERVAL, VariableQueue
from warren.core.messages.message import PAGED_OUT, Envelope
from warren.core.scheduling.periodic import Periodic

PERSISTENT = Envelope("", "q", b"", True, 0, None)
TRANSIENT = Envelope("", "q", b"", False, 0, None)


class Memory:
    """The machine: its memory in use, and its disk."""

    def __init__(self) -> None:
        self.ratio: float | None = 0.1
        self.disk_alarm = False


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def pager(clock: ManualClock, memory: Memory) -> Pager:
    return Pager(clock, lambda: memory.ratio, disk_alarm=lambda: memory.disk_alarm)


def publish(queue: VariableQueue, count: int, body: bytes = b"x", persistent: bool = True) -> None:
    envelope = PERSISTENT if persistent else TRANSIENT
    for _ in range(count):
        queue.publish(envelope, body, None, None, 0)


def tick(pager: Pager, clock: ManualClock) -> None:
    clock.advance(INTERVAL_S)
    assert pager.check(clock.now()) == INTERVAL_S


@pytest.mark.parametrize(
    ("durations_s", "ratio", "disk_alarm", "wanted_s"),
    [
        ([4.0, 6.0], 0.49, False, None),
        ([4.0, 6.0], 0.6, False, (11 / 2) / 0.6),
        ([4.0, 6.0], 0.96, False, (10 / 2) / 0.96),
        ([], 0.96, False, None),
        ([4.0, 6.0], 0.96, True, None),
        ([4.0, 6.0], None, False, None),
        ([0.0], 0.9, False, 1 / 0.9),
        ([0.0], 1.5, False, 0.0),
    ],
)
def test_the_desired_duration_follows_the_memory(
    durations_s: list[float], ratio: float | None, disk_alarm: bool, wanted_s: float | None
) -> None:
    assert desired_duration(durations_s, ratio, 0.5, disk_alarm) == (
        None if wanted_s is None else pytest.approx(wanted_s)
    )


def test_rates_have_a_half_life_of_five_seconds() -> None:
    rates = QueueRates(Totals(0, 0, 0, 0), now=0.0)
    rates.update(Totals(1000, 0, 0, 0), now=5.0)
    assert rates.per_s.ingress == pytest.approx(100)
    rates.update(Totals(1000, 0, 0, 0), now=10.0)
    assert rates.per_s.ingress == pytest.approx(50)
    rates.update(Totals(2000, 0, 0, 0), now=10.0)
    assert rates.per_s.ingress == pytest.approx(50), "no time has passed"


def test_a_duration_is_what_is_in_memory_over_all_four_rates() -> None:
    rates = QueueRates(Totals(0, 0, 0, 0), now=0.0)
    rates.update(Totals(400, 300, 300, 200), now=5.0)
    assert sum(rates.per_s) == pytest.approx(120)
    assert rates.duration_s(240) == pytest.approx((0 + 240) / (4 * 120))
    assert rates.duration_s(480) == pytest.approx((240 + 480) / (4 * 120))
    assert rates.count_for(2.0) == 240


def test_an_idle_queue_has_no_finite_duration() -> None:
    rates = QueueRates(Totals(0, 0, 0, 0), now=0.0)
    rates.update(Totals(1000, 0, 0, 0), now=1.0)
    rates.update(Totals(1000, 0, 0, 0), now=60.0)
    assert rates.duration_s(1000) is not None
    rates.update(Totals(1000, 0, 0, 0), now=200.0)
    assert rates.duration_s(1000) is None


def test_a_queue_is_known_from_256_messages_on_until_it_has_half_of_them(
    pager: Pager, clock: ManualClock
) -> None:
    queue = VariableQueue(FakeQueueStore(), pager)
    publish(queue, 255)
    assert not pager._queues
    publish(queue, 2)
    assert list(pager._queues) == [queue]
    messages = queue.fetch_many(100)
    queue.ack(messages)
    tick(pager, clock)
    assert pager._queues, "157 messages"
    queue.fetch_many(50)
    tick(pager, clock)
    assert pager._queues, "107 of them ready, 50 pending"
    queue.fetch_many(107)
    tick(pager, clock)
    assert pager._queues, "50 of them untracked would be forgotten"
    queue.check()
    queue.purge()
    publish(queue, 300)
    assert pager._queues


def test_pending_messages_count_towards_the_256(pager: Pager) -> None:
    queue = VariableQueue(FakeQueueStore(), pager)
    for _ in range(257):
        queue.publish_delivered(PERSISTENT, b"x", None, None, 0)
    assert list(pager._queues) == [queue]


def test_a_deleted_or_stopped_queue_is_forgotten(pager: Pager, clock: ManualClock) -> None:
    deleted = VariableQueue(FakeQueueStore(), pager)
    stopped = VariableQueue(FakeQueueStore(), pager)
    for queue in (deleted, stopped):
        publish(queue, 300)
        pager.ask(queue)
    deleted.delete()
    stopped.stop()
    assert not pager._queues
    clock.settle()


def test_above_the_paging_ratio_memory_is_shared_by_duration(
    pager: Pager, clock: ManualClock, memory: Memory
) -> None:
    """Both held ten seconds' worth of publishes; each keeps what lasts as long as the other's."""
    fast, slow = (VariableQueue(FakeQueueStore(), pager) for _ in range(2))
    for _ in range(4):
        publish(fast, 4000)
        publish(slow, 400)
        tick(pager, clock)
    assert fast.length == len(fast._ready.q4) == 16000
    memory.ratio = 1.0
    tick(pager, clock)
    clock.settle()
    assert pager.duration_s is not None
    kept = [queue.status(clock.now()).ram_msg_count for queue in (fast, slow)]
    assert 0 < kept[0] < 16000
    assert kept[0] == pytest.approx(10 * kept[1], rel=0.15)
    memory.ratio = 0.4
    tick(pager, clock)
    assert fast.status(clock.now()).target_ram_count is None


def test_paging_out_gives_other_work_its_turn(
    pager: Pager, clock: ManualClock, memory: Memory
) -> None:
    queues = [VariableQueue(FakeQueueStore(), pager) for _ in range(3)]
    for queue in queues:
        publish(queue, 5000)
    memory.ratio = 20.0
    tick(pager, clock)
    before = sum(queue.in_memory for queue in queues)
    while clock._soon:
        clock._soon.popleft()()
        after = sum(queue.in_memory for queue in queues)
        assert before - SLICE <= after < before
        before = after
    assert all(not queue.excess and queue._ready.disk.count > 4000 for queue in queues)
    assert sum(len(queue.fetch_many(5000)) for queue in queues) == 15000


def test_large_bodies_that_must_be_written_make_a_slice_short(
    pager: Pager, clock: ManualClock, memory: Memory
) -> None:
    transient, persistent = FakeQueueStore(), FakeQueueStore()
    queues = [VariableQueue(store, pager) for store in (transient, persistent)]
    publish(queues[0], 300, bytes(100 << 10), persistent=False)
    publish(queues[1], 300, bytes(100 << 10))
    for queue in queues:
        queue._target_count = 0
    assert SLICE <= queues[0].reduce(SLICE) < SLICE + 102
    assert transient.paged == 10
    assert queues[1].reduce(SLICE) == 300


def test_while_the_disk_runs_short_nobody_pages_out(
    pager: Pager, clock: ManualClock, memory: Memory
) -> None:
    queue = VariableQueue(FakeQueueStore(), pager)
    publish(queue, 5000)
    memory.ratio, memory.disk_alarm = 20.0, True
    tick(pager, clock)
    clock.settle()
    assert queue.in_memory == 5000


def test_between_ticks_a_queue_stays_near_its_target(
    pager: Pager, clock: ManualClock, memory: Memory
) -> None:
    queue = VariableQueue(FakeQueueStore(), pager)
    publish(queue, 2000)
    memory.ratio = 20.0
    tick(pager, clock)
    clock.settle()
    target = queue.target_count
    assert target is not None
    for _ in range(100):
        publish(queue, 100)
        assert queue.in_memory <= target + 2 * REDUCE_INTERVAL + 100
        clock.settle()
    assert queue.length == 12_000


def test_pending_messages_are_paged_out_and_loaded_to_be_rejected(
    pager: Pager, clock: ManualClock, memory: Memory
) -> None:
    store = FakeQueueStore()
    queue = VariableQueue(store, pager)
    publish(queue, 600)
    publish(queue, 600, persistent=False)
    messages = queue.fetch_many(1200)
    memory.ratio = 100.0
    tick(pager, clock)
    clock.settle()
    assert queue.in_memory <= 200
    assert messages[-1].body is PAGED_OUT and messages[-1].body_bytes == 1
    store.lose(messages[-2].position)
    assert queue.load(messages[-3:]) == [messages[-3], messages[-1]]
    assert messages[-1].body == b"x"
    queue.ack([messages.pop(-2)])
    queue.requeue(messages)
    queue.check()
    assert queue.length == 1199 == queue.ready_bytes
    again = queue.fetch_many(2000)
    assert again == messages
    assert {message.body for message in again} == {b"x"}


def test_a_lazy_queue_writes_in_batches_and_the_rest_at_the_next_tick(
    pager: Pager, clock: ManualClock
) -> None:
    queue = VariableQueue(FakeQueueStore(), pager, mode="lazy")
    publish(queue, 63)
    assert queue.in_memory == 63
    publish(queue, 1)
    assert queue.in_memory == 0
    publish(queue, 1, bytes(64 << 10))
    assert queue.in_memory == 0
    publish(queue, 10)
    assert queue.in_memory == 10
    tick(pager, clock)
    clock.settle()
    assert queue.in_memory == 0
    tick(pager, clock)
    assert not pager._queues
    assert len(queue.fetch_many(100)) == 75


def test_a_queue_turns_lazy_bit_by_bit_and_reads_nothing_when_it_turns_back(
    pager: Pager, clock: ManualClock
) -> None:
    store = FakeQueueStore()
    queue = VariableQueue(store, pager)
    publish(queue, 10_000)
    queue.set_mode("lazy")
    assert queue.in_memory == 10_000
    clock._soon.popleft()()
    assert queue.in_memory == 9_000
    clock.settle()
    assert queue.in_memory == 0
    queue.set_mode("default")
    assert not store.reads
    publish(queue, 1)
    assert len(queue.fetch_many(20_000)) == 10_001


def test_very_many_queues_are_not_visited_in_one_go(
    pager: Pager, clock: ManualClock, memory: Memory
) -> None:
    queues = [VariableQueue(FakeQueueStore(), pager, mode="lazy") for _ in range(2 * VISITS + 1)]
    for queue in queues:
        publish(queue, 1)
    clock.advance(INTERVAL_S)
    pager.check(clock.now())
    pager.check(clock.now())
    queues.pop().delete()
    turns = 0
    while clock._soon:
        clock._soon.popleft()()
        turns += 1
    assert turns >= 4 + 2 * VISITS / (SLICE / 2)
    assert all(queue.in_memory == 0 for queue in queues)


def test_the_pager_runs_every_two_and_a_half_seconds(pager: Pager, clock: ManualClock) -> None:
    periodic = Periodic(clock, pager.check)
    periodic.start()
    assert [timer.due - clock.now() for timer in clock.timers] == [2.5]
    periodic.stop()
