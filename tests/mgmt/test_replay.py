"""Replay of a stream: which messages are sent again, where to, and how they are marked."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pika
import pytest
from api_client import EVERYTHING, ApiClient, reason
from ctl_node import CtlNode
from message_jobs import NUMBERS, begin, bodies, do, fill, over

from warren import Broker
from warren.mgmt.messages import job as jobs

STREAM = {"x_queue_type": "stream"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(http_port=0, data_dir=tmp_path, movable_clock=True) as running:
        yield running


def replayed(broker: Broker, api: ApiClient, channel: Any, **plan: Any) -> list[str]:
    """The bodies of what a replay with this plan brings to a new queue."""
    channel.queue_delete("to")
    channel.queue_declare("to", durable=True)
    job = do(broker, api, "replay", to_queue="to", **plan)
    assert (job["state"], job["left"]) == ("completed", []), job
    assert job["done"] == job["matched"]
    return bodies(api, "to")


def test_offsets_and_filters_say_which(broker: Broker, api: ApiClient, channel: Any) -> None:
    fill(channel, **STREAM)
    assert replayed(broker, api, channel) == NUMBERS
    assert replayed(broker, api, channel, first=9) == NUMBERS[9:]
    assert replayed(broker, api, channel, last=2) == NUMBERS[:3]
    assert replayed(broker, api, channel, first=3, last=5) == NUMBERS[3:6]
    assert replayed(broker, api, channel, first=100) == []
    assert replayed(broker, api, channel, filter="headers.n >= 10") == ["10", "11"]
    assert replayed(broker, api, channel, first=4, limit=2) == ["4", "5"]
    assert replayed(broker, api, channel, positions=["2", "7"]) == ["2", "7"]
    assert bodies(api) == NUMBERS


def test_times_say_which(broker: Broker, api: ApiClient, channel: Any) -> None:
    def now() -> float:
        return broker.call(lambda node: node.clock.wall_time())

    moments = []
    for half in (NUMBERS[:6], NUMBERS[6:]):
        fill(channel, bodies=half, **STREAM)
        broker.advance(100)
        moments.append(now())
        broker.advance(100)
    first, second = moments
    iso = datetime.fromtimestamp(first, UTC).isoformat()
    assert replayed(broker, api, channel, since=first) == NUMBERS[6:]
    assert replayed(broker, api, channel, since=iso) == NUMBERS[6:]
    assert replayed(broker, api, channel, until=iso.replace("+00:00", "")) == NUMBERS[:6]
    assert replayed(broker, api, channel, since=0, until=second) == NUMBERS
    assert replayed(broker, api, channel, since=second) == []
    assert replayed(broker, api, channel, first=2, until=first) == NUMBERS[2:6]


def test_they_are_new_messages_that_are_marked(
    broker: Broker, api: ApiClient, channel: Any
) -> None:
    fill(channel, bodies=NUMBERS[:2], **STREAM)
    channel.queue_declare("to", durable=True)
    channel.queue_bind("to", "amq.topic", "again")
    for _ in range(2):
        job = do(broker, api, "replay", first=1, to_exchange="amq.topic", routing_key="again")
        assert job["done"] == 1
    for _ in range(2):
        method, properties, body = channel.basic_get("to", auto_ack=True)
        assert (method.exchange, method.routing_key) == ("amq.topic", "again")
        assert not method.redelivered
        assert body == b"1"
        assert properties.delivery_mode == 2
        assert properties.headers == {"n": 1, "x-replayed": {"stream": "q", "offset": 1}}


def test_dry_run_sends_nothing(broker: Broker, api: ApiClient, channel: Any) -> None:
    fill(channel, **STREAM)
    fill(channel, "to", [])
    job = do(broker, api, "replay", to_queue="to", first=2, dry_run=True)
    assert (job["done"], [one["payload"] for one in job["samples"]]) == (10, NUMBERS[2:])
    assert bodies(api, "to") == []


def test_positions_that_are_not_there_are_told(
    broker: Broker, api: ApiClient, channel: Any
) -> None:
    fill(channel, **STREAM)
    fill(channel, "to", [])
    for action in ("replay", "copy"):
        job = do(broker, api, action, to_queue="to", positions=["3", "99"])
        assert job["done"] == 1
        assert job["left"] == [{"reason": jobs.NOT_KEPT, "messages": 1}]


def test_replay_is_stopped(broker: Broker, api: ApiClient, channel: Any) -> None:
    fill(channel, **STREAM)
    fill(channel, "to", [])
    path = begin(api, "replay", to_queue="to", rate=0.01)
    assert api.delete(path)[0] == 204
    job = over(broker, api, path)
    assert (job["state"], job["done"] < 12) == ("stopped", True)


def test_replay_into_a_stream_ends_where_that_ended(
    broker: Broker, api: ApiClient, channel: Any
) -> None:
    fill(channel, bodies=NUMBERS[:3], **STREAM)
    channel.queue_bind("q", "amq.fanout")
    job = do(broker, api, "replay", to_exchange="amq.fanout")
    assert job["done"] == 3
    assert bodies(api) == NUMBERS[:3] * 2


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ({"first": 1, "since": 5}, "either first or since"),
        ({"last": 1, "until": 5}, "either last or until"),
        ({"first": -1}, "an offset should be between 0"),
        ({"since": "yesterday"}, "since should be a time such as"),
        ({"until": "2026-13-01"}, "until should be a time such as"),
        ({"to_queue": None}, "either to_queue or to_exchange"),
        ({"to_queue": "q"}, "a stream's own messages are in it already"),
        ({"queue": "to"}, "queue 'to' has nothing to replay"),
        ({"action": "copy", "first": 1}, "first, last, since and until go with replay"),
        ({"action": "move"}, "messages stay in a stream"),
        ({"action": "delete", "to_queue": None}, "messages stay in a stream"),
        ({"action": "requeue", "to_queue": None}, "messages stay in a stream"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(
    api: ApiClient, channel: Any, plan: dict[str, Any], told: str
) -> None:
    fill(channel, bodies=[], **STREAM)
    fill(channel, "to", [])
    plan = {"action": "replay", "queue": "q", "to_queue": "to", **plan}
    queue = plan.pop("queue")
    plan = {key: value for key, value in plan.items() if value is not None}
    status, why = reason(api.post(f"/queues/%2F/{queue}/messages/jobs", plan))
    assert (status, told in why) == (400, True), why


def test_replay_needs_permissions_for_both_ends(
    broker: Broker, api: ApiClient, channel: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fill(channel, **STREAM)
    fill(channel, "target", [])
    api.put("/users/player", {"password": "p", "tags": "management"})
    player = ApiClient(broker, "player", "p")
    plan = {"to_queue": "target"}
    broker.set_permissions("player", read="^target$", write=".*", configure="")
    assert player.post("/queues/%2F/q/replay", plan)[0] == 401
    broker.set_permissions("player", read="^q$", write="^other$", configure="")
    assert player.post("/queues/%2F/q/replay", plan)[0] == 401
    broker.set_permissions("player", read="^q$", write="^target$", configure="")
    with caplog.at_level("INFO", logger="warren.audit"):
        assert player.post("/queues/%2F/q/replay", plan)[0] == 200
    (begun,) = [one.getMessage() for one in caplog.records if one.name == "warren.audit"]
    assert "message_job_begun" in begun and "replay" in begun and "player" in begun
    api.put("/permissions/%2F/player", EVERYTHING)


def test_messages_of_a_stream_are_never_redelivered(
    broker: Broker, api: ApiClient, channel: Any
) -> None:
    fill(channel, **STREAM)
    _, page = api.get("/queues/%2F/q/messages")
    assert not any(row["redelivered"] for row in page["messages"])
    assert replayed(broker, api, channel, filter="not redelivered") == NUMBERS


def test_a_replay_is_in_the_life_of_a_message(broker: Broker, api: ApiClient, channel: Any) -> None:
    """Rules of tracing see jobs; one that selects nothing does not disturb them."""
    fill(channel, bodies=["1"], **STREAM)
    fill(channel, "to", [])
    assert api.put("/parameters/trace/%2F/none", {"value": {"queue": "^nothing$"}})[0] == 201
    assert do(broker, api, "replay", to_queue="to")["done"] == 1
    assert api.put("/parameters/trace/%2F/all", {"value": {}})[0] == 201
    channel.basic_publish("", "q", b"2", pika.BasicProperties(message_id="m2"))
    while do(broker, api, "replay", to_queue="to", filter="message_id = 'm2'")["done"] < 1:
        pass
    _, life = api.get("/trace/%2F/m2")
    events = [record["event"] for record in life["records"]]
    assert events == ["published", "replayed"], life
    assert life["queues"] == {"q": "ready", "to": "ready"}


def test_command(ctl_node: CtlNode) -> None:
    with ctl_node.connected() as connection:
        channel = connection.channel()
        arguments = {"x-queue-type": "stream"}
        for queue in ("played", "again"):
            channel.queue_delete(queue)
        channel.queue_declare("played", durable=True, arguments=arguments)
        channel.queue_declare("again", durable=True)
        channel.confirm_delivery()
        for number in range(5):
            channel.basic_publish("", "played", b"m%d" % number)
    listed = ctl_node.rows("list_queues", "name", "type", "messages")
    assert ["played", "stream", "5"] in listed
    options = ("--first", "1", "--last", "3", "--to-queue", "again")
    dry = ctl_node("replay", "played", *options, "--dry-run")
    assert dry.lines[0] == "Would replay: 3 messages"
    done = ctl_node("replay", "played", *options, "--wait", "-q")
    assert done.lines == ["replay: 3 messages"]
    for moment in ("2020-01-01", "2020-01-01T00:00:00", "2020-01-01T00:00:00.5+01:00"):
        arguments = ["replay", "played", "--since", moment, "--to-queue", "again", "--wait", "-q"]
        assert ctl_node(*arguments).lines == ["replay: 5 messages"]
    counts = ctl_node.rows("list_queues", "name", "messages")
    assert ["again", "18"] in counts and ["played", "5"] in counts
    wrong = ctl_node("replay", "played", "--since", "2020", "--to-queue", "again")
    assert wrong.code != 0 and "since should be a time such as" in wrong.err
