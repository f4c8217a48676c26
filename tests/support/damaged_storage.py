"""A data directory with all kinds of messages, and a start that is refused."""

from __future__ import annotations

from pathlib import Path

from server_process import PATIENCE_S, launch

from warren.compat_tests.raw_client import RawChannel

COUNT = 300


BODIES = {
    # Below 4096 bytes every queue has its own copy, above they share one.
    "small": [b"small %03d " % number + b"s" * 500 for number in range(COUNT)],
    "large": [b"large %03d " % number + b"l" * 6000 for number in range(COUNT)],
}


def fill(channel: RawChannel) -> None:
    """Two queues that share their messages and one of its own, all confirmed."""
    channel.call("confirm.select")
    channel.declare_exchange("both", "fanout", durable=True)
    for queue in ("one", "two", "own"):
        channel.declare(queue, durable=True)
    for queue in ("one", "two"):
        channel.bind(queue, "both")
    for small, large in zip(BODIES["small"], BODIES["large"], strict=True):
        channel.publish(small, exchange="both", delivery_mode=2)
        channel.publish(large, exchange="both", delivery_mode=2)
    channel.confirms(2 * COUNT)
    for small in BODIES["small"]:
        channel.publish(small, "own", delivery_mode=2)
    channel.confirms(COUNT)


def expected() -> list[bytes]:
    return [body for pair in zip(*BODIES.values(), strict=True) for body in pair]


def everything_in(directory: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
        # The readers of a database that is opened are noted there.
        if path.name != "lock.mdb"
    }


def refused(tmp_path: Path, data_dir: Path, reason: str) -> None:
    """The server ends with exit code 1 and says why."""
    log = tmp_path / "refused.log"
    with log.open("wb") as errors:
        process = launch(["--data-dir", str(data_dir), "--amqp", "127.0.0.1:0"], tmp_path, errors)
    try:
        assert process.wait(PATIENCE_S) == 1
        assert process.stdout.read() == b""
    finally:
        process.kill()
        process.stdout.close()
    lines = log.read_text().splitlines()
    assert lines[-1].startswith("warren: ") and reason in lines[-1]
    assert "Traceback" not in log.read_text()
