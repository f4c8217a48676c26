"""`warren restore-queues`: what it refuses or leaves, and the directories that stay behind."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from click.testing import CliRunner, Result

from warren import Broker
from warren.backup.archive import Archive
from warren.mgmt.restore_queues_command import restore_queues

STREAM = {"x-queue-type": "stream"}


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory in which the command makes its own."""
    path = tmp_path / "tmp"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


@pytest.fixture
def backups(tmp_path: Path) -> Path:
    """A backup of a node with messages in queue `q`, in stream `s` and in a delayed exchange."""
    archive = Archive.open(str(tmp_path / "backups"), create=True)
    with Broker(data_dir=tmp_path / "data") as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        channel.queue_declare("s", durable=True, arguments=STREAM)
        delayed = {"x-delayed-type": "fanout"}
        channel.exchange_declare("dly", "x-delayed-message", durable=True, arguments=delayed)
        channel.queue_bind("q", "dly")
        later = pika.BasicProperties(delivery_mode=2, headers={"x-delay": 3_600_000})
        for exchange, key in (("", "q"), ("", "s"), ("dly", "k")):
            channel.basic_publish(exchange, key, b"1", later)
        connection.close()
        archive.create(tmp_path / "data")
    return tmp_path / "backups"


@pytest.fixture
def target() -> Iterator[Broker]:
    with Broker(http_port=0) as broker:
        yield broker


def run(backups: Path, target: Broker, pattern: str, password: str = "guest") -> Result:
    url = target.http_url.replace("//", f"//guest:{password}@")
    return CliRunner().invoke(restore_queues, [str(backups), url, "--queue", pattern])


def test_delayed_messages_are_refused_and_leave_no_directory(
    backups: Path, target: Broker, temporary: Path
) -> None:
    result = run(backups, target, "amq.delayed.*")
    assert result.exit_code == 1
    assert "queue 'amq.delayed.dly' cannot be brought over: delayed messages" in result.stderr
    assert "--through" not in result.output
    assert target.queue("amq.delayed.dly") is None
    assert [*temporary.iterdir()] == []


def test_a_stream_is_brought_over_once(backups: Path, target: Broker, temporary: Path) -> None:
    result = run(backups, target, "s")
    assert result.exit_code == 0, result.output
    assert "/ s: 1 copied; source 1 -> 1, target 0 -> 1" in result.output
    result = run(backups, target, "s")
    assert result.exit_code == 0, result.output
    assert "/ s: 0 copied; source 1 -> 1, target 1 -> 1" in result.output
    assert [*temporary.iterdir()] == []


@pytest.mark.usefixtures("temporary")
def test_a_stream_that_has_its_messages_is_left(backups: Path, target: Broker) -> None:
    with pika.BlockingConnection(pika.URLParameters(target.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("s", durable=True, arguments=STREAM)
        channel.confirm_delivery()
        channel.basic_publish("", "s", b"1")
    result = run(backups, target, "s")
    assert result.exit_code == 1
    assert "/ s: 0 copied; source 1 -> 1, target 1 -> 1; left: the target's stream" in result.output


def test_what_is_never_brought_over_is_named_beside_the_rest(
    backups: Path, target: Broker, temporary: Path
) -> None:
    result = run(backups, target, "*")
    assert result.exit_code == 1, result.output
    assert "/ q: 1 moved" in result.output
    assert "/ s: 1 copied; source 1 -> 1, target 0 -> 1" in result.output
    assert "/ amq.delayed.dly: 0 moved; source 1 -> 1; left: delayed messages" in result.output
    assert "--through" not in result.output
    assert [*temporary.iterdir()] == []


def test_a_wrong_password_leaves_no_directory(
    backups: Path, target: Broker, temporary: Path
) -> None:
    result = run(backups, target, "q", "wrong")
    assert result.exit_code == 1
    assert [*temporary.iterdir()] == []
