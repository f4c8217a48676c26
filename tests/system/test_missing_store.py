"""Files of the message storage that are gone: a node does not pass over them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damaged_storage import everything_in, refused
from running_cluster import PATIENT, RunningCluster, publish
from warren_command import run_warren

from warren import Broker
from warren.compat_tests.raw_client import RawClient
from warren.core.resources.disk_monitor import INTERVAL_MAX_S as LOOKS_EVERY_S

BODIES = [b"%03d " % number + b"x" * 20_000 for number in range(100)]
SMALL_FILES = f"msg_store_file_size_limit = {1 << 20}\n"


@pytest.fixture
def stopped(
    start_server: Callable[..., Any], connect: Callable[..., RawClient], tmp_path: Path
) -> Path:
    """The data directory of a node with a durable queue and its messages."""
    server = start_server(data_dir=tmp_path / "data", config=SMALL_FILES)
    client = connect(server)
    channel = client.channel()
    channel.call("confirm.select")
    channel.declare("q", durable=True)
    for body in BODIES:
        # One at a time: what is synced at once stands in one file, however large.
        channel.publish(body, "q", delivery_mode=2)
        channel.confirms(1)
    client.close()
    assert server.terminate() == 0
    return tmp_path / "data"


@pytest.mark.parametrize("empty_directory", [False, True], ids=["missing", "not mounted"])
def test_a_node_without_its_storage_is_refused_until_it_is_back(
    stopped: Path,
    tmp_path: Path,
    start_server: Callable[..., Any],
    connect: Callable[..., RawClient],
    empty_directory: bool,
) -> None:
    store = stopped / "store"
    elsewhere = tmp_path / "elsewhere"
    store.rename(elsewhere)
    if empty_directory:
        store.mkdir()
    before = everything_in(stopped)
    refused(tmp_path, stopped, "with the messages of this node is missing")
    assert everything_in(stopped) == before
    if empty_directory:
        store.rmdir()
    elsewhere.rename(store)
    server = start_server(data_dir=stopped)
    assert connect(server).channel().bodies("q") == BODIES


def test_an_operator_may_go_on_without_the_messages(
    stopped: Path, start_server: Callable[..., Any], connect: Callable[..., RawClient]
) -> None:
    assert "the message storage is there" in repair(stopped)
    shutil.rmtree(stopped / "store")
    assert "the message storage is empty now" in repair(stopped)
    channel = connect(start_server(data_dir=stopped)).channel()
    assert channel.bodies("q") == []
    channel.publish(b"after", "q", delivery_mode=2)
    channel.got("q", b"after")


def repair(data_dir: Path) -> str:
    done = run_warren("store", "repair", "--without-messages", data_dir)
    assert done.returncode == 0, done
    return done.stdout


def test_a_node_without_durable_queues_begins_with_an_empty_storage(
    start_server: Callable[..., Any], connect: Callable[..., RawClient], tmp_path: Path
) -> None:
    server = start_server(data_dir=tmp_path / "data")
    assert server.terminate() == 0
    shutil.rmtree(tmp_path / "data" / "store")
    channel = connect(start_server(data_dir=tmp_path / "data")).channel()
    channel.declare("q", durable=True)


def test_files_at_the_end_of_the_log_that_are_missing_are_named(
    stopped: Path,
    start_server: Callable[..., Any],
    connect: Callable[..., RawClient],
) -> None:
    files = sorted(os.listdir(stopped / "store" / "log"))
    assert len(files) > 1
    for name in files:
        (stopped / "store" / "log" / name).unlink()
    server = start_server(data_dir=stopped)
    for name in files:
        assert f"journal_file_missing file={name.partition('.')[0]}" in server.log
    channel = connect(server).channel()
    channel.publish(b"after", "q", delivery_mode=2)
    channel.got("q", b"after")
    # No number is used twice: a file that is found again is another one.
    assert not set(files) & set(os.listdir(stopped / "store" / "log"))


def test_a_member_of_a_cluster_does_not_begin_with_empty_copies(
    start_cluster: Callable[..., RunningCluster],
) -> None:
    cluster = start_cluster("a", "b", more=PATIENT)
    node = cluster["b"]
    channel = node.connect().channel()
    channel.queue_declare("q", durable=True)
    publish(channel, "q", [b"kept"])
    node.close_connections()
    node.stop()
    shutil.rmtree(node.data_directory / "store")
    said = node.fails()
    assert "with the messages of this node is missing" in said
    assert "have the cluster forget this node" in said
    done = run_warren("store", "repair", "--without-messages", node.data_directory)
    assert done.returncode == 2 and "have the cluster forget this node" in done.stderr


@pytest.mark.parametrize("what", [".", "store"])
def test_publishers_wait_while_the_directory_of_a_running_node_is_gone(
    tmp_path: Path, connect: Callable[..., RawClient], what: str
) -> None:
    gone = tmp_path / "data" / what
    elsewhere = tmp_path / "elsewhere"
    with Broker(data_dir=tmp_path / "data", movable_clock=True) as broker:
        channel = connect(broker).channel()
        channel.call("confirm.select")
        channel.declare("q", durable=True)
        channel.publish(b"before", "q", delivery_mode=2)
        channel.confirms(1)
        gone.rename(elsewhere)
        broker.advance(LOOKS_EVERY_S)
        channel.publish(b"meanwhile", "q", delivery_mode=2)
        channel.client.expect("connection.blocked")
        assert connect(broker).channel().ready("q") == 1
        elsewhere.rename(gone)
        broker.advance(LOOKS_EVERY_S)
        channel.client.expect("connection.unblocked")
        channel.confirms(1)
    with Broker(data_dir=tmp_path / "data") as broker:
        assert connect(broker).channel().bodies("q") == [b"before", b"meanwhile"]
