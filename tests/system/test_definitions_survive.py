"""Definitions that a client was told are there survive `kill -9` at any moment."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warren import Broker
from warren.compat_tests.methods import encode_method
from warren.compat_tests.raw_client import RawChannel, RawClient
from warren.compat_tests.raw_connection import METHOD, SocketClosed, frame_bytes

QUEUES_PER_ROUND = 1500
FIRST_KILL_LATEST = 300
"""So many replies the client has at most when the node is killed: more are on their way."""


def pipelined(channel: RawChannel, requests: list[tuple[str, dict[str, Any]]]) -> None:
    """Say all of it without waiting for any reply."""
    channel.client.send_bytes(
        b"".join(
            frame_bytes(METHOD, channel.number, encode_method(name, fields))
            for name, fields in requests
        )
    )


def replies_until_cut(channel: RawChannel, on_reply: Callable[[int], None]) -> list[str]:
    """The names of all replies the broker got out before its end."""
    replies: list[str] = []
    try:
        while True:
            replies.append(channel.next_method(timeout_s=30).name)
            on_reply(len(replies))
    except SocketClosed:
        return replies


def missing_queues(channel: RawChannel, names: list[str]) -> list[str]:
    return [name for name in names if not channel.queue_exists(name)]


def unrouted(channel: RawChannel, exchange: str, keys: list[str]) -> list[str]:
    """Those of the keys that lead from the exchange to no queue."""
    channel.call("confirm.select")
    lost = []
    for key in keys:
        channel.publish(b"", key, exchange, mandatory=True)
        method = channel.next_method()
        if method.name == "basic.return":
            lost.append(method["routing_key"])
            method = channel.next_method()
        assert method.name == "basic.ack"
    return lost


@pytest.mark.parametrize("seed", range(4))
def test_pipelined_declares_and_deletes_that_were_answered_hold(
    start_server: Callable[..., Any],
    connect: Callable[..., RawClient],
    tmp_path: Path,
    seed: int,
) -> None:
    chance = random.Random(seed)
    data_dir = tmp_path / "data"
    names = [f"q{number}" for number in range(QUEUES_PER_ROUND)]

    server = start_server(data_dir=data_dir)
    channel = connect(server).channel()
    channel.declare_exchange("durable", durable=True)
    requests = []
    for name in names:
        requests.append(("queue.declare", {"queue": name, "durable": True}))
        requests.append(("queue.bind", {"queue": name, "exchange": "durable", "routing_key": name}))
    killed_after = chance.randint(1, FIRST_KILL_LATEST)
    pipelined(channel, requests)
    replies = replies_until_cut(channel, lambda n: server.kill() if n == killed_after else None)
    assert len(replies) >= killed_after
    assert replies == ["queue.declare-ok", "queue.bind-ok"] * (len(replies) // 2) + (
        ["queue.declare-ok"] if len(replies) % 2 else []
    )
    declared = names[: (len(replies) + 1) // 2]
    bound = names[: len(replies) // 2]

    server = start_server(data_dir=data_dir)
    channel = connect(server).channel()
    assert missing_queues(channel, declared) == []
    assert unrouted(channel, "durable", bound) == []

    # Not only what is made, also what is deleted.
    doomed = declared[:]
    chance.shuffle(doomed)
    channel = connect(server).channel()
    killed_after = chance.randint(1, max(1, len(doomed) // 2))
    pipelined(channel, [("queue.delete", {"queue": name}) for name in doomed])
    replies = replies_until_cut(channel, lambda n: server.kill() if n == killed_after else None)
    assert set(replies) == {"queue.delete-ok"} and len(replies) >= killed_after

    channel = connect(start_server(data_dir=data_dir)).channel()
    deleted = doomed[: len(replies)]
    assert missing_queues(channel, deleted) == deleted
    assert unrouted(channel, "durable", deleted) == deleted


def test_declares_answered_one_after_another_hold_round_after_round(
    start_server: Callable[..., Any], connect: Callable[..., RawClient], tmp_path: Path
) -> None:
    chance = random.Random(9)
    answered: list[str] = []
    for number in range(6):
        server = start_server(data_dir=tmp_path / "data")
        channel = connect(server).channel()
        assert missing_queues(channel, answered) == []
        timer = threading.Timer(chance.uniform(0.0, 0.15), server.process.kill)
        timer.start()
        try:
            while True:
                name = f"round{number}-{len(answered)}"
                channel.declare(name, durable=True)
                answered.append(name)
        except (SocketClosed, ConnectionError):
            timer.join()
            server.kill()
    channel = connect(start_server(data_dir=tmp_path / "data")).channel()
    assert answered and missing_queues(channel, answered) == []


def test_what_is_not_durable_is_gone(
    start_server: Callable[..., Any], connect: Callable[..., RawClient], tmp_path: Path
) -> None:
    server = start_server(data_dir=tmp_path / "data")
    client = connect(server)
    channel = client.channel()
    channel.declare("kept", durable=True, arguments={"x-max-length": 5})
    channel.declare("transient")
    channel.declare("exclusive", durable=True, exclusive=True)
    channel.declare_exchange("kept", "topic", durable=True)
    channel.declare_exchange("transient", "fanout")
    for name in ("kept", "transient", "exclusive"):
        channel.bind(name, "kept", f"to.{name}")
        channel.bind(name, "transient", "")
    channel.bind_exchange("kept", "amq.fanout", "")
    server.kill()

    channel = connect(start_server(data_dir=tmp_path / "data")).channel()
    assert channel.queue_exists("kept") and channel.exchange_exists("kept")
    assert not channel.queue_exists("transient") and not channel.queue_exists("exclusive")
    assert not channel.exchange_exists("transient")
    keys = [f"to.{name}" for name in ("kept", "transient", "exclusive")]
    assert unrouted(channel, "kept", keys) == keys[1:]
    assert unrouted(channel, "amq.fanout", ["to.kept"]) == []
    # It is the same queue: its arguments are known.
    channel.refused(
        406,
        "inequivalent arg 'x-max-length' for queue 'kept' in vhost '/': received none but current "
        "is the value '5' of type 'signedint'",
        "queue.declare",
        queue="kept",
        durable=True,
    )


def test_a_clean_stop_keeps_the_same(
    start_server: Callable[..., Any], connect: Callable[..., RawClient], tmp_path: Path
) -> None:
    server = start_server(data_dir=tmp_path / "data")
    channel = connect(server).channel()
    names = [f"q{number}" for number in range(300)]
    pipelined(channel, [("queue.declare", {"queue": name, "durable": True}) for name in names])
    for _ in names:
        channel.expect("queue.declare-ok")
    channel.declare("transient")
    channel.client.close()
    assert server.terminate() == 0
    channel = connect(start_server(data_dir=tmp_path / "data")).channel()
    assert missing_queues(channel, [*names, "transient"]) == ["transient"]


ADMINISTRATOR = """
import os, signal, sys
from warren import Broker

broker = Broker(data_dir=sys.argv[1]).start()
broker.add_vhost("v")
broker.add_vhost("dropped")
broker.add_user("ann", "secret", ("monitoring",))
broker.add_user("dropped", "secret")
broker.set_permissions("ann", "v", configure="^a", write=".*", read=".*")
broker.set_policy("short", "^a", {"max-length": 2}, vhost="v", priority=3, apply_to="queues")
broker.set_policy("dropped", ".*", {"max-length": 9}, vhost="v", priority=9)
broker.clear_policy("dropped", vhost="v")
broker.delete_user("dropped")
broker.delete_vhost("dropped")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_users_permissions_policies_and_virtual_hosts_survive(
    connect: Callable[..., RawClient], tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    command = [sys.executable, "-P", "-c", ADMINISTRATOR, str(data_dir)]
    assert subprocess.run(command, cwd=tmp_path, timeout=60).returncode == -signal.SIGKILL
    with Broker(data_dir=data_dir) as broker:
        assert broker.call(lambda node: sorted(node.vhosts)) == ["/", "v"]
        channel = connect(broker.url_for("v", "ann", "secret")).channel()
        channel.declare("a")
        for number in range(4):
            channel.publish(b"%d" % number, "a")
        assert channel.bodies("a") == [b"2", b"3"]
        channel.refused(
            403,
            "access to queue 'b' in vhost 'v' refused for user 'ann'",
            "queue.declare",
            queue="b",
        )
        dropped = connect(broker, handshake=False)
        dropped.start()
        dropped.send_start_ok("dropped", "secret")
        dropped.expect_close(
            403,
            "Login was refused using authentication mechanism PLAIN. "
            "For details see the broker logfile.",
        )
        dropped.abandon()
