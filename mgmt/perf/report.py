"""The reports of a run to its user: a line per second, a summary in words, one JSON object."""

from __future__ import annotations

from typing import Any

from warren.mgmt.perf.measure import PerfHistogram, Tally
from warren.mgmt.perf.run import RunOutcome, RunResult, Second
from warren.mgmt.perf.scenario import Scenario

_MIB = 1024 * 1024


def progress_line(second: Second, scenario: Scenario) -> str:
    """Rates and latencies of one second. Columns that stay empty in the scenario are left out."""
    tally = second.tally
    parts = [f"{second.at_s:6.1f} s"]
    if scenario.producers:
        parts.append(f"sent {_rate(tally.sent, second.length_s):>9}/s")
    if scenario.producers and scenario.confirm_window:
        parts.append(f"confirmed {_rate(tally.confirmed, second.length_s):>9}/s")
        parts += _latency_part("confirm", tally.confirm_latency)
    if scenario.consumers:
        parts.append(f"received {_rate(tally.received, second.length_s):>9}/s")
        parts += _latency_part("latency", tally.consume_latency)
    for count, word in (
        (tally.nacked, "nacked"),
        (tally.returned, "returned"),
        (tally.requeued, "requeued"),
    ):
        if count:
            parts.append(f"{word} {count:,}")
    if second.blocked:
        parts.append(f"blocked by the broker: {_counted(second.blocked, 'connection')}")
    return "  ".join(parts)


def summary(result: RunResult) -> str:
    """The run in plain words, several lines."""
    totals = result.totals
    scenario = result.scenario
    lines: list[str] = []
    if result.outcome is RunOutcome.INTERRUPTED:
        lines.append("Interrupted; this is what happened so far.")
    if scenario.producers:
        lines.append(_moved("Sent", totals.sent, totals.sent_bytes, result.publish_s))
        lines += _confirm_lines(totals, scenario)
    if totals.returned:
        lines.append(f"Returned as unroutable: {_counted(totals.returned, 'message')}.")
    if scenario.consumers:
        lines.append(_moved("Received", totals.received, totals.received_bytes, result.consume_s))
    if totals.requeued:
        lines.append(
            f"Requeued: {_counted(totals.requeued, 'message')}; each was received once more."
        )
    for name, latency in (
        ("from sending to receiving", totals.consume_latency),
        ("from sending to confirm", totals.confirm_latency),
    ):
        values = latency.in_ms()
        if values is not None:
            figures = ", ".join(f"{key} {_ms(value)}" for key, value in values.items())
            lines.append(f"Milliseconds {name}: {figures}.")
    return "\n".join(lines)


def to_json(result: RunResult) -> dict[str, Any]:
    """The run as JSON: counts, rates per second, latencies in milliseconds or null."""
    totals = result.totals
    return {
        "outcome": result.outcome.value,
        "error": result.error,
        "elapsed_s": round(result.elapsed_s, 3),
        "publish_s": round(result.publish_s, 3),
        "consume_s": round(result.consume_s, 3),
        "sent": totals.sent,
        "sent_bytes": totals.sent_bytes,
        "sent_per_s": _per_second(totals.sent, result.publish_s),
        "confirmed": totals.confirmed,
        "confirmed_per_s": _per_second(totals.confirmed, result.publish_s),
        "nacked": totals.nacked,
        "returned": totals.returned,
        "received": totals.received,
        "received_bytes": totals.received_bytes,
        "received_per_s": _per_second(totals.received, result.consume_s),
        "requeued": totals.requeued,
        "consume_latency_ms": _latency_object(totals.consume_latency),
        "confirm_latency_ms": _latency_object(totals.confirm_latency),
        "scenario": _scenario_object(result.scenario),
    }


def _confirm_lines(totals: Tally, scenario: Scenario) -> list[str]:
    if not scenario.confirm_window:
        return []
    missing = totals.sent - totals.confirmed - totals.nacked
    if totals.confirmed == totals.sent:
        return ["Confirmed: all of them."] if totals.sent else []
    parts = [f"Confirmed: {_counted(totals.confirmed, 'message')}"]
    if totals.nacked:
        parts.append(f"refused by the broker: {totals.nacked:,}")
    if missing:
        parts.append(f"without an answer: {missing:,}")
    return ["; ".join(parts) + "."]


def _moved(verb: str, count: int, octets: int, seconds: float) -> str:
    if not count:
        return f"{verb} no messages."
    text = f"{verb} {_counted(count, 'message')}"
    if seconds <= 0:
        return f"{text}."
    return (
        f"{text} in {_s(seconds)} s: {_rate(count, seconds)} per second, "
        f"{octets / seconds / _MIB:.1f} MiB/s."
    )


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _latency_part(name: str, latency: PerfHistogram) -> list[str]:
    if not latency.total:
        return []
    median, high = (latency.percentile(permille) / 1e6 for permille in (500, 990))
    return [f"{name} p50 {_ms(median)} ms p99 {_ms(high)} ms"]


def _s(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds >= 1 else f"{seconds:.2g}"


def _ms(value: float) -> str:
    """Milliseconds with three significant figures; a latency is not more exact."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _rate(count: int, seconds: float) -> str:
    return f"{_per_second(count, seconds):,.0f}"


def _per_second(count: int, seconds: float) -> float:
    return round(count / seconds, 1) if seconds > 0 else 0.0


def _latency_object(latency: PerfHistogram) -> dict[str, float] | None:
    values = latency.in_ms()
    if values is None:
        return None
    return {"count": latency.total} | {name: round(value, 4) for name, value in values.items()}


def _scenario_object(scenario: Scenario) -> dict[str, Any]:
    """The options that determine the figures; the password is left out."""
    return {
        "broker": scenario.address.place,
        "vhost": scenario.address.vhost,
        "tls": scenario.address.tls,
        "producers": scenario.producers,
        "producer_connections": scenario.producer_connections,
        "consumers": scenario.consumers,
        "queues": scenario.queues,
        "queue": scenario.queue,
        "processes": scenario.processes,
        "messages": scenario.messages,
        "time_s": scenario.time_s,
        "rate": scenario.rate or None,
        "sizes": list(scenario.sizes),
        "persistent": scenario.persistent,
        "mandatory": scenario.mandatory,
        "confirm_window": scenario.confirm_window or None,
        "exchange": scenario.exchange,
        "durable": scenario.durable,
        "auto_delete": scenario.auto_delete,
        "auto_ack": scenario.auto_ack,
        "ack_every": None if scenario.auto_ack else scenario.ack_every,
        "prefetch": scenario.prefetch or None,
        "requeue_every": scenario.requeue_every or None,
        "consumer_delay_ms": scenario.consumer_delay_ms,
    }
