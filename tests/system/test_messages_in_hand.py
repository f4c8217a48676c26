"""Looking for messages and moving them, on real nodes that are killed, and in clusters."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from raw_clients import RawClients
from running_cluster import ClusterProcess, RunningCluster, publish, wait_until
from server_process import ServerProcess

from warren.compat_tests.raw_client import RawChannel
from warren.mgmt.ctl.control_client import ControlClient, LocalTarget
from warren.mgmt.ctl.errors import CtlError, RequestRefused

COUNT = 2000
BODIES = [b"%d" % number for number in range(COUNT)]


def asked(directory: Path, method: str, *path: str, body: Any = None, **query: str) -> Any:
    client = ControlClient(LocalTarget(directory), 30)
    try:
        return client.request(method, *path, body=body, query=query)
    finally:
        client.close()


def begin(directory: Path, queue: str, **plan: Any) -> str:
    path = ("queues", "/", queue, "messages", "jobs")
    return str(asked(directory, "POST", *path, body=plan)["job"])


def job(directory: Path, name: str) -> Any:
    return asked(directory, "GET", "message-jobs", "/", name)


def until(directory: Path, name: str, *states: str) -> Any:
    def found() -> Any:
        with suppress(CtlError):
            row = job(directory, name)
            return row if row["state"] in states else None
        return None

    wait_until(lambda: found() is not None)
    return found()


def fill(channel: RawChannel) -> None:
    """All messages into the queue `old`; returns when all are confirmed."""
    channel.call("confirm.select")
    for body in BODIES:
        channel.publish(body, "old", mandatory=True, delivery_mode=2)
    assert {verdict for verdict, _ in channel.confirms(COUNT)} == {"ack"}


def contents(channel: BlockingChannel, queue: str) -> list[tuple[bytes, bool]]:
    """The messages in a queue, and whether each counts as delivered before."""
    found = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None or body is None:
            return found
        found.append((body, method.redelivered))


def check_all_there(old: list[tuple[bytes, bool]], new: list[tuple[bytes, bool]]) -> None:
    """Every message is in one of the queues; one that is in both is redelivered in the old one."""
    there = Counter([body for body, _ in (*old, *new)])
    assert set(there) == set(BODIES)
    twice = {body for body, count in there.items() if count > 1}
    assert all(count <= 2 for count in there.values())
    redelivered = {body for body, again in old if again}
    assert twice <= redelivered, sorted(twice - redelivered)[:5]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_move_loses_nothing_however_the_node_ends(
    start_server: Callable[..., ServerProcess],
    connect: RawClients,
    tmp_path: Path,
    end: signal.Signals,
) -> None:
    data = tmp_path / "data"
    server = start_server(data_dir=data)
    with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
        channel = connection.channel()
        for queue in ("old", "new"):
            channel.queue_declare(queue, durable=True)
    fill(connect(server).channel())
    name = begin(data, "old", action="move", to_queue="new", rate=1000)
    wait_until(lambda: job(data, name)["done"] > 100)
    server.signal(end)
    server.wait()
    server = start_server(data_dir=data)
    assert job(data, name)["state"] == "interrupted"
    with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
        channel = connection.channel()
        at_new = channel.queue_declare("new", passive=True).method.message_count
        at_old = channel.queue_declare("old", passive=True).method.message_count
        assert 100 < at_new < COUNT and at_old + at_new >= COUNT
        if end is signal.SIGTERM:
            assert at_old + at_new == COUNT, "a stop in order leaves nothing in two places"
            asked(data, "POST", "message-jobs", "/", name, "restart")
            assert until(data, name, "completed", "failed")["state"] == "completed"
            assert [body for body, _ in contents(channel, "new")] == BODIES
        else:
            check_all_there(contents(channel, "old"), contents(channel, "new"))


KINDS = {
    "mirrored": {},
    "quorum": {"x-queue-type": "quorum"},
}


def of(node: ClusterProcess) -> Path:
    return node.data_directory


@pytest.mark.parametrize("kind", KINDS)
def test_any_node_looks_and_moves_and_a_failover_loses_nothing(
    running_cluster: RunningCluster, connect: RawClients, kind: str
) -> None:
    cluster = running_cluster
    a, b, c = cluster["a"], cluster["b"], cluster["c"]
    asked(
        of(a),
        "PUT",
        "policies",
        "/",
        "ha",
        body={"pattern": ".*", "definition": {"ha-mode": "all", "ha-sync-mode": "automatic"}},
    )
    channel = a.connect().channel()
    for queue in ("old", "new"):
        channel.queue_declare(queue, durable=True, arguments=KINDS[kind])
    fill(connect(a).channel())
    wait_until(lambda: len(_copies(a, "old")) == 3)

    page = asked(of(c), "GET", "queues", "/", "old", "messages", filter="body = '7'")
    assert [row["payload"] for row in page["messages"]] == ["7"]
    newest = asked(of(b), "GET", "queues", "/", "old", "messages", order="newest", limit="2")
    assert [row["payload"] for row in newest["messages"]] == ["1999", "1998"]
    for query in ({"filter": "siz"}, {"order": "up"}, {"from": "x"}):
        with pytest.raises(RequestRefused) as refused:
            asked(of(c), "GET", "queues", "/", "old", "messages", **query)
        assert refused.value.status == 400
    dry = begin(of(c), "old", action="move", to_queue="new", filter="body < '2'", dry_run=True)
    assert until(of(b), dry, "completed")["done"] == 1112

    name = begin(of(c), "old", action="move", to_queue="new", rate=1000)
    wait_until(lambda: job(of(b), name)["done"] > 100)
    assert job(of(b), name)["node"] == a.name
    a.kill()
    assert until(of(c), name, "interrupted")["state"] == "interrupted"
    wait_until(lambda: _leader(c, "old") not in ("", a.name) and _leader(c, "new") != a.name)

    def restarted() -> bool:
        try:
            asked(of(b), "POST", "message-jobs", "/", name, "restart")
        except CtlError:
            return False
        return True

    wait_until(restarted)
    assert until(of(c), name, "completed", "failed")["state"] == "completed"
    left = c.connect().channel()
    moved = contents(left, "new")
    assert contents(left, "old") == []
    there = Counter([body for body, _ in moved])
    assert set(there) == set(BODIES)
    assert max(there.values()) <= 2, "what was under way may be in both queues, and is moved again"


def test_clients_of_another_node_are_named_with_what_they_hold(
    running_cluster: RunningCluster,
) -> None:
    """Whichever node is asked: the leader, the one of the clients, or a third."""
    cluster = running_cluster
    channel = cluster["a"].connect().channel()
    channel.queue_declare("held", durable=True)
    channel.confirm_delivery()
    publish(channel, "held", [b"0", b"1", b"2", b"3"])
    afar = cluster["b"].connect().channel()
    assert afar.basic_get("held")[2] == b"0"
    consuming = cluster["b"].connect().channel()
    consuming.basic_qos(prefetch_count=1)
    consuming.basic_consume("held", lambda *_: None, consumer_tag="me")
    assert channel.basic_get("held")[2] == b"2"

    def rows(node: str) -> list[Any]:
        page = asked(of(cluster[node]), "GET", "queues", "/", "held", "messages")
        return list(page["messages"])

    wait_until(lambda: [row["state"] for row in rows("a")] == ["unacked"] * 3 + ["ready"])
    for node in "abc":
        held = [row["held_by"] for row in rows(node)[:3]]
        assert [one["consumer_tag"] for one in held] == [None, "me", None]
        assert [(one["channel"], one["delivery_tag"]) for one in held] == [(1, 1), (1, 1), (1, 1)]
        assert all(one["user"] == "guest" and one["held_for_at_least_ms"] >= 0 for one in held)
        assert len({one["connection_name"] for one in held}) == 3
    cluster["b"].stand_still()
    held = [row["held_by"] for row in rows("a")[:3]]
    assert held[0] is None and held[1]["consumer_tag"] == "me" and held[2]["delivery_tag"] == 1
    assert "delivery_tag" not in held[1]
    cluster["b"].go_on()


def _copies(node: ClusterProcess, queue: str) -> list[str]:
    row = node.asks("queues", "/", queue)
    if row["type"] == "quorum":
        return list(row["online"])
    return [row["node"], *row.get("synchronised_slave_nodes", [])]


def _leader(node: ClusterProcess, queue: str) -> str:
    row = node.asks("queues", "/", queue)
    return "" if row.get("state") == "down" else str(row["node"])
