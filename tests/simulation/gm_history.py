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
from pathlib import Path
from random import Random

sys.path.append(str(Path(__file__).parent))

from gm_process import GROUP, Process, World, alive, link_is_whole
from scheduler import Scheduler

from warren.mirror.gm_base import Limits
from warren.mirror.gm_effects import StopReason
from warren.mirror.view import MemberId, alive_members

NODES = ("a", "b", "c", "d", "e", "f", "g")
FAULTY_S = 0.6
"""For so long things go wrong; afterwards everything is healed."""

REJOIN = {StopReason.LOST_MEMBERSHIP, StopReason.JOIN_LOST}
MEMBERS_MAX = 7


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
        self._is_healed = False

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
        self._incarnations[node] += 1
        process = Process(self.world, MemberId(node, self._incarnations[node]))
        self.processes.append(process)
        process.start()
        return process

    # What happens

    def _set_up(self) -> None:
        random, world, after = self.random, self.world, self.scheduler.after
        world.network.down_may_overtake = random.random() < 0.3
        world.store.watch_chance = random.choice((0.0, 0.5, 1.0))
        if random.random() < 0.2:
            world.limits = Limits(held_bytes_max=600, flush_bytes=150, suspicion_s=0.02)
        if random.random() < 0.3:
            world.store.failure_chance = 0.3
        members = random.randint(2, 5)
        spread_s = random.choice((0.0, 0.0, 0.1))
        for node in NODES[:members]:
            after(random.uniform(0, spread_s), lambda node=node: self._join(node))
        for _ in range(random.randint(2, 9)):
            after(random.uniform(0.05, FAULTY_S), self._storm)
        for _ in range(random.choice((0, 1, 1, 2, 2, 3, 4))):
            fault = random.choice(FAULTS)
            after(random.uniform(0.0, FAULTY_S), lambda fault=fault: self._hit(fault))
        for _ in range(random.choice((0, 1, 2))):
            after(random.uniform(0.05, FAULTY_S), lambda: self._join(self._free_node()))
        for _ in range(3):
            after(random.uniform(0.1, FAULTY_S), self._check_links)

    def _free_node(self) -> str | None:
        taken = {process.site for process in self.live}
        return next((node for node in NODES if node not in taken), None)

    def _join(self, node: str | None) -> None:
        if node is not None and not any(process.site == node for process in self.live):
            self.add(node)

    def _storm(self) -> None:
        """Some members broadcast some messages."""
        random, joined = self.random, self.joined
        for _ in range(random.randint(1, 4) if joined else 0):
            process = random.choice(joined)
            for _ in range(random.randint(1, 3)):
                process.broadcast(random.random() < 0.5)

    def _hit(self, fault: str) -> None:
        if self.live and not self._is_healed:
            self.seen[f"fault: {fault}"] += 1
            getattr(self, f"_{fault}")()

    def _crash(self) -> None:
        self.random.choice(self.live).end(None)

    def _crash_in_effect(self) -> None:
        self.random.choice(self.live).steps_left = self.random.randint(1, 12)

    def _crash_two(self) -> None:
        for process in self.random.sample(self.live, min(2, len(self.live))):
            process.end(None)

    def _crash_neighbours(self) -> None:
        """Two that stand side by side."""
        joined = self.joined
        if joined:
            first = self.random.choice(joined)
            right = first.member.view.right
            first.end(None)
            for process in alive(joined):
                if process.address == right:
                    process.end(None)

    def _crash_left_of_joiner(self) -> None:
        """Somebody joins, and whom it asks crashes in one of its next effects."""
        node = self._free_node()
        if node is None:
            return
        joiner = self.add(node)

        def crash_asked() -> None:
            for process in self.live:
                if process.address == joiner.member._asked:
                    process.steps_left = self.random.randint(1, 9)
            for process in self.joined:
                process.broadcast(False)

        self.scheduler.after(self.random.uniform(0.005, 0.06), crash_asked)

    def _join_many(self) -> None:
        """Several join at once, and one of them hears everything late."""
        for node in NODES:
            if self.random.random() < 0.5:
                self._join(node)
        self._slow()
        self._storm()

    def _join_and_die(self) -> None:
        """Somebody comes between two, where what was sent is slow, and dies."""
        self._slow()
        self._storm()
        node = self._free_node()
        if node is not None:
            joiner = self.add(node)
            self.scheduler.after(
                self.random.uniform(0.03, 0.12), lambda: joiner.is_over or joiner.end(None)
            )

    def _leave(self) -> None:
        process = self.random.choice(self.live)
        process.event(process.member.leave)

    def _drain_all(self) -> None:
        """The group is to stop: all members are told, as they get to know it."""
        for process in self.joined:

            def drain(process: Process = process) -> None:
                if process.is_joined:
                    process.event(process.member.stop_when_drained)

            self.scheduler.after(self.random.uniform(0, 0.05), drain)

    def _break_connection(self) -> None:
        pairs = self.world.network.connections()
        if pairs:
            self.world.network.break_connection(*self.random.choice(pairs))

    def _break_with_traffic(self) -> None:
        """A connection breaks while much is on its way, and is made anew at once."""
        for process in self.joined:
            process.broadcast(False)
            process.event(process.member.flush)
        self._break_connection()
        for process in self.joined:
            process.broadcast(False)

    def _one_way(self) -> None:
        one, other = self.random.sample(NODES[:5], 2)
        self._block([(one, other)])

    def _cut_pair(self) -> None:
        one, other = self.random.sample(NODES[:5], 2)
        self._block([(one, other), (other, one)])

    def _split(self) -> None:
        nodes = list(NODES)
        self.random.shuffle(nodes)
        at = self.random.randint(1, len(nodes) - 1)
        pairs = [(one, other) for one in nodes[:at] for other in nodes[at:]]
        self._block(pairs + [(other, one) for one, other in pairs])

    def _flap(self) -> None:
        one, other = self.random.sample(NODES[:5], 2)
        for _ in range(3):
            self.scheduler.after(
                self.random.uniform(0, 0.1), lambda: self._block([(one, other), (other, one)])
            )

    def _block(self, pairs: list[tuple[str, str]]) -> None:
        network = self.world.network
        for one, other in pairs:
            network.block(one, other)
            self.scheduler.after(
                self.random.uniform(0.01, 0.4),
                lambda one=one, other=other: network.unblock(one, other),
            )

    def _stall(self) -> None:
        process = self.random.choice(self.live)
        self.world.network.stall(process.address)
        self.scheduler.after(
            self.random.uniform(0.01, 0.2), lambda: self.world.network.resume(process.address)
        )

    def _slow(self) -> None:
        process = self.random.choice(self.live)
        self.world.network.slow_down(process.address, self.random.uniform(0.01, 0.2))

    def _store_fails(self) -> None:
        self.world.store.failure_chance = 0.8

        def works() -> None:
            self.world.store.failure_chance = 0.0

        self.scheduler.after(self.random.uniform(0.05, 0.2), works)

    def _raise_epoch(self) -> None:
        """Somebody learns of a new epoch; the others are told, or see it in its frames."""
        self.world.epoch += 1
        epoch = self.world.epoch
        for process in self.live:
            if self.random.random() < 0.6:
                self.scheduler.after(
                    self.random.uniform(0, 0.05),
                    lambda process=process: process.event(process.member.set_epoch, epoch),
                )

    def _heal(self) -> None:
        self._is_healed = True
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
                self.random.uniform(0.0, 0.05), lambda: self._join(process.address.node)
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


FAULTS = (
    "crash",
    "crash",
    "crash_in_effect",
    "crash_in_effect",
    "crash_in_effect",
    "crash_two",
    "crash_neighbours",
    "crash_left_of_joiner",
    "crash_left_of_joiner",
    "join_many",
    "join_and_die",
    "leave",
    "drain_all",
    "break_connection",
    "break_with_traffic",
    "one_way",
    "cut_pair",
    "split",
    "flap",
    "stall",
    "slow",
    "store_fails",
    "raise_epoch",
)


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
