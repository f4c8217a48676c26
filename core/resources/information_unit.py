"""Amounts of bytes as people write them: 512MB, 1GiB, 4096.

`k`, `M`, `G` and `kiB`, `MiB`, `GiB` are powers of 1024, `kB`, `MB`, `GB` powers of 1000, as in
rabbitmq.conf; case does not matter.
"""

from __future__ import annotations

import re

SIZE = re.compile(r"\s*([0-9]+)\s*([kmgtp]?)(i?b)?\s*\Z", re.IGNORECASE | re.ASCII)
POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


def parse_bytes(text: str) -> int:
    """The number of bytes. Raises ValueError."""
    match = SIZE.match(text)
    if match is None:
        raise ValueError(f"an amount of bytes such as 512MB, 1GiB or 4096 was wanted, not {text!r}")
    number, prefix, suffix = match.groups()
    base = 1000 if (suffix or "").lower() == "b" else 1024
    return int(number) * int(base ** POWERS[prefix.lower()])
