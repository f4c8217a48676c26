"""The conductor: declares the queues, starts processes, gives the course's orders, sums results.

Producers and consumers have processes of their own, so that to measure one does not slow the other,
and a broker on the same host loses as little as possible.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from time import monotonic_ns
from types import FrameType

from warren.mgmt.perf.client import CLOSE_S_MAX
from warren.mgmt.perf.course import Course, CourseStep
from warren.mgmt.perf.errors import PerfError, WorkerLost
from warren.mgmt.perf.measure import NS_PER_S, Tally
from warren.mgmt.perf.scenario import Scenario
from warren.mgmt.perf.topology import Declared, declare, delete
from warren.mgmt.perf.worker import (
    ENDING_S_MAX,
    Order,
    Ready,
    Report,
    Share,
    Started,
    WorkerEnded,
    WorkerFailed,
    WorkerReport,
    WorkerRole,
    work,
)

TICK_S = 0.05
"""How exactly the times of a scenario are kept."""


class RunOutcome(Enum):
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(slots=True)
class RunResult:
    """The result of a run. The seconds are those in which messages were sent or received."""

    scenario: Scenario
    outcome: RunOutcome = RunOutcome.COMPLETED
    error: str | None = None
    totals: Tally = field(default_factory=Tally)
    elapsed_s: float = 0.0
    publish_s: float = 0.0
    consume_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Second:
    """The contents of a progress line, for about one second of the run."""

    at_s: float
    length_s: float
    tally: Tally
    blocked: int


def run(scenario: Scenario, on_second: Callable[[Second], None]) -> RunResult:
    """Run to the end, to Ctrl-C or to an error, and delete what was declared.

    Raises a `PerfError` if the queues cannot be declared; a later error is in the result.
    """
    declared = Declared()
    try:
        asyncio.run(declare(scenario, declared))
        conductor = Conductor(scenario, on_second)
        conductor.conduct()
    except BaseException:
        # Only the first error is reported.
        _clean_up(scenario, declared)
        raise
    error = None if scenario.keep else _clean_up(scenario, declared)
    result = conductor.result
    if error is not None and result.outcome is not RunOutcome.FAILED:
        result.outcome = RunOutcome.FAILED
        result.error = f"the queues of this run could not be deleted: {error}"
    return result


@dataclass(slots=True, eq=False)
class _Process:
    """A worker process as the conductor knows it."""

    role: WorkerRole
    process: SpawnProcess
    pipe: Connection
    is_ready: bool = False
    started_ns: int | None = None
    has_ended: bool = False
    blocked: int = 0


class Conductor:
    """The processes of one run and what they reported."""

    def __init__(self, scenario: Scenario, on_second: Callable[[Second], None]) -> None:
        self.result = RunResult(scenario)
        self._scenario = scenario
        self._on_second = on_second
        self._processes: list[_Process] = []
        self._begun_ns = 0
        self._second = Tally()
        self._second_began_ns = 0
        self._is_interrupted = False
        self._is_impatient = False

    def conduct(self) -> None:
        """Run from the start of the first process to the end of the last."""
        result = self.result
        with self._minding_signals():
            try:
                self._start_processes()
                self._wait_until_ready()
                self._follow_course()
            except PerfError as error:
                result.outcome = RunOutcome.FAILED
                result.error = str(error)
            finally:
                self._end_processes()
        if self._is_interrupted and result.outcome is RunOutcome.COMPLETED:
            result.outcome = RunOutcome.INTERRUPTED
        self._measure_times()

    def _start_processes(self) -> None:
        scenario = self._scenario
        shares = [
            Share(scenario, role, members)
            for role, count in (
                (WorkerRole.CONSUMERS, scenario.consumers),
                (WorkerRole.PRODUCERS, scenario.producers),
            )
            for members in split(count, scenario.processes)
        ]
        context = multiprocessing.get_context("spawn")
        # Ctrl-C reaches all processes of a terminal, but only the conductor may order them to stop.
        # A signal ignored here is ignored in a child from its first instruction on.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for share in shares:
                ours, theirs = context.Pipe()
                process = context.Process(target=work, args=(share, theirs), daemon=True)
                process.start()
                theirs.close()
                self._processes.append(_Process(share.role, process, ours))
        finally:
            signal.signal(signal.SIGINT, handler)

    def _wait_until_ready(self) -> None:
        while not self._is_interrupted and not all(each.is_ready for each in self._processes):
            self._take_reports(TICK_S)

    def _follow_course(self) -> None:
        self._begun_ns = self._second_began_ns = monotonic_ns()
        course = Course(self._scenario, self._begun_ns)
        while not all(each.has_ended for each in self._processes):
            course.consumers_started = all(
                each.started_ns for each in self._of(WorkerRole.CONSUMERS)
            )
            course.producers_ended = all(each.has_ended for each in self._of(WorkerRole.PRODUCERS))
            course.is_stopped = self._is_interrupted
            for step in course.next_steps(monotonic_ns(), self.result.totals):
                role, order = _ORDERS[step]
                for each in self._of(role):
                    _give(each, order)
            self._take_reports(TICK_S)
            self._tell_second(monotonic_ns())

    def _end_processes(self) -> None:
        """End all processes, whatever happened, and take their last reports."""
        for each in self._processes:
            _give(each, Order.STOP)
        end_ns = monotonic_ns() + int(ENDING_S_MAX * NS_PER_S)
        while not all(each.has_ended for each in self._processes):
            if self._is_impatient or monotonic_ns() > end_ns:
                break
            try:
                self._take_reports(TICK_S)
            except PerfError:
                # Only the first error is reported.
                continue
        for each in self._processes:
            each.process.join(0 if self._is_impatient else CLOSE_S_MAX + 1)
            if each.process.is_alive():
                each.process.kill()
                each.process.join()
            each.pipe.close()
            each.process.close()

    def _take_reports(self, timeout_s: float) -> None:
        """Wait for reports, and take one from each worker that has sent any."""
        speaking = {each.pipe: each for each in self._processes if not each.has_ended}
        for pipe in wait(list(speaking), timeout_s):
            assert isinstance(pipe, Connection)
            each = speaking[pipe]
            try:
                report: Report = pipe.recv()
            except (EOFError, ConnectionResetError) as error:
                each.has_ended = True
                raise WorkerLost(
                    f"the process of the {each.role.value} ended without a report"
                ) from error
            self._take_report(each, report)

    def _take_report(self, each: _Process, report: Report) -> None:
        match report:
            case Ready():
                each.is_ready = True
            case Started(at_ns):
                each.started_ns = at_ns
            case WorkerReport(tally, blocked):
                each.blocked = blocked
                self._add(tally)
            case WorkerEnded(tally):
                each.has_ended = True
                each.blocked = 0
                self._add(tally)
            case WorkerFailed(reason, tally):
                each.has_ended = True
                each.blocked = 0
                self._add(tally)
                raise PerfError(reason)

    def _add(self, tally: Tally) -> None:
        self.result.totals.add(tally)
        self._second.add(tally)

    def _tell_second(self, now_ns: int) -> None:
        length_ns = now_ns - self._second_began_ns
        if length_ns < NS_PER_S:
            return
        second = Second(
            at_s=(now_ns - self._begun_ns) / NS_PER_S,
            length_s=length_ns / NS_PER_S,
            tally=self._second,
            blocked=sum(each.blocked for each in self._processes),
        )
        self._second = Tally()
        self._second_began_ns = now_ns
        self._on_second(second)

    def _measure_times(self) -> None:
        result = self.result
        if self._begun_ns:
            result.elapsed_s = (monotonic_ns() - self._begun_ns) / NS_PER_S
        result.publish_s = self._seconds(WorkerRole.PRODUCERS, result.totals.published_until_ns)
        result.consume_s = self._seconds(WorkerRole.CONSUMERS, result.totals.received_until_ns)

    def _seconds(self, role: WorkerRole, until_ns: int) -> float:
        """Seconds from the start of the first worker of a role until then."""
        starts = [each.started_ns for each in self._of(role) if each.started_ns is not None]
        if not starts or not until_ns:
            return 0.0
        return (until_ns - min(starts)) / NS_PER_S

    def _of(self, role: WorkerRole) -> list[_Process]:
        return [each for each in self._processes if each.role is role]

    @contextmanager
    def _minding_signals(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM ends the run in order, the second at once."""

        def interrupt(number: int, frame: FrameType | None) -> None:
            self._is_impatient = self._is_interrupted
            self._is_interrupted = True

        numbers = (signal.SIGINT, signal.SIGTERM)
        handlers = [(number, signal.signal(number, interrupt)) for number in numbers]
        try:
            yield
        finally:
            for number, handler in handlers:
                signal.signal(number, handler)


_ORDERS = {
    CourseStep.START_CONSUMERS: (WorkerRole.CONSUMERS, Order.START),
    CourseStep.START_PRODUCERS: (WorkerRole.PRODUCERS, Order.START),
    CourseStep.STOP_PRODUCERS: (WorkerRole.PRODUCERS, Order.STOP),
    CourseStep.STOP_CONSUMERS: (WorkerRole.CONSUMERS, Order.STOP),
}


def split(count: int, parts: int) -> list[range]:
    """The numbers 0..count-1 in `parts` ranges of nearly equal length, none of them empty."""
    parts = min(parts, count)
    return [range(part * count // parts, (part + 1) * count // parts) for part in range(parts)]


def _give(each: _Process, order: Order) -> None:
    if each.has_ended:
        return
    try:
        each.pipe.send(order)
    except (BrokenPipeError, ConnectionResetError):
        # It has ended; the reader of its reports will notice.
        pass


def _clean_up(scenario: Scenario, declared: Declared) -> PerfError | None:
    try:
        asyncio.run(delete(scenario, declared))
    except PerfError as error:
        return error
    return None
