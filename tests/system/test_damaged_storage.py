"""Damaged files cost the messages in them and nothing else; a later format is left alone."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damaged_storage import BODIES, everything_in, expected, fill, refused
from later_format import LATER, as_later

from warren.compat_tests.raw_client import RawClient
from warren.persist.inspection.check import queue_names
from warren.persist.layout.format import FILE_HEADER_BYTES, SEGMENT_HEADER_BYTES


@pytest.fixture
def stopped(
    start_server: Callable[..., Any], connect: Callable[..., RawClient], tmp_path: Path
) -> Path:
    """The data directory of a node that was filled and stopped."""
    server = start_server(data_dir=tmp_path / "data")
    client = connect(server)
    fill(client.channel())
    client.close()
    assert server.terminate() == 0
    return tmp_path / "data"


def flip(path: Path, offset: int) -> None:
    octets = bytearray(path.read_bytes())
    octets[offset] ^= 0x10
    path.write_bytes(octets)


def flip_in_body(data_dir: Path, body: bytes) -> int:
    """Flip a bit of the body wherever the log has it; returns in how many places."""
    places = 0
    for path in (data_dir / "store" / "log").iterdir():
        for found in re.finditer(re.escape(body), path.read_bytes()):
            flip(path, found.end() - 3)
            places += 1
    return places


def test_a_damaged_message_is_lost_alone_and_reported(
    start_server: Callable[..., Any],
    connect: Callable[..., RawClient],
    stopped: Path,
) -> None:
    """The log is replayed here: no checkpoint was taken since it was written."""
    lost_small, lost_large = BODIES["small"][100], BODIES["large"][200]
    assert flip_in_body(stopped, lost_small) == 3
    assert flip_in_body(stopped, lost_large) == 1

    server = start_server(data_dir=stopped)
    channel = connect(server).channel()
    assert channel.bodies("own") == [body for body in BODIES["small"] if body != lost_small]
    rest = [body for body in expected() if body not in (lost_small, lost_large)]
    assert channel.bodies("one") == rest
    assert channel.bodies("two") == rest
    assert re.search("message_lost|journal_damaged", server.log)
    # It goes on as if nothing had been.
    channel.publish(b"after", "own", delivery_mode=2)
    channel.got("own", b"after")


def cold(
    start_server: Callable[..., Any], connect: Callable[..., RawClient], data_dir: Path
) -> list[Path]:
    """Make the node take a checkpoint behind the log files there are; returns the segments."""
    config = "msg_store_file_size_limit = 1048576"
    server = start_server(data_dir=data_dir, config=config)
    client = connect(server)
    channel = client.channel()
    channel.declare("filler", durable=True)
    channel.call("confirm.select")
    for _ in range(10):
        for _ in range(120):
            channel.publish(bytes(65_000), "filler", delivery_mode=2)
        channel.confirms(120)
    channel.call("queue.purge", queue="filler")
    segments: list[Path] = []
    while not segments:
        channel.publish(b"last", "filler", delivery_mode=2)
        channel.confirms(1)
        segments = sorted((data_dir / "store" / "queues").glob("*/*.idx"))
    client.close()
    assert server.terminate() == 0
    return sorted((data_dir / "store" / "queues").glob("*/*.idx"))


def test_a_message_that_is_damaged_in_a_cold_file_is_lost_when_it_is_read(
    start_server: Callable[..., Any], connect: Callable[..., RawClient], stopped: Path
) -> None:
    assert cold(start_server, connect, stopped)
    lost_small, lost_large = BODIES["small"][100], BODIES["large"][200]
    assert flip_in_body(stopped, lost_small) == 3
    assert flip_in_body(stopped, lost_large) == 1

    server = start_server(data_dir=stopped)
    channel = connect(server).channel()
    assert channel.bodies("own") == [body for body in BODIES["small"] if body != lost_small]
    rest = [body for body in expected() if body not in (lost_small, lost_large)]
    assert channel.bodies("one") == rest
    assert channel.bodies("two") == rest
    assert server.log.count("message_lost") == 5
    assert list((stopped / "store" / "quarantine").iterdir())


def segment_of(data_dir: Path, queue: str) -> Path:
    """The file with the index of a queue that has one."""
    names = queue_names(data_dir, time.sleep)
    (queue_id,) = [at for at, key in names.items() if key == ("/", queue)]
    (path,) = (data_dir / "store" / "queues" / f"{queue_id:016x}").glob("*.idx")
    return path


@pytest.mark.parametrize("damaged", ["one", "own"])
def test_a_damaged_segment_is_restored_from_the_log_and_reported(
    start_server: Callable[..., Any],
    connect: Callable[..., RawClient],
    stopped: Path,
    damaged: str,
) -> None:
    assert cold(start_server, connect, stopped)
    path = segment_of(stopped, damaged)
    flip(path, path.stat().st_size // 2)

    server = start_server(data_dir=stopped)
    channel = connect(server).channel()
    assert "segment_damaged" in server.log and str(path) in server.log
    assert "segments_restored" in server.log
    for queue, bodies in {"own": BODIES["small"], "one": expected(), "two": expected()}.items():
        assert channel.bodies(queue) == bodies
        channel.publish(b"after", queue, delivery_mode=2)
        channel.got(queue, b"after")


def made_later(data_dir: Path, what: str) -> None:
    """Write a later format's number into a file."""
    store = data_dir / "store"
    if what == "checkpoint":
        path = store / "checkpoint"
        head_bytes = path.stat().st_size
    elif what == "log":
        path, head_bytes = max((store / "log").glob("*.rdq")), FILE_HEADER_BYTES
    else:
        path, head_bytes = min((store / "queues").glob("*/*.idx")), SEGMENT_HEADER_BYTES
    path.write_bytes(as_later(path.read_bytes(), head_bytes))


@pytest.mark.parametrize("what", ["checkpoint", "log", "segment"])
def test_a_later_format_is_refused_and_the_directory_left_as_it_is(
    start_server: Callable[..., Any],
    connect: Callable[..., RawClient],
    stopped: Path,
    tmp_path: Path,
    what: str,
) -> None:
    if what == "segment":
        assert cold(start_server, connect, stopped)
    # What was paged out when a node was killed.
    transient = stopped / "store" / "transient" / "log"
    transient.mkdir(parents=True, exist_ok=True)
    (transient / "00000001.0.rdq").write_bytes(b"paged out")
    made_later(stopped, what)
    before = everything_in(stopped)
    refused(tmp_path, stopped, f"format {LATER}")
    assert everything_in(stopped) == before


def test_unfinished_files_beside_a_later_format_are_left_too(stopped: Path, tmp_path: Path) -> None:
    (stopped / "store" / "log" / "00000001.7.rdq.new").write_bytes(b"unfinished")
    made_later(stopped, "log")
    before = everything_in(stopped)
    refused(tmp_path, stopped, f"format {LATER}")
    assert everything_in(stopped) == before


def test_storage_of_another_node_is_refused(
    start_server: Callable[..., Any], stopped: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    assert start_server(data_dir=other).terminate() == 0
    shutil.rmtree(other / "store")
    shutil.copytree(stopped / "store", other / "store")
    before = everything_in(other)
    refused(tmp_path, other, "belongs to node")
    assert everything_in(other) == before
