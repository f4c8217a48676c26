"""Times on the command line: a number of seconds, minutes, hours or days."""

from __future__ import annotations

from typing import Any, ClassVar

import click

from warren.spark_export.snapshot.snapshot_file import LEASE_S_MAX


class Seconds(click.ParamType[float]):
    """A time such as 90, 15m, 2h or 1d."""

    name = "time"
    UNITS: ClassVar = {"s": 1, "m": 60, "h": 3600, "d": 86400}

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip().lower()
        unit = self.UNITS.get(text[-1:], 0)
        try:
            seconds = float(text[:-1]) * unit if unit else float(text)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds <= LEASE_S_MAX:
            wanted = "no time such as 90, 15m, 2h or 1d, up to ten years"
            self.fail(f"{value!r} is {wanted}", param, ctx)
        return seconds
