"""A group of members for one scenario: no fault but those the test asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from gm_history import History
from gm_process import Process


class Group(History):
    """Members on the first nodes, joined and at rest. The seed decides about delays."""

    def __init__(self, members: int, seed: int = 1) -> None:
        super().__init__(seed, Counter())
        for node in "abcdefg"[:members]:
            self.add(node)
            self.settle()
        self.ring = self._ring()

    def settle(self) -> None:
        """Let everything happen that will."""
        self.scheduler.run()

    def finish(self) -> None:
        """Come to rest, in a state in which nothing is missing."""
        self._heal()
        self.settle()
        self.check_rest()
        self._last_round()
        self.check_rest()
        self.check_ends()

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Let things happen one after the other until the condition holds."""
        while not condition():
            assert self.scheduler.step(), "nothing happens any more"

    def run_until_delivered(self, process: Process) -> None:
        """Until the process was delivered a message more."""
        before = process.delivered
        self.run_until(lambda: process.delivered > before)

    def _ring(self) -> list[Process]:
        """The joined members as they stand in the ring, from the first on."""
        joined = {process.address: process for process in self.joined}
        ring = [self.joined[0]] if joined else []
        while ring and (right := joined[ring[-1].member.view.right]) is not ring[0]:
            ring.append(right)
        return ring
