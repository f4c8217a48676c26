"""What many mirrored queues cost: python benchmarks/mirrored_queues.py --queues 1000 --fail

Starts three nodes and an etcd on this machine. Clients of the first node declare queues with
mirrors at the two others, each client one queue after the other. Prints how many are declared in a
second, and what that takes; what the nodes take while nobody does anything; and, with `--fail`, how
long it takes until all have another leader when the first node is killed. Linux only, as it reads
/proc; standard library otherwise.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from typing import Any

from amqp_socket import AmqpSocket

POLICY = {"pattern": "^ha", "definition": {"ha-mode": "all"}, "apply-to": "queues"}
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
LOGIN = base64.b64encode(b"guest:guest").decode()
SETTLE_S = 20.0
"""After so long nothing is left to do for queues that were declared."""
AFTERMATH_S = 5.0
"""After so long the next leaders have told their mirrors, and cards are written."""


def ask(port: int, path: str, body: object = None) -> Any:
    text = fetch(port, f"api/{path}", body)
    return json.loads(text) if text else None


def fetch(port: int, path: str, body: object = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", data)
    request.method = "GET" if body is None else "PUT"
    request.add_header("Authorization", f"Basic {LOGIN}")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def queues_led(port: int) -> int:
    """How many mirrored queues a node leads. Lists of them would cost the node half of its time."""
    for line in fetch(port, "metrics").splitlines():
        if line.startswith("warren_mirroring_queues_led"):
            return int(float(line.rpartition(" ")[2]))
    return 0


class Processes:
    """The nodes of the cluster, in the order of their ports, and its etcd."""

    def __init__(self, cluster: int) -> None:
        self.nodes: dict[int, int] = {}
        self.etcd = 0
        for pid in _descendants(cluster):
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().decode().split("\0")
            if os.path.basename(words[0]) == "etcd":
                self.etcd = pid

    def seconds(self, pids: list[int]) -> list[float]:
        """The CPU time each has taken."""
        return [_cpu_ticks(pid) / TICKS_A_SECOND for pid in pids]


def _descendants(pid: int) -> list[int]:
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            for child in map(int, file.read().split()):
                found += [child, *_descendants(child)]
    return found


def _cpu_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def declare(port: int, first: int, count: int, step: int, latencies: list[float]) -> None:
    peer = AmqpSocket("127.0.0.1", port)
    for number in range(first, count, step):
        began = time.perf_counter()
        peer.declare(f"ha{number}", {})
        latencies.append(time.perf_counter() - began)


def wait_until_up(ports: list[int]) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            if all(len(ask(port, "nodes")) == len(ports) for port in ports):
                return
        except OSError:
            pass
        if time.monotonic() > until:
            raise SystemExit("the cluster does not come up")
        time.sleep(0.3)


def measure(chosen: argparse.Namespace, cluster: int) -> dict[str, Any]:
    http = [chosen.http_port + number for number in range(3)]
    wait_until_up(http)
    pids = [ask(port, "nodes")[number]["os_pid"] for number, port in enumerate(http)]
    pids = [int(pid) for pid in pids]
    etcd = Processes(cluster).etcd
    ask(http[0], "policies/%2F/ha", POLICY)
    time.sleep(1)
    result: dict[str, Any] = {"queues": chosen.queues, "clients": chosen.clients}

    processes = Processes(cluster)
    watched = [*pids, etcd]
    before = processes.seconds(watched)
    latencies: list[float] = []
    began = time.perf_counter()
    threads = [
        threading.Thread(
            target=declare,
            args=(chosen.amqp_port, number, chosen.queues, chosen.clients, latencies),
        )
        for number in range(chosen.clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - began
    cpu = [b - a for a, b in zip(before, processes.seconds(watched), strict=True)]
    result["declared a second"] = round(chosen.queues / elapsed, 1)
    result["milliseconds, median"] = round(1000 * statistics.median(latencies), 1)
    result["CPU milliseconds a queue: nodes, etcd"] = [
        round(1000 * seconds / chosen.queues, 2) for seconds in cpu
    ]

    time.sleep(SETTLE_S)
    before = processes.seconds(watched)
    time.sleep(chosen.idle)
    cpu = [b - a for a, b in zip(before, processes.seconds(watched), strict=True)]
    result["idle, % of a core: nodes, etcd"] = [
        round(100 * seconds / chosen.idle, 2) for seconds in cpu
    ]
    if chosen.fail:
        in_sync = Counter(
            len(queue.get("synchronised_slave_nodes", ()))
            for queue in ask(http[1], "queues?columns=synchronised_slave_nodes")
        )
        result["mirrors in sync"] = dict(in_sync)
        survivors = [*pids[1:], etcd]
        before = processes.seconds(survivors)
        began = time.perf_counter()
        os.kill(pids[0], signal.SIGKILL)
        while sum(map(queues_led, http[1:])) < chosen.queues:
            time.sleep(0.2)
        result["all led again after"] = round(time.perf_counter() - began, 2)
        time.sleep(AFTERMATH_S)
        cpu = [b - a for a, b in zip(before, processes.seconds(survivors), strict=True)]
        result["CPU milliseconds a queue at failover: heirs, etcd"] = [
            round(1000 * seconds / chosen.queues, 2) for seconds in cpu
        ]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--idle", type=float, default=20.0)
    parser.add_argument("--fail", action="store_true")
    parser.add_argument("--amqp-port", type=int, default=5700)
    parser.add_argument("--http-port", type=int, default=15700)
    chosen = parser.parse_args()
    ports = ["--amqp-port", str(chosen.amqp_port), "--http-port", str(chosen.http_port)]
    command = [sys.executable, "-P", "-m", "warren", "dev-cluster", *ports, "3"]
    cluster = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        print(json.dumps(measure(chosen, cluster.pid), indent=1))
    finally:
        cluster.terminate()
        cluster.wait(60)


if __name__ == "__main__":
    main()
