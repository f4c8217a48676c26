"""One history of a group on a simulated network and store, from a seed; checked as it goes.

Members join, broadcast, leave and crash at any effect, while connections break and lose what was on
its way, sites are cut off, processes stall, epochs rise, and the store refuses, times out and
answers late. Then all that can be healed is, and the group must come to rest in a state in which
nothing was lost that must not be (invariants_and_test_ideas.md section 3: G1 to G16).

    python -P tests/simulation/gm_history.py --seed 4711 --count 1000
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / folder) for folder in ("support", "simulation", "system")]

from gm_faults import FAULTS, NODES, Faults  # noqa: E402
from gm_links import link_is_whole  # noqa: E402
from gm_process import GROUP, Process, World, alive  # noqa: E402
from scheduler import Scheduler  # noqa: E402

from warren.mirror.carriers.ports import MemberId, StopReason  # noqa: E402
from warren.mirror.gm.base import GmLimits  # noqa: E402
from warren.mirror.gm.view import alive_members  # noqa: E402

FAULTY_S = 0.6
"""For so long things go wrong; afterwards everything is healed."""

REJOIN = {StopReason.LOST_MEMBERSHIP, StopReason.JOIN_LOST}
MEMBERS_MAX = 7

FOUNDERS_FROM = 8_500_000
"""Histories with lower seeds know nothing of groups that begin with several members."""


class History:
    """One seed, one history. `seen` counts what happened, to show that rare things do."""

    def __init__(self, seed: int, seen: Counter[str]) -> None:
        self.seed = seed
        self.seen = seen
        self.random = Random(seed)
        self.scheduler = Scheduler(self.random)
        self.world = World(self.scheduler, seen)
        self.world.confirmed = self._check_confirm
        self.world.ended = self._ended
        self.processes: list[Process] = []
        self.confirms = 0
        self._incarnations: Counter[str] = Counter()
        self.faults = Faults(self)

    @property
    def live(self) -> list[Process]:
        return alive(self.processes)

    @property
    def joined(self) -> list[Process]:
        return [process for process in self.processes if process.is_joined]

    def run(self) -> None:
        self._set_up()
        self.scheduler.run(FAULTY_S)
        self._heal()
        self.scheduler.run()
        self.check_rest()
        self._last_round()
        self.check_rest()
        self.check_ends()
        for fault in self.world.store.faults:
            self.seen[f"store: {fault}"] += 1

    def add(self, node: str) -> Process:
        """A process on that node that joins the group."""
        process = self._process(node)
        process.start()
        return process

    def found(self, nodes: Sequence[str]) -> None:
        """Processes on those nodes, of which the first makes a group of all of them."""
        first, *others = [self._process(node) for node in nodes]
        for other in others:
            other.start(awaits_group=True)
        # Some are left out, and have to ask to be let in; some may have died by then.
        count = self.random.randint(0, len(others))
        founders = tuple(other.address for other in self.random.sample(others, count))
        self.scheduler.after(self.random.uniform(0.0, 0.1), lambda: first.start(founders))

    def _process(self, node: str) -> Process:
        self._incarnations[node] += 1
        process = Process(self.world, MemberId(node, self._incarnations[node]))
        self.processes.append(process)
        return process

    # What happens

    def _set_up(self) -> None:
        random, world, after = self.random, self.world, self.scheduler.after
        world.network.down_may_overtake = random.random() < 0.3
        world.store.watch_chance = random.choice((0.0, 0.5, 1.0))
        if random.random() < 0.2:
            world.limits = GmLimits(
                held_bytes_max=600,
                flush_bytes=150,
                suspicion_s=0.02,
                left_suspicion_s=0.05,
                founding_s=0.1,
            )
        if random.random() < 0.3:
            world.store.failure_chance = 0.3
        members = random.randint(2, 5)
        spread_s = random.choice((0.0, 0.0, 0.1))
        if self.seed >= FOUNDERS_FROM and random.random() < 0.5:
            self.seen["groups with founders"] += 1
            self.found(NODES[:members])
        else:
            for node in NODES[:members]:
                after(random.uniform(0, spread_s), lambda node=node: self.join(node))
        for _ in range(random.randint(2, 9)):
            after(random.uniform(0.05, FAULTY_S), self.storm)
        for _ in range(random.choice((0, 1, 1, 2, 2, 3, 4))):
            fault = random.choice(FAULTS)
            after(random.uniform(0.0, FAULTY_S), lambda fault=fault: self.faults.hit(fault))
        for _ in range(random.choice((0, 1, 2))):
            after(random.uniform(0.05, FAULTY_S), lambda: self.join(self.free_node()))
        for _ in range(3):
            after(random.uniform(0.1, FAULTY_S), self._check_links)

    def free_node(self) -> str | None:
        taken = {process.site for process in self.live}
        return next((node for node in NODES if node not in taken), None)

    def join(self, node: str | None) -> None:
        if node is not None and not any(process.site == node for process in self.live):
            self.add(node)

    def storm(self) -> None:
        """Some members broadcast some messages."""
        random, joined = self.random, self.joined
        for _ in range(random.randint(1, 4) if joined else 0):
            process = random.choice(joined)
            for _ in range(random.randint(1, 3)):
                process.broadcast(random.random() < 0.5)

    def _heal(self) -> None:
        self.world.network.heal()
        self.world.store.failure_chance = 0.0
        for process in self.live:
            process.steps_left = None
            # What raises the epoch tells everybody in the end.
            process.event(process.member.set_epoch, self.world.epoch)

    def _ended(self, process: Process, reason: StopReason | None) -> None:
        """What lost its membership comes back under a new id, as the layer above would see to."""
        if reason in REJOIN and len(self.processes) < 3 * MEMBERS_MAX:
            self.scheduler.after(
                self.random.uniform(0.0, 0.05), lambda: self.join(process.address.node)
            )

    def _last_round(self) -> None:
        """Everybody learns of the last version, and can still broadcast."""
        version = self.world.store.version(GROUP)
        for process in self.live:
            process.event(process.member.record_changed, version)
        self.scheduler.run()
        for process in self.joined:
            process.broadcast(True)
        self.scheduler.run()

    # What must hold

    def _check_confirm(self, sender: Process, number: int) -> None:
        """G3: all members of the record as it is hold what is confirmed."""
        self.confirms += 1
        for process in self.members():
            if process.is_joined and sender.address in process.ever_known:
                assert process.end_of(sender.address) >= number, (
                    f"{number} of {sender.address} is confirmed, {process.address} does not hold it"
                )

    def _check_links(self) -> None:
        joined = {process.address: process for process in self.joined}
        for process in joined.values():
            right = joined.get(process.member.view.right)
            if right is not None and right is not process:
                self.seen["links found whole"] += link_is_whole(process, right)

    def members(self) -> list[Process]:
        """The processes that the record says are members."""
        members = alive_members(self.world.store.values.get(GROUP))
        return [process for process in self.live if process.address in members]

    def check_rest(self) -> None:
        """G11: nothing moves any more, and everything has gone round."""
        record = self.world.store.values.get(GROUP)
        members = self.members()
        for process in self.live:
            assert process.is_joined, f"{process.address} is {process.member.phase}"
            assert not process.member.is_pending and not process.member._inbox
            self._check_membership(process, members)
        if not members:
            return
        assert record is not None
        assert len(record.members) == len(members), (record, members)
        for process in members:
            assert process.member.view.version == record.version, f"{process.address} is late"
            circulation = process.member.circulation
            assert not circulation.buffer
            for member, state in circulation.states.items():
                assert not state.pending, f"{process.address} keeps {state} of {member}"
                assert state.is_settled or member != process.address
            assert not process.tokens, f"{process.address} waits for {process.tokens}"
            assert process.known == {other.address for other in members}

    def _check_membership(self, process: Process, members: list[Process]) -> None:
        """Only a watch tells a whole ring that somebody cut off from it made a group without it."""
        if process in members:
            return
        view = process.member.view
        others = {member.address for member in members}
        assert self.world.store.watch_chance < 1.0, f"{process.address} is no member"
        assert not {view.left, view.right} & others, f"{process.address} is no member"
        self.seen["ring that was replaced unnoticed"] += 1

    def check_ends(self) -> None:
        """G2: what one of those left was told, all were that knew the sender."""
        members = self.members()
        senders = {sender for process in members for sender in process.last}
        for sender in sorted(senders):
            ends = {
                process.address: process.end_of(sender)
                for process in members
                if sender in process.ever_known
            }
            assert len(set(ends.values())) == 1, f"messages of {sender} end at {ends}"


def run(seed: int, seen: Counter[str]) -> History:
    """Raises with the seed in the message."""
    history = History(seed, seen)
    try:
        history.run()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    return history


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--keep-going", action="store_true")
    options = parser.parse_args()
    seen: Counter[str] = Counter()
    failed = []
    started = time.monotonic()
    for seed in range(options.seed, options.seed + options.count):
        try:
            history = run(seed, seen)
        except Exception:
            failed.append(seed)
            if not options.keep_going:
                raise
            print(seed, traceback.format_exc().strip().splitlines()[-1][:200], flush=True)
            continue
        seen["messages delivered"] += sum(process.delivered for process in history.processes)
        seen["confirms"] += history.confirms
        seen["members"] += len(history.processes)
    elapsed_s = time.monotonic() - started
    print(f"{options.count} histories from seed {options.seed} in {elapsed_s:.0f} s")
    for name, count in sorted(seen.items()):
        print(f"{count:10} {name}")
    print(f"failed: {failed}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
