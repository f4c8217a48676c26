"""Publishes with numbers in a row are settled at once."""

from __future__ import annotations

from warren.core.messages.settlement import PublishConfirms, in_rows, settle_in_rows


class Publisher(PublishConfirms):
    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []
        self.settled: list[int] = []

    def settle(self, publish_seq: int) -> None:
        self.settled.append(publish_seq)

    def refuse(self, publish_seq: int) -> None: ...


class Channel(Publisher):
    def settle_many(self, first_seq: int, count: int) -> None:
        self.calls.append((first_seq, count))
        super().settle_many(first_seq, count)


def test_rows_end_where_another_waits_or_a_number_is_missing() -> None:
    one, two = Publisher(), Publisher()
    waiting = [(one, 1), (one, 2), (None, 0), (None, 1), (one, 3), (two, 4), (two, 6), (two, 7)]
    assert in_rows(waiting) == [(one, 1, 2), (one, 3, 1), (two, 4, 1), (two, 6, 2)]
    assert in_rows([]) == []
    assert in_rows([(None, 5)]) == []


def test_each_publish_is_settled_once_and_those_in_a_row_together() -> None:
    publisher, channel = Publisher(), Channel()
    settle_in_rows([(publisher, 1), (publisher, 2), (channel, 3), (channel, 4), (channel, 9)])
    assert publisher.settled == [1, 2]
    assert channel.settled == [3, 4, 9]
    assert channel.calls == [(3, 2)]
