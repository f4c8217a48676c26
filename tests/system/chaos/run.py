"""Chaos: python -P tests/system/chaos/run.py [--rounds 20] [--seed 1] [--first 0] [--nodes 3]
[--replace].

Runs an etcd and nodes of their own under load. In each round of a seed the same faults happen, to
whoever leads then, in half of them while nothing is acknowledged; afterwards everything is healed,
the queues are drained, and the cluster must rest with nothing lost, invented, or delivered twice
without a mark. With --replace, each round begins with a node that is lost with its disk, forgotten,
and replaced by one that has nothing. Prints a line for each round. A round with complaints keeps
its directory, and the next one has a new cluster.

Ends with 1 if there were complaints. Cuts in the network need root; without, they are left out.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

TESTS = Path(__file__).parents[2]
sys.path += [str(TESTS / folder) for folder in ("support", "simulation", "system")]

from chaos.checks import Logs, complaints_of, rest  # noqa: E402
from chaos.faults import Scene, happen  # noqa: E402
from chaos.load import Load, prepare  # noqa: E402
from cut_network import CutNetwork, NoNamespaces  # noqa: E402
from running_cluster import RunningCluster, wait_until  # noqa: E402

NAMES = "abcdefg"


class Chaos:
    """One cluster through any number of rounds."""

    def __init__(
        self, directory: Path, seed: int, nodes: int = 3, *, replaces: bool = False
    ) -> None:
        self.directory = directory
        self._replaces = replaces
        names = NAMES[:nodes]
        try:
            network = CutNetwork(*names)
        except NoNamespaces:
            network = None
        self._seed = seed
        self._cluster = RunningCluster(directory, *names, network=network)
        self._scene = Scene(self._cluster)
        self._logs = Logs(self._cluster)
        self._load: Load | None = None

    def start(self, first: int) -> None:
        self._cluster.start()
        prepare(self._cluster, plain_at_first=self._replaces)
        self._load = Load(self._cluster, f"{self._seed}/{first}")
        self._load.start()

    def play(self, number: int) -> tuple[str, list[str]]:
        """What happened, and what is wrong."""
        assert self._load is not None
        load, scene, book = self._load, self._scene, self._load.book
        scene.rng = random.Random(f"{self._seed}/{number}")
        published, confirmed = len(book.messages), book.count("confirmed")
        before = {one: one.confirms for one in load.publishers}
        piles_up = random.Random(f"{self._seed}/{number}/load").random() < 0.5
        (load.drains.clear if piles_up else load.drains.set)()
        load.flows.set()
        wait_until(lambda: all(one.confirms > 20 + before[one] for one in load.publishers))
        happened = happen(scene, replaces=self._replaces)
        scene.heal()
        load.drains.set()
        complaints, found = rest(self._cluster, load)
        complaints += complaints_of(book) + scene.complaints + self._logs.complaints()
        scene.complaints = []
        published = len(book.messages) - published
        confirmed = book.count("confirmed") - confirmed
        if piles_up:
            happened += ", with a backlog"
        counts = f"{confirmed} of {published} confirmed, {found} of them in lost+found"
        return f"{happened}; {counts}", complaints

    def end(self) -> None:
        if self._load is not None:
            self._load.end()
        self._scene.thaw()
        self._cluster.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, metavar="ROUND")
    parser.add_argument("--nodes", type=int, choices=(3, 5), default=3)
    parser.add_argument("--replace", action="store_true")
    chosen = parser.parse_args()
    # As Ctrl-C: nothing stays behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    failed = 0
    chaos: Chaos | None = None
    began_with = chosen.first
    for number in range(chosen.first, chosen.first + chosen.rounds):
        began = time.monotonic()
        happened = "it did not get so far"
        complaints: list[str] = []
        try:
            if chaos is None:
                directory = Path(tempfile.mkdtemp(prefix="warren-chaos-"))
                chaos = Chaos(directory, chosen.seed, chosen.nodes, replaces=chosen.replace)
                began_with = number
                chaos.start(number)
            happened, complaints = chaos.play(number)
        except Exception:
            complaints.append(traceback.format_exc())
        except BaseException:
            if chaos is not None:
                chaos.end()
            raise
        took = time.monotonic() - began
        verdict = f"{len(complaints)} COMPLAINTS" if complaints else "ok"
        print(f"seed {chosen.seed} round {number}: {happened}; {took:.1f} s, {verdict}", flush=True)
        if complaints:
            failed += 1
            print(*complaints, sep="\n")
            rounds = number - began_with + 1
            again = f"--seed {chosen.seed} --first {began_with} --rounds {rounds}"
            assert chaos is not None
            chaos.end()
            again += f" --nodes {chosen.nodes}{' --replace' if chosen.replace else ''}"
            print(f"kept: {chaos.directory}; again: {again}", flush=True)
            chaos = None
    if chaos is not None:
        chaos.end()
        shutil.rmtree(chaos.directory)
    print(f"{chosen.rounds} rounds, {failed} with complaints")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
