"""Looking at messages with large headers, of which each may take a slice of time by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from warren.amqp.content_codec import AmqpContentCodec
from warren.amqp.properties import encode_properties
from warren.core.backing.backing_queue import Peeked
from warren.core.messages.message import Envelope, Message
from warren.core.messages.message_filter import Subject
from warren.mgmt.api import looking as api_looking
from warren.mgmt.http import slices
from warren.mgmt.messages.looking import Looked, Search, look

Answer = TypeVar("Answer")


class FakeLevel:
    """A level with four ready messages."""

    def __init__(self) -> None:
        envelope = Envelope("", "q", encode_properties(1, {}, None), False, 0, None)
        self.messages = [Message(envelope, b"b", number) for number in range(4)]
        self.next_position = 4

    def peek(self, start: int, count_max: int, bytes_max: int) -> Peeked:
        return Peeked(self.messages[start : start + count_max], start + count_max)


class Looking:
    """A queue of these messages, which are looked through."""

    def __init__(self) -> None:
        self.level = FakeLevel()
        self.queue: Any = SimpleNamespace(
            levels=[self.level], unacked=0, waiting=0, deleted=False, backing=None
        )
        clock = SimpleNamespace(now=lambda: 0.0, wall_time=lambda: 0.0)
        self.node: Any = SimpleNamespace(codec=AmqpContentCodec(), clock=clock, clients=())
        self.tested: list[bytes] = []

    def look(self, in_each_turn: Callable[[], None]) -> Looked:
        return run(look(self.node, self.queue, Search(self._test, 9)), in_each_turn)

    def _test(self, subject: Subject) -> bool:
        self.tested.append(subject.message.body)
        return True


def run(doing: Coroutine[Any, Any, Answer], in_each_turn: Callable[[], None]) -> Answer:
    async def watch() -> None:
        while True:
            in_each_turn()
            await asyncio.sleep(0)

    async def both() -> Answer:
        watcher = asyncio.create_task(watch())
        try:
            return await doing
        finally:
            watcher.cancel()

    return asyncio.run(both())


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> Looking:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    return Looking()


def test_others_have_their_turn_after_each_message(looking: Looking) -> None:
    turns: list[int] = []
    looked = looking.look(lambda: turns.append(len(looking.tested)))
    assert (len(looked.found), looked.next) == (4, None)
    assert {1, 2, 3} <= set(turns)


def test_others_have_their_turn_after_each_row(
    looking: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    turns: list[int] = []
    make_row = api_looking._message_row

    def row_of(*given: Any) -> Any:
        made.append(1)
        return make_row(*given)

    monkeypatch.setattr(api_looking, "_message_row", row_of)
    found = looking.look(lambda: None).found
    request: Any = SimpleNamespace(node=looking.node)
    rows = run(
        api_looking.message_rows(request, looking.queue, found, 9), lambda: turns.append(len(made))
    )
    assert len(rows) == 4 and {1, 2, 3} <= set(turns)


def test_bodies_that_are_paged_out_meanwhile_are_still_found(looking: Looking) -> None:
    def page_out() -> None:
        for message in looking.level.messages:
            if looking.tested and message.paged_bytes == 0:
                message.page_out()

    looked = looking.look(page_out)
    assert looking.tested == [b"b"] * 4
    assert [one.message.body for one in looked.found] == [b"b"] * 4


def test_a_search_ends_when_its_queue_is_deleted(looking: Looking) -> None:
    def delete() -> None:
        looking.queue.deleted = len(looking.tested) == 2

    looked = looking.look(delete)
    assert (looked.looked_at, looked.next) == (2, None)


def test_rows_are_let_go_one_by_one_while_they_are_sent() -> None:
    rows: list[Any] = [{"number": number} for number in range(3)]
    left: list[int] = []

    async def send() -> list[Any]:
        sent: list[Any] = []
        async for some in api_looking.in_slices(rows):
            sent += some
            left.append(len(rows))
        return sent

    assert [row["number"] for row in asyncio.run(send())] == [0, 1, 2]
    assert left == [2, 1, 0]
