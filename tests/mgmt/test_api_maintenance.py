"""Feature flags, counts of logins, resetting statistics, rebalancing queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest
from api_client import NOT_FOUND, ApiClient, reason
from pika.exceptions import ProbableAuthenticationError

from warren import Broker

ATTEMPTS = "/auth/attempts/warren@localhost"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(http_port=0, stats_interval_ms=600_000) as running:
        yield running


def test_all_feature_flags_are_enabled(api: ApiClient) -> None:
    status, flags = api.get("/feature-flags")
    assert status == 200 and {flag["state"] for flag in flags} == {"enabled"}
    assert flags[0].keys() == {"name", "desc", "doc_url", "state", "stability", "provided_by"}
    assert [flag["name"] for flag in flags] == [
        "classic_mirrored_queue_version",
        "drop_unroutable_metric",
        "empty_basic_get_metric",
        "implicit_default_bindings",
        "maintenance_mode_status",
        "quorum_queue",
        "stream_queue",
        "user_limits",
        "virtual_host_metadata",
    ]
    assert api.put("/feature-flags/quorum_queue/enable", {}) == (204, None)
    assert reason(api.put("/feature-flags/bogus/enable", {})) == (400, "unsupported")


def attempts(api: ApiClient) -> dict[str, Any]:
    """The counts of each protocol: all, failed, succeeded."""
    names = ("auth_attempts", "auth_attempts_failed", "auth_attempts_succeeded")
    return {row["protocol"]: tuple(row[name] for name in names) for row in api.get(ATTEMPTS)[1]}


def test_logins_are_counted_by_protocol(broker: Broker, api: ApiClient) -> None:
    pika.BlockingConnection(pika.URLParameters(broker.url)).close()
    with pytest.raises(ProbableAuthenticationError):
        pika.BlockingConnection(pika.URLParameters(broker.url_for(password="x")))
    ApiClient(broker, "zoe").get("/whoami")
    assert attempts(api) == {"amqp091": (2, 1, 1), "http": (2, 1, 1)}
    assert api.get(f"{ATTEMPTS}/source") == (200, [])


def test_counts_of_logins_are_reset(broker: Broker, api: ApiClient) -> None:
    pika.BlockingConnection(pika.URLParameters(broker.url)).close()
    assert api.delete(ATTEMPTS) == (204, None)
    assert attempts(api) == {"http": (1, 0, 1)}
    assert api.delete(f"{ATTEMPTS}/source") == (204, None)


def test_logins_of_a_node_that_is_not_there(api: ApiClient) -> None:
    for path in ("/auth/attempts/x@y", "/auth/attempts/x@y/source"):
        assert api.get(path) == NOT_FOUND
        assert api.delete(path) == NOT_FOUND


@pytest.mark.parametrize("path", ["/reset", "/reset/warren@localhost"])
def test_samples_are_forgotten(api: ApiClient, path: str) -> None:
    api.put("/queues/%2F/q", {})
    message = {
        "properties": {},
        "routing_key": "q",
        "payload": "x",
        "payload_encoding": "string",
    }
    api.post("/exchanges/%2F/amq.default/publish", message)
    old = "/vhosts/%2F?lengths_age=60&lengths_incr=1&columns=messages_details"
    while "samples" not in api.get(old)[1]["messages_details"]:
        pass
    assert api.delete(path) == (204, None)
    assert "samples" not in api.get(old)[1]["messages_details"]
    assert api.get("/vhosts/%2F?columns=messages") == (200, {"messages": 1})


def test_statistics_of_a_node_that_is_not_there(api: ApiClient) -> None:
    assert api.delete("/reset/x@y") == NOT_FOUND


def test_queues_of_one_node_are_balanced(api: ApiClient) -> None:
    assert api.post("/rebalance/queues") == (204, None)
    assert api.post("/rebalance/queues", {"queue_pattern": "^q"}) == (200, [])
    for wrong in ({"type": "zz"}, {"vhost_pattern": "("}, {"queue_pattern": 1}):
        assert api.post("/rebalance/queues", wrong)[0] == 400
