"""The throughput table: each row on Warren and on RabbitMQ in turns, medians of several rounds.

    python benchmarks/beside_rabbitmq.py --generator amqpload.py \\
        --warren 5672:PID --rabbitmq 5673:PID [--rounds 5] [--rows auto-ack,64k]

PID is the broker's process: its CPU time and that of its children is counted. A cluster is
PORT:PID+PID+PID, the node of the clients first: what the others take is shown behind it. Mirrored
queues are these rows on two clusters whose policy mirrors every queue. Both brokers must run
already, with nothing else on the machine. `amqpload.py` is the raw-socket load generator of the
project; it prints one JSON line a run. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import NamedTuple


class Row(NamedTuple):
    name: str
    options: list[str]
    messages: int
    before: list[str] | None = None
    """What fills the queue first, unmeasured."""


TASK = "-s 200 --vary task --ack 50 --prefetch 200"
TOPIC = "--exchange tx --exchange-type topic --routing-key orders.#"
STREAM = "--arg x-queue-type=stream --persistent --confirm 500"
FANOUT = "--exchange fx --exchange-type fanout --queues 10 -C 0"

ROWS = [
    Row("ids and times, acks", "-s 100 --vary id --ack 50 --prefetch 200".split(), 300_000),
    Row("tasks, acks", TASK.split(), 250_000),
    Row("tasks, 4 x 4 x 4", f"{TASK} -P 4 -C 4 --queues 4".split(), 300_000),
    Row("tasks, persistent, confirms", f"{TASK} --persistent --confirm 500".split(), 150_000),
    Row(
        "tasks, persistent, only published", "-s 200 --vary task --persistent -C 0".split(), 200_000
    ),
    Row(
        "topic, every key another",
        f"-s 100 --vary key --ack 50 --prefetch 200 {TOPIC}".split(),
        250_000,
    ),
    Row(
        "headers exchange, tasks",
        f"{TASK} --exchange hx --exchange-type headers".split(),
        200_000,
    ),
    Row(
        "a time to live, ids and times",
        "-s 100 --vary id --ack 50 --prefetch 200 --arg x-message-ttl=60000".split(),
        200_000,
    ),
    Row(
        "priorities, tasks",
        f"{TASK} --arg x-max-priority=10".split(),
        200_000,
    ),
    Row(
        "a length limit, tasks",
        f"{TASK} --arg x-max-length=1000000".split(),
        200_000,
    ),
    Row(
        "lazy, persistent, confirms, tasks",
        f"{TASK} --persistent --confirm 500 --arg x-queue-mode=lazy".split(),
        100_000,
    ),
    Row(
        "quorum, confirms, tasks",
        f"{TASK} --persistent --confirm 500 --arg x-queue-type=quorum".split(),
        100_000,
    ),
    Row(
        "stream, tasks, only published",
        f"-s 200 --vary task -C 0 {STREAM}".split(),
        100_000,
    ),
    Row("stream, tasks", f"{TASK} {STREAM}".split(), 100_000),
    Row(
        "stream, ids and times",
        f"-s 100 --vary id --ack 50 --prefetch 200 {STREAM}".split(),
        100_000,
    ),
    Row(
        "stream, ids and times, prefetch 10",
        f"-s 100 --vary id --ack 5 --prefetch 10 {STREAM}".split(),
        60_000,
    ),
    Row(
        "persistent, confirms of a window of 20, tasks",
        f"{TASK} --persistent --confirm 20".split(),
        30_000,
    ),
    Row(
        "persistent, confirms of a window of 100, tasks",
        f"{TASK} --persistent --confirm 100".split(),
        60_000,
    ),
    Row("6 KB", "-s 6000 --vary id --ack 50 --prefetch 200".split(), 60_000),
    Row("20 KB", "-s 20000 --vary id --ack 50 --prefetch 200".split(), 40_000),
    Row("no body, ids", "-s 0 --vary id --ack 50 --prefetch 200".split(), 200_000),
    Row(
        "fanout to 3 queues, persistent, confirms, tasks",
        "-s 200 --vary task --persistent --confirm 500 --exchange f3 --exchange-type fanout"
        " --queues 3 -C 0".split(),
        60_000,
    ),
    Row("fanout to 10 queues, ids and times", f"-s 100 --vary id {FANOUT}".split(), 40_000),
    Row(
        "one at a time, persistent, confirmed",
        "-s 200 --vary task --persistent --confirm 1 --batch 1 --ack 1 --prefetch 1".split(),
        5_000,
    ),
    Row("prefetch 10, an ack each", "-s 100 --vary id --ack 1 --prefetch 10".split(), 100_000),
    Row("prefetch 1, an ack each", "-s 100 --vary id --ack 1 --prefetch 1".split(), 30_000),
    Row("auto-ack 12 B", "-s 12".split(), 400_000),
    Row("manual ack 100 B", "-s 100 --ack 50 --prefetch 200".split(), 300_000),
    Row("4 x 4 x 4, acks", "-P 4 -C 4 --queues 4 --ack 50 --prefetch 200".split(), 400_000),
    Row(
        "transient, confirms",
        "-s 100 --confirm 500 --ack 50 --prefetch 200".split(),
        300_000,
    ),
    Row("64 KB bodies", "-s 65536 --ack 50 --prefetch 200".split(), 20_000),
    Row(
        "persistent, confirms, acks, 1 KB",
        "-s 1000 --persistent --confirm 500 --ack 50 --prefetch 200".split(),
        200_000,
    ),
    Row("publish only, persistent 1 KB", "-C 0 -s 1000 --persistent".split(), 1_000_000),
    Row(
        "drain of it",
        "--keep -P 0 -C 1 --ack 50 --prefetch 500 -s 1000".split(),
        1_000_000,
        "-C 0 -s 1000 --persistent".split(),
    ),
]


class Target(NamedTuple):
    port: str
    pid: str
    others: list[str]
    """The processes of the cluster's other nodes."""

    @classmethod
    def parse(cls, text: str) -> Target:
        port, pids = text.split(":")
        pid, *others = pids.split("+")
        return cls(port, pid, others)


class Run(NamedTuple):
    per_s: float
    cpu_us: float
    others_us: float
    """What all the other nodes took together."""


def cpu_seconds(pids: list[str]) -> float:
    ticks = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def run(generator: str, target: Target, row: Row, scale: float) -> Run:
    """One run; the rate is that of the consumers, or of the publishers where none consume."""
    command = [sys.executable, generator, "--port", target.port, "--pid", target.pid]
    messages = int(row.messages * scale)
    command += ["-n", str(messages)]
    if row.before is not None:
        subprocess.run(command + row.before, check=True, capture_output=True)
    before = cpu_seconds(target.others)
    finished = subprocess.run(command + row.options, check=True, capture_output=True)
    others_us = 1e6 * (cpu_seconds(target.others) - before) / messages
    result = json.loads(finished.stdout)
    rate = result.get("consume_per_s", result.get("publish_per_s"))
    return Run(rate, result["cpu_us_per_msg"], others_us)


def median(runs: list[Run]) -> Run:
    return Run(
        statistics.median(run.per_s for run in runs),
        statistics.median(run.cpu_us for run in runs),
        statistics.median(run.others_us for run in runs),
    )


def shown(run: Run, target: Target) -> str:
    others = f" + {run.others_us:.1f}" if target.others else ""
    return f"{run.per_s:,.0f} · {run.cpu_us:.2f}{others}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generator", required=True)
    parser.add_argument("--warren", type=Target.parse, required=True)
    parser.add_argument("--rabbitmq", type=Target.parse, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", help="parts of names, separated by commas")
    options = parser.parse_args()
    wanted = options.rows.split(",") if options.rows else [""]
    print("| scenario | Warren msg/s · µs | RabbitMQ msg/s · µs | ratio | ratio of CPU |")
    print("|---|---|---|---|---|")
    for row in ROWS:
        if not any(part in row.name for part in wanted):
            continue
        ours: list[Run] = []
        theirs: list[Run] = []
        for _ in range(options.rounds):
            ours.append(run(options.generator, options.warren, row, 1.0))
            theirs.append(run(options.generator, options.rabbitmq, row, 0.4))
        warren, rabbitmq = median(ours), median(theirs)
        print(
            f"| {row.name} | {shown(warren, options.warren)} "
            f"| {shown(rabbitmq, options.rabbitmq)} "
            f"| {warren.per_s / rabbitmq.per_s:.1f}x | {rabbitmq.cpu_us / warren.cpu_us:.1f}x |",
            flush=True,
        )


if __name__ == "__main__":
    main()
