"""A member of a cluster that is lost with its etcd comes back alone, from a backup."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pika
from click.testing import CliRunner
from running_cluster import PATIENT, RunningCluster, publish, take

from warren.backup.archive import Archive
from warren.mgmt.backup_command import restore

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def test_a_member_comes_back_without_its_cluster_with_what_it_led_or_mirrored(
    start_cluster: Callable[..., RunningCluster], tmp_path: Path
) -> None:
    cluster = start_cluster("a", "b", more=PATIENT)
    a, b = cluster["a"], cluster["b"]
    b.changes(
        "policies", "/", "m",
        body={"pattern": "^mirrored", "definition": {"ha-mode": "all"}, "apply-to": "queues"},
    )  # fmt: skip
    at_a, at_b = a.connect().channel(), b.connect().channel()
    for channel, queue in ((at_a, "mirrored"), (at_a, "led by a"), (at_b, "led by b")):
        channel.queue_declare(queue, durable=True)
    for channel in (at_a, at_b):
        channel.confirm_delivery()
    quorum = {"x-queue-type": "quorum"}
    at_b.queue_declare("quorum", durable=True, arguments=quorum)
    at_b.queue_declare("of a connection", exclusive=True)
    at_b.exchange_declare("orders", "topic", durable=True)
    at_b.queue_bind("led by b", "orders", "eu.#")
    at_b.queue_bind("of a connection", "orders", "#")
    b.until_queue("mirrored", lambda row: b.in_sync("mirrored"))
    for channel, queue in ((at_a, "mirrored"), (at_a, "led by a"), (at_b, "led by b")):
        publish(channel, queue, [b"%d" % number for number in range(100)])
    publish(at_b, "quorum", [b"%d" % number for number in range(100)])
    archive = Archive.open(tmp_path / "backups", create=True)
    archive.create(b.data_directory)
    cluster.end()

    target = tmp_path / "alone"
    done = CliRunner().invoke(restore, [str(tmp_path / "backups"), str(target), "--alone"])
    assert done.exit_code == 0, done.output
    assert "//led by a is empty: other nodes had its messages" in done.output
    alone = cluster.new_node("alone", "")
    target.rename(alone.data_directory)
    alone.start()
    try:
        channel = alone.connect().channel()
        channel.confirm_delivery()
        for queue in ("mirrored", "led by b", "quorum"):
            assert take(channel, queue, 100) == [b"%d" % number for number in range(100)], queue
        channel.queue_declare("led by a", durable=True)
        assert channel.queue_declare("led by a", passive=True).method.message_count == 0
        channel.basic_publish("orders", "eu.1", b"routed", PERSISTENT, mandatory=True)
        assert take(channel, "led by b", 1) == [b"routed"]
        assert "of a connection" not in alone.ctl("list_queues", "name")
        assert "mirrored" in alone.ctl("list_policies")
        assert "ERROR" not in alone.log, alone.log
    finally:
        alone.close_connections()
        alone.stop()
