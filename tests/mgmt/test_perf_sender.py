"""When a producer sends how much, on a clock that the tests set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.mgmt.perf.errors import ProtocolFault
from warren.mgmt.perf.measure import Tally
from warren.mgmt.perf.publication import Publications
from warren.mgmt.perf.sender import BEHIND_NS_MAX, Pacer, Sender, Unconfirmed

MS = 1_000_000
SECOND = 1_000 * MS


def publications() -> Publications:
    return Publications(
        "", ["q"], (100,), headers={}, persistent=False, mandatory=False, frame_max=4096
    )


def ack(tag: int, multiple: bool = False) -> tuple[int, bool, bool]:
    return tag, multiple, False


# Pacer


def test_a_rate_is_even() -> None:
    pacer = Pacer(100, start_ns=0)
    sent_at: list[int] = []
    for now_ns in range(0, SECOND, MS):
        count = pacer.due(now_ns)
        pacer.take(count)
        sent_at += [now_ns] * count
    assert sent_at == [k * 10 * MS for k in range(100)]


def test_a_rate_above_the_timer_comes_out_right_in_bursts() -> None:
    pacer = Pacer(50_000, start_ns=0)
    counts: list[int] = []
    for now_ns in range(0, SECOND, MS):
        counts.append(pacer.due(now_ns))
        pacer.take(counts[-1])
    assert set(counts[1:]) <= {49, 50, 51}
    assert sum(counts) == pytest.approx(50_000, abs=51)


def test_the_wait_ends_when_the_next_message_is_due() -> None:
    pacer = Pacer(10, start_ns=5 * MS)
    assert pacer.due(0) == 0
    assert pacer.wait_ns(0) == 5 * MS
    pacer.take(pacer.due(5 * MS))
    assert pacer.wait_ns(5 * MS) == 100 * MS
    assert pacer.due(105 * MS - 1) == 0
    assert pacer.due(105 * MS) == 1


def test_a_long_pause_is_not_made_up_for() -> None:
    pacer = Pacer(1000, start_ns=0)
    count = pacer.due(60 * SECOND)
    assert count == BEHIND_NS_MAX // MS + 1
    pacer.take(count)
    assert pacer.due(60 * SECOND) == 0
    assert pacer.due(60 * SECOND + MS) == 1


# Unconfirmed


@given(st.data())
def test_any_order_of_confirms_settles_each_message_once(data: st.DataObject) -> None:
    unconfirmed = Unconfirmed(50)
    open_tags: dict[int, int] = {}
    sent = 0
    for step in range(data.draw(st.integers(1, 30))):
        count = data.draw(st.integers(0, unconfirmed.room))
        unconfirmed.sent(count, step)
        for tag in range(sent + 1, sent + count + 1):
            open_tags[tag] = step
        sent += count
        if not sent:
            continue
        tag = data.draw(st.integers(1, sent))
        multiple = data.draw(st.booleans())
        expected = [each for each in open_tags if (each <= tag if multiple else each == tag)]
        assert unconfirmed.settle(tag, multiple) == [open_tags.pop(each) for each in expected]
        assert unconfirmed.count == len(open_tags)
    assert len(unconfirmed.settle(0, True)) == len(open_tags)
    assert unconfirmed.count == 0


def test_a_confirm_for_what_was_never_sent_is_a_fault() -> None:
    unconfirmed = Unconfirmed(10)
    unconfirmed.sent(3, 0)
    with pytest.raises(ProtocolFault, match="delivery tag 4, of 3 sent"):
        unconfirmed.settle(4, True)


# Sender


def test_no_more_than_the_window_is_unconfirmed() -> None:
    tally = Tally()
    sender = Sender(publications(), tally, unconfirmed=Unconfirmed(100))
    while sender.next_burst(0):
        pass
    assert tally.sent == 100
    sender.confirmed([ack(30, multiple=True), ack(50)], 5)
    while sender.next_burst(5):
        pass
    assert tally.sent == 131
    assert tally.confirmed == 31
    assert tally.confirm_latency.largest == 5


def test_a_nack_makes_room_and_is_no_confirm() -> None:
    tally = Tally()
    sender = Sender(publications(), tally, unconfirmed=Unconfirmed(1))
    assert sender.next_burst(0)
    assert not sender.next_burst(0)
    sender.confirmed([(1, False, True)], 1)
    assert sender.next_burst(1)
    assert (tally.nacked, tally.confirmed, tally.confirm_latency.total) == (1, 0, 0)


def test_it_is_done_when_all_is_sent_and_confirmed() -> None:
    tally = Tally()
    sender = Sender(publications(), tally, messages=3, unconfirmed=Unconfirmed(10))
    assert sender.next_burst(0)
    assert tally.sent == 3
    assert not sender.next_burst(0)
    assert not sender.is_done
    sender.confirmed([ack(3, multiple=True)], 1)
    assert sender.is_done


def test_a_stopped_sender_sends_no_more_but_takes_confirms() -> None:
    sender = Sender(publications(), Tally(), unconfirmed=Unconfirmed(5))
    assert sender.next_burst(0)
    sender.stop()
    assert not sender.next_burst(0)
    assert not sender.is_done
    sender.confirmed([ack(5, multiple=True)], 1)
    assert sender.is_done


def test_a_blocked_sender_waits_for_the_broker_and_for_no_timer() -> None:
    sender = Sender(publications(), Tally(), pacer=Pacer(1000, 0))
    sender.blocked = True
    assert not sender.next_burst(SECOND)
    assert sender.wait_ns(SECOND) is None
    sender.blocked = False
    assert sender.next_burst(SECOND)


def test_a_full_window_waits_for_a_confirm_and_for_no_timer() -> None:
    sender = Sender(publications(), Tally(), pacer=Pacer(1000, 0), unconfirmed=Unconfirmed(1))
    assert sender.next_burst(0)
    assert sender.wait_ns(0) is None
    sender.confirmed([ack(1)], 0)
    assert sender.wait_ns(0) == MS


def test_a_paced_sender_sends_what_is_due() -> None:
    tally = Tally()
    sender = Sender(publications(), tally, pacer=Pacer(1000, 0))
    for now_ns in range(0, SECOND, 7 * MS):
        sender.next_burst(now_ns)
    assert tally.sent == 995
