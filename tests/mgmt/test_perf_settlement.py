"""Acks, requeues and slow consumers."""

from __future__ import annotations

import pytest
from pamqp import commands

from warren.amqp.frames import HEAD
from warren.amqp.methods import decode_method
from warren.mgmt.perf.settlement import PerfSettlement, Work

MS = 1_000_000


def answers(octets: bytes) -> list[tuple[str, int, bool]]:
    """(method, delivery tag, multiple) of each frame; a nack must requeue."""
    found: list[tuple[str, int, bool]] = []
    offset = 0
    while offset < len(octets):
        kind, channel, size = HEAD.unpack_from(octets, offset)
        assert (kind, channel) == (1, 1)
        method = decode_method(octets[offset + 7 : offset + 7 + size])
        assert isinstance(method, commands.Basic.Ack | commands.Basic.Nack)
        if isinstance(method, commands.Basic.Nack):
            assert method.requeue
        found.append((method.name, method.delivery_tag or 0, method.multiple))
        offset += size + 8
    return found


def test_each_message_has_its_ack() -> None:
    assert answers(PerfSettlement(1).settle(3)) == [("Basic.Ack", tag, False) for tag in (1, 2, 3)]


def test_one_ack_for_every_n_however_they_arrive() -> None:
    settlement = PerfSettlement(4)
    assert answers(settlement.settle(3)) == []
    assert answers(settlement.settle(13)) == [("Basic.Ack", tag, True) for tag in (4, 8, 12)]
    assert answers(settlement.settle(15)) == []
    assert answers(settlement.settle(16)) == [("Basic.Ack", 16, True)]
    assert settlement.settle_rest() == b""


def test_the_rest_is_acked_at_the_end() -> None:
    settlement = PerfSettlement(10)
    settlement.settle(7)
    assert answers(settlement.settle_rest()) == [("Basic.Ack", 7, True)]
    assert settlement.settle_rest() == b""


@pytest.mark.parametrize("every", [1, 3, 100])
@pytest.mark.parametrize("step", [1, 4, 20])
def test_each_nth_message_is_given_back_and_all_others_are_acked(every: int, step: int) -> None:
    settlement = PerfSettlement(every, requeue_every=5)
    octets = b"".join(settlement.settle(last) for last in range(step, 21, step))
    octets += settlement.settle_rest()
    acked: set[int] = set()
    requeued: set[int] = set()
    for name, tag, multiple in answers(octets):
        if name == "Basic.Nack":
            requeued.add(tag)
        else:
            acked |= set(range(1, tag + 1)) - requeued if multiple else {tag}
    assert requeued == {5, 10, 15, 20}
    assert acked == set(range(1, 21)) - requeued
    assert settlement.requeued == 4


def test_work_is_done_one_after_the_other() -> None:
    work = Work(10 * MS)
    work.arrived(3, now_ns=0)
    assert work.finished(10 * MS - 1) == 0
    assert work.finished(10 * MS) == 1
    assert work.wait_ns(10 * MS) == 10 * MS
    assert work.finished(29 * MS) == 2
    work.arrived(4, now_ns=29 * MS)
    assert work.finished(100 * MS) == 4
    assert work.wait_ns(100 * MS) is None


def test_an_idle_worker_starts_with_the_next_arrival() -> None:
    work = Work(10 * MS)
    work.arrived(1, now_ns=0)
    assert work.finished(50 * MS) == 1
    work.arrived(2, now_ns=60 * MS)
    assert work.finished(69 * MS) == 1
    assert work.finished(70 * MS) == 2
