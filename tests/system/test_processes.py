"""A broker of several processes: to clients and operators it is one."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pika
import pytest
from broker_processes import Processes, Until
from fork_server import START_PYTHON
from server_process import PATIENCE_S, ServerProcess, launch
from warren_command import run_warren

from warren.compat_tests.raw_client import RawClient
from warren.core.access.login_throttle import FORGIVEN_S, OF_NAME_MAX

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def broker(
    start_server: Callable[..., ServerProcess], tmp_path: Path, until: Until
) -> Iterator[Processes]:
    processes = Processes(start_server, tmp_path / ("long" * 30) / "data", until)
    yield processes
    processes.hang_up()


def test_it_is_one_broker(broker: Processes, until: Until, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(START_PYTHON, "1")
    broker.start()
    assert broker.server.ready_line.endswith(", 3 processes\n")
    channels = broker.channels()
    assert set(channels) == {"warren@here", "warren-2@here", "warren-3@here"}
    # Declared through one process, spread over all; used through each of them.
    first = channels["warren@here"]
    for number in range(6):
        first.queue_declare(f"q{number}", durable=True)
    assert Counter(broker.queues().values()) == dict.fromkeys(channels, 2)
    for number in range(6):
        for name, channel in channels.items():
            channel.basic_publish("", f"q{number}", name.encode(), PERSISTENT, mandatory=True)
    assert {
        (channel.basic_get(f"q{number}", auto_ack=True)[2] or b"").decode()
        for number, channel in enumerate([*channels.values()] * 2)
    } == {next(iter(channels))}
    # What is defined through one is there for clients of the others when that one answers.
    for number in range(30):
        first.queue_declare(f"now{number}")
        for name in channels:
            channels[name].queue_declare(f"now{number}", passive=True)
        channels["warren-2@here"].queue_delete(f"now{number}")
    # And what a client leaves behind is gone for them when it has left.
    for _ in range(10):
        leaving = broker.connect()
        mine = leaving.channel().queue_declare("", exclusive=True).method.queue
        leaving.close()
        for name in channels:
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no queue"):
                channels[name].queue_declare(mine, passive=True)
            channels[name] = channels[name].connection.channel()
    first = channels["warren@here"]
    # What operators set holds at all of them.
    policy = {"pattern": "^q", "definition": {"max-length": 1}, "apply-to": "queues"}
    assert broker.api.put("/policies/%2F/short", policy)[0] == 201
    # Whichever process is asked about whichever.
    for name in [*channels] * 8:
        assert broker.api.post(f"/vhosts/%2F/start/{name}")[0] == 204
    until(lambda: {row.get("messages") for row in broker.api.get("/queues")[1]} == {1})
    exclusive = channels["warren-2@here"].queue_declare("", exclusive=True).method.queue
    assert broker.queues()[exclusive] == "warren-2@here"
    # Metrics are of all of them, and each can be asked by itself.
    metrics = broker.get("/metrics")[1].decode()
    assert re.findall(r"warren_process_up\{process=\"(\d)\"\} 1", metrics) == ["1", "2", "3"]
    assert metrics.count("rabbitmq_identity_info{") == 3
    asked = [broker.get(f"/process/{number}/api/overview") for number in (1, 2, 3)]
    assert {json.loads(body)["node"] for _, body in asked} == set(channels)
    # They share their listeners, so each is told once: as that of the process that answers.
    for _, body in asked:
        shown = json.loads(body)
        listening = [one["port"] for one in shown["listeners"]]
        assert sorted(listening) == sorted((broker.server.port, broker.http_port))
        assert [one["port"] for one in shown["contexts"]] == [str(broker.http_port)]
        assert {one["node"] for one in (*shown["listeners"], *shown["contexts"])} == {shown["node"]}
    assert broker.get("/process/4/api/overview")[0] == 503
    for path in ("own/metrics", "%6fwn/metrics", "own/metrics/per-object", ".//own/metrics"):
        assert broker.get(f"/process/2/{path}")[0] == 404, path
    # After a restart all is there.
    left = {name: node for name, node in broker.queues().items() if name != exclusive}
    broker.stop()
    broker.start(name=None)
    assert broker.queues() == left
    channel = broker.connect().channel()
    assert {channel.basic_get(f"q{number}", auto_ack=True)[2] for number in range(6)} == {
        list(channels)[-1].encode()
    }
    assert broker.api.get("/policies/%2F/short")[0] == 200


def test_queues_that_are_declared_at_the_same_moment_are_spread(broker: Processes) -> None:
    broker.start()
    queue = {"vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    definitions = {"queues": [queue | {"name": f"q{number}"} for number in range(30)]}
    assert broker.api.post("/definitions", definitions)[0] == 204
    nodes = ("warren@here", "warren-2@here", "warren-3@here")
    assert Counter(broker.queues().values()) == dict.fromkeys(nodes, 10)


def test_clients_are_served_when_the_processes_reach_each_other(
    broker: Processes, until: Until
) -> None:
    """Otherwise a client that connects at once is told that the node of a queue is down."""
    broker.start()
    broker.stop()
    broker.start(name=None)
    until(lambda: broker.server.log.count("node_started") == 3)
    events = re.findall(r"(link_up|node_started) .*process=(\d)$", broker.server.log, re.MULTILINE)
    for process in "123":
        assert [event for event, of in events if of == process] == ["link_up"] * 2 + [
            "node_started"
        ]


@pytest.mark.parametrize("how", ["cancel", "channel", "connection"])
def test_an_auto_delete_queue_is_gone_for_all_when_its_last_consumer_hears_that_it_has_left(
    broker: Processes, how: str
) -> None:
    broker.start()
    channels = broker.channels()
    for number in range(9):
        leaving = broker.connect().channel()
        leaving.queue_declare(f"q{number}", auto_delete=True)
        tag = leaving.basic_consume(f"q{number}", lambda *_: None)
        if how == "cancel":
            leaving.basic_cancel(tag)
        elif how == "channel":
            leaving.close()
        else:
            leaving.connection.close()
        for name in channels:
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no queue"):
                channels[name].queue_declare(f"q{number}", passive=True)
            channels[name] = channels[name].connection.channel()


def test_what_is_got_and_put_back_over_http_is_in_its_place_when_that_is_answered(
    broker: Processes,
) -> None:
    broker.start()
    channels = broker.channels()
    body = {"count": 2, "ackmode": "ack_requeue_true", "encoding": "auto"}
    for number, channel in enumerate(channels.values()):
        channel.queue_declare(queue := f"q{number}")
        # The leader's own clients come sooner to it than another process.
        leader = channels[broker.queues()[queue]]
        for _ in range(20):
            for letter in (b"a", b"b", b"c"):
                leader.basic_publish("", queue, letter)
            status, rows = broker.api.post(f"/queues/%2F/{queue}/get", body)
            assert status == 200 and [row["payload"] for row in rows] == ["a", "b"]
            bodies = [leader.basic_get(queue, auto_ack=True)[2] for _ in range(3)]
            assert bodies == [b"a", b"b", b"c"]


def test_a_guesser_has_to_wait_for_as_much_longer_as_there_are_processes(
    broker: Processes,
) -> None:
    broker.start(processes=2)
    wrong = "Basic " + b64encode(b"guest:wrong").decode()
    for _ in range(5 * OF_NAME_MAX):
        connection = HTTPConnection("127.0.0.1", broker.http_port, timeout=PATIENCE_S)
        connection.request("GET", "/api/whoami", headers={"Authorization": wrong})
        answer = connection.getresponse()
        answer.read()
        connection.close()
    assert answer.status == 429
    assert answer.headers["Retry-After"] == str(int(2 * FORGIVEN_S))


def test_connection_max_is_of_all_processes_together(
    broker: Processes, tmp_path: Path, until: Until
) -> None:
    config = tmp_path / "rabbitmq.conf"
    config.write_text("connection_max = 4\n", "ascii")
    broker.start("--config", str(config), processes=2)
    connections = [broker.connect()]

    def is_refused() -> bool:
        """Once each process has heard of the connections of the other one."""
        try:
            connections.append(broker.connect())
        except pika.exceptions.AMQPConnectionError:
            return True
        if len(connections) > 4:
            connections.pop().close()
        return False

    until(is_refused)
    assert len(connections) == 4
    connections.pop().close()
    until(lambda: not is_refused())


def test_a_process_that_is_killed_is_back_with_all_that_was_confirmed(
    broker: Processes, until: Until
) -> None:
    broker.start(processes=2)
    channels = broker.channels()
    here = channels["warren@here"]
    for number in range(4):
        here.queue_declare(f"q{number}", durable=True)
        for body in range(10):
            here.basic_publish("", f"q{number}", b"%d" % body, PERSISTENT, mandatory=True)
    pid = broker.pid("warren-2@here")
    os.kill(pid, signal.SIGKILL)
    until(lambda: broker.states() == dict.fromkeys(channels, "running"))
    assert broker.pid("warren-2@here") != pid
    # The other one has gone on with its client.
    bodies = {
        queue: [here.basic_get(queue, auto_ack=True)[2] for _ in range(10)]
        for queue in broker.queues()
    }
    assert bodies == {f"q{number}": [b"%d" % body for body in range(10)] for number in range(4)}
    assert 'process_ended number=2 node=warren-2@here reason="ended by SIGKILL"' in (
        broker.server.log
    )


def test_one_that_ends_again_and_again_stays_down_and_the_others_go_on(
    broker: Processes, until: Until
) -> None:
    broker.start(processes=2)
    here = broker.channels()["warren@here"]
    for name in ("mine", "lost"):
        here.queue_declare(name, durable=True)
    while "process_stays_down" not in broker.server.log:
        killed = re.findall(r"process_started number=2 \S+ pid=(\d+)", broker.server.log)[-1]
        try:
            os.kill(int(killed), signal.SIGKILL)
        except ProcessLookupError:
            continue
    until(lambda: broker.states() == {"warren@here": "running", "warren-2@here": "down"})
    down = next(node for node in broker.nodes() if node["name"] == "warren-2@here")
    assert down["reason"] == "ended by SIGKILL, 5 times within 60 seconds"
    status, health = broker.api.get("/health/checks/processes")
    assert (status, health["processes"]) == (503, [{"node": "warren-2@here", "state": "down"}])
    led = {node: queue for queue, node in broker.queues().items()}
    here.basic_publish("", led["warren@here"], b"goes on", PERSISTENT, mandatory=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="home node"):
        here.queue_declare(led["warren-2@here"], passive=True)
    status, refused = broker.api.delete(f"/queues/%2F/{led['warren-2@here']}")
    assert status == 404 and "is down or inaccessible" in refused["reason"]


def test_all_processes_end_when_the_supervisor_is_killed_and_a_start_finds_all(
    broker: Processes, until: Until
) -> None:
    broker.start(processes=2)
    channel = broker.connect().channel()
    channel.confirm_delivery()
    for number in range(4):
        channel.queue_declare(f"q{number}", durable=True)
        channel.basic_publish("", f"q{number}", b"kept", PERSISTENT, mandatory=True)
    before = broker.queues()
    broker.server.kill()
    # At once: processes that still end let go of the directory meanwhile.
    broker.start(processes=2)
    assert broker.queues() == before
    channel = broker.connect().channel()
    assert {channel.basic_get(queue, auto_ack=True)[2] for queue in before} == {b"kept"}


def test_a_broker_of_one_process_gets_more_and_goes_back(broker: Processes) -> None:
    broker.start(processes=1)
    assert "process" not in broker.server.ready_line.partition("ready")[2]
    channel = broker.connect().channel()
    channel.queue_declare("old", durable=True)
    channel.basic_publish("", "old", b"kept", PERSISTENT)
    broker.stop()
    broker.start(processes=2)
    channel = broker.connect().channel()
    channel.queue_declare("new", durable=True)
    assert broker.queues() == {"old": "warren@here", "new": "warren-2@here"}
    broker.stop()
    assert "1 in process 2" in refusal(broker.data_dir, "--processes", "1")
    broker.start(processes=3)
    assert len(broker.nodes()) == 3
    broker.connect().channel().queue_delete("new")
    broker.stop()
    broker.start(processes=1)
    assert [node["name"] for node in broker.nodes()] == ["warren@here"]
    assert broker.connect().channel().basic_get("old", auto_ack=True)[2] == b"kept"


def test_one_that_stands_still_is_down_for_the_others_until_it_goes_on(
    broker: Processes, until: Until, tmp_path: Path
) -> None:
    file = tmp_path / "quick.conf"
    file.write_text("cluster.lease_ttl = 2\n")
    broker.start("--config", str(file), processes=2)
    here = broker.channels()["warren@here"]
    for name in ("mine", "other"):
        here.queue_declare(name, durable=True)
    led = {node: queue for queue, node in broker.queues().items()}
    pid = broker.pid("warren-2@here")
    os.kill(pid, signal.SIGSTOP)
    # Asked of the first one, for a connection to the other one waits.
    first = ["--data-dir", str(broker.data_dir), "cluster_status", "--formatter", "json"]
    until(lambda: ctl(*first)["running_nodes"] == ["warren@here"])
    here.basic_publish("", led["warren@here"], b"goes on", PERSISTENT, mandatory=True)
    os.kill(pid, signal.SIGCONT)
    until(lambda: ctl(*first)["running_nodes"] == ["warren-2@here", "warren@here"])
    assert here.queue_declare(led["warren-2@here"], passive=True).method.message_count == 0


def test_a_process_that_is_drained_gets_no_new_clients(broker: Processes) -> None:
    broker.start(processes=2)
    second = ["--data-dir", str(broker.data_dir / "processes" / "2")]
    do(*second, "drain")
    # The kernel would have given it half of them.
    for _ in range(20):
        broker.connect()
    do(*second, "revive")
    assert len(broker.channels()) == 2


def test_checks_before_a_stop_know_that_all_processes_end_together(broker: Processes) -> None:
    broker.start(processes=2)
    channel = broker.connect().channel()
    for number in range(2):
        arguments = {"x-queue-type": "quorum"}
        channel.queue_declare(f"q{number}", durable=True, arguments=arguments)
    policy = {"pattern": "", "definition": {"ha-mode": "all"}, "apply-to": "queues"}
    assert broker.api.put("/policies/%2F/mirrored", policy)[0] == 201
    channel.queue_declare("classic", durable=True)
    for number in (1, 2):
        for check in ("mirror-sync", "quorum"):
            path = f"/process/{number}/api/health/checks/node-is-{check}-critical"
            status, said = broker.get(path)
            assert (status, json.loads(said)["reason"]) == (200, "single node cluster")
    second = ["--data-dir", str(broker.data_dir / "processes" / "2")]
    said = do(*second, "check_if_node_is_quorum_critical").stdout
    assert said.endswith("the check does not apply\n")


def test_quorum_queues_and_streams_are_shown_alike_by_every_process(broker: Processes) -> None:
    broker.start(processes=2)
    channel = broker.connect().channel()
    channel.confirm_delivery()
    for number in range(4):
        arguments = {"x-queue-type": "quorum" if number < 2 else "stream"}
        channel.queue_declare(f"q{number}", durable=True, arguments=arguments)
        channel.basic_publish("", f"q{number}", b"shown", PERSISTENT)
    directories = broker.data_dir, broker.data_dir / "processes" / "2"
    for command in ("quorum_status q0", "quorum_status q1", "stream_status q2", "stream_status q3"):
        asked = ["--formatter", "json", *command.split()]
        (row,), other = (ctl("--data-dir", str(directory), *asked) for directory in directories)
        assert other == [row] and row.get("Log Index", 1) == 1 and row.get("offset", 0) == 0
    for command in ("peek q0 1", "peek q1 1"):
        shown = [do("-q", "--data-dir", str(one), *command.split()).stdout for one in directories]
        assert shown[0] == shown[1] and "shown" in shown[0]
    for directory in directories:
        gone = do("--data-dir", str(directory), "peek", "q0", "2", check=False)
        assert "does not have a message at that position" in gone.stderr


def test_a_process_is_neither_forgotten_nor_given_the_memory_of_all(
    broker: Processes, until: Until
) -> None:
    broker.start(processes=2)
    second = ["--data-dir", str(broker.data_dir / "processes" / "2")]
    # What the links between processes are sealed with is not shown, as in reports.
    assert ctl(*second, "environment", "--formatter", "json")["cluster"]["secret"] == "*" * 8
    limits = {node["name"]: node["mem_limit"] for node in broker.nodes()}
    do(*second, "set_vm_memory_high_watermark", "0.2")
    now = {node["name"]: node["mem_limit"] for node in broker.nodes()}
    assert now["warren@here"] == limits["warren@here"]
    assert abs(now["warren-2@here"] - limits["warren-2@here"] / 2) < 2
    do(*second, "stop_app")
    until(lambda: _states(broker) == ["running", "stopped"])
    assert broker.api.get("/health/checks/processes")[0] == 503
    first = ["--data-dir", str(broker.data_dir)]
    refused = do(*first, "forget_cluster_node", "warren-2@here", check=False)
    assert refused.returncode != 0 and "is a process of this broker" in refused.stderr
    do(*second, "start_app")
    until(lambda: _states(broker) == ["running", "running"])


def _states(broker: Processes) -> list[str]:
    return [one["state"] for one in broker.api.get("/processes")[1]]


def do(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = run_warren("ctl", *arguments)
    if check:
        done.check_returncode()
    return done


def ctl(*arguments: str) -> Any:
    return json.loads(do(*arguments).stdout)


def test_a_stop_while_it_starts_ends_all(broker: Processes, tmp_path: Path) -> None:
    directory = tmp_path / "stopped"
    command = [sys.executable, "-P", "-m", "warren", "server", "--processes", "2"]
    command += ["--http", "none", "--amqp", "127.0.0.1:0", "--data-dir", str(directory)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as starting:
        assert starting.stderr is not None
        while "process_started" not in starting.stderr.readline():
            pass
        starting.send_signal(signal.SIGTERM)
        starting.stderr.read()
        assert starting.wait(PATIENCE_S) == 0


def test_ctl_stop_at_any_process_stops_the_broker(broker: Processes) -> None:
    broker.start(processes=2)
    directory = broker.data_dir / "processes" / "2"
    do("--data-dir", str(directory), "stop")
    assert broker.server.wait() == 0


def test_what_is_in_use_is_refused(broker: Processes, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refusal(tmp_path / "new", "--processes", "2", "--amqp", f"127.0.0.1:{port}")
    assert f"port {port} of 127.0.0.1 cannot be used, address already in use" in said
    assert not (tmp_path / "new").exists()
    broker.start(processes=2)
    assert "in use by another process" in refusal(broker.data_dir, "--processes", "2")
    assert "in use by another process" in refusal(broker.data_dir)
    port = broker.server.port
    for processes in ("1", "2"):
        said = refusal(tmp_path / "new", "--processes", processes, "--amqp", f"127.0.0.1:{port}")
        assert "address already in use" in said
    broker.stop()
    said = refusal(broker.data_dir, "--processes", "2", "--node-name", "warren@elsewhere")
    assert "start it with --node-name warren@here" in said


def test_a_start_without_the_directory_of_a_process_says_what_is_lost_and_how_to_go_on(
    broker: Processes,
) -> None:
    broker.start()
    channel = broker.connect().channel()
    for name in "abc":
        channel.queue_declare(name, durable=True)
        channel.basic_publish("", name, b"kept", PERSISTENT, mandatory=True)
    queue_of = {node: name for name, node in broker.queues().items()}
    channel.queue_delete(queue_of["warren-3@here"])
    broker.stop()
    processes = broker.data_dir / "processes"
    # Process 3 has no queues: it begins anew.
    shutil.rmtree(processes / "3")
    broker.start()
    assert set(broker.states()) == {"warren@here", "warren-2@here", "warren-3@here"}
    broker.stop()
    shutil.rmtree(processes / "2")
    said = refusal(broker.data_dir, "--processes", "3")
    definitions = processes / "definitions" / "data.mdb"
    assert f"{processes / '2'} has no data, and process 2 had 1 queue there" in said
    assert f"remove {definitions}" in said
    definitions.unlink()
    broker.start()
    channel = broker.connect().channel()
    left = {name: channel.basic_get(name, auto_ack=True)[2] for name in broker.queues()}
    assert left == {queue_of["warren@here"]: b"kept", queue_of["warren-2@here"]: None}


def refusal(data_dir: Path, *arguments: str) -> str:
    """What a server says that does not start."""
    server = ("server", "--http", "none", "--data-dir", data_dir, "--amqp", "127.0.0.1:0")
    ended = run_warren(*server, *arguments, directory=data_dir.parent)
    assert ended.returncode == 1, ended.stderr
    return ended.stderr.splitlines()[-1]


def test_a_backup_of_all_processes_is_a_broker_again(
    broker: Processes, start_server: Callable[..., ServerProcess], tmp_path: Path, until: Until
) -> None:
    broker.start(processes=3)
    channel = broker.connect().channel()
    channel.confirm_delivery()
    channel.exchange_declare("orders", "fanout", durable=True)
    for number in range(6):
        channel.queue_declare(f"q{number}", durable=True)
        channel.queue_bind(f"q{number}", "orders")
    channel.basic_publish("orders", "", b"kept", PERSISTENT)
    backups, restored = tmp_path / "backups", tmp_path / "restored"
    assert warren("backup", "create", broker.data_dir, backups).count("process ") == 3
    listed = warren("backup", "list", backups).splitlines()
    assert [line.split(": ")[0] for line in listed] == ["process 1", "process 2", "process 3"]
    second = listed[1].split()[2]
    assert warren("backup", "verify", backups).count(": whole") == 3
    assert warren("backup", "verify", backups, second) == f"process 2: {second}: whole\n"
    assert "0 removed" in warren("backup", "remove", backups, "--keep", "1")
    refused = run_warren("restore", backups, restored, "--alone")
    assert refused.returncode == 1 and f"choose one, such as {backups}/process-1" in refused.stderr
    where = broker.queues()
    broker.stop()
    assert warren("restore", backups, restored).count("process ") == 3
    again = Processes(start_server, restored, until)
    again.start(processes=3, name=None)
    assert again.queues() == where
    channel = again.connect().channel()
    channel.confirm_delivery()
    channel.basic_publish("orders", "", b"more", PERSISTENT)
    bodies = [channel.basic_get(queue, auto_ack=True)[2] for queue in [*where] * 2]
    assert bodies == [b"kept"] * 6 + [b"more"] * 6
    again.stop()
    # The definitions that all share are damaged: they can be had from the first process.
    data = restored / "processes" / "definitions" / "data.mdb"
    data.write_bytes(b"no database" * 1000)
    assert f"remove {data}" in refusal(restored, "--processes", "3")
    data.unlink()
    again.start(processes=3, name=None)
    assert again.queues() == where
    again.stop()
    # The same when they are missing altogether, once an operator has agreed to it.
    shutil.rmtree(data.parent)
    assert f"{data.parent} is missing" in refusal(restored, "--processes", "3")
    data.parent.mkdir()
    again.start(processes=3, name=None)
    assert again.queues() == where
    again.stop()


def warren(*arguments: object) -> str:
    ended = run_warren(*arguments)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_what_a_new_broker_loads_is_spread_over_its_processes(
    broker: Processes, tmp_path: Path
) -> None:
    queues = [
        {"name": f"q{n}", "vhost": "own", "durable": True, "auto_delete": False, "arguments": {}}
        for n in range(9)
    ]
    all_rights = {"vhost": "own", "configure": ".*", "write": ".*", "read": ".*"}
    definitions = {
        "users": [
            {"name": user, "password": user, "tags": "administrator"} for user in ("guest", "app")
        ],
        "vhosts": [{"name": "own"}],
        "permissions": [{"user": "app", **all_rights}],
        "queues": queues,
    }
    (tmp_path / "own.json").write_text(json.dumps(definitions))
    (tmp_path / "own.conf").write_text(f"load_definitions = {tmp_path / 'own.json'}\n")
    broker.start("--config", str(tmp_path / "own.conf"))
    # Whichever process a client reaches: each has the definitions before it lets clients in.
    for _ in range(9):
        url = f"amqp://app:app@127.0.0.1:{broker.server.port}/own"
        pika.BlockingConnection(pika.URLParameters(url)).close()
    leaders = Counter(queue["node"] for queue in broker.api.get("/queues/own")[1])
    assert leaders == dict.fromkeys(("warren@here", "warren-2@here", "warren-3@here"), 3)
    broker.stop()
    broker.start("--config", str(tmp_path / "own.conf"))
    assert Counter(queue["node"] for queue in broker.api.get("/queues/own")[1]) == leaders


def test_a_reader_of_the_standard_output_that_stops_reading_does_not_keep_it_from_stopping(
    connect: Callable[..., RawClient], tmp_path: Path
) -> None:
    config = tmp_path / "warren.conf"
    config.write_text("log.default.level = debug\nlog.console = true\nlog.console.stdio = stdout\n")
    arguments = ["--config", str(config), "--data-dir", "data", "--amqp", "127.0.0.1:0"]
    with open(os.devnull, "wb") as log:
        process = launch([*arguments, "--processes", "2"], tmp_path, log)
    try:
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
        found = None
        while found is None:
            found = re.match(rb"warren .* ready: amqp (\d+)", process.stdout.readline())
        # Each makes five lines, and the pipe has room for those of some ten.
        for _ in range(50):
            client = connect(f"amqp://guest:guest@127.0.0.1:{int(found[1])}/%2F")
            client.channel().declare("q", durable=True)
            client.close()
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.stdout.close()
