"""A simulated cluster with disks that is stopped and started again."""

from __future__ import annotations

from typing import Any

from cluster import Cluster
from cluster_disk import Disk, backings_on
from pamqp import commands

from warren.core.definitions.records import QueueRecord
from warren.core.field import Field


class StoppedCluster(Cluster):
    """Node a leads queue `q`, b and c have mirrors in sync; all three have disks."""

    def __init__(self, carrier: str, **more: Any) -> None:
        self.disks: dict[str, Disk] = {}
        super().__init__("a", "b", "c", new_backing=backings_on(self.disks))
        self.definition = {"ha-mode": "all", "ha-replication": carrier}
        self.definition |= {key.replace("_", "-"): value for key, value in more.items()}
        self["a"].node.policies.set("/", "q", "^q$", self.definition, 0, "queues")
        client = self["a"].connects()
        client.opens_channel(1)
        client.declares("q", durable=True)
        self.clock.advance(5)
        assert (self.record().leader, sorted(self.record().in_sync)) == ("a", ["b", "c"])

    def record(self) -> QueueRecord:
        stored = self[self.alive[0]].metadata.get(("queue", "/", "q"))
        assert stored is not None and isinstance(stored.record, QueueRecord)
        return stored.record

    def make_quorum_queue(self) -> None:
        """Have a quorum queue in the place of `q`."""
        self.make_queue("quorum")

    def make_queue(self, kind: str) -> None:
        """Have a queue of another type in the place of `q`."""
        client = self["a"].connects()
        client.opens_channel(1)
        client.sends(commands.Queue.Delete, queue="q")
        self.clock.advance(1)
        client.receives(commands.Queue.DeleteOk)
        arguments = {"x-queue-type": Field("S", kind.encode())}
        client.sends(commands.Queue.Declare, queue="q", durable=True, arguments=arguments)
        self.clock.advance(5)
        client.receives(commands.Queue.DeclareOk)

    def publish(self, *bodies: bytes, node: str = "a") -> None:
        """With confirms, and for ever."""
        client = self[node].connects()
        client.opens_channel(1)
        client.selects_confirms()
        for body in bodies:
            client.publishes("q", body, delivery_mode=2)
        self.clock.advance(1)
        tags = [f.method.delivery_tag for f in client.frames() if f.method.name == "Basic.Ack"]
        assert max(tags) == len(bodies)

    def kill_all(self) -> None:
        for name in self.alive:
            self.kill(name)
        for name in self.nodes:
            self.tidy_after(name)

    def kill_and_tidy(self, *names: str) -> None:
        """These nodes die, one after the other, and take nothing along."""
        for name in names:
            self.kill(name)
            self.tidy_after(name)

    def stop_in_order(self, name: str) -> None:
        self[name].mirroring.stop_leading()
        self.clock.advance(1)
        self.kill(name)
        self.tidy_after(name)
        self.clock.advance(5)

    def start_again(self, *names: str) -> None:
        """Only these nodes, each of which reaches the others."""
        for name in names:
            self.comes_back(name)

    def bodies(self, queue: str = "q") -> list[tuple[bytes, bool]]:
        """What is in a queue, and whether it comes as redelivered."""
        client = self[self.record().leader].connects()
        client.opens_channel(1)
        bodies = []
        while (got := client.gets(queue, no_ack=True)) is not None:
            bodies.append((got.body, got.method.redelivered))
        return bodies
