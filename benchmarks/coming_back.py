"""How long a mirror that was away takes to be in sync again: python -P benchmarks/coming_back.py

Starts three nodes and an etcd of its own. A queue mirrored at all of them is filled; one node is
killed, some more messages are published, and it is started again. Compared with a node that has
lost its disk, and so is sent everything.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path += [str(TESTS / folder) for folder in ("support", "simulation", "system")]

from running_cluster import ClusterProcess, RunningCluster, publish, wait_until  # noqa: E402

QUEUE = "ha.back"
PATIENCE_S = 600.0


def in_sync(node: ClusterProcess) -> int:
    return len(node.asks("queues", "/", QUEUE).get("synchronised_slave_nodes", ()))


def timed(began: float, reached: Callable[[], bool]) -> float:
    wait_until(reached, PATIENCE_S)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--octets", type=int, default=1000)
    parser.add_argument("--meanwhile", type=int, default=1000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        cluster = RunningCluster(Path(directory), "a", "b", "c")
        try:
            cluster.start()
            measure(cluster, chosen.messages, chosen.octets, chosen.meanwhile)
        finally:
            cluster.end()


def measure(cluster: RunningCluster, messages: int, octets: int, meanwhile: int) -> None:
    a, b, _ = cluster.nodes.values()
    policy = {"ha-mode": "all", "ha-sync-mode": "automatic"}
    body = {"pattern": "^ha", "definition": policy, "apply-to": "queues"}
    a.changes("policies", "/", "ha", body=body)
    channel = a.connect().channel()
    channel.queue_declare(QUEUE, durable=True)
    wait_until(lambda: in_sync(a) == 2)
    publish(channel, QUEUE, (b"x" * octets for _ in range(messages)))
    wait_until(lambda: a.asks("queues", "/", QUEUE)["messages"] == messages, PATIENCE_S)
    for loses_disk in (False, True):
        b.kill()
        wait_until(lambda: in_sync(a) == 1)
        publish(channel, QUEUE, (b"y" * octets for _ in range(meanwhile)))
        if loses_disk:
            shutil.rmtree(b.data_directory / "store")
        began = time.perf_counter()
        b.start()
        up = time.perf_counter() - began
        synced = timed(began, lambda: in_sync(a) == 2)
        what = "with an empty disk" if loses_disk else "with what it had"
        print(f"{what}: serves after {up:.1f} s, in sync after {synced:.1f} s", flush=True)


if __name__ == "__main__":
    main()
