"""Shovels of URIs without a host: within this broker, with the rights of who set them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from api_client import ApiClient, reason
from moving import End, until

from warren import Broker
from warren.core.resources.alarms import Resource
from warren.shovel import attempts, flow
from warren.shovel.transfer import Transfer

WITHIN = {
    "src-uri": "amqp://",
    "src-queue": "a",
    "dest-uri": "amqp:///%2F",
    "dest-queue": "b",
    "reconnect-delay": 0.05,
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http_port=0, connection_max=3) as running:
        running.add_user("poli", "poli", ("policymaker", "monitoring"))
        running.set_permissions(
            "poli", "/", configure="^b$|^a$", write="^b$|^amq.default$", read="a"
        )
        running.add_user("looker", "looker", ("monitoring",))
        running.add_vhost("other")
        yield running


@pytest.fixture
def end(broker: Broker) -> Iterator[End]:
    with End(broker) as one:
        yield one


@pytest.fixture
def poli(broker: Broker) -> ApiClient:
    return ApiClient(broker, "poli")


def put(api: ApiClient, name: str = "s", **more: Any) -> tuple[int, Any]:
    keys = {**WITHIN, **{key.replace("_", "-"): item for key, item in more.items()}}
    return api.put(f"/parameters/shovel/%2F/{name}", {"value": keys})


def test_messages_are_moved_without_the_network_and_keep_their_user(end: End) -> None:
    end.declare("a")
    end.publish("a", "x", user_id="guest")
    assert put(end.api) == (201, None)
    row = end.until_state("s", "running")
    assert (row["src_uri"], row["dest_uri"]) == ("amqp://", "amqp:///%2F")
    ((_, properties, _),) = end.take("b", 1)
    assert properties.user_id == "guest"


@pytest.mark.parametrize("local", [True, False])
def test_a_shovel_that_is_deleted_has_moved_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    """What is on its way then is acknowledged at the source when the destination has it on disk."""
    monkeypatch.setattr(flow, "SETTLE_S", 60.0)
    monkeypatch.setattr(attempts, "STOP_S", 90.0)
    count = 10_000
    with Broker(http_port=0, data_dir=tmp_path) as broker, End(broker) as end:
        end.declare("a")
        end.declare("b")
        channel = end.channel.connection.channel()
        persistent = pika.BasicProperties(delivery_mode=2)
        for number in range(count):
            channel.basic_publish("", "a", b"%d" % number, persistent)
        broker.wait_until(queue="a", ready=count)
        uris = {} if local else {"src_uri": broker.url, "dest_uri": broker.url}
        assert put(end.api, src_prefetch_count=1000, **uris) == (201, None)
        until(lambda: broker.call(lambda node: len(node.vhosts["/"].queues["b"]) > 300))
        end.clear("s")
        end.until_gone("s")
        broker.wait_until(queue="a", unacked=0)
        left, moved = broker.queue("a"), broker.queue("b")
        assert left is not None and moved is not None
        assert left.ready + moved.ready == count


def test_rights_of_who_set_it_count(end: End, poli: ApiClient) -> None:
    end.declare("a")
    end.publish("a", "x", user_id="guest")
    assert put(poli) == (201, None)
    ((_, properties, _),) = end.take("b", 1)
    assert properties.user_id == "guest"
    # The same parameter, and a queue that this user may not make.
    assert put(poli, dest_queue="c") == (204, None)
    row = end.until_state("s", "terminated")
    assert "access to queue 'c' in vhost '/' refused for user 'poli'" in row["reason"]
    assert put(end.api, dest_queue="c") == (204, None)
    end.until_state("s", "running")


def test_user_id_that_is_set_is_checked_against_who_set_it(end: End, poli: ApiClient) -> None:
    end.declare("a")
    end.publish("a", "x")
    assert put(poli, dest_publish_properties={"user_id": "guest"}) == (201, None)
    row = end.until_state("s", "terminated")
    assert "user_id property set to 'guest' but authenticated user was 'poli'" in row["reason"]
    end.clear("s")
    end.until_gone("s")
    assert end.bodies("a", 1) == ["x"]


def test_virtual_host_that_is_closed_to_the_user_is_refused(poli: ApiClient) -> None:
    text = 'Validation failed\n\nuser "poli" may not connect to vhost "other"\n'
    assert reason(put(poli, dest_uri="amqp:///other")) == (400, text)


def test_password_in_a_uri_without_a_host_is_checked(end: End, poli: ApiClient) -> None:
    put(poli, dest_uri="amqp://guest:wrong@/%2F")
    row = until(lambda: (row := end.row("s")).get("reason") and row)
    assert (row["state"], "ACCESS_REFUSED" in row["reason"]) == ("starting", True)
    put(poli, dest_uri="amqp://guest:guest@/%2F")
    end.until_state("s", "running")


def test_without_its_user_a_shovel_moves_nothing(end: End, broker: Broker) -> None:
    broker.add_user("gone", "gone", ("policymaker",))
    broker.set_permissions("gone")
    put(ApiClient(broker, "gone"))
    end.until_state("s", "running")
    broker.delete_user("gone")
    row = until(lambda: (row := end.row("s")).get("reason") and row)
    end.publish("a", "x")
    assert end.bodies("a", 1) == ["x"]
    assert row is not None


@pytest.mark.parametrize(("count", "size"), [(3, 1), (40, 1_000_000)], ids=["small", "large"])
def test_alarm_holds_messages_back_until_it_is_over(
    end: End, broker: Broker, count: int, size: int
) -> None:
    end.declare("a")
    bodies = [f"{number:02}" * (size // 2 or 1) for number in range(count)]
    end.publish("a", *bodies)
    # Of another node: this one's monitor would find that it has memory enough.
    broker.call(lambda node: node.alarms.report(Resource.MEMORY, True, "elsewhere"))
    try:
        put(end.api, src_prefetch_count=0)
        row = until(lambda: (row := end.row("s")).get("waiting_for") and row)
        assert (row["state"], row["waiting_for"]) == ("running", "low on memory")
        assert row["messages_moved"] == 0
        # No more than 16 MiB and what was read at once is held.
        assert row["messages_pending"] * size < 20_000_000
    finally:
        broker.call(lambda node: node.alarms.report(Resource.MEMORY, False, "elsewhere"))
    assert end.bodies("b", count) == bodies


def test_fault_of_the_shovel_ends_its_session_and_nothing_else(
    end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault")

    end.declare("a")
    with monkeypatch.context() as patched:
        patched.setattr(Transfer, "deliver", fail)
        put(end.api)
        end.publish("a", "x")
        row = end.until_state("s", "terminated")
        assert row["reason"] == "internal error"
    assert end.bodies("b", 1) == ["x"]


# Control over HTTP


def test_parameter_that_is_no_shovel_is_refused_with_all_its_problems(end: End) -> None:
    answer = end.api.put("/parameters/shovel/%2F/s", {"value": {"src-uri": 5}})
    assert reason(answer) == (
        400,
        'Validation failed\n\nKey "dest-uri" not found in s\nsrc-uri should be list, actually was 5'
        "\nMust specify 'src-exchange' or 'src-queue'\n",
    )


def test_shovels_are_listed_by_virtual_host_and_one_by_one(end: End) -> None:
    put(end.api)
    end.until_state("s", "running")
    for path in ("/shovels", "/shovels/%2F"):
        assert [row["name"] for row in end.api.get(path)[1]] == ["s"]
    assert end.api.get("/shovels/other") == (200, [])
    assert end.api.get("/shovels/nowhere")[0] == 404
    assert end.api.get("/shovels/vhost/%2F/s")[1]["name"] == "s"
    assert end.api.get("/shovels/vhost/%2F/t")[0] == 404


def test_monitors_look_and_policymakers_change(end: End, broker: Broker) -> None:
    looker = ApiClient(broker, "looker")
    broker.add_user("maker", "maker", ("policymaker",))
    broker.set_permissions("maker")
    maker = ApiClient(broker, "maker")
    put(end.api)
    assert looker.get("/shovels")[0] == 200
    assert maker.get("/shovels")[0] == 401
    for path in ("/shovels/vhost/%2F/s/restart", "/shovels/vhost/%2F/s"):
        assert looker.delete(path)[0] == 401
        assert maker.delete(path)[0] == 204
    assert end.row("s") is None
    for path in ("/shovels/vhost/%2F/s/restart", "/shovels/vhost/%2F/s"):
        assert maker.delete(path)[0] == 404
        assert maker.put(path, {})[0] == 405
    broker.delete_user("maker")


def test_same_value_does_not_restart_and_a_restart_does(end: End) -> None:
    end.declare("a")
    put(end.api)
    end.publish("a", "x")
    until(lambda: end.row("s")["messages_moved"] == 1)
    put(end.api)
    assert end.row("s")["messages_moved"] == 1
    assert end.api.delete("/shovels/vhost/%2F/s/restart") == (204, None)
    end.until_state("s", "running")
    assert end.row("s")["messages_moved"] == 0


def test_names_and_queues_may_have_any_letters(end: End) -> None:
    end.declare("wörter & leer")
    end.publish("wörter & leer", "x")
    end.shovel("Schaufel ü", {**WITHIN, "src-queue": "wörter & leer"})
    assert end.bodies("b", 1) == ["x"]
    assert end.row("Schaufel ü")["state"] == "running"


def test_shovel_goes_with_its_virtual_host(end: End, broker: Broker) -> None:
    broker.add_vhost("short")
    end.shovel("s", {**WITHIN, "src-uri": "amqp:///short", "dest-uri": "amqp:///short"}, "short")
    end.until_state("s", "running")
    broker.delete_vhost("short")
    end.until_gone("s")


def test_shovels_are_there_again_after_a_start(tmp_path: Any) -> None:
    with Broker(http_port=0, data_dir=tmp_path) as broker:
        with_once = {**WITHIN, "src-queue": "c", "src-delete-after": "queue-length"}
        before = End(broker)
        before.shovel("kept", WITHIN)
        before.shovel("once", with_once)
        before.until_state("kept", "running")
        before.until_gone("once")
    with Broker(http_port=0, data_dir=tmp_path) as broker, End(broker) as after:
        after.until_state("kept", "running")
        assert after.row("once") is None
        after.publish("a", "x")
        assert after.bodies("b", 1) == ["x"]
