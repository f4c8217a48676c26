"""Rolling restarts under load: python -P tests/system/rolling_restart.py [--rounds 5] [--no-wait].

Three nodes with a mirrored queue are restarted one after the other, each when all mirrors are in
sync again, or, with --no-wait, as soon as the one before serves clients. A second queue has a
backlog that mirrors have to get. Prints for each step how long at most no publish was confirmed
and no message delivered. Ends with 1 if a confirmed message was lost, one came twice without being
marked, or, of those that wait, an outage took longer than a failover may.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / folder) for folder in ("support", "simulation", "system")]

from failover import Course, Ledger, leader_of, prepare  # noqa: E402
from running_cluster import ClusterProcess, RunningCluster, publish, take, wait_until  # noqa: E402

OUTAGE_S_MAX = 5.0
"""What a leader that is killed costs at most, with default settings."""


BACKLOG = "ha.backlog"


class Step(NamedTuple):
    """One node restarted: whether it led the queue, and the longest outages meanwhile."""

    node: str
    led: bool | None
    confirms_s: float
    deliveries_s: float

    def __str__(self) -> str:
        led = {True: ", the leader", False: "", None: ", without waiting"}[self.led]
        return (
            f"{self.node}{led}: no confirm for {self.confirms_s:.2f} s,"
            f" no delivery for {self.deliveries_s:.2f} s"
        )

    @property
    def outage_s(self) -> float:
        return max(self.confirms_s, self.deliveries_s)


def pile_up(cluster: RunningCluster, count: int) -> None:
    """A queue with so many messages of a kilobyte, which nobody consumes meanwhile."""
    node = next(iter(cluster.nodes.values()))
    channel = node.connect().channel()
    channel.queue_declare(BACKLOG, durable=True)
    channel.confirm_delivery()
    publish(channel, BACKLOG, [_backlog_body(number) for number in range(count)])
    node.close_connections()


def lost_of_backlog(cluster: RunningCluster, count: int) -> list[str]:
    """What is to be said of it in the end."""
    node = next(iter(cluster.nodes.values()))
    bodies = take(node.connect().channel(), BACKLOG, count)
    node.close_connections()
    wanted = [_backlog_body(number) for number in range(count)]
    return [] if bodies == wanted else ["the backlog is not what it was"]


def _backlog_body(number: int) -> bytes:
    return b"%01024d" % number


def roll(cluster: RunningCluster, ledger: Ledger, *, wait: bool) -> Iterator[Step]:
    """Restart every node once, as SIGTERM and a new start do."""
    for node in cluster.nodes.values():
        yield _restart(cluster, ledger, node, wait)


def _restart(cluster: RunningCluster, ledger: Ledger, node: ClusterProcess, wait: bool) -> Step:
    led = _leader_when_in_sync(cluster) is node if wait else None
    ledger.confirms.watch()
    ledger.deliveries.watch()
    node.stop()
    node.start()
    if wait:
        _leader_when_in_sync(cluster)
        for course in (ledger.confirms, ledger.deliveries):
            _goes_on(course)
    return Step(node.name, led, ledger.confirms.longest_s, ledger.deliveries.longest_s)


def _leader_when_in_sync(cluster: RunningCluster) -> ClusterProcess:
    """Who leads the queue that is in use; all mirrors of both are in sync then."""
    leader_of(cluster, BACKLOG)
    return leader_of(cluster)


def _goes_on(course: Course) -> None:
    """Only what is over has a length."""
    last = course.last
    wait_until(lambda: course.last > last, 60)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-wait", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backlog", type=int, default=5000, metavar="MESSAGES")
    parser.add_argument("--outage", type=float, default=OUTAGE_S_MAX, metavar="SECONDS")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        cluster = RunningCluster(Path(directory), "a", "b", "c", more="cluster.lease_ttl = 10\n")
        try:
            return _run(cluster, chosen)
        except AssertionError:
            for node in cluster.nodes.values():
                print(f"--- {node.name}", *node.log.splitlines()[-40:], sep="\n")
            raise
        finally:
            cluster.end()


def _run(cluster: RunningCluster, chosen: argparse.Namespace) -> int:
    cluster.start()
    prepare(cluster)
    pile_up(cluster, chosen.backlog)
    ledger = Ledger(cluster, random.Random(chosen.seed))
    ledger.start()
    longest_s = 0.0
    for number in range(chosen.rounds):
        for step in roll(cluster, ledger, wait=not chosen.no_wait):
            print(f"{number + 1}: {step}", flush=True)
            longest_s = max(longest_s, step.outage_s)
    ledger.finish()
    complaints = ledger.complaints() + lost_of_backlog(cluster, chosen.backlog)
    if longest_s > chosen.outage and not chosen.no_wait:
        complaints.append(f"an outage of {longest_s:.2f} s, more than {chosen.outage:g}")
    print(
        f"{len(ledger.confirmed)} confirmed of {ledger.published},"
        f" {sum(ledger.seen.values())} deliveries of {len(ledger.seen)} messages,"
        f" longest outage {longest_s:.2f} s"
    )
    print(*complaints, sep="\n", end="\n" if complaints else "")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
