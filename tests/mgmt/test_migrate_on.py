"""Moves to another broker that go on: following, rates, stops, and brokers that die."""

from __future__ import annotations

import asyncio
import json
import re
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pika
import pytest
from migrating import (
    AfterMessages,
    bodies,
    channel_at,
    declare,
    declare_delayed,
    drain,
    management,
    move,
    numbered,
    publish,
    run,
    sides,
)
from server_process import ServerProcess

from warren import Broker
from warren.client.connection import ClientConnection
from warren.mgmt.migrate import queue_move
from warren.mgmt.migrate.run import (
    MigrationProgress,
    MoveAudience,
)
from warren.mgmt.migrate.side import CONNECTION_NAME, side
from warren.mgmt.pace import BURST_S


def test_following_takes_what_arrives_and_tells_of_silence(pair: tuple[Broker, Broker]) -> None:
    source, target = pair
    declare(source, target, queue="q")
    publish(source.url, "q", *numbered(2))

    here, there = sides(source, target)

    class Following(MoveAudience):
        quiets = 0
        connections: ClassVar[list[list[str]]] = []

        def quiet(self, delayed: int) -> None:
            self.quiets += 1
            self.connections.append(
                sorted(
                    one["name"]
                    for one in here.get("connections")
                    if one["client_properties"].get("connection_name") == CONNECTION_NAME
                )
            )
            if self.quiets == 1:
                publish(source.url, "q", (b"late", pika.BasicProperties()))
            else:
                self.stop.set()

        def let(self, stop: asyncio.Event) -> None:
            self.stop = stop

    audience = Following()
    with channel_at(source.url) as channel:
        # Its messages do not keep the others from being quiet.
        channel.queue_declare("mine", exclusive=True)
        channel.basic_publish("", "mine", b"stays")
        channel.queue_declare("mine", passive=True)
        results = move(
            here, there, follow=True, quiet_s=0.0, audience=audience, stop_when=audience.let
        )
    assert results["q"].all_moved
    assert results["q"].moved == 3
    assert not results["mine"].all_moved
    first, second = audience.connections
    assert first == second
    assert len(first) == 1
    assert bodies(target.url, "q") == [b"0", b"1", b"late"]


def test_queue_that_is_deleted_meanwhile_leaves_nothing_behind(
    pair: tuple[Broker, Broker],
) -> None:
    source, target = pair
    declare(source, queue="only here")
    declare(source, target, queue="q")
    for queue in ("only here", "q"):
        publish(source.url, queue, *numbered(1))

    class Deleting(MoveAudience):
        def progress(self, progress: MigrationProgress) -> None:
            with channel_at(source.url) as channel:
                channel.queue_delete("only here")

        def quiet(self, delayed: int) -> None:
            self.stop.set()

        def let(self, stop: asyncio.Event) -> None:
            self.stop = stop

    audience = Deleting()
    results = move(
        *sides(source, target), follow=True, quiet_s=0.0, audience=audience, stop_when=audience.let
    )
    assert results["only here"].all_moved
    assert results["q"].moved == 1


def test_the_only_queue_that_matches_may_be_deleted_meanwhile(
    pair: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = pair
    declare(source, target, queue="q")
    publish(source.url, "q", *numbered(1))
    here, there = sides(source, target)
    ask = here.get

    class Deleting(MoveAudience):
        def quiet(self, delayed: int) -> None:
            with channel_at(source.url) as channel:
                channel.queue_delete("q")

        def let(self, stop: asyncio.Event) -> None:
            self.stop = stop
            self.loop = asyncio.get_running_loop()

        def get(self, *path: str, **query: str) -> Any:
            answer = ask(*path, **query)
            if path == ("queues",) and answer == []:
                # The round that sees it goes on.
                self.loop.call_soon_threadsafe(self.stop.set)
            return answer

    audience = Deleting()
    monkeypatch.setattr(here, "get", audience.get)
    results = move(
        here,
        there,
        pattern="q*",
        follow=True,
        quiet_s=0.0,
        audience=audience,
        stop_when=audience.let,
    )
    assert results["q"].moved == 1


def test_following_moves_delayed_messages_when_they_are_due_and_says_how_many_wait(
    pair: tuple[Broker, Broker],
) -> None:
    source, target = pair
    declare(source, target, queue="q")
    declare_delayed(source, "q", 3_600_000)

    class Following(MoveAudience):
        def __init__(self) -> None:
            self.told: list[int] = []

        def quiet(self, delayed: int) -> None:
            self.told.append(delayed)
            if delayed == 0:
                self.stop.set()
                return
            here = sides(*pair)[0]
            path = ("exchanges", "/", "dly", "delayed")
            (row,) = here.get(*path)["items"]
            here.post(*path, row["id"], "send", body={})

        def let(self, stop: asyncio.Event) -> None:
            self.stop = stop

    audience = Following()
    results = move(
        *sides(*pair), follow=True, quiet_s=0.0, audience=audience, stop_when=audience.let
    )
    assert audience.told == [1, 0]
    assert results["q"].moved == 1
    assert all(result.all_moved for result in results.values())
    assert bodies(target.url, "q") == [b"later"]


def test_rate_is_kept(pair: tuple[Broker, Broker]) -> None:
    source, target = pair
    declare(source, target, queue="q")
    publish(source.url, "q", *numbered(300))
    began = time.monotonic()
    assert move(*sides(source, target), rate=1000.0)["q"].moved == 300
    assert time.monotonic() - began >= 300 / 1000 - BURST_S


def test_stop_leaves_the_rest_in_order(pair: tuple[Broker, Broker]) -> None:
    source, target = pair
    declare(source, target, queue="q")
    publish(source.url, "q", *numbered(2000))
    stops: list[asyncio.Event] = []
    audience = AfterMessages(1, lambda: stops[0].set())
    result = move(*sides(source, target), audience=audience, stop_when=stops.append)["q"]
    assert result.reason == "stopped"
    assert result.doubtful == 0
    there, here = bodies(target.url, "q"), bodies(source.url, "q")
    assert 0 < len(there) < 2000
    assert there + here == [b"%d" % n for n in range(2000)]


def test_more_than_there_is_room_for_is_left_in_the_socket(
    pair: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = pair
    declare(source, target, queue="q")
    publish(source.url, "q", *numbered(200))
    pauses = []
    pause = ClientConnection.pause_reading

    def noted(connection: ClientConnection) -> None:
        pauses.append(connection)
        pause(connection)

    monkeypatch.setattr(ClientConnection, "pause_reading", noted)
    monkeypatch.setattr(queue_move, "OCTETS_MAX", 10)
    assert move(*sides(source, target))["q"].all_moved
    assert pauses
    assert bodies(target.url, "q") == [b"%d" % n for n in range(200)]


def test_broker_that_is_gone_is_told(pair: tuple[Broker, Broker]) -> None:
    source, _ = pair
    declare(source, queue="q")
    nowhere = "http://guest:secret@127.0.0.1:1"
    result = run(management(source), nowhere)
    assert result.exit_code == 1
    assert "unable to reach the node" in result.output
    report = json.loads(run(management(source), nowhere, "--json").stdout)
    assert report["complete"] is False
    assert "unable to reach the node" in report["error"]
    no_amqp = run(management(source), management(pair[1]), "--target-amqp", "amqp://127.0.0.1:1")
    assert no_amqp.exit_code == 1
    assert "/ q: 0 moved" in no_amqp.output
    assert "left: the target: [Errno 111]" in no_amqp.output
    assert "secret" not in result.output
    assert run("ftp://x", nowhere).exit_code == 2


def test_killed_source_is_told_and_nothing_is_lost(
    tmp_path: Path, pair: tuple[Broker, Broker]
) -> None:
    _, target = pair
    declare(target, queue="q")
    source = start(tmp_path)
    with channel_at(source.url) as channel:
        channel.queue_declare("q", durable=True)
    publish(source.url, "q", *numbered(700))
    there = side("target", management(target))
    audience = AfterMessages(100, source.kill)
    result = move(side("source", http_url(source)), there, audience=audience)["q"]
    assert audience.done
    assert result.reason.startswith("the source: ")
    assert result.source_after is None
    again = start(tmp_path, source)
    assert move(side("source", http_url(again)), there)["q"].all_moved
    again.kill()
    ids = [str(properties.message_id) for _, properties in drain(target.url, "q")]
    assert set(ids) == {f"id-{n}" for n in range(700)}
    assert {one for one in ids if ids.count(one) > 1} <= set(result.doubtful_ids)


def test_killed_target_may_double_only_what_was_told(
    tmp_path: Path, pair: tuple[Broker, Broker]
) -> None:
    source, _ = pair
    declare(source, queue="q")
    target = start(tmp_path)
    with channel_at(target.url) as channel:
        channel.queue_declare("q", durable=True)
    publish(source.url, "q", *numbered(700))
    here = side("source", management(source))
    audience = AfterMessages(100, target.kill)
    result = move(here, side("target", http_url(target)), audience=audience)["q"]
    assert audience.done
    assert result.reason.startswith("the target: ")
    assert 100 <= result.moved < 700
    assert result.source_after == 700 - result.moved
    assert len(result.doubtful_ids) == result.doubtful
    again = start(tmp_path, target)
    second = move(here, side("target", http_url(again)))["q"]
    assert second.all_moved
    arrived = drain(again.url, "q")
    again.kill()
    ids = [properties.message_id for _, properties in arrived]
    assert set(ids) == {f"id-{n}" for n in range(700)}
    doubled = {one for one in ids if ids.count(one) > 1}
    assert doubled <= set(result.doubtful_ids)


def test_following_goes_on_when_the_target_is_back(
    tmp_path: Path, pair: tuple[Broker, Broker]
) -> None:
    source, _ = pair
    declare(source, queue="q")
    target = start(tmp_path)
    with channel_at(target.url) as channel:
        channel.queue_declare("q", durable=True)
    publish(source.url, "q", *numbered(5))

    class Following(MoveAudience):
        troubles: ClassVar[list[str]] = []
        targets: ClassVar[list[ServerProcess]] = [target]

        def quiet(self, delayed: int) -> None:
            if len(self.targets) == 1 and not self.troubles:
                target.kill()
                publish(source.url, "q", (b"late", pika.BasicProperties(delivery_mode=2)))
            else:
                self.stop.set()

        def trouble(self, text: str) -> None:
            if not self.troubles:
                self.targets.append(start(tmp_path, target))
            self.troubles.append(text)

        def let(self, stop: asyncio.Event) -> None:
            self.stop = stop

    audience = Following()
    there = side("target", http_url(target))
    here = side("source", management(source))
    result = move(here, there, follow=True, quiet_s=0.0, audience=audience, stop_when=audience.let)[
        "q"
    ]
    assert audience.troubles[0].startswith("the target: ")
    assert (result.moved, result.source_after, result.doubtful) == (6, 0, 0)
    again = audience.targets[-1]
    assert bodies(again.url, "q") == [*(b"%d" % n for n in range(5)), b"late"]
    again.kill()


def start(directory: Path, before: ServerProcess | None = None) -> ServerProcess:
    """A node that can be killed; `before` is one whose ports and data it takes over."""
    amqp = 0 if before is None else before.port
    arguments = ["--data-dir", str(directory / "data"), "--amqp", f"127.0.0.1:{amqp}"]
    return ServerProcess([*arguments, "--http", "127.0.0.1:0"], directory)


def http_url(server: ServerProcess) -> str:
    found = re.search(r"http (\d+)", server.ready_line)
    assert found is not None
    return f"http://guest:guest@127.0.0.1:{found[1]}"


def test_stop_while_the_target_takes_nothing_leaves_the_rest_at_the_source(
    pair: tuple[Broker, Broker],
) -> None:
    """Whether the last ones were taken cannot be known, and is told."""
    source, target = pair
    declare(source, target, queue="q")
    publish(source.url, "q", *numbered(3_000))
    stops: list[asyncio.Event] = []
    with ExitStack() as alarm:

        def block_and_stop() -> None:
            alarm.enter_context(target.blocking_publishers())
            stops[0].set()

        audience = AfterMessages(1, block_and_stop)
        options = {"audience": audience, "stop_when": stops.append, "silence_s": 0.5}
        result = move(*sides(source, target), **options)["q"]
    there, here = bodies(target.url, "q"), bodies(source.url, "q")
    assert 0 < result.moved < 3_000
    assert [int(body) for body in here] == list(range(result.moved, 3_000))
    assert there[: result.moved] == [b"%d" % number for number in range(result.moved)]
    assert len(there) - result.moved <= result.doubtful
