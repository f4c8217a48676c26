"""Threads that run nothing by themselves: the test says which one runs its next job.

Answerable for the order only. Jobs of one lane run in the order they were handed in, like those
of one thread; between lanes, and between them and the loop, the seed decides. A job runs to its
end before another starts: what two threads do to each other within a job is not simulated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import TypeAlias

Job: TypeAlias = Callable[[], None]

LOOP = "loop"
"""The lane of what was handed to `call_on_loop`."""

JOBS_MAX = 1_000_000
"""Jobs that may run in one `run_all`; more means that they call each other for ever."""


class Jobs:
    """`lane("journal")` is the `run` of a thread of that name."""

    def __init__(self) -> None:
        self._lanes: dict[str, deque[Job]] = {}

    def lane(self, name: str) -> Callable[[Job], None]:
        """What hands a job to the thread of that name."""
        return self._lanes.setdefault(name, deque()).append

    def run(self, job: Job) -> None:
        """Hand a job to the thread named background."""
        self.lane("background")(job)

    def call_on_loop(self, callback: Job) -> None:
        self.lane(LOOP)(callback)

    def waiting(self, name: str) -> int:
        """How many jobs of a lane have not run."""
        return len(self._lanes.get(name, ()))

    def step(self, random: Random) -> bool:
        """Run the next job of some lane; False if there is none."""
        lanes = [name for name, jobs in self._lanes.items() if jobs]
        return bool(lanes) and self.step_lane(random.choice(lanes))

    def step_lane(self, name: str) -> bool:
        """Run the next job of a lane; False if there is none."""
        jobs = self._lanes.get(name)
        if not jobs:
            return False
        jobs.popleft()()
        return True

    def run_all(self) -> None:
        """Run jobs until there are none, one of each lane in turn."""
        count = 0
        while any(self._lanes.values()):
            for name in list(self._lanes):
                count += self.step_lane(name)
            if count > JOBS_MAX:
                raise AssertionError(f"jobs go on after {count}")
