"""Third-party management clients work unchanged: AMQPStorm's `ManagementApi` and pyrabbit2."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from amqpstorm.management import ManagementApi
from amqpstorm.management.exception import ApiError

from warren import Broker

with warnings.catch_warnings():
    # Its docstrings have escapes that are none.
    warnings.simplefilter("ignore")
    from pyrabbit2.api import APIError, Client
    from pyrabbit2.http import HTTPError

PATIENCE_S = 10.0


@pytest.fixture
def connection(broker: Broker) -> Iterator[Any]:
    opened = pika.BlockingConnection(pika.URLParameters(broker.url))
    yield opened
    if opened.is_open:
        opened.close()


def eventually(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (seen := look()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return seen


class TestAMQPStorm:
    @pytest.fixture
    def api(self, broker: Broker) -> Iterator[Any]:
        with ManagementApi(broker.http_url, "guest", "guest") as client:
            yield client

    def test_the_broker_at_a_glance(self, broker: Broker, api: Any) -> None:
        assert api.whoami()["name"] == "guest"
        assert api.aliveness_test("/") == {"status": "ok"}
        overview = api.overview()
        assert overview["rabbitmq_version"] == "3.10.8"
        assert api.cluster_name()["name"] == overview["cluster_name"]
        assert [node["name"] for node in api.nodes()] == [overview["node"]]
        assert api.node(overview["node"])["running"]
        assert api.healthchecks.get() == {"status": "ok"}
        assert api.healthchecks.get(overview["node"]) == {"status": "ok"}

    def test_queues(self, api: Any) -> None:
        api.queue.declare("q1", durable=True, arguments={"x-max-length": 5})
        api.queue.declare("q2", auto_delete=True)
        row = api.queue.declare("q1", passive=True)
        assert (row["durable"], row["arguments"]) == (True, {"x-max-length": 5})
        names = {row["name"] for row in api.queue.list()}
        assert {"q1", "q2"} <= names
        assert [row["name"] for row in api.queue.list(name="^q[2]", use_regex=True)] == ["q2"]
        assert len(api.queue.list(page_size=1, name="q", show_all=True)) == 2
        for name in ("q1", "q2"):
            api.queue.delete(name)
        with pytest.raises(ApiError) as gone:
            api.queue.get("q1")
        assert gone.value.error_code == 404

    def test_exchanges_and_bindings(self, api: Any) -> None:
        api.exchange.declare("x1", "topic", durable=True)
        api.exchange.declare("x2", "fanout")
        api.queue.declare("q1")
        assert api.exchange.declare("x1", passive=True)["type"] == "topic"
        assert {"x1", "x2", "amq.topic"} <= {row["name"] for row in api.exchange.list()}
        assert [row["name"] for row in api.exchange.list(name="x2")] == ["x2"]
        api.exchange.bind(source="x1", destination="x2", routing_key="k")
        api.queue.bind("q1", "x1", "a.#")
        api.queue.bind("q1", "x1", "b c/d")
        assert len(api.exchange.bindings("x1")) == 3
        rows = [row for row in api.queue.bindings("q1") if row["source"] == "x1"]
        assert {row["routing_key"] for row in rows} == {"a.#", "b c/d"}
        api.queue.unbind("q1", "x1", "a.#", properties_key="a.%23")
        api.exchange.unbind(source="x1", destination="x2", routing_key="k")
        assert [row["routing_key"] for row in api.exchange.bindings("x1")] == ["b c/d"]
        for name in ("x1", "x2"):
            api.exchange.delete(name)
        api.queue.delete("q1")

    def test_messages(self, api: Any) -> None:
        api.queue.declare("q1")
        properties = {"content_type": "text/plain", "headers": {"n": 1}}
        assert api.basic.publish("one", "q1", properties=properties) == {"routed": True}
        assert api.basic.publish("dHdv", "q1", payload_encoding="base64") == {"routed": True}
        assert api.basic.publish("lost", "nowhere") == {"routed": False}
        (message,) = api.basic.get("q1", requeue=True)
        assert message.body == "one" and message.properties["headers"] == {"n": 1}
        rows = api.basic.get("q1", to_dict=True, count=5)
        assert [row["payload"] for row in rows] == ["one", "two"]
        api.basic.publish("three", "q1")
        api.queue.purge("q1")
        assert api.basic.get("q1") == []
        api.queue.delete("q1")

    def test_users_and_permissions(self, api: Any) -> None:
        api.virtual_host.create("v")
        api.user.create("ann", "secret", tags="management")
        api.user.create("bob", "secret")
        assert api.user.get("ann")["tags"] == ["management"]
        assert {"ann", "bob", "guest"} <= {row["name"] for row in api.user.list()}
        api.user.set_permission("ann", "v", read_regex="^r")
        assert api.user.get_permission("ann", "v")["read"] == "^r"
        assert [row["vhost"] for row in api.user.get_permissions("ann")] == ["v"]
        assert {row["user"] for row in api.virtual_host.get_permissions("v")} >= {"ann"}
        api.user.delete_permission("ann", "v")
        assert api.user.get_permissions("ann") == []
        api.user.delete(["ann", "bob"])
        with pytest.raises(ApiError):
            api.user.get("ann")
        assert api.virtual_host.get("v")["name"] == "v"
        api.virtual_host.delete("v")
        assert [row["name"] for row in api.virtual_host.list()] == ["/"]

    def test_connections_and_channels(self, api: Any, connection: Any) -> None:
        connection.channel()
        (row,) = api.connection.list()
        assert api.connection.get(row["name"])["user"] == "guest"
        (channel,) = api.channel.list()
        assert api.channel.get(channel["name"])["number"] == 1
        api.connection.close(row["name"], reason="time to go")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            connection.process_data_events(PATIENCE_S)
        assert "time to go" in closed.value.reply_text
        eventually(lambda: not api.connection.list())

    def test_what_is_refused(self, broker: Broker, api: Any) -> None:
        api.queue.declare("q1", durable=True)
        with pytest.raises(ApiError) as refused:
            api.queue.declare("q1")
        assert refused.value.error_code == 400
        api.queue.delete("q1")
        with ManagementApi(broker.http_url, "guest", "wrong") as stranger:
            with pytest.raises(ApiError) as stopped:
                stranger.overview()
        assert stopped.value.error_code == 401


class TestPyrabbit:
    @pytest.fixture
    def api(self, broker: Broker) -> Any:
        return Client(f"{broker.host}:{broker.http_port}", "guest", "guest")

    def test_the_broker_at_a_glance(self, api: Any) -> None:
        assert api.is_alive()
        with pytest.raises(APIError):
            api.is_alive("nowhere")
        assert api.get_whoami()["name"] == "guest"
        assert api.get_overview()["node"] == api.get_nodes()[0]["name"]
        assert api.get_cluster_name()["name"]
        assert {"javascript": "dispatcher.js"} in api.get_extensions()

    def test_queues(self, api: Any) -> None:
        api.create_queue("/", "q1", durable=True, arguments={"x-max-length": 5})
        api.create_queue("/", "q2")
        assert api.get_queue("/", "q1")["durable"]
        assert {"q1", "q2"} <= {row["name"] for row in api.get_queues()}
        assert [row["name"] for row in api.get_queues("/", "^q[12]$", True)] == ["q1", "q2"]
        assert api.get_queues("/", "no such queue") == []
        assert api.publish("/", "amq.default", "q1", "x")
        assert api.get_queue_depth("/", "q1") == 1
        api.purge_queues([("q1", "/")])
        assert api.get_queue_depth("/", "q1") == 0
        api.purge_queue("/", "q2")
        for name in ("q1", "q2"):
            api.delete_queue("/", name)
        with pytest.raises(HTTPError):
            api.get_queue("/", "q1")

    def test_exchanges_bindings_and_messages(self, api: Any) -> None:
        assert api.create_exchange("/", "x1", "topic")
        assert api.get_exchange("/", "x1")["type"] == "topic"
        assert "x1" in {row["name"] for row in api.get_exchanges("/")}
        assert len(api.get_exchanges()) >= 8
        api.create_queue("/", "q1")
        api.create_binding("/", "x1", "q1", "a.b")
        assert "x1" in {row["source"] for row in api.get_bindings()}
        assert [row["routing_key"] for row in api.get_queue_bindings("/", "q1")] == ["q1", "a.b"]
        assert api.publish("/", "x1", "a.b", "hello", properties={"type": "t"})
        assert not api.publish("/", "x1", "b", "hello")
        (kept,) = api.get_messages("/", "q1", requeue=True)
        (taken,) = api.get_messages("/", "q1", truncate=2)
        assert (kept["payload"], taken["payload"], taken["redelivered"]) == ("hello", "he", True)
        assert api.get_messages("/", "q1") == []
        api.delete_binding("/", "x1", "q1", "a.b")
        assert len(api.get_queue_bindings("/", "q1")) == 1
        api.delete_queue("/", "q1")
        assert api.delete_exchange("/", "x1")

    def test_vhosts_users_and_permissions(self, api: Any) -> None:
        assert api.create_vhost("v")
        assert set(api.get_vhost_names()) == {"/", "v"}
        assert api.get_vhost("v")["name"] == "v"
        assert len(api.get_all_vhosts()) == 2
        api.create_user("ann", "secret", tags="management")
        assert "ann" in {row["name"] for row in api.get_users()}
        api.set_vhost_permissions("v", "ann", "^c", "^r", "^w")
        assert api.get_permission("v", "ann")["write"] == "^w"
        assert {row["user"] for row in api.get_vhost_permissions("v")} == {"ann", "guest"}
        assert [row["vhost"] for row in api.get_user_permissions("ann")] == ["v"]
        assert len(api.get_permissions()) == 3
        api.delete_permission("v", "ann")
        api.delete_user("ann")
        api.delete_vhost("v")
        assert api.get_vhost_names() == ["/"]

    def test_policies_and_definitions(self, api: Any) -> None:
        definition = {"max-length": 5}
        body = {"pattern": "^q", "definition": definition, "priority": 1, "apply-to": "queues"}
        api.create_policy("/", "p", **body)
        assert api.get_policy("/", "p") == {"vhost": "/", "name": "p", **body}
        assert [row["name"] for row in api.get_all_policies()] == ["p"]
        assert [row["name"] for row in api.get_definitions()["policies"]] == ["p"]
        api.delete_policy("/", "p")
        assert api.get_all_policies() == []

    def test_connections_and_channels(self, api: Any, connection: Any) -> None:
        connection.channel()
        (row,) = api.get_connections()
        assert api.get_connection(row["name"])["user"] == "guest"
        (channel,) = api.get_channels()
        assert api.get_channel(channel["name"])["number"] == 1
        assert api.delete_connection(row["name"])
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
            connection.process_data_events(PATIENCE_S)
        eventually(lambda: not api.get_connections())
