"""Which links there are, how they are shown, and whose rights count."""

from __future__ import annotations

from typing import Any

import pytest
from api_client import ApiClient, reason
from federating import Side, quoted, user
from moving import until
from warren_command import run_warren


def upstreams_of(side: Side) -> list[str]:
    return sorted(row["upstream"] for row in side.links())


def put(api: ApiClient, name: str, vhost: str = "/", **value: Any) -> tuple[int, Any]:
    path = f"/parameters/federation-upstream/{quoted(vhost)}/{name}"
    return api.put(path, {"value": value})


def test_links_follow_policies_upstreams_and_sets(up: Side, down: Side) -> None:
    down.exchange("x", "fanout")
    for name in ("a", "b", "ab"):
        down.upstream(name, up.url)
    down.policy("^x$", federation_upstream="a")
    until(lambda: upstreams_of(down) == ["a"])
    down.policy("^x$", federation_upstream_pattern="^a")
    until(lambda: upstreams_of(down) == ["a", "ab"])
    down.policy("^x$", federation_upstream_set="all")
    until(lambda: upstreams_of(down) == ["a", "ab", "b"])
    down.policy("^x$", federation_upstream_set="some")
    until(lambda: upstreams_of(down) == [])
    value = [{"upstream": "b", "exchange": "other"}, {"upstream": "none"}]
    path = "/parameters/federation-upstream-set/%2F/some"
    assert down.api.put(path, {"value": value})[0] == 201
    until(lambda: [row["upstream_exchange"] for row in down.links()] == ["other"])
    down.api.delete("/parameters/federation-upstream/%2F/b")
    until(lambda: down.links() == [])
    down.upstream("b", up.url)
    until(lambda: upstreams_of(down) == ["b"])
    down.channel.exchange_delete("x")
    until(lambda: down.links() == [])
    down.exchange("x", "fanout")
    until(lambda: upstreams_of(down) == ["b"])
    down.no_policy()
    until(lambda: down.links() == [])


def test_upstream_that_is_set_again_as_it_was_changes_nothing(up: Side, down: Side) -> None:
    down.exchange("x")
    down.upstream("u", up.url)
    down.policy("^x$")
    down.until_links()
    (helper,) = up.helpers()
    down.upstream("u", up.url)
    down.queue_bound("q", "x", "k")
    up.until_carried("x", "k")
    assert up.helpers() == [helper]
    down.upstream("u", up.url, prefetch_count=1)
    until(lambda: [one["name"] for one in up.helpers()] == ["federation: x -> two B"])


def test_links_of_a_virtual_host_and_those_that_are_down(up: Side, down: Side) -> None:
    down.exchange("x")
    down.upstream("u", up.url)
    down.upstream("wrong", up.url.replace("guest:guest", "guest:secret"))
    down.upstream("nowhere", "amqp://127.0.0.1:1")
    down.policy("^x$")
    api = down.api

    def broken() -> Any:
        rows = api.get("/federation-links/state/down")[1]
        return rows if len(rows) == 2 and all("error" in row for row in rows) else None

    nowhere, wrong = until(broken)
    assert (nowhere["upstream"], wrong["upstream"]) == ("nowhere", "wrong")
    assert "Connection refused" in nowhere["error"]
    assert "ACCESS_REFUSED" in wrong["error"]
    assert {nowhere["status"], wrong["status"]} == {"error"}
    assert "secret" not in str(api.get("/federation-links")[1])
    until(lambda: len(api.get("/federation-links/%2F")[1]) == 3)
    until(lambda: len(api.get("/federation-links/%2F/state/down")[1]) == 2)
    assert api.get("/federation-links/none")[0] == 404
    down.broker.add_vhost("empty")
    assert api.get("/federation-links/empty") == (200, [])
    # Whoever does not see the virtual host does not see its links.
    down.broker.add_user("looker", "looker", ("monitoring",))
    assert user(down, "looker").get("/federation-links")[0] == 200


def test_link_without_rights_at_the_upstream_says_so(up: Side, down: Side) -> None:
    up.broker.add_user("rightless", "secret", ())
    up.broker.set_permissions("rightless", "/", configure="^$", write="^$", read="^$")
    down.exchange("x")
    down.upstream("u", up.url.replace("guest:guest", "rightless:secret"))
    down.policy("^x$")
    expected = "access to exchange 'x' in vhost '/' refused for user 'rightless'"
    until(lambda: any(expected in row.get("error", "") for row in down.links()))
    up.exchange("x")
    up.broker.set_permissions(
        "rightless",
        "/",
        configure="^federation: ",
        write="^federation: ",
        read="^(federation: |x$)",
    )
    down.until_links()


def test_rights_of_who_set_the_upstream_count_here(up: Side, down: Side) -> None:
    down.broker.add_user("poli", "poli", ("policymaker", "monitoring"))
    down.broker.set_permissions("poli", "/", configure="^$", write="^allowed$", read="^$")
    down.broker.add_vhost("secret")
    for exchange in ("allowed", "forbidden"):
        down.exchange(exchange, "fanout")
        down.queue_bound(f"q-{exchange}", exchange, "")
    poli = user(down, "poli")
    status, text = reason(put(poli, "u", uri="amqp:///secret"))
    assert status == 400
    assert 'user "poli" may not connect to vhost "secret"' in text
    assert put(poli, "u", uri=up.url, **{"reconnect-delay": 0.05})[0] == 201
    down.policy("^(allowed|forbidden)$")
    # A helper is there before it is bound.
    down.until_links(2)
    up.publish_to("allowed", "", "a")
    up.publish_to("forbidden", "", "b")
    assert down.bodies("q-allowed", 1) == ["a"]
    expected = "access to exchange 'forbidden' in vhost '/' refused for user 'poli'"
    until(lambda: any(expected in row.get("error", "") for row in down.links()))
    assert down.is_empty("q-forbidden")
    down.broker.set_permissions("poli", "/", configure="^$", write=".*", read="^$")
    assert down.bodies("q-forbidden", 1) == ["b"]


def test_within_a_broker_from_one_virtual_host_to_another(down: Side) -> None:
    down.broker.add_vhost("above")
    down.broker.set_permissions("guest", "above")
    down.exchange("x", "fanout")
    down.queue_bound("q", "x", "")
    down.upstream("u", "amqp:///above")
    down.policy("^x$")
    (row,) = down.until_links()
    assert row["uri"] == "amqp:///above"
    queues = down.api.get("/queues/above")[1]
    assert [queue["name"] for queue in queues] == ["federation: x -> two:/:x"]
    body = {"properties": {}, "routing_key": "", "payload": "m", "payload_encoding": "string"}
    assert down.api.post("/exchanges/above/x/publish", body) == (200, {"routed": True})
    assert down.bodies("q", 1) == ["m"]
    down.no_policy()
    until(lambda: down.api.get("/queues/above")[1] == [])


def test_virtual_host_that_is_deleted_takes_its_links_with_it(up: Side, down: Side) -> None:
    down.broker.add_vhost("short")
    down.broker.set_permissions("guest", "short")
    down.upstream("u", up.url, vhost="short")
    down.policy("^amq.fanout$", vhost="short")
    down.until_links()
    assert "federation: amq.fanout -> two:short:amq.fanout" in up.queues()
    assert down.api.delete("/vhosts/short")[0] == 204
    until(lambda: down.links() == [] and up.helpers() == [])


def test_definitions_carry_upstreams_and_sets(up: Side, down: Side) -> None:
    down.exchange("x")
    down.upstream("u", up.url, max_hops=2)
    down.api.put("/parameters/federation-upstream-set/%2F/s", {"value": [{"upstream": "u"}]})
    down.policy("^x$", federation_upstream_set="s")
    down.until_links()
    definitions = down.api.get("/definitions")[1]
    parameters = {one["component"]: one["value"] for one in definitions["parameters"]}
    assert parameters["federation-upstream"]["max-hops"] == 2
    assert parameters["federation-upstream-set"] == [{"upstream": "u"}]
    for path in (
        "/policies/%2F/fed",
        "/parameters/federation-upstream/%2F/u",
        "/parameters/federation-upstream-set/%2F/s",
    ):
        assert down.api.delete(path)[0] == 204
    until(lambda: down.links() == [])
    assert down.api.post("/definitions", definitions)[0] == 204
    down.until_links()


@pytest.mark.parametrize(
    ("component", "value", "text"),
    [
        ("federation-upstream", {"max-hops": 1}, 'Key "uri" not found in n'),
        ("federation-upstream-set", [{}], 'Key "upstream" not found in n'),
    ],
)
def test_parameters_that_make_no_sense_are_refused(
    down: Side, component: str, value: Any, text: str
) -> None:
    answer = down.api.put(f"/parameters/{component}/%2F/n", {"value": value})
    assert reason(answer) == (400, f"Validation failed\n\n{text}\n")


def test_many_queues_are_followed_in_turns(up: Side, down: Side) -> None:
    names = [f"many-{number:03}" for number in range(250)]
    for name in names:
        down.declare(name)
    down.upstream("u", up.url)
    down.policy("^many-(000|124|249)$")
    rows = down.until_links(3)
    assert [row["queue"] for row in rows] == ["many-000", "many-124", "many-249"]


def test_federation_that_ends_while_its_link_is_restarted_leaves_nothing(
    up: Side, down: Side
) -> None:
    down.exchange("x")
    for prefetch in range(1, 6):
        down.upstream("u", up.url, prefetch_count=prefetch)
        down.policy("^x$")
        down.until_links()
        # The first change makes the link stop, so that the second finds it stopping.
        down.upstream("u", up.url, prefetch_count=10 + prefetch)
        down.no_policy()
        until(lambda: not up.helpers() and "federation: x -> two" not in up.queues())


def test_broker_that_is_moved_goes_on_with_what_waits_upstream(sides: list[Side]) -> None:
    up, former, new = sides
    former.exchange("x")
    former.queue_bound("q", "x", "#")
    former.upstream("u", up.url, resource_cleanup_mode="never")
    former.policy("^x$")
    former.until_links()
    up.until_carried("x", "#")
    source, target = (
        side.broker.http_url.replace("http://", "http://guest:guest@") for side in (former, new)
    )
    former.no_policy()
    until(lambda: not former.links())
    up.publish_to("x", "k", "waits")
    former.policy("^x$", federation_upstream_set="not yet")
    assert new.api.put("/cluster-name", {"name": "two"})[0] in (201, 204)
    done = run_warren("migrate", source, target)
    assert done.returncode == 0, done.stdout + done.stderr
    new.policy("^x$")
    new.until_links()
    assert new.bodies("q", 1) == ["waits"]
    assert new.api.put("/cluster-name", {"name": "three"})[0] in (201, 204)


def test_new_name_of_the_cluster_is_a_new_name_upstream(up: Side, down: Side) -> None:
    down.exchange("x")
    down.queue_bound("q", "x", "#")
    down.upstream("u", up.url)
    down.policy("^x$")
    (before,) = down.until_links()
    assert down.api.put("/cluster-name", {"name": "renamed"})[0] in (201, 204)
    try:
        until(lambda: [one["name"] for one in up.helpers()] == ["federation: x -> renamed A"])
        up.until_carried("x", "#")
        (after,) = down.until_links()
        assert after["id"] == before["id"]
        assert "federation: x -> two" not in up.queues()
        up.publish_to("x", "k", "m")
        assert down.bodies("q", 1) == ["m"]
    finally:
        assert down.api.put("/cluster-name", {"name": "two"})[0] in (201, 204)
