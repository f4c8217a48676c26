"""Copies of streams at another broker: whole, in order, each message once, and gone on with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any
from urllib.parse import quote

import pika
import pytest
from api_client import ApiClient
from migrating import (
    AfterMessages,
    Message,
    bodies,
    channel_at,
    declare,
    management,
    move,
    numbered,
    publish,
    run,
    sides,
)

from warren import Broker
from warren.client.content_header import long_value
from warren.client.events import Delivered
from warren.mgmt.migrate import stream_copy
from warren.mgmt.migrate.pair import LOOKS, Heard, Inbox, Pair
from warren.mgmt.migrate.run import MigrationProgress, MoveAudience, QueueResult
from warren.mgmt.migrate.side import CONNECTION_NAME
from warren.mgmt.migrate.stream_copy import claim_on

STREAM = {"x-queue-type": "stream"}


def declared(pair: tuple[Broker, Broker], **arguments: Any) -> tuple[Broker, Broker]:
    declare(*pair, queue="s", arguments={**STREAM, **arguments})
    return pair


def read(broker: Broker) -> list[Message]:
    """All messages of the stream."""
    with channel_at(broker.url) as channel:
        count = channel.queue_declare("s", passive=True).method.message_count
        channel.basic_qos(prefetch_count=100)
        found: list[Message] = []
        consuming = channel.consume("s", arguments={"x-stream-offset": "first"})
        while len(found) < count:
            method, properties, body = next(consuming)
            channel.basic_ack(method.delivery_tag)
            found.append((body, properties))
        channel.cancel()
    return found


def read_bodies(broker: Broker) -> list[bytes]:
    return [body for body, _ in read(broker)]


def octets(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def test_a_stream_is_copied_and_stays(pair: tuple[Broker, Broker]) -> None:
    source, target = pair
    declare(source, queue="s", arguments=STREAM)
    headers = {"a": [1, "two"], "x-stream-offset": 77}
    properties = pika.BasicProperties(
        headers=headers, content_type="text/plain", message_id="id", delivery_mode=2, priority=3
    )
    publish(source.url, "s", (b"first", pika.BasicProperties()), (b"second", properties))
    done = run(management(source), management(target))
    assert done.exit_code == 0, done.output
    assert "/ s: 2 copied; source 2 -> 2, target 0 -> 2" in done.output
    first, second = read(target)
    assert first[1].headers == {"x-migrated-offset": 0, "x-stream-offset": 0}
    assert second[1].headers == {"a": [1, "two"], "x-migrated-offset": 1, "x-stream-offset": 1}
    second[1].headers = headers
    assert second == (b"second", properties)
    assert read_bodies(source) == [b"first", b"second"]


def test_a_second_run_copies_what_came_since(pair: tuple[Broker, Broker]) -> None:
    source, target = declared(pair)
    publish(source.url, "s", *numbered(3))
    here, there = sides(source, target)
    assert move(here, there)["s"].moved == 3
    again = move(here, there)["s"]
    assert (again.moved, again.all_moved) == (0, True)
    publish(source.url, "s", *numbered(2))
    assert move(here, there)["s"].moved == 2
    assert read_bodies(target) == octets(0, 1, 2, 0, 1)


def test_an_empty_stream_is_done(pair: tuple[Broker, Broker]) -> None:
    result = move(*sides(*declared(pair)))["s"]
    assert (result.moved, result.all_moved) == (0, True)


def test_a_run_that_is_stopped_says_so_and_the_next_one_goes_on(
    pair: tuple[Broker, Broker],
) -> None:
    source, target = declared(pair)
    publish(source.url, "s", *numbered(3000))
    stops: list[asyncio.Event] = []
    stopped = move(
        *sides(source, target),
        audience=AfterMessages(500, lambda: stops[0].set()),
        stop_when=stops.append,
    )["s"]
    assert 500 <= stopped.moved < 3000
    assert (stopped.reason, stopped.all_moved) == ("stopped before its end", False)
    assert move(*sides(source, target))["s"].all_moved
    assert read_bodies(target) == octets(*range(3000))


@pytest.mark.parametrize("role", ["source", "target"])
def test_a_connection_that_ends_doubles_nothing(pair: tuple[Broker, Broker], role: str) -> None:
    source, target = declared(pair)
    publish(source.url, "s", *numbered(5000))
    broker = {"source": source, "target": target}[role]

    def end_connections() -> None:
        api = ApiClient(broker)
        for one in api.get("/connections")[1]:
            if one["client_properties"].get("connection_name") == CONNECTION_NAME:
                api.delete(f"/connections/{quote(one['name'])}")

    broken = move(*sides(source, target), audience=AfterMessages(1000, end_connections))["s"]
    assert broken.reason and not broken.all_moved
    assert not broken.doubtful
    assert move(*sides(source, target))["s"].all_moved
    assert read_bodies(target) == octets(*range(5000))


def test_copies_are_found_before_what_others_published(
    pair: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_copy, "BACK_FIRST", 2)
    source, target = declared(pair)
    publish(source.url, "s", *numbered(3))
    move(*sides(source, target))
    publish(target.url, "s", *[(b"own", pika.BasicProperties())] * 300)
    publish(source.url, "s", *numbered(1))
    assert move(*sides(source, target))["s"].moved == 1
    assert read_bodies(target) == [*octets(0, 1, 2), *[b"own"] * 300, b"0"]


def test_a_message_that_was_refused_is_not_passed_over(
    pair: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others that were on their way may have been taken behind it."""
    source, target = declared(pair)
    publish(source.url, "s", *numbered(1000))
    with monkeypatch.context() as patched:
        # As if the one at 700 was not there.
        patched.setattr(
            stream_copy, "long_value", lambda offset: long_value(699 if offset == 700 else offset)
        )
        move(*sides(source, target))
    publish(source.url, "s", *numbered(1))
    left = move(*sides(source, target))["s"]
    assert left.reason.startswith("the target lacks a copy of offset 700, and has one of 999")
    assert (left.moved, left.all_moved) == (0, False)


def test_what_is_no_copy_is_not_continued(pair: tuple[Broker, Broker]) -> None:
    source, target = declared(pair)
    publish(source.url, "s", *numbered(3))
    publish(target.url, "s", (b"own", pika.BasicProperties()))
    left = move(*sides(source, target))["s"]
    assert left.reason.startswith("the target's stream has messages that are no copies")
    assert not left.all_moved
    assert read_bodies(target) == [b"own"]


def test_copies_of_another_stream_are_not_continued(pair: tuple[Broker, Broker]) -> None:
    source, target = declared(pair)
    publish(source.url, "s", *numbered(3))
    move(*sides(source, target))
    with channel_at(source.url) as channel:
        channel.queue_delete("s")
    declare(source, queue="s", arguments=STREAM)
    publish(source.url, "s", *numbered(2))
    assert "has a copy of offset 2, and the source ends at 1" in (
        move(*sides(source, target))["s"].reason
    )
    publish(source.url, "s", (b"other", pika.BasicProperties()), *numbered(1))
    assert "at offset 2 is another one than its copy" in move(*sides(source, target))["s"].reason
    assert read_bodies(target) == octets(0, 1, 2)


def test_a_queue_that_is_no_stream_is_not_touched(pair: tuple[Broker, Broker]) -> None:
    source, target = pair
    declare(source, queue="s", arguments=STREAM)
    declare(target, queue="s")
    publish(source.url, "s", *numbered(2))
    publish(target.url, "s", (b"own", pika.BasicProperties()))
    left = move(*sides(source, target))["s"]
    assert left.reason == "the target's queue of this name is no stream"
    assert bodies(target.url, "s") == [b"own"]


def test_what_the_source_has_removed_is_passed_over(pair: tuple[Broker, Broker]) -> None:
    limits = {"x-max-length-bytes": 200_000, "x-stream-max-segment-size-bytes": 100_000}
    source, target = pair
    declare(source, queue="s", arguments={**STREAM, **limits})
    declare(target, queue="s", arguments=STREAM)
    large = [(b"%06d" % number * 1000, pika.BasicProperties()) for number in range(100)]
    publish(source.url, "s", large[0])
    move(*sides(source, target))
    publish(source.url, "s", *large[1:])
    kept = read_bodies(source)
    assert len(kept) < 90
    result = move(*sides(source, target))["s"]
    assert (result.moved, result.all_moved) == (len(kept), True)
    assert read_bodies(target) == [large[0][0], *kept]


def test_copies_that_the_target_removes_are_reported(pair: tuple[Broker, Broker]) -> None:
    source, target = pair
    limits = {"x-max-length-bytes": 200_000, "x-stream-max-segment-size-bytes": 100_000}
    declare(source, queue="s", arguments=STREAM)
    declare(target, queue="s", arguments={**STREAM, **limits})
    publish(source.url, "s", *numbered(1))
    assert move(*sides(source, target))["s"].all_moved, "nothing is removed yet"
    large = [(b"%06d" % number * 1000, pika.BasicProperties()) for number in range(100)]
    publish(source.url, "s", *large)
    for _ in range(2):
        result = move(*sides(source, target))["s"]
        assert not result.all_moved
        assert result.reason == (
            "the target keeps 200,000 octets of it at most (max-length-bytes),"
            " and has removed the oldest copies"
        )
    assert len(read_bodies(source)) == 101


def test_a_dry_run_says_that_a_stream_is_copied(pair: tuple[Broker, Broker]) -> None:
    source, target = declared(pair)
    publish(source.url, "s", *numbered(2))
    done = run(management(source), management(target), "--dry-run")
    assert done.exit_code == 0, done.output
    assert "/ s: 2, copied if the target has no copies: it is a stream" in done.output
    assert read_bodies(target) == []


class AtQuiet(MoveAudience):
    """Does something when all queues were empty first, and stops when they are the next time."""

    def __init__(self, do: Callable[[], None]) -> None:
        self._do = do
        self._quiets = 0
        self._stop: asyncio.Event

    def quiet(self, delayed: int) -> None:
        self._quiets += 1
        if self._quiets == 1:
            self._do()
        else:
            self._stop.set()

    def trouble(self, text: str) -> None:
        self._stop.set()

    def let(self, stop: asyncio.Event) -> None:
        self._stop = stop


def follow(pair: tuple[Broker, Broker], do: Callable[[], None]) -> QueueResult:
    """Follow until a message of another queue, published after `do`, has been moved: the stream had
    its turn before."""
    source, _ = pair
    declare(*pair, queue="z")

    def do_and_go_on() -> None:
        do()
        publish(source.url, "z", (b"", pika.BasicProperties()))

    audience = AtQuiet(do_and_go_on)
    return move(*sides(*pair), follow=True, quiet_s=0.0, audience=audience, stop_when=audience.let)[
        "s"
    ]


def test_following_copies_what_arrives(pair: tuple[Broker, Broker]) -> None:
    source, target = declared(pair)
    publish(source.url, "s", *numbered(2))
    result = follow(pair, lambda: publish(source.url, "s", (b"late", pika.BasicProperties())))
    assert (result.moved, result.all_moved) == (3, True)
    assert read_bodies(target) == [b"0", b"1", b"late"]


def redeclare(broker: Broker) -> None:
    with channel_at(broker.url) as channel:
        channel.queue_delete("s")
    declare(broker, queue="s", arguments=STREAM)


def test_following_begins_again_in_a_new_stream_at_the_target(pair: tuple[Broker, Broker]) -> None:
    source, target = declared(pair)
    publish(source.url, "s", *numbered(3))

    def replace() -> None:
        redeclare(target)
        publish(source.url, "s", (b"late", pika.BasicProperties()))

    assert follow(pair, replace).all_moved
    assert read_bodies(target) == [*octets(0, 1, 2), b"late"]


def test_following_does_not_go_on_in_a_new_stream_of_the_source(
    pair: tuple[Broker, Broker],
) -> None:
    source, target = declared(pair)
    publish(source.url, "s", *numbered(3))

    def replace() -> None:
        redeclare(source)
        publish(source.url, "s", *[(b"other", pika.BasicProperties())] * 5)

    left = follow(pair, replace)
    assert "at offset 2 is another one than its copy" in left.reason
    assert not left.all_moved
    assert read_bodies(target) == octets(0, 1, 2)


def test_a_source_that_delivers_nothing_is_named(
    pair: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = declared(pair)
    publish(source.url, "s", *numbered(3))
    lose_deliveries(monkeypatch, "source")
    left = move(*sides(source, target), silence_s=0.3)["s"]
    assert left.reason == "the source's stream has 3 messages and gave none for 0 s"
    assert not left.all_moved


def test_a_target_that_delivers_nothing_gets_no_second_copies(
    pair: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = declared(pair)
    publish(source.url, "s", *numbered(3))
    move(*sides(source, target))
    with monkeypatch.context() as patch:
        lose_deliveries(patch, "target")
        left = move(*sides(source, target), silence_s=0.3)["s"]
    assert left.reason == "the target's stream has 3 messages and gave none for 0 s"
    assert not left.all_moved
    assert read_bodies(target) == octets(0, 1, 2)


def lose_deliveries(monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    """Have one side deliver nothing, as a broker does whose disk is slow."""
    take = Inbox.take
    pairs: list[Pair] = []
    make = Pair.__init__

    def noted(pair: Pair, *arguments: Any) -> None:
        make(pair, *arguments)
        pairs.append(pair)

    def fewer(inbox: Inbox) -> list[Heard]:
        return [
            heard
            for heard in take(inbox)
            if not (isinstance(heard.event, Delivered) and pairs[-1].role(heard.of) == role)
        ]

    monkeypatch.setattr(Pair, "__init__", noted)
    monkeypatch.setattr(Inbox, "take", fewer)


def test_a_second_run_at_the_same_time_copies_nothing(pair: tuple[Broker, Broker]) -> None:
    source, target = declared(pair)
    publish(source.url, "s", *numbered(3000))
    second: list[QueueResult] = []

    def run_beside() -> None:
        beside = Thread(
            target=lambda: second.append(move(*sides(source, target), silence_s=0.5)["s"])
        )
        beside.start()
        beside.join()

    first = move(*sides(source, target), audience=AfterMessages(500, run_beside))["s"]
    assert first.all_moved
    assert second[0].reason.startswith("another run copies this stream")
    assert (second[0].moved, second[0].all_moved) == (0, False)
    assert read_bodies(target) == octets(*range(3000))


def test_a_run_waits_until_another_has_ended(pair: tuple[Broker, Broker]) -> None:
    source, target = declared(pair)
    publish(source.url, "s", *numbered(3))
    with channel_at(target.url) as channel:
        channel.queue_declare(claim_on("s"), exclusive=True)
        channel.connection.call_later(1.0, channel.connection.close)
        with ThreadPoolExecutor(1) as beside:
            copied = beside.submit(lambda: move(*sides(source, target))["s"])
            while channel.connection.is_open:
                channel.connection.process_data_events(0.1)
            assert copied.result().all_moved
    assert read_bodies(target) == octets(0, 1, 2)


def test_an_end_is_not_taken_from_silence_alone(
    pair: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = declared(pair)
    publish(source.url, "s", *numbered(3))
    move(*sides(source, target))
    publish(source.url, "s", *numbered(1))
    with monkeypatch.context() as patch:
        deliver_late(patch)
        assert move(*sides(source, target), silence_s=1.0)["s"].all_moved
    assert read_bodies(target) == octets(0, 1, 2, 0)


def deliver_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have messages that are looked at wait until the broker answers a question, as they do where
    the network or the broker stands still for a while."""
    take, count_on, open_channel = Inbox.take, Pair.count_on, Pair.open_channel
    late: list[Heard] = []
    answered: list[int] = []

    async def begin(pair: Pair, connection: Any, channel: int, **options: Any) -> None:
        late.clear()
        await open_channel(pair, connection, channel, **options)

    async def answer(pair: Pair, connection: Any, channel: int, queue: str) -> int:
        count = await count_on(pair, connection, channel, queue)
        if channel == LOOKS:
            answered.append(count)
        return count

    def hold_back(inbox: Inbox) -> list[Heard]:
        for heard in take(inbox):
            is_look = isinstance(heard.event, Delivered) and heard.event.channel == LOOKS
            (late if is_look else on_time).append(heard)
        given = [*on_time, *(late if answered else ())]
        if answered:
            late.clear()
        on_time.clear()
        answered.clear()
        return given

    on_time: list[Heard] = []
    monkeypatch.setattr(Pair, "open_channel", begin)
    monkeypatch.setattr(Pair, "count_on", answer)
    monkeypatch.setattr(Inbox, "take", hold_back)


def test_a_stop_in_the_middle_of_a_round_leaves_nothing_of_an_empty_stream(
    pair: tuple[Broker, Broker],
) -> None:
    source, target = declared(pair)
    declare(source, target, queue="before")

    class Stopping(AtQuiet):
        def progress(self, progress: MigrationProgress) -> None:
            self._stop.set()

    audience = Stopping(lambda: publish(source.url, "before", *numbered(1)))
    results = move(
        *sides(*pair), follow=True, quiet_s=0.0, audience=audience, stop_when=audience.let
    )
    assert results["before"].moved == 1
    assert results["s"].all_moved
