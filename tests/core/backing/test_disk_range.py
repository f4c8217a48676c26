"""The part of a queue that is on the disk, with a store in memory that can lose messages."""

from __future__ import annotations

from collections.abc import Callable

from fake_queue_store import FakeQueueStore

from warren.core.backing.disk_range import TAKE_SPAN, DiskRange
from warren.core.messages.message import Envelope, Message

ENVELOPE = Envelope("", "q", b"", False, 0, None)


class OnDisk:
    """A range with the messages of these positions, whose bodies are their positions."""

    def __init__(self, *positions: int) -> None:
        self.store = FakeQueueStore()
        self.taken: dict[int, Message] = {}
        self.lost = (0, 0)
        self.range = DiskRange(self.store, self.store.recovered(), self.taken)
        messages = self.messages(*positions)
        if messages:
            self.range.append(messages)

    def messages(self, *positions: int) -> list[Message]:
        """Messages that the store has."""
        made = [Message(ENVELOPE, b"%d" % at, at, float(at)) for at in positions]
        self.store.page(made)
        return made

    @property
    def lose(self) -> Callable[[int, int], None]:
        def noted(count: int, octets: int) -> None:
            self.lost = (self.lost[0] + count, self.lost[1] + octets)

        return noted

    def take(self, *positions: int) -> list[int]:
        messages = self.range.take(positions, self.lose)
        self.taken.update({message.position: message for message in messages})
        self.range.check()
        return [message.position for message in messages]

    def read_ahead(self, count_max: int = 100) -> list[int]:
        messages = self.range.read_ahead(count_max, 1 << 20, self.lose)
        self.range.check()
        return [message.position for message in messages]


def test_it_grows_at_both_ends_and_shrinks_at_its_start() -> None:
    disk = OnDisk(5, 6)
    disk.range.append(disk.messages(9))
    disk.range.prepend(disk.messages(2, 3))
    assert (disk.range.start, disk.range.end) == (2, 10)
    assert (disk.range.count, disk.range.body_bytes) == (5, 5)
    assert disk.read_ahead(3) == [2, 3, 5]
    assert disk.range.start == 6 and disk.range.covers(9) and not disk.range.covers(5)
    assert disk.read_ahead() == [6, 9]
    assert not disk.range.count and not disk.range.covers(9)


def test_an_empty_range_begins_anew_wherever_messages_are() -> None:
    disk = OnDisk(1)
    assert disk.read_ahead() == [1]
    disk.range.prepend(disk.messages(20, 21))
    assert (disk.range.start, disk.range.end) == (20, 22)


class TestTakenMessages:
    def test_they_are_passed_over_though_the_store_has_them(self) -> None:
        disk = OnDisk(0, 1, 2, 3)
        assert disk.take(0, 2, 7) == [0, 2]
        assert disk.range.count == 2
        assert disk.range.next_expiry() == 1.0
        assert disk.range.list_positions(0, 9, 9).positions == [1, 3]
        peeked = disk.range.peek(0, 9, 1 << 20, disk.lose)
        assert [message.position for message in peeked.messages] == [1, 3]
        assert disk.read_ahead() == [1, 3]

    def test_none_is_taken_twice(self) -> None:
        disk = OnDisk(0, 1)
        assert disk.take(1) == [1]
        assert disk.take(1) == []

    def test_one_that_is_put_back_stands_in_its_place(self) -> None:
        disk = OnDisk(0, 1, 2)
        disk.take(1)
        disk.range.put_back(disk.taken.pop(1))
        assert disk.read_ahead() == [0, 1, 2]

    def test_what_is_far_apart_is_read_in_pieces(self) -> None:
        disk = OnDisk(0, 1, 2, 5 * TAKE_SPAN)
        assert disk.take(0, 2, 5 * TAKE_SPAN) == [0, 2, 5 * TAKE_SPAN]
        assert disk.store.reads == [0, 5 * TAKE_SPAN]


class TestLostMessages:
    def test_a_loss_is_told_when_it_is_met(self) -> None:
        disk = OnDisk(0, 10, 20)
        disk.store.lose(10)
        assert disk.lost == (0, 0)
        assert disk.read_ahead() == [0, 20]
        assert disk.lost == (1, 2)

    def test_a_peek_goes_on_to_what_is_left(self) -> None:
        disk = OnDisk(0, 1)
        disk.store.lose(0)
        disk.store.lose(1)
        peeked = disk.range.peek(0, 1, 1, disk.lose)
        assert (peeked.messages, peeked.next_position) == ([], 2)
        assert disk.lost == (2, 2) and not disk.range.count

    def test_a_taken_message_was_not_in_the_range_any_more(self) -> None:
        disk = OnDisk(0, 1, 2)
        disk.take(1)
        disk.store.lose(1)
        assert disk.read_ahead() == [0, 2]
        assert disk.lost == (0, 0)
