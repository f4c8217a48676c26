"""A node that has lost etcd, and pauses: what it tells its clients, and what it still shows."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pika
import pytest
from paused_node import WHY, state
from pika.exceptions import ConnectionClosedByBroker
from running_cluster import ClusterProcess, RunningCluster, publish, wait_until
from warren_command import run_warren

from warren.mgmt.ctl.errors import CtlError, RequestRefused

GUEST = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    """Of a and b, with a queue of three messages at each, and without its etcd."""
    cluster = RunningCluster(tmp_path, "a", "b")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


def loses_etcd(cluster: RunningCluster) -> None:
    cluster.etcd.kill()
    for name in "ab":
        wait_until(lambda: state(cluster[name]) == "paused")  # noqa: B023


def fill(cluster: RunningCluster) -> None:
    for name in "ab":
        channel = cluster[name].connect().channel()
        channel.queue_declare(f"of.{name}", durable=True)
        channel.confirm_delivery()
        publish(channel, f"of.{name}", [b"x"] * 3)


def fails(request: Callable[[], object]) -> RequestRefused:
    with pytest.raises(RequestRefused) as refused:
        request()
    return refused.value


def test_clients_are_told_why_they_are_sent_away(cluster: RunningCluster) -> None:
    connection = cluster["a"].connect()
    cluster.etcd.kill()
    with pytest.raises(ConnectionClosedByBroker) as closed:
        while True:
            connection.process_data_events(1)
    assert closed.value.reply_code == 320
    assert WHY in closed.value.reply_text


def test_it_shows_what_it_knew_and_says_so(cluster: RunningCluster) -> None:
    a = cluster["a"]
    a.changes("parameters", "trace", "/", "r", body={"value": {"user": "guest"}})
    channel = a.connect().channel()
    channel.queue_declare("traced", durable=True)
    channel.basic_publish("", "traced", b"x", pika.BasicProperties(message_id="m1"))
    fill(cluster)
    loses_etcd(cluster)
    life = a.asks("trace", "/", "m1")
    assert [one["event"] for one in life["records"]] == ["published"]
    rows = {row["name"]: row for row in a.asks("queues", "/")}
    assert (rows["of.a"]["state"], rows["of.a"]["messages"]) == ("stopped", 3)
    assert rows["of.b"]["state"] == "down"
    nodes = {row["name"]: row for row in a.asks("nodes")}
    assert not any(row["running"] for row in nodes.values())
    assert nodes[a.name]["state"] == "paused"
    assert [user["name"] for user in a.asks("users")] == ["guest"]
    listing = ("-s", "list_queues", "name", "messages")
    listed = run_warren("ctl", "--data-dir", a.data_directory, *listing)
    assert listed.returncode == 0
    assert "of.a\t3" in listed.stdout.splitlines()
    assert listed.stderr.startswith(f"Warning: {WHY}: ")
    assert "Disk Nodes" in a.ctl("cluster_status")
    assert a.name in a.ctl("status")


def get(node: ClusterProcess, path: str, names: dict[str, str]) -> int:
    """The status of a path of the API with these names in it."""
    parts = [quote(names.get(part, part), safe="") for part in path.split("/")]
    connection = http.client.HTTPConnection("127.0.0.1", node.http_port)
    try:
        connection.request("GET", "/api" + "/".join(parts), headers=GUEST)
        with connection.getresponse() as response:
            response.read()
            return response.status
    finally:
        connection.close()


def test_every_page_of_the_api_is_answered(cluster: RunningCluster) -> None:
    fill(cluster)
    loses_etcd(cluster)
    a = cluster["a"]
    names = {"{vhost}": "/", "{queue}": "of.a", "{user}": "guest", "{node}": a.name}
    answered, refused = set(), set()
    for path, methods in a.asks("openapi.json")["paths"].items():
        if "get" not in methods:
            continue
        if path.endswith("/export"):
            # It answers with lines of JSON.
            assert get(a, path, names) == 200
            answered.add(path)
            continue
        try:
            a.asks(*(names.get(part, part) for part in path.split("/")[1:]))
            answered.add(path)
        except RequestRefused as refusal:
            assert refusal.status in (400, 404, 503), (path, refusal.text)
            if refusal.status == 503:
                refused.add(path)
    assert {"/overview", "/queues/{vhost}/{queue}", "/definitions", "/control/status"} <= answered
    # What is said of health, and what would leave messages of other nodes out.
    may_be_refused = ("/health", "/aliveness-test", "/snapshots")
    assert not [path for path in refused if not path.startswith(may_be_refused)]
    assert "request_failed" not in a.log
    connection = http.client.HTTPConnection("127.0.0.1", a.http_port)
    try:
        connection.request("GET", "/api/overview")
        with connection.getresponse() as response:
            assert response.status == 401
            response.read()
        connection.request("GET", "/metrics", headers=GUEST)
        assert connection.getresponse().status == 503
    finally:
        connection.close()


def test_it_changes_nothing(cluster: RunningCluster) -> None:
    fill(cluster)
    loses_etcd(cluster)
    a = cluster["a"]
    body = {"pattern": "^x", "definition": {"max-length": 1}}
    refusals = [
        fails(lambda: a.changes("policies", "/", "new", body=body)),
        fails(lambda: a.does("DELETE", "queues", "/", "of.a")),
        fails(lambda: a.asks("aliveness-test", "/")),
        fails(lambda: a.asks("health", "checks", "alarms")),
    ]
    for refused in refusals:
        assert refused.status == 503
        assert refused.reason.startswith(WHY)


def test_it_serves_again_when_etcd_is_back(cluster: RunningCluster) -> None:
    fill(cluster)
    loses_etcd(cluster)
    cluster.etcd.start()
    cluster.wait_until_linked("a", "b")
    for name in "ab":
        assert state(cluster[name]) == "running"
        channel = cluster[name].connect().channel()
        assert channel.queue_declare(f"of.{name}", passive=True).method.message_count == 3
        channel.queue_declare(f"new.{name}", durable=True)


def test_it_waits_for_an_address_that_something_else_has_meanwhile(cluster: RunningCluster) -> None:
    fill(cluster)
    loses_etcd(cluster)
    a = cluster["a"]
    with socket.create_server(("127.0.0.1", a.amqp_port)):
        cluster.etcd.start()
        wait_until(lambda: "address_in_use" in a.log)
    cluster.wait_until_linked("a", "b")
    channel = a.connect().channel()
    assert channel.queue_declare("of.a", passive=True).method.message_count == 3


class LeaseProxy(threading.Thread):
    """Forwards to etcd, but cuts the connection of each of the next `cuts` requests for a lease."""

    def __init__(self, etcd_port: int) -> None:
        super().__init__(daemon=True)
        self.cuts = 0
        self._etcd_port = etcd_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.start()

    def run(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    etcd = socket.create_connection(("127.0.0.1", self._etcd_port))
                except OSError:
                    client.close()
                    continue
                threading.Thread(target=self._serve, args=(client, etcd), daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self.join()
        self._listener.close()

    def _serve(self, client: socket.socket, etcd: socket.socket) -> None:
        with client, etcd:
            answers = threading.Thread(target=self._pass_on, args=(etcd, client))
            answers.start()
            self._pass_on(client, etcd)
            answers.join()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if self.cuts and b"/v3/lease/grant" in data:
                    self.cuts -= 1
                    break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def test_it_goes_on_waiting_when_etcd_is_lost_again_while_it_joins(tmp_path: Path) -> None:
    cluster = RunningCluster(tmp_path)
    proxy = LeaseProxy(cluster.etcd.port)
    a = cluster.new_node("a", cluster.config.replace(cluster.etcd.url, proxy.url))
    try:
        cluster.etcd.start()
        a.start()
        cluster.etcd.kill()
        wait_until(lambda: state(a) == "paused")
        proxy.cuts = 2
        cluster.etcd.start()
        wait_until(lambda: state(a) == "running")
        assert proxy.cuts == 0
        # It says so once: nothing has changed the second time.
        assert a.log.count("store_lost_again") == 1
        a.connect().channel().queue_declare("q", durable=True)
    finally:
        cluster.end()
        proxy.close()


def begin_limited_job(node: ClusterProcess, count: int) -> None:
    """Begin a job that needs the store of definitions before each thousand of messages."""
    channel = node.connect().channel()
    channel.queue_declare("to", durable=True)
    channel.queue_declare("from", durable=True)
    channel.confirm_delivery()
    publish(channel, "from", [b"x"] * count)
    body = {"action": "move", "to_queue": "to", "limit": count, "rate": 2000}
    node.does("POST", "queues", "/", "from", "messages", "jobs", body=body)


def test_a_job_that_waits_for_etcd_does_not_hold_up_the_pause(cluster: RunningCluster) -> None:
    a = cluster["a"]
    begin_limited_job(a, 4000)
    cluster.etcd.stand_still()
    wait_until(lambda: state(a) == "paused")
    cluster.etcd.go_on()
    cluster.wait_until_linked("a", "b")
    assert " asyncio " not in a.log


def test_what_another_node_asked_for_does_not_outlive_the_pause(cluster: RunningCluster) -> None:
    a, b = cluster["a"], cluster["b"]
    a.connect().channel().queue_declare("from", durable=True)
    cluster.etcd.stand_still()

    def begin_job() -> None:
        body = {"action": "move", "to_queue": "from"}
        with suppress(CtlError):
            b.does("POST", "queues", "/", "from", "messages", "jobs", body=body)

    asking = threading.Thread(target=begin_job)
    asking.start()
    wait_until(lambda: state(a) == "paused")
    cluster.etcd.go_on()
    cluster.wait_until_linked("a", "b")
    asking.join()
    assert " asyncio " not in a.log


def test_it_can_be_stopped_and_reset(cluster: RunningCluster) -> None:
    loses_etcd(cluster)
    cluster["a"].does("POST", "control", "stop")
    cluster["a"].ended()
    b = cluster["b"]
    b.ctl("stop_app")
    wait_until(lambda: state(b) == "stopped")
    b.ctl("force_reset")
