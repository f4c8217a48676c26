"""Draws how many messages a second brokers give with how many cores: computed, not measured.

    python docs/pictures/scaling.py

writes `scaling.svg` beside this file, and prints the table of docs/processes.md. A test sees to it
that both are what this makes of the figures below.
"""

from __future__ import annotations

import math
from pathlib import Path

PICTURE = Path(__file__).with_suffix(".svg")

LOCAL_US = 4.5
"""CPU of a message that is published and consumed where its queue is, measured on 2026-11-25."""

CROSSING_US = 7.8
"""What it costs more, in both processes together, when both happen in another process."""

RABBITMQ_US = 28.6
"""CPU of the same message in RabbitMQ 3.10.8, in the same minutes."""

CORES = (1, 2, 4, 8, 16, 32, 64)
SHOWN_IN_TABLE = (4, 8, 16, 64)

SIZE = (640, 380)
LEFT, RIGHT, TOP, BOTTOM = 64, 200, 20, 44
LOWEST, HIGHEST = 0.02, 20.0
"""Millions of messages a second."""

LINES = {
    "near": "clients at the process|of their queue",
    "anywhere": "clients anywhere",
    "rabbitmq": "RabbitMQ, if it scaled|without loss",
    "one": "one process",
}
STYLE = """
  text { font: 12px sans-serif; fill: #3d5654; }
  .grid { stroke: #d5e2e1; stroke-width: 1; }
  .line { fill: none; stroke-width: 2.2; }
  .near { stroke: #1f5f5b; } .anywhere { stroke: #35a29a; }
  .rabbitmq { stroke: #d9822b; } .one { stroke: #93a7a5; stroke-dasharray: 5 4; }
"""


def millions(line: str, cores: int) -> float:
    """Millions of messages a second, for one process on each core and as many queues at least."""
    if line == "one":
        return 1 / LOCAL_US
    if line == "near":
        return cores / LOCAL_US
    if line == "rabbitmq":
        return cores / RABBITMQ_US
    return cores / (LOCAL_US + CROSSING_US * (1 - 1 / cores))


def table() -> str:
    """The rows of the table in docs/processes.md."""
    rows = []
    for cores in SHOWN_IN_TABLE:
        columns = [millions(line, cores) for line in ("one", "anywhere", "near", "rabbitmq")]
        rows.append(f"| {cores} | " + " | ".join([f"{value:.2g}" for value in columns]) + " |")
    return "\n".join(rows)


def draw() -> str:
    width, height = SIZE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
        "<title>Messages a second, with one process on each core</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for cores in CORES:
        x = _x(cores)
        parts.append(
            f'<path class="grid" d="M{x} {TOP}V{height - BOTTOM}"/>'
            f'<text x="{x}" y="{height - BOTTOM + 18}" text-anchor="middle">{cores}</text>'
        )
    for value in (0.1, 1.0, 10.0):
        y = _y(value)
        parts.append(
            f'<path class="grid" d="M{LEFT} {y}H{width - RIGHT}"/>'
            f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{value:g}</text>'
        )
    parts.append(
        f'<text x="{LEFT}" y="{height - 8}">cores</text>'
        f'<text x="{LEFT - 52}" y="{TOP - 6}">million messages a second</text>'
    )
    parts += [_line(name, about) for name, about in LINES.items()]
    return "\n".join([*parts, "</svg>", ""])


def _line(name: str, about: str) -> str:
    points = " ".join([f"{_x(cores)},{_y(millions(name, cores))}" for cores in CORES])
    end = _y(millions(name, CORES[-1]))
    words = about.split("|")
    text = "".join(
        f'<tspan x="{SIZE[0] - RIGHT + 8}" dy="{14 if number else 0}">{word}</tspan>'
        for number, word in enumerate(words)
    )
    return f'<polyline class="line {name}" points="{points}"/><text y="{end + 4}">{text}</text>'


def _x(cores: int) -> int:
    share = math.log(cores) / math.log(CORES[-1])
    return round(LEFT + share * (SIZE[0] - LEFT - RIGHT))


def _y(value: float) -> int:
    share = math.log(value / LOWEST) / math.log(HIGHEST / LOWEST)
    return round(SIZE[1] - BOTTOM - share * (SIZE[1] - TOP - BOTTOM))


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    print(table())
