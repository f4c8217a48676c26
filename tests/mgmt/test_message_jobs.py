"""Jobs on messages over HTTP: which messages they move, and that none is lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from api_client import EVERYTHING, ApiClient, reason
from message_jobs import NUMBERS, begin, bodies, do, fill, over

from warren import Broker
from warren.core.exchanges import topic
from warren.mgmt.messages import job as jobs
from warren.mgmt.messages import looking
from warren.mgmt.messages.jobs import JobKey, MessageJobs


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(http_port=0, data_dir=tmp_path) as running:
        yield running


ODD = NUMBERS[1::2]
EVEN = NUMBERS[::2]
QUEUES = [
    {},
    {"x_queue_mode": "lazy"},
    {"x_queue_type": "quorum"},
    {"x_delivery_limit": 3},
]


@pytest.mark.parametrize("arguments", QUEUES)
@pytest.mark.parametrize("batch", [1, 5, 50])
def test_a_filter_says_what_is_moved(
    broker: Broker,
    api: ApiClient,
    channel: Any,
    arguments: dict[str, Any],
    batch: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs, "BATCH", batch)
    fill(channel, **arguments)
    fill(channel, "target", [])
    wanted = " or ".join([f"headers.n = {number}" for number in ODD])
    job = do(broker, api, "move", to_queue="target", filter=wanted)
    assert (job["state"], job["done"], job["matched"], job["left"]) == ("completed", 6, 6, [])
    assert (bodies(api), bodies(api, "target")) == (EVEN, ODD)
    assert do(broker, api, "delete", filter="body > '2'")["done"] == 3
    assert bodies(api) == ["0", "2", "10"]
    for number in ("0", "2", "10"):
        method, _, body = channel.basic_get("q", auto_ack=True)
        assert body == number.encode() and not method.redelivered
    for number in ODD:
        method, properties, body = channel.basic_get("target", auto_ack=True)
        assert body == number.encode() and not method.redelivered
        assert (method.routing_key, properties.headers) == ("q", {"n": int(number)})


def test_positions_limits_copies_and_requeues(broker: Broker, api: ApiClient, channel: Any) -> None:
    fill(channel)
    fill(channel, "target", [])
    _, page = api.get("/queues/%2F/q/messages")
    places = [row["position"] for row in page["messages"]]
    job = do(broker, api, "copy", to_queue="target", positions=[places[2], places[7], "999"])
    assert job["done"] == 2 and bodies(api, "target") == ["2", "7"]
    assert do(broker, api, "requeue", limit=3)["done"] == 3
    assert bodies(api) == [*NUMBERS[3:], *NUMBERS[:3]]
    assert do(broker, api, "requeue", filter="headers.n = 5")["done"] == 1
    assert bodies(api)[-1] == "5" and len(bodies(api)) == 12
    assert do(broker, api, "delete", positions=[])["done"] == 0


def test_positions_that_are_not_ready_are_told(
    broker: Broker, api: ApiClient, channel: Any
) -> None:
    fill(channel)
    _, page = api.get("/queues/%2F/q/messages")
    places = [row["position"] for row in page["messages"]]
    assert channel.basic_get("q")[2] == b"0"
    job = do(broker, api, "delete", positions=[places[0], places[4], "999"])
    assert job["done"] == 1
    assert job["left"] == [{"reason": jobs.NOT_READY, "messages": 2}]


@pytest.mark.parametrize("priorities", [1, 3])
def test_returned_messages_that_wait_are_moved_and_deleted_too(
    broker: Broker, api: ApiClient, channel: Any, priorities: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"x_max_priority": priorities - 1} if priorities > 1 else {}
    fill(channel, x_redelivery_delay=[600_000], x_delivery_limit=5, **more)
    fill(channel, "target", [])
    tags = [channel.basic_get("q")[0].delivery_tag for _ in range(5)]
    for tag in tags[1:]:
        channel.basic_nack(tag)
    channel.queue_declare("q", passive=True)
    assert broker.call(lambda node: node.vhosts["/"].queues["q"].waiting) == 4
    job = do(broker, api, "move", to_queue="target", filter="body = '2' or body = '5'")
    assert (job["done"], job["left"]) == (2, [])
    assert bodies(api, "target") == ["2", "5"]
    _, page = api.get("/queues/%2F/q/messages")
    places = {row["payload"]: row["position"] for row in page["messages"]}
    job = do(broker, api, "delete", positions=[places["0"], places["1"], places["6"]])
    # A client has the first.
    assert (job["done"], job["left"]) == (2, [{"reason": jobs.NOT_READY, "messages": 1}])
    assert do(broker, api, "delete", filter="state = 'waiting'", limit=1)["done"] == 1
    assert bodies(api) == ["0", "4", *NUMBERS[7:]]
    monkeypatch.setattr(looking, "UNACKED_MAX", 0)
    assert do(broker, api, "delete")["done"] == len(NUMBERS[7:])
    queue = broker.call(lambda node: node.vhosts["/"].queues["q"].stock())
    assert queue.messages == 2


def test_an_exchange_gets_what_it_can_route(broker: Broker, api: ApiClient, channel: Any) -> None:
    fill(channel)
    fill(channel, "target", [])
    fill(channel, "second", [])
    for queue in ("target", "second"):
        channel.queue_bind(queue, "amq.fanout")
    job = do(broker, api, "move", to_exchange="amq.fanout", limit=2)
    assert job["done"] == 2
    assert bodies(api, "target") == bodies(api, "second") == NUMBERS[:2]
    job = do(broker, api, "move", to_exchange="amq.direct", routing_key="none")
    assert job["left"] == [{"reason": "no queue takes it", "messages": 10}]
    assert bodies(api) == NUMBERS[2:]


def test_an_exchange_whose_bindings_are_found_in_turns_gets_all_in_order(
    broker: Broker, api: ApiClient, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic, "WIDE", 0)
    monkeypatch.setattr(topic, "NODES_A_TURN", 1)
    fill(channel)
    fill(channel, "target", [])
    for pattern in ("#.a", "b.#.a"):
        channel.queue_bind("target", "amq.topic", pattern)
    job = do(broker, api, "move", to_exchange="amq.topic", routing_key="b.c.a")
    assert job["done"] == len(NUMBERS)
    assert bodies(api, "target") == NUMBERS and not bodies(api)


def test_messages_stay_whose_bindings_are_looked_for_in_turns_without_success(
    broker: Broker, api: ApiClient, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic, "WIDE", 0)
    monkeypatch.setattr(topic, "NODES_A_TURN", 1)
    fill(channel)
    fill(channel, "target", [])
    for pattern in ("#.a", "b.#.a"):
        channel.queue_bind("target", "amq.topic", pattern)
    job = do(broker, api, "move", to_exchange="amq.topic", routing_key="b.c.d")
    assert job["left"] == [{"reason": "no queue takes it", "messages": len(NUMBERS)}]
    assert bodies(api) == NUMBERS


def test_a_job_on_large_headers_ends_a_turn_with_each_message(
    broker: Broker, api: ApiClient, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if each header had taken a whole turn.
    monkeypatch.setattr(jobs, "HEADER_OCTETS_PER_US", 0.001)
    paused: list[Any] = []
    wait = jobs.reached

    async def reached(awaited: Any) -> None:
        paused.append(awaited)
        await wait(awaited)

    monkeypatch.setattr(jobs, "reached", reached)
    fill(channel)
    fill(channel, "target", [])
    job = do(broker, api, "move", to_exchange="", routing_key="target")
    assert job["done"] == len(NUMBERS) and len(paused) >= len(NUMBERS) - 1
    assert bodies(api, "target") == NUMBERS and not bodies(api)


def test_a_dry_run_counts_and_shows_a_few(broker: Broker, api: ApiClient, channel: Any) -> None:
    fill(channel)
    fill(channel, "target", [])
    job = do(broker, api, "move", to_queue="target", filter="headers.n > 0", dry_run=True)
    assert (job["done"], job["looked_at"]) == (11, 12)
    assert [row["payload"] for row in job["samples"]] == NUMBERS[1:11]
    assert bodies(api) == NUMBERS and bodies(api, "target") == []
    assert api.get("/parameters")[1] == []


def test_a_job_keeps_to_its_rate_and_can_be_stopped(
    broker: Broker, api: ApiClient, channel: Any
) -> None:
    fill(channel)
    fill(channel, "target", [])
    path = begin(api, "move", to_queue="target", rate=0.1)
    assert [p["name"] for p in api.get("/parameters")[1]], "kept while it runs"
    for definitions in ("/definitions", "/definitions/%2F"):
        assert api.get(definitions)[1]["parameters"] == []
    over(broker, api, path, "running")
    assert api.delete(path)[0] == 204
    job = over(broker, api, path)
    assert job["state"] == "stopped" and job["done"] < 3
    assert bodies(api, "target") + bodies(api) == NUMBERS
    assert api.delete(path)[0] == 204
    assert api.get(path)[0] == 404 and api.get("/message-jobs")[1] == []


def test_a_full_target_gets_the_rest_when_it_has_room(
    broker: Broker, api: ApiClient, channel: Any
) -> None:
    fill(channel)
    fill(channel, "target", [], x_max_length=2, x_overflow="reject-publish")
    path = begin(api, "move", to_queue="target", limit=3)
    while over(broker, api, path, "running")["done"] < 2:
        pass
    assert bodies(api) == NUMBERS[3:] and bodies(api, "target") == NUMBERS[:2]
    assert channel.basic_get("target", auto_ack=True)[2] == b"0"
    assert over(broker, api, path)["state"] == "completed"
    assert bodies(api, "target") == ["1", "2"]


def test_what_waits_for_a_full_target_returns_when_the_job_is_stopped(
    broker: Broker, api: ApiClient, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "STOP_S", 0.0)
    fill(channel)
    fill(channel, "target", [], x_max_length=2, x_overflow="reject-publish")
    path = begin(api, "move", to_queue="target")
    while over(broker, api, path, "running")["done"] < 2:
        pass
    api.delete(path)
    assert over(broker, api, path)["state"] == "stopped"
    assert bodies(api) == NUMBERS[2:] and bodies(api, "target") == NUMBERS[:2]


def test_what_is_under_way_counts_as_in_its_queue(
    broker: Broker, api: ApiClient, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "STOP_S", 0.0)
    fill(channel, bodies=NUMBERS[:5])
    fill(channel, "target", [], x_max_length=2, x_overflow="reject-publish")
    path = begin(api, "move", to_queue="target")
    while over(broker, api, path, "running")["done"] < 2:
        pass
    assert bodies(api) == []
    _, queue = api.get("/queues/%2F/q?disable_stats=true&enable_queue_totals=true")
    assert (queue["messages"], queue["messages_ready"]) == (3, 0)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="not empty"):
        channel.queue_delete("q", if_empty=True)
    assert api.delete("/queues/%2F/q?if-empty=true")[0] == 400
    api.delete(path)
    assert over(broker, api, path)["state"] == "stopped"
    assert bodies(api) == NUMBERS[2:5]


def test_a_target_that_is_deleted_leaves_messages_where_they_are(
    broker: Broker, api: ApiClient, channel: Any
) -> None:
    fill(channel)
    fill(channel, "target", [], x_max_length=1, x_overflow="reject-publish")
    path = begin(api, "move", to_queue="target")
    while over(broker, api, path, "running")["done"] < 1:
        pass
    channel.queue_delete("target")
    job = over(broker, api, path)
    assert sum([left["messages"] for left in job["left"]]) == 11
    assert bodies(api) == NUMBERS[1:]


def test_messages_with_clients_are_not_touched(
    broker: Broker, api: ApiClient, channel: Any
) -> None:
    fill(channel)
    method, _, _ = channel.basic_get("q")
    assert do(broker, api, "delete")["done"] == 11
    channel.basic_nack(method.delivery_tag)
    broker.wait_until(queue="q", ready=1)
    assert bodies(api) == ["0"]


def test_an_interrupted_job_is_shown_and_can_be_started_again(tmp_path: Path) -> None:
    with Broker(http_port=0, data_dir=tmp_path) as broker:
        api = ApiClient(broker)
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        fill(connection.channel())
        fill(connection.channel(), "target", [])
        path = begin(api, "move", to_queue="target", rate=0.1, filter="headers.n < 6")
        over(broker, api, path, "running")
        connection.close()
    with Broker(http_port=0, data_dir=tmp_path) as broker:
        api = ApiClient(broker)
        job = over(broker, api, path)
        assert job["state"] == "interrupted" and job["plan"]["filter"] == "headers.n < 6"
        before = bodies(api, "target")
        assert sorted(before + bodies(api), key=int) == NUMBERS
        assert job["done"] == len(before) > 0
        assert api.post(f"{path}/restart")[0] == 200
        assert api.delete(path)[0] == 204
        assert over(broker, api, path)["state"] == "stopped"
        status, answer = api.post(f"{path}/restart")
        assert (status, answer["reason"]) == (400, "the job was stopped: begin a new one")
        assert sorted(bodies(api, "target") + bodies(api), key=int) == NUMBERS


def test_no_job_begins_when_the_node_stops_meanwhile(
    api: ApiClient, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(channel)
    fill(channel, "target", [])

    async def keep(jobs: MessageJobs, *job: object) -> None:
        await jobs.stop()

    monkeypatch.setattr(MessageJobs, "_keep", keep)
    status, answer = api.post(
        "/queues/%2F/q/messages/jobs", {"action": "move", "to_queue": "target"}
    )
    assert status == 503 and answer["reason"].endswith("is stopping")
    assert not bodies(api, "target")
    assert not api.get("/message-jobs")[1]


def test_a_limit_holds_though_the_node_has_crashed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job writes down in advance what it may have done: it does too few rather than too many."""
    monkeypatch.setattr(jobs, "RESERVED", 3)
    with Broker(http_port=0, data_dir=tmp_path) as broker:
        api = ApiClient(broker)
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        fill(connection.channel())
        fill(connection.channel(), "target", [])
        monkeypatch.setattr(jobs, "BATCH", 1)
        path = begin(api, "move", to_queue="target", rate=5, limit=9)
        while over(broker, api, path, "running")["done"] < 5:
            pass
        connection.close()
        monkeypatch.setattr(MessageJobs, "_keep", keeps_nothing)
    monkeypatch.undo()
    with Broker(http_port=0, data_dir=tmp_path) as broker:
        api = ApiClient(broker)
        moved = len(bodies(api, "target"))
        job = over(broker, api, path)
        assert moved <= job["done"] <= moved + 4
        assert api.post(f"{path}/restart")[0] == 200
        assert over(broker, api, path)["done"] == 9
        assert moved < len(bodies(api, "target")) <= 9


def test_a_job_that_has_done_nothing_may_do_all_when_its_node_was_stopped_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "STOP_S", 0.0)
    with Broker(http_port=0, data_dir=tmp_path) as broker:
        api = ApiClient(broker)
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        fill(connection.channel())
        fill(connection.channel(), "full", [], x_max_length=0, x_overflow="reject-publish")
        path = begin(api, "move", to_queue="full", limit=5)
        while not over(broker, api, path, "running")["under_way"]:
            pass
        connection.close()
    with Broker(http_port=0, data_dir=tmp_path) as broker:
        job = over(broker, ApiClient(broker), path)
        assert (job["state"], job["done"]) == ("interrupted", 0)


async def keeps_nothing(jobs: MessageJobs, key: JobKey, job: jobs.Job, done: int) -> None:
    """As if the node had crashed before it could write this."""


def test_plans_that_make_no_sense_are_refused(api: ApiClient, channel: Any) -> None:
    fill(channel)
    path = "/queues/%2F/q/messages/jobs"
    for plan, text in (
        ({}, "action"),
        ({"action": "burn"}, "burn"),
        ({"action": "move"}, "either to_queue or to_exchange"),
        ({"action": "delete", "to_queue": "x"}, "neither to_queue nor to_exchange"),
        ({"action": "move", "to_queue": "none"}, "there is no queue 'none'"),
        ({"action": "move", "to_queue": "q"}, "requeue"),
        ({"action": "move", "to_exchange": "none"}, "there is no exchange 'none'"),
        ({"action": "move", "to_queue": "x", "routing_key": "k"}, "routing_key goes with"),
        ({"action": "delete", "filter": "size >"}, "filter, character 7"),
        ({"action": "delete", "limit": 0}, "limit should be 1 at least"),
        ({"action": "delete", "rate": -1}, "rate should be more than 0"),
        ({"action": "delete", "positions": ["x"]}, "'x' is no position"),
        ({"action": "delete", "colour": "red"}, "colour"),
    ):
        status, why = reason(api.post(path, plan))
        assert status == 400 and text in why, why
    assert bodies(api) == NUMBERS


def test_moving_needs_permissions_for_both_ends(
    broker: Broker, api: ApiClient, channel: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fill(channel)
    fill(channel, "target", [])
    broker.add_user("mover", "mover", ("management",))
    mover = ApiClient(broker, "mover")
    path = "/queues/%2F/q/messages/jobs"
    move, delete, requeue = (
        {"action": "move", "to_queue": "target"},
        {"action": "delete", "filter": "headers.n = 0"},
        {"action": "requeue"},
    )
    broker.set_permissions("mover", read="^target$", write=".*", configure="")
    for plan in (move, delete, requeue):
        assert mover.post(path, plan)[0] == 401
    broker.set_permissions("mover", read="^q$", write="^other$", configure="")
    assert mover.post(path, move)[0] == mover.post(path, requeue)[0] == 401
    with caplog.at_level("INFO", logger="warren.audit"):
        assert mover.post(path, delete)[0] == 200
    begun = [record.getMessage() for record in caplog.records if record.name == "warren.audit"]
    assert any("message_job_begun" in line and "mover" in line for line in begun), begun
    api.put("/permissions/%2F/mover", EVERYTHING)
    assert mover.post(path, move)[0] == 200


def test_a_message_goes_only_where_its_mover_may_publish_it(
    broker: Broker, api: ApiClient, channel: Any
) -> None:
    channel.queue_declare("q", durable=True)
    channel.queue_declare("target", durable=True)
    channel.queue_bind("target", "amq.topic", "#")
    channel.queue_bind("q", "amq.topic", "#")
    channel.basic_publish("amq.topic", "a.b", b"1")
    channel.basic_publish("amq.topic", "b.c", b"2")
    copied = pika.BasicProperties(headers={"CC": ["b.d"]})
    channel.basic_publish("amq.topic", "a.d", b"3", copied)
    channel.queue_unbind("q", "amq.topic", "#")
    channel.queue_purge("target")
    broker.add_user("mover", "mover", ("management",))
    broker.set_permissions("mover", read=".*", write=".*", configure="")
    topics = {"exchange": "amq.topic", "write": "^a", "read": ""}
    assert api.put("/topic-permissions/%2F/mover", topics)[0] == 201
    mover = ApiClient(broker, "mover")
    for action in ("copy", "move"):
        job = do(broker, mover, action, to_exchange="amq.topic")
        assert job["done"] == 1
        assert sorted(one["reason"][:22] for one in job["left"]) == [
            "access to topic 'b.c' ",
            "access to topic 'b.d' ",
        ]
    assert bodies(api) == ["2", "3"] and bodies(api, "target") == ["1", "1"]
    assert do(broker, api, "move", to_exchange="amq.topic")["done"] == 2


def test_a_job_is_stopped_by_who_may_begin_it(broker: Broker, api: ApiClient, channel: Any) -> None:
    fill(channel)
    fill(channel, "target", [])
    path = begin(api, "move", to_queue="target", rate=0.1)
    broker.add_user("reader", "reader", ("management",))
    broker.set_permissions("reader", read=".*", write="", configure="")
    reader = ApiClient(broker, "reader")
    assert reader.get(path)[0] == 200
    assert reader.delete(path)[0] == 401
    assert over(broker, api, path, "running")
    broker.set_permissions("reader", read=".*", write="^target$", configure="")
    assert reader.delete(path)[0] == 204


def test_what_is_copied_to_a_recent_history_is_kept(
    broker: Broker, api: ApiClient, channel: Any
) -> None:
    fill(channel, bodies=["1", "2"])
    channel.exchange_declare("h", "x-recent-history")
    channel.queue_declare("follower")
    channel.queue_bind("follower", "h", "")
    done = do(broker, api, "copy", to_exchange="h")
    assert done["state"] == "completed", done
    message = {"routing_key": "", "properties": {}, "payload": "3", "payload_encoding": "string"}
    assert api.post("/exchanges/%2F/h/publish", message) == (200, {"routed": True})
    channel.queue_declare("late")
    channel.queue_bind("late", "h", "")
    assert bodies(api, "late") == ["1", "2", "3"]
