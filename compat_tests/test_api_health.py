"""Health checks, overview, nodes, and other views of the broker's state (sections 2.1 and 3)."""

import re
from itertools import pairwise
from typing import Any

import pytest

from warren.compat_tests.api import Api, eventually, names_of
from warren.compat_tests.broker import Broker
from warren.compat_tests.raw_client import RawChannel

AREA = "API: health, overview, nodes"


@pytest.mark.parametrize("check", ["alarms", "local-alarms", "virtual-hosts"])
def test_all_is_well(api: Api, check: str) -> None:
    assert api.get("health", "checks", check) == {"status": "ok"}


@pytest.mark.parametrize("check", ["node-is-mirror-sync-critical", "node-is-quorum-critical"])
def test_a_single_node_is_critical_to_nobody(api: Api, check: str) -> None:
    answer = api.get("health", "checks", check)
    assert answer["status"] == "ok"
    if len(api.get("nodes", columns="name")) == 1:
        assert answer["reason"] == "single node cluster"


def test_port_that_listens(api: Api, broker: Broker) -> None:
    answer = api.get("health", "checks", "port-listener", str(broker.port))
    assert answer == {"status": "ok", "port": broker.port}


def test_port_that_does_not_listen(api: Api, broker: Broker) -> None:
    answer = api.ask("GET", "health", "checks", "port-listener", "1")
    assert answer.status == 503
    assert (answer.json["status"], answer.json["reason"]) == ("failed", "No active listener")
    assert answer.json["missing"] == 1
    assert broker.port in answer.json["ports"]


def test_port_that_is_none(api: Api) -> None:
    answer = api.ask("GET", "health", "checks", "port-listener", "x")
    assert answer.refusal == (400, "Invalid port")


@pytest.mark.parametrize(
    ("protocol", "shown"), [("amqp", "amqp"), ("amqp091", "amqp"), ("http", "http")]
)
def test_protocol_that_is_spoken(api: Api, protocol: str, shown: str) -> None:
    answer = api.get("health", "checks", "protocol-listener", protocol)
    assert answer == {"status": "ok", "protocol": shown}


@pytest.mark.parametrize("protocol", ["cf-nothing", "gopher"])
def test_protocol_that_is_not_spoken(api: Api, protocol: str) -> None:
    answer = api.ask("GET", "health", "checks", "protocol-listener", protocol)
    assert answer.status == 503
    assert (answer.json["status"], answer.json["reason"]) == ("failed", "No active listener")
    assert answer.json["missing"] == protocol
    assert {"amqp", "http"} <= set(answer.json["protocols"])


@pytest.mark.parametrize("unit", ["days", "weeks", "months", "years"])
def test_certificates_that_expire(api: Api, unit: str) -> None:
    assert api.get("health", "checks", "certificate-expiration", "1", unit) == {"status": "ok"}


@pytest.mark.parametrize(("number", "unit"), [("1", "nope"), ("x", "weeks")])
def test_times_that_are_none(api: Api, number: str, unit: str) -> None:
    answer = api.ask("GET", "health", "checks", "certificate-expiration", number, unit)
    assert (answer.status, answer.json["error"]) == (400, "bad_request")


def test_check_that_is_not_there(api: Api) -> None:
    assert api.ask("GET", "health", "checks", "cf-nothing").status == 404


def test_aliveness(api: Api, own_vhost: str) -> None:
    assert api.get("aliveness-test", own_vhost) == {"status": "ok"}
    assert names_of(api.get("queues", own_vhost)) == ["aliveness-test"]
    assert api.get("aliveness-test", own_vhost) == {"status": "ok"}


def test_old_health_checks(api: Api) -> None:
    assert api.get("healthchecks", "node") == {"status": "ok"}
    node = api.get("overview")["node"]
    assert api.get("healthchecks", "node", node) == {"status": "ok"}


# Overview

OVERVIEW: dict[str, type] = {
    "management_version": str,
    "rates_mode": str,
    "sample_retention_policies": dict,
    "exchange_types": list,
    "product_version": str,
    "product_name": str,
    "rabbitmq_version": str,
    "cluster_name": str,
    "erlang_version": str,
    "erlang_full_version": str,
    "disable_stats": bool,
    "enable_queue_totals": bool,
    "message_stats": dict,
    "churn_rates": dict,
    "queue_totals": dict,
    "object_totals": dict,
    "statistics_db_event_queue": int,
    "node": str,
    "listeners": list,
    "contexts": list,
}


def test_fields_of_the_overview(api: Api) -> None:
    shown = api.get("overview")
    assert [name for name, kind in OVERVIEW.items() if not isinstance(shown.get(name), kind)] == []
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", shown["rabbitmq_version"])
    assert shown["rates_mode"] in ("basic", "detailed", "none")
    policies = shown["sample_retention_policies"]
    assert policies.keys() == {"global", "basic", "detailed"}
    assert policies["global"] == [600, 3600, 28800, 86400]
    types = {one["name"]: one for one in shown["exchange_types"]}
    assert types.keys() >= {"direct", "fanout", "topic", "headers"}
    assert types["direct"].keys() >= {"name", "description", "enabled"}


def test_totals_of_the_overview(api: Api, own_vhost: str) -> None:
    before = api.get("overview")["object_totals"]
    assert before.keys() == {"channels", "connections", "consumers", "exchanges", "queues"}
    api.put("queues", own_vhost, "q")
    rows = api.get("overview")["object_totals"]
    assert rows["exchanges"] >= 14 and rows["queues"] >= 1


def test_churn_of_the_overview(api: Api) -> None:
    churn = api.get("overview")["churn_rates"]
    names = [
        f"{thing}_{what}"
        for thing, whats in {
            "connection": ("created", "closed"),
            "channel": ("created", "closed"),
            "queue": ("declared", "created", "deleted"),
        }.items()
        for what in whats
    ]
    assert [name for name in names if not isinstance(churn.get(name), int)] == []
    assert [name for name in names if "rate" not in churn[f"{name}_details"]] == []


def test_listeners_of_the_overview(api: Api, broker: Broker) -> None:
    shown = api.get("overview")
    (mine,) = [one for one in shown["listeners"] if one["port"] == broker.port]
    assert mine.keys() >= {"node", "protocol", "ip_address", "port", "socket_opts"}
    assert mine["protocol"].startswith("amqp")
    assert mine["node"] == shown["node"]
    for context in shown["contexts"]:
        assert isinstance(context["port"], str)
        assert context.keys() >= {"node", "description", "path", "port"}


@pytest.mark.slow
def test_messages_are_counted(api: Api, own_vhost: str) -> None:
    api.put("queues", own_vhost, "q")
    before = api.get("overview")["message_stats"].get("publish", 0)
    for _ in range(5):
        api.publish(own_vhost, "q", "x")
    totals = eventually(
        lambda: api.get("overview"),
        lambda shown: (
            shown["message_stats"].get("publish", 0) >= before + 5
            and shown["queue_totals"].get("messages", 0) >= 5
        ),
    )["queue_totals"]
    for name in ("messages", "messages_ready", "messages_unacknowledged"):
        assert isinstance(totals[name], int)
        assert "rate" in totals[f"{name}_details"]


# Nodes

NODE: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "type": str,
    "running": bool,
    "os_pid": str,
    "uptime": int,
    "fd_used": int,
    "fd_total": int,
    "sockets_used": int,
    "sockets_total": int,
    "mem_used": int,
    "mem_limit": int,
    "mem_alarm": bool,
    "mem_calculation_strategy": str,
    "disk_free": (int, str),
    "disk_free_limit": int,
    "disk_free_alarm": bool,
    "proc_used": int,
    "proc_total": int,
    "run_queue": int,
    "processors": int,
    "rates_mode": str,
    "net_ticktime": int,
    "partitions": list,
    "cluster_links": list,
    "exchange_types": list,
    "auth_mechanisms": list,
    "applications": list,
    "contexts": list,
    "enabled_plugins": list,
    "log_files": list,
    "config_files": list,
    "db_dir": str,
    "mem_used_details": dict,
    "fd_used_details": dict,
    "sockets_used_details": dict,
    "proc_used_details": dict,
    "queue_created": int,
    "connection_created": int,
    "metrics_gc_queue_length": dict,
}


def test_fields_of_a_node(api: Api) -> None:
    name = api.get("overview")["node"]
    # A node that has just started shows some of it only after its first statistics.
    row = eventually(lambda: api.get("nodes", name), lambda row: "mem_used_details" in row)
    wrong = {key: row.get(key) for key, kind in NODE.items() if not isinstance(row.get(key), kind)}
    assert wrong == {}
    assert (row["name"], row["running"], row["type"]) == (name, True, "disc")
    assert row["mem_alarm"] is False and row["uptime"] > 0
    assert {one["name"] for one in row["auth_mechanisms"]} >= {"PLAIN"}
    assert "rabbitmq_management" in row["enabled_plugins"]
    assert name in names_of(api.get("nodes"))


def test_memory_of_a_node(api: Api) -> None:
    name = api.get("overview")["node"]
    for memory in (
        api.get("nodes", name, memory="true")["memory"],
        api.get("nodes", name, "memory")["memory"],
    ):
        assert memory["total"].keys() == {"erlang", "rss", "allocated"}
        parts = {"queue_procs", "connection_readers", "connection_channels", "binary", "code"}
        assert all(isinstance(memory[part], int) for part in parts)
    relative = api.get("nodes", name, "memory", "relative")["memory"]
    assert 0 <= relative["binary"] <= 100


# The rest


def test_extensions(api: Api) -> None:
    assert {"javascript": "dispatcher.js"} in api.get("extensions")


def test_feature_flags(api: Api) -> None:
    rows = api.get("feature-flags")
    assert {"quorum_queue", "stream_queue", "user_limits"} <= set(names_of(rows))
    keys = {"name", "desc", "doc_url", "state", "stability", "provided_by"}
    assert all(row.keys() >= keys for row in rows)
    assert {row["state"] for row in rows} <= {"enabled", "disabled"}


def test_enabling_a_feature_flag(api: Api) -> None:
    flag = ("feature-flags", "user_limits", "enable")
    assert api.ask("PUT", *flag, body={"name": "user_limits"}).status == 204
    answer = api.ask("PUT", "feature-flags", "cf-nothing", "enable", body={})
    assert answer.refusal == (400, "unsupported")


def test_settings_of_the_login_are_public(api: Api) -> None:
    shown: dict[str, Any] = api.asked_by_nobody().get("auth")
    assert shown.keys() >= {"enable_uaa"}


def test_attempts_to_log_in(api: Api) -> None:
    rows = api.get("auth", "attempts", api.get("overview")["node"])
    assert {"http", "amqp091"} & {row["protocol"] for row in rows}
    for row in rows:
        parts = row["auth_attempts_succeeded"] + row["auth_attempts_failed"]
        assert row["auth_attempts"] == parts


def test_cluster_name(api: Api) -> None:
    assert api.get("cluster-name") == {"name": api.get("overview")["cluster_name"]}


def test_queues_are_rebalanced_in_the_background(api: Api) -> None:
    assert api.ask("POST", "rebalance", "queues", body={}).status == 204


# Samples of the past


@pytest.mark.slow
def test_samples_of_the_overview(api: Api, queue: str, ch: RawChannel) -> None:
    ch.publish(b"x", queue)

    def details() -> dict[str, Any]:
        shown: dict[str, Any] = api.get(
            "overview",
            lengths_age="60",
            lengths_incr="5",
            msg_rates_age="60",
            msg_rates_incr="5",
        )
        found: dict[str, Any] = shown["queue_totals"].get("messages_details", {})
        return found

    shown = eventually(details, lambda one: len(one.get("samples", ())) >= 2)
    assert {"rate", "samples", "avg", "avg_rate"} <= shown.keys()
    times = [sample["timestamp"] for sample in shown["samples"]]
    assert times == sorted(times, reverse=True)
    assert {newer - older for newer, older in pairwise(times)} == {5000}
    assert times[0] > 1_600_000_000_000
    assert all(isinstance(sample["sample"], int) for sample in shown["samples"])


def test_samples_are_shown_on_request_only(api: Api) -> None:
    totals = api.get("overview")["queue_totals"]
    assert all("samples" not in totals.get(f"{name}_details", {}) for name in ("messages",))


@pytest.mark.slow
def test_samples_of_a_queue(api: Api, vhost: str, queue: str, ch: RawChannel) -> None:
    for _ in range(3):
        ch.publish(b"x", queue)

    def row() -> dict[str, Any]:
        query = {"lengths_age": "60", "lengths_incr": "5"}
        shown: dict[str, Any] = api.get(
            "queues", vhost, queue, **query, msg_rates_age="60", msg_rates_incr="5"
        )
        return shown

    def has_samples(row: dict[str, Any]) -> bool:
        """RabbitMQ's management gets lengths and publishes at different times."""
        samples = row.get("messages_details", {}).get("samples", ())
        published = row.get("message_stats", {})
        return "publish_details" in published and any(one["sample"] == 3 for one in samples)

    shown = eventually(row, has_samples)
    assert shown["messages_details"].keys() >= {"rate", "samples", "avg", "avg_rate"}
    published = shown["message_stats"]["publish_details"]
    assert published.keys() >= {"rate", "samples", "avg", "avg_rate"}


@pytest.mark.slow
def test_samples_of_a_node(api: Api) -> None:
    name = api.get("overview")["node"]

    def details() -> dict[str, Any]:
        shown: dict[str, Any] = api.get("nodes", name, node_stats_age="60", node_stats_incr="5")
        found: dict[str, Any] = shown.get("mem_used_details", {})
        return found

    shown = eventually(details, lambda one: len(one.get("samples", ())) >= 1)
    assert shown.keys() >= {"rate", "samples", "avg", "avg_rate"}
