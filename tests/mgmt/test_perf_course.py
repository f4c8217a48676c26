"""When workers start and stop, and the summary of a run; without processes and clocks."""

from __future__ import annotations

from typing import Any

from warren.mgmt.perf.course import QUIET_S, Course, CourseStep
from warren.mgmt.perf.measure import Tally
from warren.mgmt.perf.report import progress_line, summary, to_json
from warren.mgmt.perf.run import RunOutcome, RunResult, Second, split
from warren.mgmt.perf.scenario import PerfTarget, Scenario

SECOND = 1_000_000_000
STOP_BOTH = [CourseStep.STOP_PRODUCERS, CourseStep.STOP_CONSUMERS]


def scenario(**options: Any) -> Scenario:
    return Scenario(address=PerfTarget(password="secret"), queue="q", **options)


def running(**options: Any) -> Course:
    """A course whose producers and consumers have started at 0."""
    course = Course(scenario(**options), 0)
    course.next_steps(0, Tally())
    course.consumers_started = True
    course.next_steps(0, Tally())
    return course


def test_consumers_start_before_producers() -> None:
    course = Course(scenario(messages=10), 0)
    assert course.next_steps(0, Tally()) == [CourseStep.START_CONSUMERS]
    assert course.next_steps(1, Tally()) == []
    course.consumers_started = True
    assert course.next_steps(2, Tally()) == [CourseStep.START_PRODUCERS]
    assert course.next_steps(3, Tally()) == []


def test_the_time_ends_both_together() -> None:
    course = running(time_s=10)
    assert course.next_steps(10 * SECOND - 1, Tally()) == []
    assert course.next_steps(10 * SECOND, Tally()) == STOP_BOTH


def test_consumers_end_when_all_that_was_sent_is_received() -> None:
    course = running(messages=10)
    course.producers_ended = True
    totals = Tally(sent=10, received=10, requeued=1)
    assert course.next_steps(SECOND, totals) == []
    totals.received = 11
    assert course.next_steps(SECOND, totals) == [CourseStep.STOP_CONSUMERS]


def test_what_was_returned_or_refused_is_not_waited_for() -> None:
    course = running(messages=10)
    course.producers_ended = True
    totals = Tally(sent=10, returned=3, nacked=2, received=5)
    assert course.next_steps(SECOND, totals) == [CourseStep.STOP_CONSUMERS]


def test_behind_an_exchange_quiet_ends_the_run() -> None:
    course = running(messages=10, exchange="x")
    course.producers_ended = True
    totals = Tally(sent=10, received=30, received_until_ns=3 * SECOND)
    assert course.next_steps(3 * SECOND, totals) == []
    assert course.next_steps(int((3 + QUIET_S) * SECOND), totals) == [CourseStep.STOP_CONSUMERS]


def test_consumers_alone_wait_for_their_number_however_quiet_it_is() -> None:
    course = running(messages=10, producers=0)
    assert course.next_steps(1000 * SECOND, Tally(received=9)) == []
    assert course.next_steps(1000 * SECOND, Tally(received=10)) == [CourseStep.STOP_CONSUMERS]


def test_consumers_start_later_without_holding_producers() -> None:
    course = Course(scenario(time_s=10, consume_after_s=4), 0)
    assert course.next_steps(0, Tally()) == [CourseStep.START_PRODUCERS]
    assert course.next_steps(4 * SECOND, Tally()) == [CourseStep.START_CONSUMERS]


def test_consumers_that_wait_for_publishing_outlive_the_time() -> None:
    course = Course(scenario(time_s=10, consume_after_publishing=True), 0)
    assert course.next_steps(0, Tally()) == [CourseStep.START_PRODUCERS]
    assert course.next_steps(10 * SECOND, Tally(sent=9)) == [CourseStep.STOP_PRODUCERS]
    course.producers_ended = True
    assert course.next_steps(11 * SECOND, Tally(sent=9)) == [CourseStep.START_CONSUMERS]
    course.consumers_started = True
    assert course.next_steps(12 * SECOND, Tally(sent=9)) == []
    assert course.next_steps(12 * SECOND, Tally(sent=9, received=9)) == [CourseStep.STOP_CONSUMERS]


def test_an_interrupt_ends_what_runs_and_starts_nothing() -> None:
    course = running()
    course.is_stopped = True
    assert course.next_steps(1, Tally()) == STOP_BOTH
    course = Course(scenario(), 0)
    course.is_stopped = True
    assert course.next_steps(0, Tally()) == STOP_BOTH


def test_members_are_split_evenly_and_no_process_is_idle() -> None:
    assert split(5, 2) == [range(0, 2), range(2, 5)]
    assert split(2, 4) == [range(0, 1), range(1, 2)]
    assert split(0, 1) == []


# Reports


def finished(outcome: RunOutcome = RunOutcome.COMPLETED, **options: Any) -> RunResult:
    totals = Tally(sent=2000, sent_bytes=2_097_152, received=1000, received_bytes=1_048_576)
    totals.consume_latency.record_since([0], 1_500_000)
    return RunResult(
        scenario(**options), outcome=outcome, totals=totals, publish_s=2.0, consume_s=4.0
    )


def test_the_summary_has_rates_over_each_sides_own_time() -> None:
    lines = summary(finished()).splitlines()
    assert lines[0] == "Sent 2,000 messages in 2.0 s: 1,000 per second, 1.0 MiB/s."
    assert lines[1] == "Received 1,000 messages in 4.0 s: 250 per second, 0.2 MiB/s."
    assert lines[2].startswith("Milliseconds from sending to receiving: min 1.5, median 1.5,")


def test_the_summary_of_an_interrupted_run_says_so() -> None:
    assert summary(finished(RunOutcome.INTERRUPTED)).startswith("Interrupted;")


def test_unanswered_messages_are_told_apart_from_refused_ones() -> None:
    result = finished(confirm_window=5)
    result.totals.confirmed = 1990
    result.totals.nacked = 7
    text = summary(result)
    assert "Confirmed: 1,990 messages; refused by the broker: 7; without an answer: 3." in text


def test_the_json_has_these_fields_and_no_password() -> None:
    report = to_json(finished())
    assert list(report) == [
        "outcome",
        "error",
        "elapsed_s",
        "publish_s",
        "consume_s",
        "sent",
        "sent_bytes",
        "sent_per_s",
        "confirmed",
        "confirmed_per_s",
        "nacked",
        "returned",
        "received",
        "received_bytes",
        "received_per_s",
        "requeued",
        "consume_latency_ms",
        "confirm_latency_ms",
        "scenario",
    ]
    assert (report["sent_per_s"], report["received_per_s"]) == (1000.0, 250.0)
    assert report["consume_latency_ms"]["median"] == 1.5
    assert report["confirm_latency_ms"] is None
    assert "secret" not in str(report)


def test_a_progress_line_has_the_columns_of_its_scenario() -> None:
    second = Second(
        at_s=3.0, length_s=0.5, tally=Tally(sent=500, confirmed=400, returned=2), blocked=1
    )
    both = progress_line(second, scenario(confirm_window=9))
    assert "sent     1,000/s" in both
    assert "confirmed       800/s" in both
    assert "received         0/s" in both
    assert "returned 2" in both
    assert both.endswith("blocked by the broker: 1 connection")
    alone = progress_line(second, scenario(consumers=0))
    assert "received" not in alone
    assert "confirmed" not in alone
