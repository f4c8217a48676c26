"""What goes wrong in a history of a group: one method for each fault.

`FAULTS` names them, some more than once, to be drawn from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gm_process import Process, alive

if TYPE_CHECKING:
    from gm_history import History

NODES = ("a", "b", "c", "d", "e", "f", "g")

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


class Faults:
    def __init__(self, history: History) -> None:
        self.history = history
        self.random = history.random
        self.scheduler = history.scheduler
        self.world = history.world

    @property
    def live(self) -> list[Process]:
        return self.history.live

    @property
    def joined(self) -> list[Process]:
        return self.history.joined

    def hit(self, fault: str) -> None:
        if self.live:
            self.history.seen[f"fault: {fault}"] += 1
            getattr(self, fault)()

    def crash(self) -> None:
        self.random.choice(self.live).end(None)

    def crash_in_effect(self) -> None:
        self.random.choice(self.live).steps_left = self.random.randint(1, 12)

    def crash_two(self) -> None:
        for process in self.random.sample(self.live, min(2, len(self.live))):
            process.end(None)

    def crash_neighbours(self) -> None:
        """Two that stand side by side."""
        joined = self.joined
        if joined:
            first = self.random.choice(joined)
            right = first.member.view.right
            first.end(None)
            for process in alive(joined):
                if process.address == right:
                    process.end(None)

    def crash_left_of_joiner(self) -> None:
        """Somebody joins, and whom it asks crashes in one of its next effects."""
        node = self.history.free_node()
        if node is None:
            return
        joiner = self.history.add(node)

        def crash_asked() -> None:
            for process in self.live:
                if process.address == joiner.member._asked:
                    process.steps_left = self.random.randint(1, 9)
            for process in self.joined:
                process.broadcast(False)

        self.scheduler.after(self.random.uniform(0.005, 0.06), crash_asked)

    def join_many(self) -> None:
        """Several join at once, and one of them hears everything late."""
        for node in NODES:
            if self.random.random() < 0.5:
                self.history.join(node)
        self.slow()
        self.history.storm()

    def join_and_die(self) -> None:
        """Somebody comes between two, where what was sent is slow, and dies."""
        self.slow()
        self.history.storm()
        node = self.history.free_node()
        if node is not None:
            joiner = self.history.add(node)
            self.scheduler.after(
                self.random.uniform(0.03, 0.12), lambda: joiner.is_over or joiner.end(None)
            )

    def leave(self) -> None:
        process = self.random.choice(self.live)
        process.event(process.member.leave)

    def drain_all(self) -> None:
        """The group is to stop: all members are told, as they get to know it."""
        for process in self.joined:

            def drain(process: Process = process) -> None:
                if process.is_joined:
                    process.event(process.member.stop_when_drained)

            self.scheduler.after(self.random.uniform(0, 0.05), drain)

    def break_connection(self) -> None:
        pairs = self.world.network.connections()
        if pairs:
            self.world.network.break_connection(*self.random.choice(pairs))

    def break_with_traffic(self) -> None:
        """A connection breaks while much is on its way, and is made anew at once."""
        for process in self.joined:
            process.broadcast(False)
            process.event(process.member.flush)
        self.break_connection()
        for process in self.joined:
            process.broadcast(False)

    def one_way(self) -> None:
        one, other = self.random.sample(NODES[:5], 2)
        self._block([(one, other)])

    def cut_pair(self) -> None:
        one, other = self.random.sample(NODES[:5], 2)
        self._block([(one, other), (other, one)])

    def split(self) -> None:
        nodes = list(NODES)
        self.random.shuffle(nodes)
        at = self.random.randint(1, len(nodes) - 1)
        pairs = [(one, other) for one in nodes[:at] for other in nodes[at:]]
        self._block(pairs + [(other, one) for one, other in pairs])

    def flap(self) -> None:
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

    def stall(self) -> None:
        process = self.random.choice(self.live)
        self.world.network.stall(process.address)
        self.scheduler.after(
            self.random.uniform(0.01, 0.2), lambda: self.world.network.resume(process.address)
        )

    def slow(self) -> None:
        process = self.random.choice(self.live)
        self.world.network.slow_down(process.address, self.random.uniform(0.01, 0.2))

    def store_fails(self) -> None:
        self.world.store.failure_chance = 0.8

        def works() -> None:
            self.world.store.failure_chance = 0.0

        self.scheduler.after(self.random.uniform(0.05, 0.2), works)

    def raise_epoch(self) -> None:
        """Somebody learns of a new epoch; the others are told, or see it in its frames."""
        self.world.epoch += 1
        epoch = self.world.epoch
        for process in self.live:
            if self.random.random() < 0.6:
                self.scheduler.after(
                    self.random.uniform(0, 0.05),
                    lambda process=process: process.event(process.member.set_epoch, epoch),
                )
