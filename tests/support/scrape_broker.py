"""Reads the metrics of an embedded broker."""

from __future__ import annotations

import re
from urllib.request import urlopen

from warren import Broker

LINE = re.compile(
    r'([a-z_]+)(\{(?:[a-z_]+="(?:[^"\\\n]|\\\\|\\"|\\n)*",?)*\})? (NaN|[+-]Inf|-?[0-9.e+-]+)'
)


def scrape(broker: Broker, path: str = "/metrics") -> dict[str, float]:
    """Values by name and labels, of the listener that serves metrics alone."""
    management = broker._running.management
    assert management is not None
    with urlopen(f"http://127.0.0.1:{management.metrics_ports[0]}{path}") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    values: dict[str, float] = {}
    typed = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name = line.split()[2]
            assert name not in typed, f"{name} twice"
            typed.add(name)
        elif not line.startswith("#"):
            matched = LINE.fullmatch(line)
            assert matched is not None, line
            key = matched[1] + (matched[2] or "")
            assert key not in values, f"{key} twice"
            values[key] = float(matched[3])
            family = re.sub("_(bucket|sum|count)$", "", matched[1])
            assert matched[1] in typed or family in typed, line
    return values
