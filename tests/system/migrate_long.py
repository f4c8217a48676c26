"""`warren migrate` from a real RabbitMQ 3.10.8 to Warren and back, and to a cluster. Run by hand:

    PYTHONPATH=. python tests/system/migrate_long.py [--server FILE]

Starts a RabbitMQ of its own, with its data in a directory of its own and free ports, and a Warren
beside it; as root, RabbitMQ runs as the user `rabbitmq`. Both are stopped at the end. Each step
says what it found; the first that finds something else ends the script with an error. It takes
some minutes, more on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pika

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / folder) for folder in ("support", "simulation", "system")]

from by_hand import (  # noqa: E402
    PATIENCE_S,
    SERVER,
    Rabbitmq,
    Warren,
    channel_at,
    eventually,
    free_ports,
    publish,
    step,
)
from running_cluster import RunningCluster  # noqa: E402

from warren.mgmt.migrate.side import side  # noqa: E402

MESSAGES = 20_000
QUEUES = ("plain", "lazy", "quorum", "stream")


def migrate(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "warren", "migrate", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def migrated(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the report."""
    process = migrate(*arguments, "--json")
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert output, errors
    return process.returncode, json.loads(output)


def queue(report: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [one for one in report["queues"] if one["name"] == name]
    return dict(found)


def refused(report: dict[str, Any]) -> dict[tuple[str, ...], str]:
    return {
        (one["section"], *one["identity"]): one["reason"]
        for one in report["definitions"]
        if one["fate"] == "refused"
    }


def drain(url: str, name: str) -> list[tuple[bytes, pika.BasicProperties]]:
    found: list[tuple[bytes, pika.BasicProperties]] = []
    with channel_at(url) as channel:
        count = channel.queue_declare(name, passive=True).method.message_count
        if count:
            for _, properties, body in channel.consume(name, auto_ack=True):
                found.append((body, properties))
                if len(found) == count:
                    break
            channel.cancel()
    return found


def numbers(url: str, name: str) -> list[int]:
    return [int(body) for body, _ in drain(url, name)]


def is_served(url: str, name: str) -> bool:
    """A stream of RabbitMQ has no leader for a moment after a start."""
    with channel_at(url) as channel:
        try:
            channel.queue_declare(name, passive=True)
        except pika.exceptions.ChannelClosedByBroker:
            return False
    return True


def read_stream(url: str, name: str) -> list[int]:
    """What a stream has, from its first message to where nothing comes for a while."""
    found = []
    with channel_at(url) as channel:
        channel.basic_qos(prefetch_count=500)
        begin = {"x-stream-offset": "first"}
        for method, _, body in channel.consume(name, arguments=begin, inactivity_timeout=5):
            if method is None:
                break
            channel.basic_ack(method.delivery_tag)
            found.append(int(body))
        channel.cancel()
    return found


def set_up(rabbitmq: Rabbitmq) -> None:
    durable = {"durable": True, "auto_delete": False}
    side("source", rabbitmq.management).post(
        "definitions",
        body={
            "rabbit_version": "3.10.8",
            "vhosts": [{"name": "shop"}],
            "users": [{"name": "ann", "password": "secret", "tags": "monitoring"}],
            "permissions": [
                {"user": "ann", "vhost": "shop", "configure": "", "write": ".*", "read": ".*"}
            ],
            "policies": [
                {"vhost": "/", "name": "ha", "pattern": "^plain", "apply-to": "queues",
                 "definition": {"ha-mode": "all", "ha-sync-mode": "automatic"}, "priority": 1}
            ],
            "exchanges": [
                {"vhost": "/", "name": "orders", "type": "topic", "internal": False,
                 "arguments": {}, **durable}
            ],
            "queues": [
                {"vhost": "/", "name": name, "arguments": arguments, **durable}
                for name, arguments in (
                    ("plain", {}),
                    ("lazy", {"x-queue-mode": "lazy"}),
                    ("quorum", {"x-queue-type": "quorum"}),
                    ("stream", {"x-queue-type": "stream"}),
                )
            ],
            "bindings": [
                {"vhost": "/", "source": "orders", "destination": "plain", "arguments": {},
                 "destination_type": "queue", "routing_key": "a.#"}
            ],
        },
    )  # fmt: skip


def try_it(rabbitmq: Rabbitmq, warren: Warren) -> None:
    here, there = rabbitmq.management, warren.management
    set_up(rabbitmq)
    for name in ("plain", "lazy", "quorum"):
        publish(rabbitmq.url, name, 0, MESSAGES, correlation_id="c", expiration="6000000")
    publish(rabbitmq.url, "stream", 0, MESSAGES)
    eventually(
        lambda: (
            sum(one.get("messages", 0) for one in side("source", here).get("queues"))
            == 4 * MESSAGES
        )
    )

    code, report = migrated(here, there, "--dry-run")
    assert code == 0
    assert sum(one["ready"] for one in report["planned"]) == 4 * MESSAGES
    step(f"dry run: {len(report['definitions'])} definitions, {4 * MESSAGES} messages")

    command = [sys.executable, "-P", "-m", "warren", "server", "--check-config"]
    checked = subprocess.run(
        [*command, "--config", rabbitmq.config], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked
    step("RabbitMQ's configuration can be taken over")

    code, report = migrated(here, there, "--definitions-only")
    assert code == 0 and not refused(report)
    assert {row["name"] for row in side("target", there).get("queues")} == {*QUEUES}
    assert not any(count_at(warren, name) for name in QUEUES)
    step("definitions, and no message")

    began = time.monotonic()
    code, report = migrated(here, there)
    taken_s = time.monotonic() - began
    assert code == 0, report
    assert read_stream(warren.url, "stream") == [*range(MESSAGES)]
    for name in ("plain", "lazy", "quorum"):
        result = queue(report, name)
        assert result["all_moved"], result
        arrived = drain(warren.url, name)
        assert [int(body) for body, _ in arrived] == [*range(MESSAGES)]
        assert all(
            (kept.correlation_id, kept.expiration, kept.delivery_mode, kept.headers["n"])
            == ("c", "6000000", 2, int(body))
            for body, kept in arrived
        )
    step(f"moved {4 * MESSAGES} messages in order, unchanged, in {taken_s:.1f} s with definitions")

    publish(rabbitmq.url, "plain", 0, MESSAGES)
    process = migrate(here, there, "--queue", "plain", "--messages-only", "--json")
    eventually(lambda: count_at(warren, "plain") > MESSAGES // 10)
    warren.kill()
    output, _ = process.communicate(timeout=PATIENCE_S)
    first = queue(json.loads(output), "plain")
    assert process.returncode == 1 and first["reason"].startswith("the target"), first
    warren.start()
    code, report = migrated(here, there, "--queue", "plain", "--messages-only")
    assert code == 0, report
    twice = check_doubles(numbers(warren.url, "plain"), first)
    step(f"Warren killed after {first['moved']}: nothing lost, {twice} doubled of"
         f" {first['doubtful']} that were told")  # fmt: skip

    publish(rabbitmq.url, "plain", 0, MESSAGES)
    process = migrate(here, there, "--queue", "plain", "--messages-only", "--json")
    eventually(lambda: count_at(warren, "plain") > MESSAGES // 10)
    rabbitmq.kill()
    output, _ = process.communicate(timeout=PATIENCE_S)
    first = queue(json.loads(output), "plain")
    assert process.returncode == 1 and first["reason"].startswith("the source"), first
    rabbitmq.start()
    code, report = migrated(here, there, "--queue", "plain", "--messages-only")
    assert code == 0, report
    twice = check_doubles(numbers(warren.url, "plain"), first)
    step(f"RabbitMQ killed after {first['moved']}: nothing lost, {twice} doubled of"
         f" {first['doubtful']} that were told")  # fmt: skip

    copied = MESSAGES
    for victim in (warren, rabbitmq, None):
        publish(rabbitmq.url, "stream", copied, copied + MESSAGES)
        process = migrate(here, there, "--queue", "stream", "--messages-only")
        eventually(lambda: count_at(warren, "stream") > copied + MESSAGES // 10)  # noqa: B023
        (victim or process).kill()
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode, "it is not done"
        if victim is not None:
            victim.start()
        eventually(lambda: is_served(rabbitmq.url, "stream"))
        code, report = migrated(here, there, "--queue", "stream", "--messages-only")
        assert code == 0, report
        copied += MESSAGES
        assert read_stream(warren.url, "stream") == [*range(copied)]
    step("a stream copied, each message once: Warren, RabbitMQ and the command killed meanwhile")

    process = migrate(here, there, "--follow", "--quiet-for", "1", "--messages-only", "--json")
    for start in range(0, 1000, 100):
        publish(rabbitmq.url, "lazy", start, start + 100)
    eventually(lambda: count_at(warren, "lazy") == 1000)
    assert process.stderr is not None
    assert "all queues were empty for 1 s" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert queue(json.loads(output), "lazy")["all_moved"]
    assert numbers(warren.url, "lazy") == [*range(1000)]
    step("followed 1000 messages that came meanwhile, until it was stopped")

    side("source", there).post(
        "definitions",
        body={
            "policies": [
                {"vhost": "/", "name": "log", "pattern": "^back", "apply-to": "queues",
                 "definition": {"ha-mode": "all", "ha-replication": "log"}, "priority": 0}
            ],
            "exchanges": [
                {"vhost": "/", "name": "any", "type": "x-random", "internal": False,
                 "durable": True, "auto_delete": False, "arguments": {}}
            ],
        },
    )  # fmt: skip
    with channel_at(warren.url) as channel:
        channel.queue_declare("back", durable=True)
        channel.queue_declare("history", durable=True, arguments={"x-queue-type": "stream"})
    for name in ("plain", "quorum", "back", "history"):
        publish(warren.url, name, 0, MESSAGES)
    code, report = migrated(there, here)
    assert code == 1
    left_out = refused(report)
    assert left_out == {
        ("exchanges", "/", "any"): "the target has no exchanges of the type x-random",
        ("policies", "/", "log"): "taken without what the target does not know: ha-replication",
    }, left_out
    for name in ("plain", "quorum", "back"):
        assert queue(report, name)["all_moved"], queue(report, name)
        assert numbers(rabbitmq.url, name) == [*range(MESSAGES)]
    assert read_stream(rabbitmq.url, "history") == [*range(MESSAGES)]
    assert "no copies" in queue(report, "stream")["reason"], "RabbitMQ has the originals"
    step(f"and back: {4 * MESSAGES} messages; what RabbitMQ does not know was named")


def to_a_cluster(rabbitmq: Rabbitmq, directory: Path) -> None:
    """All its nodes run before the definitions come; any node may be named."""
    cluster = RunningCluster(directory, "a", "b", "c")
    try:
        cluster.start()
        named, left = cluster["b"], cluster["c"]
        there = f"http://guest:guest@127.0.0.1:{named.http_port}"
        for name in ("plain", "quorum"):
            publish(rabbitmq.url, name, 0, MESSAGES)
        code, report = migrated(rabbitmq.management, there, "--definitions-only")
        assert code == 0 and not refused(report), report
        eventually(lambda: len(named.in_sync("plain")) == 2)
        assert len(named.queue("quorum")["online"]) == 3
        code, report = migrated(rabbitmq.management, there, "--messages-only")
        for name in ("plain", "quorum"):
            assert queue(report, name)["all_moved"], report
        leader = next(one for one in cluster.all_nodes if one.name == named.queue("plain")["node"])
        leader.kill()
        left = next(one for one in (left, cluster["a"]) if one is not leader)
        eventually(lambda: left.queue("plain")["node"] not in ("", leader.name))
        for name in ("plain", "quorum"):
            assert numbers(left.url, name) == [*range(MESSAGES)]
        step("moved to a cluster of three: mirrored as the policy says, and all there without one")
    finally:
        cluster.end()


def count_at(warren: Warren, name: str) -> int:
    with channel_at(warren.url) as channel:
        count: int = channel.queue_declare(name, passive=True).method.message_count
        return count


def check_doubles(arrived: list[int], told: dict[str, Any]) -> int:
    counts = Counter(arrived)
    assert set(counts) == {*range(MESSAGES)}
    twice = {number for number, count in counts.items() if count > 1}
    assert {f"id-{number}" for number in twice} <= set(told["doubtful_ids"])
    return len(twice)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default=SERVER)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warren-migrate-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        for part in ("rabbitmq", "warren", "cluster"):
            (directory / part).mkdir()
        ports = free_ports(6)
        rabbitmq = Rabbitmq(options.server, directory / "rabbitmq", ports[:4])
        try:
            warren = Warren(directory / "warren", ports[4:])
            try:
                try_it(rabbitmq, warren)
            finally:
                warren.kill()
            to_a_cluster(rabbitmq, directory / "cluster")
        finally:
            rabbitmq.stop()
    step("all as it should be")


if __name__ == "__main__":
    main()
