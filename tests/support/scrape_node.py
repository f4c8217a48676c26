"""Reads the metrics of a node."""

from __future__ import annotations

import re
from base64 import b64encode
from urllib.request import Request, urlopen


def scrape(http_port: int, path: str = "/metrics") -> dict[str, float]:
    """Values by name and labels."""
    token = b64encode(b"guest:guest").decode()
    url = f"http://127.0.0.1:{http_port}{path}"
    with urlopen(Request(url, headers={"Authorization": f"Basic {token}"})) as answer:
        lines = answer.read().decode().splitlines()
    types = [line.split()[2] for line in lines if line.startswith("# TYPE ")]
    assert len(types) == len(set(types)), "a metric stands in one place"
    values = {}
    for line in lines:
        if not line.startswith("#"):
            key, _, value = line.rpartition(" ")
            assert key not in values, key
            name = re.sub(r"\{.*", "", key)
            assert name in types or re.sub("_(bucket|sum|count)$", "", name) in types, key
            values[key] = float(value)
    return values
