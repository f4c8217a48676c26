"""Finding messages over HTTP: which are found, and that the queue does not change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pika
import pytest
from api_client import ApiClient, reason

from warren import Broker
from warren.mgmt.api import looking as api_looking
from warren.mgmt.messages import looking

MESSAGES = "/queues/%2F/q/messages"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(http_port=0) as running:
        yield running


def page(api: ApiClient, **query: Any) -> Any:
    query = {name.rstrip("_"): value for name, value in query.items()}
    status, answer = api.get(f"{MESSAGES}?{urlencode(query)}")
    assert status == 200, answer
    return answer


def publish(channel: Any, *bodies: str, **properties: Any) -> None:
    for body in bodies:
        channel.basic_publish("", "q", body.encode(), pika.BasicProperties(**properties))


def payloads(page: Any) -> list[str]:
    return [row["payload"] for row in page["messages"]]


def all_pages(api: ApiClient, **query: Any) -> list[str]:
    found: list[str] = []
    start = ""
    while start is not None:
        one = page(api, from_=start, **query)
        found += payloads(one)
        start = one["next"]
    return found


NUMBERS = [str(number) for number in range(10)]


@pytest.mark.parametrize("arguments", [{}, {"x-queue-mode": "lazy"}, {"x-queue-type": "quorum"}])
@pytest.mark.parametrize("limit", [1, 3, 10, 50])
def test_pages_follow_each_other_in_both_orders(
    api: ApiClient, channel: Any, arguments: dict[str, Any], limit: int
) -> None:
    channel.queue_declare("q", durable=True, arguments=arguments)
    publish(channel, *NUMBERS, delivery_mode=2)
    assert all_pages(api, limit=limit) == NUMBERS
    assert all_pages(api, limit=limit, order="newest") == NUMBERS[::-1]
    found = all_pages(api, limit=limit, filter="body like '*3' or body contains '7'")
    assert found == ["3", "7"]


def test_messages_of_a_priority_queue_are_named_by_level_and_position(
    api: ApiClient, channel: Any
) -> None:
    channel.queue_declare("q", arguments={"x-max-priority": 5})
    publish(channel, "a", "b", priority=1)
    publish(channel, "c", priority=9)
    rows = page(api)["messages"]
    assert [(row["position"], row["payload"]) for row in rows] == [
        ("5.0", "c"),
        ("1.0", "a"),
        ("1.1", "b"),
    ]
    assert all_pages(api, limit=1) == ["c", "a", "b"]
    assert all_pages(api, limit=1, order="newest") == ["b", "a", "c"]
    assert payloads(page(api, from_="1.1")) == ["b"]
    assert reason(api.get(f"{MESSAGES}?from=1")) == (
        400,
        "from should be a position such as 3.120, not '1'",
    )


def test_a_message_is_shown_with_all_it_has(api: ApiClient, channel: Any) -> None:
    channel.queue_declare("q")
    publish(channel, '{"a": 1}', headers={"k": [1, "x"]}, expiration="60000", type="t")
    channel.basic_publish("amq.direct", "none", b"lost")
    publish(channel, "\u00fc" * 3)
    (first, second) = page(api, truncate=5)["messages"]
    assert 0 < first.pop("expires_in_ms") <= 60_000
    assert first == {
        "position": "0",
        "state": "ready",
        "exchange": "",
        "routing_key": "q",
        "redelivered": False,
        "properties": {"headers": {"k": [1, "x"]}, "expiration": "60000", "type": "t"},
        "payload_bytes": 8,
        "payload": '{"a":',
        "payload_encoding": "string",
    }
    assert second["payload"] == "\u00fc\u00fc", "cut between characters"


def test_looking_changes_nothing(api: ApiClient, channel: Any) -> None:
    channel.queue_declare("q")
    publish(channel, *NUMBERS)
    before = api.get("/queues/%2F/q")[1]
    all_pages(api, limit=2)
    all_pages(api, limit=2, order="newest", filter="json > 4")
    after = api.get("/queues/%2F/q")[1]
    for name in ("messages_ready", "messages_unacknowledged", "message_stats"):
        assert before.get(name) == after.get(name), name
    for number in NUMBERS:
        method, _, body = channel.basic_get("q", auto_ack=True)
        assert body == number.encode() and not method.redelivered


def test_unacknowledged_messages_say_who_has_them(api: ApiClient, channel: Any) -> None:
    channel.queue_declare("q")
    publish(channel, *NUMBERS[:4])
    assert channel.basic_get("q")[2] == b"0"
    other = channel.connection.channel()
    other.basic_qos(prefetch_count=1)
    other.basic_consume("q", lambda *_: None, consumer_tag="me")
    rows = page(api)["messages"]
    assert [(row["payload"], row["state"]) for row in rows] == [
        ("0", "unacked"),
        ("1", "unacked"),
        ("2", "ready"),
        ("3", "ready"),
    ]
    got, consumed = rows[0]["held_by"], rows[1]["held_by"]
    assert (got["consumer_tag"], got["channel"], got["delivery_tag"]) == (None, 1, 1)
    assert (consumed["consumer_tag"], consumed["channel"]) == ("me", 2)
    assert consumed["user"] == "guest" and consumed["held_for_at_least_ms"] >= 0
    assert "held_by" not in rows[2]
    assert all_pages(api, filter='state = "unacked"', order="newest", limit=1) == ["1", "0"]
    assert all_pages(api, order="newest", limit=3) == ["3", "2", "1", "0"]


def test_a_returned_message_that_waits_is_shown_as_waiting(api: ApiClient, channel: Any) -> None:
    channel.queue_declare("q", durable=True, arguments={"x-redelivery-delay": [600_000]})
    publish(channel, *NUMBERS[:3])
    channel.basic_nack(channel.basic_get("q")[0].delivery_tag)
    while (rows := page(api)["messages"])[0]["state"] == "unacked":
        pass
    assert [(row["payload"], row["state"]) for row in rows] == [
        ("0", "waiting"),
        ("1", "ready"),
        ("2", "ready"),
    ]
    assert 0 < rows[0]["ready_in_ms"] <= 600_000 and "ready_in_ms" not in rows[1]
    assert all_pages(api, filter="state = 'waiting'") == ["0"]


def test_ids_that_a_queue_remembers_are_no_messages(api: ApiClient, channel: Any) -> None:
    window = {"x-message-deduplication-window": 10}
    channel.queue_declare("q", durable=True, arguments=window)
    channel.confirm_delivery()
    for number, message_id in enumerate("abca"):
        properties = pika.BasicProperties(delivery_mode=2, message_id=message_id)
        channel.basic_publish("", "q", str(number).encode(), properties)
    assert payloads(page(api)) == ["0", "1", "2"]
    _, row = api.get("/queues/%2F/q")
    assert row["deduplication"] == {"window": 10, "ids": 3, "duplicates": 1}
    assert (row["backing_queue_status"]["len"], row["message_bytes_ready"]) == (3, 3)


def test_a_search_goes_on_where_it_ended(
    api: ApiClient, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "SCAN_COUNT", 4)
    channel.queue_declare("q")
    publish(channel, *NUMBERS)
    first = page(api, filter="body = '9'")
    assert (first["messages"], first["looked_at"], first["next"]) == ([], 4, "4")
    assert all_pages(api, filter="body = '9'") == ["9"]
    monkeypatch.setattr(looking, "FOUND_BYTES", 20)  # The content header has 14 octets.
    assert payloads(page(api)) == ["0", "1"]
    assert all_pages(api) == NUMBERS
    monkeypatch.setattr(looking, "UNACKED_MAX", 0)
    channel.basic_get("q")
    answer = page(api)
    assert answer["unacked_left_out"] == 1 and payloads(answer) == ["1", "2"]


def test_what_is_found_is_exported_as_lines(
    api: ApiClient, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_looking, "LIMIT_MAX", 3)
    channel.queue_declare("q")
    publish(channel, *NUMBERS, "x" * 100_000)

    def exported(**query: Any) -> list[str]:
        answer = api.ask("GET", f"{MESSAGES}/export?{urlencode(query)}")
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "application/x-ndjson"
        return [json.loads(line)["payload"] for line in answer.body.splitlines()]

    assert exported() == [*NUMBERS, "x" * 100_000]
    assert exported(limit=4, order="newest", filter="size < 5") == NUMBERS[:5:-1]
    assert exported(filter="size > 1mb") == []


def test_requests_that_are_refused(api: ApiClient, broker: Broker) -> None:
    api.put("/queues/%2F/q", {})
    for query, text in (
        ("filter=siz", "filter, character 1: expected one of the fields"),
        ("order=up", "order should be oldest or newest"),
        ("limit=0", "limit should be 1 at least"),
        ("limit=x", "limit should be a whole number"),
        ("from=-1", "from should be a position such as 120"),
    ):
        status, why = reason(api.get(f"{MESSAGES}?{query}"))
        assert status == 400 and text in why, why
        if not query.startswith("from"):
            assert api.get(f"{MESSAGES}/export?{query}")[0] == 400
    assert api.get("/queues/%2F/none/messages")[0] == 404
    api.put("/users/blind", {"password": "blind", "tags": "management"})
    api.put("/permissions/%2F/blind", {"configure": ".*", "write": ".*", "read": "^other"})
    blind = ApiClient(broker, "blind")
    assert blind.get(MESSAGES)[0] == blind.get(f"{MESSAGES}/export")[0] == 401
