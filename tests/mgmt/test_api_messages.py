"""Getting and publishing messages over HTTP: the size of answers, errors on the way, counts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from api_client import ApiClient

from warren import Broker
from warren.core.exchanges import topic
from warren.core.messages.message import Envelope, Message
from warren.mgmt.api import messages
from warren.mgmt.http import slices

GET = {"count": 1000, "ackmode": "ack_requeue_true", "encoding": "auto"}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(http_port=0) as running:
        yield running


def publish(api: ApiClient, queue: str, payload: str) -> None:
    message = {"routing_key": queue, "payload": payload, "payload_encoding": "string"}
    status, _ = api.post("/exchanges/%2F/amq.default/publish", {"properties": {}, **message})
    assert status == 200


def test_an_answer_ends_when_it_is_large(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "GET_BYTES_MAX", 10_000)
    api = ApiClient(broker)
    api.put("/queues/%2F/q")
    for _ in range(5):
        publish(api, "q", "x" * 4_000)
    _, got = api.post("/queues/%2F/q/get", GET)
    assert len(got) == 3
    _, short = api.post("/queues/%2F/q/get", {**GET, "truncate": 10})
    assert [row["payload"] for row in short] == ["x" * 10] * 5


def test_a_message_larger_than_an_answer_is_answered_alone(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "GET_BYTES_MAX", 10)
    api = ApiClient(broker)
    api.put("/queues/%2F/q")
    for payload in ("x" * 100, "y"):
        publish(api, "q", payload)
    _, got = api.post("/queues/%2F/q/get", {**GET, "ackmode": "ack_requeue_false"})
    assert [row["payload"] for row in got] == ["x" * 100]
    assert api.get("/queues/%2F/q")[1]["messages"] == 1


def test_what_was_got_is_given_back_when_something_fails(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = ApiClient(broker)
    api.put("/queues/%2F/q")
    for payload in ("a", "b", "c"):
        publish(api, "q", payload)

    def row_of(request: Any, message: Message, *rest: Any) -> Any:
        if message.body == b"c":
            raise RuntimeError("cannot be shown")
        return {}

    with monkeypatch.context() as patched:
        patched.setattr(messages, "_message_row", row_of)
        status, _ = api.post("/queues/%2F/q/get", {**GET, "ackmode": "ack_requeue_false"})
    assert status == 500
    _, queue = api.get("/queues/%2F/q")
    assert (queue["messages_ready"], queue["messages_unacknowledged"]) == (3, 0)


def test_getting_lets_other_work_have_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    envelope = Envelope("", "q", b"", False, 0, None)
    turns: list[int] = []

    async def watch(got: list[Message]) -> None:
        while True:
            turns.append(len(got))
            await asyncio.sleep(0)

    async def get() -> None:
        got: list[Message] = []

        async def fetch() -> Message:
            return Message(envelope, b"", len(got), None)

        watcher = asyncio.create_task(watch(got))
        await messages._fetched(got, fetch, lambda message: {}, 4, None)
        watcher.cancel()

    asyncio.run(get())
    assert {1, 2, 3} <= set(turns), "each message may have large headers"


def test_messages_over_http_count_for_the_node_and_the_vhost(broker: Broker) -> None:
    api = ApiClient(broker)
    api.put("/queues/%2F/q")
    for payload in ("a", "b", "c"):
        publish(api, "q", payload)
    api.post("/queues/%2F/q/get", {**GET, "count": 2, "ackmode": "ack_requeue_false"})
    for path in ("/overview", "/vhosts/%2F"):
        stats = api.get(path)[1]["message_stats"]
        assert (stats["publish"], stats["confirm"]) == (3, 3), path
        assert (stats["get"], stats["ack"], stats["deliver_get"]) == (2, 2, 2), path


def test_a_count_that_is_no_number_of_messages_is_refused(broker: Broker) -> None:
    api = ApiClient(broker)
    api.put("/queues/%2F/q")
    for count in ("9" * 5000, "x", -1, 1.5, True):
        assert api.post("/queues/%2F/q/get", {**GET, "count": count})[0] == 400
    assert api.post("/queues/%2F/q/get", {**GET, "count": "3"}) == (200, [])


def test_a_publish_whose_queues_are_found_in_turns_is_routed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic, "WIDE", 0)
    monkeypatch.setattr(topic, "NODES_A_TURN", 1)
    api = ApiClient(broker)
    api.put("/queues/%2F/q")
    for pattern in ("#.a", "b.#.a"):
        api.post("/bindings/%2F/e/amq.topic/q/q", {"routing_key": pattern})
    for key, routed in (("b.c.a", True), ("a.b", False)):
        message = {"routing_key": key, "payload": "x", "payload_encoding": "string"}
        answer = api.post("/exchanges/%2F/amq.topic/publish", {"properties": {}, **message})
        assert answer == (200, {"routed": routed})
    assert api.get("/queues/%2F/q")[1]["messages"] == 1


def test_a_message_of_more_than_8_mb_is_refused(broker: Broker) -> None:
    api = ApiClient(broker)
    api.put("/queues/%2F/q")
    publish(api, "q", "x" * 7_900_000)
    message = {"routing_key": "q", "payload": "x" * 8_000_000, "payload_encoding": "string"}
    status, _ = api.post("/exchanges/%2F/amq.default/publish", {"properties": {}, **message})
    assert status == 413
    assert api.get("/queues/%2F/q")[1]["messages"] == 1
