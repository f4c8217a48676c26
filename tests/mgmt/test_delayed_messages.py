"""Delayed messages for operators: counts, the list, cancelling one, sending one now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pika
import pytest
from api_client import ApiClient, reason
from ctl_node import CtlNode

from warren import Broker
from warren.config import Listener
from warren.mgmt.api import delayed
from warren.mgmt.messages import looking

FAR_MS = 3_600_000
DELAYED = "/exchanges/%2F/dx/delayed"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http_port=0, metrics_listeners=(Listener("127.0.0.1", 0),)) as broker:
        yield broker


@pytest.fixture
def api(broker: Broker) -> Iterator[ApiClient]:
    """With an exchange dx that routes to the queue q, both made anew."""
    api = ApiClient(broker)
    body = {"type": "x-delayed-message", "arguments": {"x-delayed-type": "fanout"}}
    assert api.put("/exchanges/%2F/dx", {**body, "durable": True})[0] == 201
    assert api.put("/queues/%2F/q", {"durable": True})[0] == 201
    assert api.post("/bindings/%2F/e/dx/q/q", {})[0] == 201
    yield api
    api.delete("/exchanges/%2F/dx")
    api.delete("/queues/%2F/q")


def publish(api: ApiClient, body: str, delay: Any = FAR_MS) -> Any:
    message = {
        "routing_key": "k",
        "properties": {"headers": {"x-delay": delay}, "delivery_mode": 2},
        "payload": body,
        "payload_encoding": "string",
    }
    status, answer = api.post("/exchanges/%2F/dx/publish", message)
    assert status == 200
    return answer


def messages(api: ApiClient) -> list[str]:
    wanted = {"count": 100, "ackmode": "ack_requeue_false", "encoding": "auto"}
    return [row["payload"] for row in api.post("/queues/%2F/q/get", wanted)[1]]


def test_the_exchange_says_how_many_wait(api: ApiClient) -> None:
    assert api.get("/exchanges/%2F/dx")[1]["messages_delayed"] == 0
    assert publish(api, "later") == {"routed": True}
    publish(api, "now", 0)
    assert api.get("/exchanges/%2F/dx")[1]["messages_delayed"] == 1
    rows = {row["name"]: row for row in api.get("/exchanges")[1]}
    assert rows["dx"]["messages_delayed"] == 1
    assert "messages_delayed" not in rows["amq.fanout"]
    assert messages(api) == ["now"]


def test_the_list_has_the_next_due_first(api: ApiClient) -> None:
    for number in range(30):
        publish(api, "x" * number, FAR_MS - 1000 * number)
    status, found = api.get(DELAYED)
    assert (status, found["total"], len(found["items"])) == (200, 30, 30)
    assert [row["payload_bytes"] for row in found["items"]] == list(range(29, -1, -1))
    first = found["items"][0]
    assert first["properties"]["headers"] == {"x-delay": FAR_MS - 29_000}
    assert (first["exchange"], first["routing_key"]) == ("dx", "k")
    assert 0 < first["due_in"] <= FAR_MS - 29_000
    some = api.get(f"{DELAYED}?offset=5&count=2")[1]["items"]
    assert [row["id"] for row in some] == [row["id"] for row in found["items"][5:7]]


def test_the_description_says_how_the_list_is_asked(api: ApiClient) -> None:
    paths = api.get("/openapi.json")[1]["paths"]
    asked = paths["/exchanges/{vhost}/{exchange}/delayed"]["get"]["parameters"]
    names = [one["name"] for one in asked]
    assert names == ["count", "filter", "from", "offset", "order", "truncate"]


def test_those_that_a_filter_finds_are_listed_with_their_payloads(api: ApiClient) -> None:
    for number in range(60):
        publish(api, f"{number} ä", FAR_MS + 1000 * number)
    found = api.get(f"{DELAYED}?filter=body%20like%20%22*7%20*%22&count=4")[1]
    assert [row["payload"] for row in found["items"]] == ["7 ä", "17 ä", "27 ä", "37 ä"]
    assert (found["total"], found["items"][0]["payload_encoding"]) == (60, "string")
    more = api.get(f"{DELAYED}?filter=body%20like%20%22*7%20*%22&offset={found['next_offset']}")[1]
    assert [row["payload"] for row in more["items"]] == ["47 ä", "57 ä"]
    assert more["next_offset"] is None
    short = api.get(f"{DELAYED}?count=1&truncate=1")[1]["items"][0]
    assert (short["payload"], short["payload_bytes"]) == ("0", 4)
    assert reason(api.get(f"{DELAYED}?filter=size%20%3E"))[0] == 400


def test_any_of_them_is_found_in_the_order_of_publishing(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed, "OFFSET_MAX", 2)
    monkeypatch.setattr(delayed, "COUNT_MAX", 3)
    for number in range(9):
        publish(api, str(number), FAR_MS - 1000 * number)
    by_due_time = api.get(f"{DELAYED}?offset=2&count=3")[1]
    assert [row["payload"] for row in by_due_time["items"]] == ["6", "5", "4"]
    assert by_due_time["next_offset"] is None, "no larger offset is taken"

    monkeypatch.setattr(looking, "SCAN_COUNT", 2)
    found: list[str] = []
    start, looked_at = "", 0
    while start is not None:
        query = (
            f"order=published&count=3&from={start}&filter=body%20in%20(%220%22%2C%222%22%2C%228%22)"
        )
        status, page = api.get(f"{DELAYED}?{query}")
        assert (status, page["total"], page["looked_at"] <= 2) == (200, 9, True)
        found += [row["payload"] for row in page["items"]]
        start, looked_at = page["next"], looked_at + page["looked_at"]
    assert (found, looked_at) == (["0", "2", "8"], 9)


def test_a_message_that_was_found_by_publishing_order_is_cancelled(api: ApiClient) -> None:
    for number in range(4):
        publish(api, str(number), FAR_MS - 1000 * number)
    page = api.get(f"{DELAYED}?order=published&count=3&truncate=0")[1]
    assert [row["payload_bytes"] for row in page["items"]] == [1, 1, 1]
    assert {row["payload"] for row in page["items"]} == {""}
    assert [row["due_in"] > FAR_MS - 60_000 for row in page["items"]] == [True] * 3
    assert api.delete(f"{DELAYED}/{page['items'][1]['id']}")[0] == 204
    rest = api.get(f"{DELAYED}?order=published&from={page['items'][1]['id']}")[1]
    assert [row["payload"] for row in rest["items"]] == ["2", "3"]
    assert rest["next"] is None


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("order=size", 400),
        ("order=published&from=x", 404),
        ("order=published&from=7.0", 404),
        ("order=published&filter=size", 200),
        ("order=published&filter=size%20%3E", 400),
    ],
)
def test_an_order_and_a_place_that_do_not_exist_are_refused(
    api: ApiClient, query: str, status: int
) -> None:
    publish(api, "waits")
    assert api.get(f"{DELAYED}?{query}")[0] == status


@pytest.mark.parametrize("query", ["count=501", "count=-1", "offset=x", "offset=10001"])
def test_a_list_without_bounds_is_refused(api: ApiClient, query: str) -> None:
    assert api.get(f"{DELAYED}?{query}")[0] == 400


def test_one_message_is_cancelled(api: ApiClient) -> None:
    publish(api, "first", FAR_MS)
    publish(api, "second", FAR_MS + 1000)
    first, second = [row["id"] for row in api.get(DELAYED)[1]["items"]]
    assert api.delete(f"{DELAYED}/{first}")[0] == 204
    assert api.delete(f"{DELAYED}/{first}")[0] == 404
    assert [row["id"] for row in api.get(DELAYED)[1]["items"]] == [second]
    assert api.get("/exchanges/%2F/dx")[1]["messages_delayed"] == 1


def test_one_message_is_sent_now(api: ApiClient) -> None:
    publish(api, "first", FAR_MS)
    publish(api, "second", FAR_MS + 1000)
    _, second = [row["id"] for row in api.get(DELAYED)[1]["items"]]
    assert api.post(f"{DELAYED}/{second}/send")[0] == 204
    assert api.post(f"{DELAYED}/{second}/send")[0] == 404
    assert messages(api) == ["second"]


@pytest.mark.parametrize("id", ["1", "x.y", "7.0", "0.999999", "0.-1", "0.1/2"])
def test_an_id_that_names_nothing_is_not_found(api: ApiClient, id: str) -> None:
    publish(api, "stays")
    assert api.delete(f"{DELAYED}/{quote(id, safe='')}")[0] == 404
    assert api.get(DELAYED)[1]["total"] == 1


def test_an_exchange_of_another_type_has_no_such_list(api: ApiClient) -> None:
    assert api.get("/exchanges/%2F/amq.fanout/delayed")[0] == 404
    assert api.get("/exchanges/%2F/nowhere/delayed")[0] == 404


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "Invalid argument, 'x-delayed-type' must be an existing exchange type"),
        ({"x-delayed-type": "bogus"}, "unknown exchange type 'bogus'"),
        ({"x-delayed-type": ""}, "invalid exchange type ''"),
    ],
)
def test_a_type_that_cannot_route_is_refused(
    api: ApiClient, arguments: dict[str, str], reason: str
) -> None:
    body = {"type": "x-delayed-message", "arguments": arguments}
    status, answer = api.put("/exchanges/%2F/other", body)
    assert (status, answer["reason"]) == (400, reason)


def test_the_queue_behind_it_is_shown_and_cannot_be_used(api: ApiClient) -> None:
    publish(api, "waits")
    behind = "/queues/%2F/amq.delayed.dx"
    row = api.get(behind)[1]
    assert (row["messages_ready"], row["delays"]) == (1, "dx")
    assert api.delete(f"{behind}/contents")[0] == 401
    assert api.delete(behind)[0] == 401
    wanted = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    assert api.post(f"{behind}/get", wanted)[0] == 401
    assert api.get(DELAYED)[1]["total"] == 1


def test_definitions_have_the_exchange_and_not_its_queue(api: ApiClient) -> None:
    definitions = api.get("/definitions")[1]
    assert "dx" in [row["name"] for row in definitions["exchanges"]]
    assert "amq.delayed.dx" not in [row["name"] for row in definitions["queues"]]
    api.delete("/exchanges/%2F/dx")
    assert api.post("/definitions", definitions)[0] == 204
    assert api.get("/exchanges/%2F/dx")[1]["messages_delayed"] == 0


def test_definitions_with_a_type_that_cannot_route_are_refused(api: ApiClient) -> None:
    exchange = {
        "name": "bad",
        "vhost": "/",
        "type": "x-delayed-message",
        "durable": True,
        "auto_delete": False,
        "arguments": {"x-delayed-type": "bogus"},
    }
    assert api.post("/definitions", {"exchanges": [exchange]})[0] == 400
    assert api.get("/exchanges/%2F/bad")[0] == 404


def test_the_metrics_count_what_waits(broker: Broker, api: ApiClient) -> None:
    publish(api, "waits")
    assert "\nwarren_messages_delayed 1\n" in metrics(broker, "")
    assert 'warren_messages_delayed{vhost="/",exchange="dx"} 1' in metrics(broker, "/per-object")


def metrics(broker: Broker, path: str) -> str:
    management = broker._running.management
    assert management is not None
    with urlopen(f"http://127.0.0.1:{management.metrics_ports[0]}/metrics{path}") as answer:
        return str(answer.read().decode())


def test_the_command_line_lists_cancels_and_sends(ctl_node: CtlNode) -> None:
    with ctl_node.connected() as connection:
        channel = connection.channel()
        arguments = {"x-delayed-type": "fanout"}
        channel.exchange_declare("cx", "x-delayed-message", arguments=arguments)
        channel.queue_declare("cq")
        channel.queue_bind("cq", "cx")
        for number in range(3):
            properties = pika.BasicProperties(headers={"x-delay": FAR_MS + 1000 * number})
            channel.basic_publish("cx", f"key {number}", b"m", properties)
        # What was published is there when this is answered.
        channel.queue_declare("cq", passive=True)
    rows = ctl_node.rows("list_delayed_messages", "cx")
    assert [row[3] for row in rows] == ["key 0", "key 1", "key 2"]
    asked = ("--published", "--count", "2", "--filter", "routing_key != 'key 0'")
    some = ctl_node.rows("list_delayed_messages", "cx", *asked)
    assert [row[0] for row in some] == [rows[1][0], rows[2][0]]
    for wrong in ("--count=0", "--count=501", "--offset=-1"):
        assert ctl_node("list_delayed_messages", "cx", "--published", wrong).code == 64
    assert ctl_node("cancel_delayed_message", "cx", rows[0][0]).code == 0
    assert ctl_node("send_delayed_message", "cx", rows[1][0]).code == 0
    gone = ctl_node("send_delayed_message", "cx", rows[1][0])
    assert (gone.code, "no such delayed message" in gone.err) == (64, True)
    left = ctl_node.rows("list_delayed_messages", "cx")
    assert [row[0] for row in left] == [rows[2][0]]
    (queue,) = [row for row in ctl_node.rows("list_queues", "name", "messages") if row[0] == "cq"]
    assert queue == ["cq", "1"]
    counts = ctl_node.rows("list_exchanges", "name", "messages_delayed")
    assert ["cx", "1"] in counts
