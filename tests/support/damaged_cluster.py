"""A simulated cluster in which the disk of the leader of a queue has lost messages."""

from __future__ import annotations

from stopped_cluster import StoppedCluster

from warren.mirror.replication.copies.copy_here import LEADER_MAY_COME_S
from warren.mirror.replication.copies.lost_and_found import LOST_AND_FOUND
from warren.mirror.replication.elections.returned_leader import MIRROR_MAY_COME_S
from warren.mirror.replication.leading.led_queue import LedQueue

CARRIERS = ("gm", "log")
BODIES = [b"%d" % number for number in range(6)]
LONG_S = LEADER_MAY_COME_S + MIRROR_MAY_COME_S + 10


def bodies(cluster: StoppedCluster, queue: str = "q") -> list[bytes]:
    if queue not in cluster[cluster.record().leader].node.vhosts["/"].queues:
        return []
    return [body for body, _ in cluster.bodies(queue)]


def everything(cluster: StoppedCluster) -> list[bytes]:
    """What is in the queue, and in `lost+found`."""
    return sorted([*bodies(cluster), *bodies(cluster, LOST_AND_FOUND)])


def led(cluster: StoppedCluster) -> LedQueue:
    return next(led for led in cluster["a"].mirroring._led.values() if led.key[2] == "q")


def damage(cluster: StoppedCluster, *lost: int, node: str = "a") -> None:
    """Have a node find at its next start that it lacks these messages, counted from the oldest."""
    cluster.damaged.add(node)
    kept = max(cluster.disks[node].queues.values(), key=len)
    for position in [sorted(kept)[number] for number in lost]:
        del kept[position]


def damaged(carrier: str, *lost: int, **policy: int) -> StoppedCluster:
    """The disk of the leader has lost these of six messages, and it has led on alone."""
    cluster = StoppedCluster(carrier, ha_sync_mode="automatic", **policy)
    cluster.publish(*BODIES)
    cluster.kill_all()
    damage(cluster, *lost)
    cluster.start_again("a")
    cluster.clock.advance(MIRROR_MAY_COME_S + 5)
    assert not cluster["a"].node.vhosts["/"].queues["q"].is_held
    return cluster


def lose(cluster: StoppedCluster, *lost: int) -> None:
    """Have the leader find that these messages are damaged, counted from the oldest one there."""
    level = led(cluster).leader.levels[0]
    positions = level.list_positions(0, level.next_position, len(BODIES)).positions
    for position in [positions[number] for number in lost]:
        (message,) = level.inner.take([position])
        level.inner.ack([message])
        cluster["a"].mirroring.has_lost(led(cluster).storage_id, position)


def left_alone(carrier: str) -> StoppedCluster:
    """The leader has six messages, and no mirror any more: the nodes of these have died."""
    cluster = StoppedCluster(carrier, ha_sync_mode="automatic")
    cluster.publish(*BODIES)
    cluster.kill_and_tidy("b", "c")
    cluster.clock.advance(LONG_S)
    assert not cluster.record().mirrors
    return cluster
