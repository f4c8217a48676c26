"""Failovers by the hundred: python -P tests/system/failover_long.py [--rounds 50] [--fault kill].

Runs three nodes and an etcd of their own with default settings, but for the ports, and prints how
long clients waited for each kind of fault. Ends with 1 if a confirmed message was lost, or one
came twice without being marked.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / folder) for folder in ("support", "simulation", "system")]

from cut_network import CutNetwork, NoNamespaces  # noqa: E402
from failover import FAULTS, Ledger, fail_over, prepare  # noqa: E402
from running_cluster import RunningCluster  # noqa: E402

NODES = ("a", "b", "c")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--fault", choices=(*FAULTS, "all"), default="all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lease", type=int, default=10)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep data and logs there")
    chosen = parser.parse_args()
    faults = list(FAULTS) if chosen.fault == "all" else [chosen.fault]
    network = None
    if "cut" in faults:
        try:
            network = CutNetwork(*NODES)
        except NoNamespaces as error:
            print(f"cut: skipped, {error}")
            faults.remove("cut")
    if not faults:
        return 0
    with ExitStack() as stack:
        directory = chosen.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = RunningCluster(
            directory,
            *NODES,
            more=f"cluster.lease_ttl = {chosen.lease}\n",
            network=network,
        )
        try:
            cluster.start()
            prepare(cluster)
            ledger = Ledger(cluster, random.Random(chosen.seed))
            ledger.start()
            for fault in faults:
                times = []
                for number in range(chosen.rounds):
                    times.append(fail_over(cluster, ledger, fault, chosen.lease))
                    print(f"{fault} {number + 1}: {times[-1]:.2f} s", flush=True)
                worst = max(times)
                print(f"{fault}: p50 {statistics.median(times):.2f} s, worst {worst:.2f} s")
            ledger.finish()
            print(
                f"{len(ledger.confirmed)} confirmed of {ledger.published},"
                f" {sum(ledger.seen.values())} deliveries of {len(ledger.seen)} messages"
            )
            if "cut" in faults:
                print(f"{ledger.published_cut_off} published at leaders that were cut off")
            for complaint in ledger.complaints():
                print(complaint)
            return 1 if ledger.complaints() else 0
        except AssertionError:
            for node in cluster.nodes.values():
                print(f"--- {node.name}", *node.log.splitlines()[-40:], sep="\n")
            raise
        finally:
            cluster.end()


if __name__ == "__main__":
    sys.exit(main())
