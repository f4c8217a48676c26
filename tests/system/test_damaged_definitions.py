"""Lost and damaged definitions: the node refuses to start over them, and they are rebuilt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damaged_storage import BODIES, everything_in, expected, fill, refused
from warren_command import run_warren

from warren.compat_tests.raw_client import RawClient

REPAIR = "warren store repair"


@pytest.fixture
def stopped(
    start_server: Callable[..., Any], connect: Callable[..., RawClient], tmp_path: Path
) -> Path:
    """The data directory of a node with three queues, and more to fill some pages."""
    server = start_server(data_dir=tmp_path / "data")
    client = connect(server)
    channel = client.channel()
    fill(channel)
    for number in range(100):
        channel.declare(f"other {number}", durable=True)
    client.close()
    assert server.terminate() == 0
    return tmp_path / "data"


def repair(data_dir: Path) -> str:
    done = run_warren("store", "repair", data_dir)
    assert done.returncode == 0, done
    return done.stdout


def expect_everything(server: Any, connect: Callable[..., RawClient]) -> None:
    channel = connect(server).channel()
    assert channel.bodies("own") == BODIES["small"]
    assert channel.bodies("one") == expected()
    assert channel.bodies("two") == expected()
    # Bindings are there, too.
    channel.publish(b"after", exchange="both", delivery_mode=2)
    channel.got("one", b"after")
    channel.got("two", b"after")


def missing(file: Path) -> None:
    file.unlink()


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flipped_meta(file: Path) -> None:
    """The number of the last page, and the root of the definitions, in both meta pages."""
    octets = bytearray(file.read_bytes())
    for page in (0, 4096):
        octets[page + 16 + 118] ^= 0x10
        octets[page + 16 + 113] ^= 0x10
    file.write_bytes(octets)


def flipped_pages(file: Path) -> None:
    """The numbers of pages that branches lead to, and the places of nodes in leaves."""
    octets = bytearray(file.read_bytes())
    for page in range(2 * 4096, len(octets), 4096):
        octets[page + 17] ^= 0x10
    file.write_bytes(octets)


@pytest.mark.parametrize("damage", [missing, truncated, flipped_meta, flipped_pages])
def test_lost_definitions_are_refused_and_rebuilt_with_all_messages(
    start_server: Callable[..., Any],
    connect: Callable[..., RawClient],
    stopped: Path,
    tmp_path: Path,
    damage: Callable[[Path], None],
) -> None:
    damage(stopped / "metadata" / "data.mdb")
    before = everything_in(stopped)
    refused(tmp_path, stopped, REPAIR)
    refused(tmp_path, stopped, str(stopped / "metadata" / "data.mdb"))
    assert everything_in(stopped) == before
    output = repair(stopped)
    assert "taken from the copy" in output
    expect_everything(start_server(data_dir=stopped), connect)


def test_without_definitions_and_a_copy_the_node_starts_and_keeps_the_messages(
    start_server: Callable[..., Any], connect: Callable[..., RawClient], stopped: Path
) -> None:
    (stopped / "metadata" / "data.mdb").unlink()
    (stopped / "definitions.copy").unlink()
    for _ in range(2):
        server = start_server(data_dir=stopped)
        assert server.log.count("messages_unclaimed") == 3
        client = connect(server)
        client.channel().declare("new", durable=True)
        client.close()
        assert server.terminate() == 0
