"""The course of a run: which workers start and stop when. No clock, no process, no socket.

    consumers ─▶ producers ─▶ all sent ─▶ all received ─▶ end
                     └─ time over, Ctrl-C or an error ──────┘

Consumers start first, so that the first messages do not wait for them; or later, if the scenario
says so. All workers of a run by time end together. A run by number of messages, and one whose
consumers wait for the end of publishing, ends when everything is received; where that cannot be
known (an exchange may drop or multiply messages, a queue may expire them) it ends when nothing came
for a while.
"""

from __future__ import annotations

from enum import Enum, auto

from warren.mgmt.perf.measure import NS_PER_MS, NS_PER_S, Tally
from warren.mgmt.perf.scenario import Scenario

QUIET_S = 2.0
"""Time without a message after which no more are expected."""


class CourseStep(Enum):
    """The next thing for the conductor to do."""

    START_CONSUMERS = auto()
    START_PRODUCERS = auto()
    STOP_PRODUCERS = auto()
    STOP_CONSUMERS = auto()


class Course:
    """One run. The caller sets the three flags when they become true."""

    def __init__(self, scenario: Scenario, now_ns: int) -> None:
        self._scenario = scenario
        self._begun_ns = now_ns
        self._quiet_ns = int(QUIET_S * NS_PER_S + scenario.consumer_delay_ms * NS_PER_MS)
        self._steps: set[CourseStep] = set()
        self._consuming_ns: int | None = None
        self._published_ns: int | None = None
        self.consumers_started = not scenario.consumers
        self.producers_ended = not scenario.producers
        self.is_stopped = False
        """Ctrl-C or an error ends the run now."""

    def next_steps(self, now_ns: int, totals: Tally) -> list[CourseStep]:
        """The steps to take now. Each comes once; a stop may come without a start."""
        self._note_times(now_ns)
        wanted = [
            (CourseStep.START_CONSUMERS, self._may_consume(now_ns)),
            (CourseStep.START_PRODUCERS, self._may_publish()),
            (CourseStep.STOP_PRODUCERS, self._has_published(now_ns)),
            (CourseStep.STOP_CONSUMERS, self._has_consumed(now_ns, totals)),
        ]
        steps = [step for step, is_wanted in wanted if is_wanted and step not in self._steps]
        self._steps.update(steps)
        return steps

    def _note_times(self, now_ns: int) -> None:
        if self.consumers_started and self._consuming_ns is None:
            self._consuming_ns = now_ns
        if self.producers_ended and self._published_ns is None:
            self._published_ns = now_ns

    def _may_consume(self, now_ns: int) -> bool:
        scenario = self._scenario
        if self.is_stopped or not scenario.consumers:
            return False
        if scenario.consume_after_publishing:
            return self.producers_ended
        return now_ns - self._begun_ns >= scenario.consume_after_s * NS_PER_S

    def _may_publish(self) -> bool:
        scenario = self._scenario
        if self.is_stopped or not scenario.producers:
            return False
        waits = not scenario.consume_after_publishing and not scenario.consume_after_s
        return self.consumers_started or not waits

    def _has_published(self, now_ns: int) -> bool:
        if not self._scenario.producers or self.producers_ended:
            return False
        return self.is_stopped or self._is_time_over(now_ns)

    def _has_consumed(self, now_ns: int, totals: Tally) -> bool:
        scenario = self._scenario
        if not scenario.consumers:
            return False
        if self.is_stopped:
            return True
        if not scenario.consume_after_publishing and self._is_time_over(now_ns):
            return True
        if not self.consumers_started or not self.producers_ended:
            return False
        expected = self._expected(totals)
        if expected is not None and totals.received - totals.requeued >= expected:
            return True
        return bool(scenario.producers) and self._is_quiet(now_ns, totals)

    def _is_time_over(self, now_ns: int) -> bool:
        time_s = self._scenario.time_s
        return time_s is not None and now_ns - self._begun_ns >= time_s * NS_PER_S

    def _expected(self, totals: Tally) -> int | None:
        """How many messages the consumers will get; None if that cannot be known."""
        scenario = self._scenario
        if not scenario.producers:
            return scenario.messages
        if scenario.exchange or scenario.routing_key is not None:
            return None
        return totals.sent - totals.nacked - totals.returned

    def _is_quiet(self, now_ns: int, totals: Tally) -> bool:
        assert self._consuming_ns is not None and self._published_ns is not None
        since_ns = max(totals.received_until_ns, self._consuming_ns, self._published_ns)
        return now_ns - since_ns >= self._quiet_ns
