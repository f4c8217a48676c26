"""A backlog: what a queue that only grows costs in memory and speed, and what is left of it.

    python benchmarks/backlog.py --port 5672 --pid PID [-n 10000000] [--lazy]
        [--directory DATA_DIR] [--csv memory.csv] [--svg backlog.svg]

Publishes persistent messages without confirms to one durable queue of any AMQP 0-9-1 broker, then
consumes and acknowledges them. Meanwhile the resident memory of the broker's process PID is
sampled. Prints one JSON line. Standard library only.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import threading
import time
from typing import NamedTuple

from amqp_socket import AmqpSocket, disk_bytes, persistent_publish, resident_bytes

TENTHS = 10
SETTLE_S = 5.0
"""How long the broker gets to tidy up before the disk use is taken."""

MIB = 1 << 20


class Sample(NamedTuple):
    at_s: float
    resident_bytes: int
    doing: str


class Sampler:
    """Samples the memory of a process in a thread; `doing` is noted with each sample."""

    def __init__(self, pid: int, interval_s: float) -> None:
        self.doing = "idle"
        self.samples: list[Sample] = []
        self._pid = pid
        self._interval_s = interval_s
        self._started = time.perf_counter()
        self._over = threading.Event()
        self.sample()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def sample(self) -> Sample:
        at_s = time.perf_counter() - self._started
        self.samples.append(Sample(at_s, resident_bytes(self._pid), self.doing))
        return self.samples[-1]

    def _run(self) -> None:
        while not self._over.wait(self._interval_s):
            self.sample()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


class Course(NamedTuple):
    """How a run went; rates are messages per second."""

    rate_by_tenth: list[float]
    publish_s: float
    drain_s: float


def run(options: argparse.Namespace, sampler: Sampler, disk: dict[str, int]) -> Course:
    client = AmqpSocket(options.host, options.port)
    if not options.keep:
        client.delete(options.queue)
    client.declare(options.queue, {"x-queue-mode": "lazy"} if options.lazy else {})
    unit = persistent_publish(options.queue, os.urandom(options.size))
    rates: list[float] = []
    sampler.doing = "publishing"
    started = time.perf_counter()
    for tenth in range(TENTHS):
        count = options.messages * (tenth + 1) // TENTHS - options.messages * tenth // TENTHS
        tenth_started = time.perf_counter()
        client.publish(unit, count)
        rates.append(count / (time.perf_counter() - tenth_started))
    publish_s = time.perf_counter() - started
    sampler.sample()
    sampler.doing = "idle"
    if options.directory:
        time.sleep(SETTLE_S)
        disk["disk_mib_full"] = disk_bytes(options.directory) // MIB
    sampler.doing = "draining"
    started = time.perf_counter()
    client.drain(options.queue, options.messages, acked_at_once=500)
    drain_s = time.perf_counter() - started
    sampler.doing = "idle"
    if options.directory:
        time.sleep(SETTLE_S)
        disk["disk_mib_drained"] = disk_bytes(options.directory) // MIB
    client.close()
    return Course(rates, publish_s, drain_s)


def summary(
    options: argparse.Namespace, course: Course, samples: list[Sample], disk: dict[str, int]
) -> dict[str, object]:
    first, last = course.rate_by_tenth[0], course.rate_by_tenth[-1]
    publishing = [one.resident_bytes for one in samples if one.doing == "publishing"]
    return {
        "messages": options.messages,
        "size": options.size,
        "mode": "lazy" if options.lazy else "default",
        "publish_per_s": round(options.messages / course.publish_s),
        "first_tenth_per_s": round(first),
        "last_tenth_per_s": round(last),
        "last_to_first": round(last / first, 3),
        "drain_per_s": round(options.messages / course.drain_s),
        "rss_mib_before": samples[0].resident_bytes // MIB,
        "rss_mib_peak": max(one.resident_bytes for one in samples) // MIB,
        "rss_mib_growth": (max(publishing) - samples[0].resident_bytes) // MIB,
        "rss_mib_after": samples[-1].resident_bytes // MIB,
        **disk,
    }


# Pictures

WIDTH, HEIGHT, LEFT, TOP, GAP = 720, 220, 70, 40, 70
COLOURS = {"publishing": "#1f77b4", "draining": "#2ca02c", "idle": "#999999"}


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{words}</text>'


def axes(top: float, title: str, y_max: str, x_max: str) -> list[str]:
    bottom = top + HEIGHT
    return [
        f'<path d="M{LEFT} {top}V{bottom}H{LEFT + WIDTH}" fill="none" stroke="#000"/>',
        text(LEFT, top - 12, title),
        text(LEFT - 6, top + 10, y_max, "end"),
        text(LEFT - 6, bottom, "0", "end"),
        text(LEFT + WIDTH, bottom + 18, x_max, "end"),
    ]


def memory_lines(samples: list[Sample], top: float) -> list[str]:
    """A line for each stretch in which the broker did the same."""
    end_s = max(samples[-1].at_s, 0.001)
    most = max(one.resident_bytes for one in samples)
    parts = axes(top, "resident memory", f"{most // MIB} MiB", f"{end_s:.0f} s")
    points: list[str] = []
    for at, one in enumerate(samples):
        x = LEFT + WIDTH * one.at_s / end_s
        y = top + HEIGHT * (1 - one.resident_bytes / most)
        points.append(f"{x:.1f},{y:.1f}")
        if at + 1 == len(samples) or samples[at + 1].doing != one.doing:
            line = f'<polyline points="{" ".join(points)}" fill="none"'
            parts.append(f'{line} stroke="{COLOURS[one.doing]}" stroke-width="2"/>')
            points = points[-1:]
    for at, (doing, colour) in enumerate(COLOURS.items()):
        x = LEFT + WIDTH - 240 + 80 * at
        parts.append(f'<g fill="{colour}">{text(x, top - 12, doing)}</g>')
    return parts


def rate_bars(rates: list[float], top: float) -> list[str]:
    most = max(rates)
    parts = axes(top, "messages published per second, by tenth", f"{most:,.0f}", "last tenth")
    step = WIDTH / len(rates)
    for at, rate in enumerate(rates):
        height = HEIGHT * rate / most
        parts.append(
            f'<rect x="{LEFT + at * step + 6:.1f}" y="{top + HEIGHT - height:.1f}"'
            f' width="{step - 12:.1f}" height="{height:.1f}" fill="{COLOURS["publishing"]}"/>'
        )
    return parts


def picture(samples: list[Sample], rates: list[float]) -> str:
    width, height = LEFT + WIDTH + 30, TOP + 2 * HEIGHT + GAP + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        ' font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        *memory_lines(samples, TOP),
        *rate_bars(rates, TOP + HEIGHT + GAP),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5672)
    parser.add_argument("--pid", type=int, required=True, help="the broker's process")
    parser.add_argument("-n", "--messages", type=int, default=1_000_000)
    parser.add_argument("-s", "--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--lazy", action="store_true", help="a lazy queue")
    parser.add_argument("--queue", default="backlog", help="is deleted first [%(default)s]")
    parser.add_argument("--keep", action="store_true", help="do not delete the queue first")
    parser.add_argument("--directory", help="the broker's data, for its use of the disk")
    parser.add_argument("--interval", type=float, default=0.25, help="seconds between samples")
    parser.add_argument("--csv", help="where to write the samples")
    parser.add_argument("--svg", help="where to draw them")
    options = parser.parse_args()
    disk: dict[str, int] = {}
    sampler = Sampler(options.pid, options.interval)
    course = run(options, sampler, disk)
    sampler.sample()
    sampler.stop()
    samples = sampler.samples
    if options.csv:
        with open(options.csv, "w", newline="", encoding="ascii") as file:
            writer = csv.writer(file)
            writer.writerow(["seconds", "resident_bytes", "doing"])
            writer.writerows((f"{at_s:.3f}", octets, doing) for at_s, octets, doing in samples)
    if options.svg:
        with open(options.svg, "w", encoding="ascii") as file:
            file.write(picture(samples, course.rate_by_tenth))
    print(json.dumps(summary(options, course, samples, disk)))


if __name__ == "__main__":
    main()
