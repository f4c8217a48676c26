"""The options of `warren export run` that the source for Spark has, too, under other names."""

from __future__ import annotations

import re

from warren.spark_export.errors import OptionRefused
from warren.spark_export.snapshot.options import ReadOptions, parse_options

NAMES_HERE = {
    "headers": "--headers",
    "bodyFormat": "--body",
    "mode": "--mode",
    "failOnDataLoss": "--allow-data-loss",
    "maxPartitionBytes": "--target-file-size",
    "startingTimestamp": "--start",
    "endingTimestamp": "--end",
}
"""The names of the command's options, by those of the source."""

_NAMED = re.compile(rf"\boption ({'|'.join(NAMES_HERE)})\b")


def read_options(**given: str | None) -> ReadOptions:
    """The values of these options of the source.

    Raises `OptionRefused`, which names the option as the command does.
    """
    try:
        return parse_options({name: text for name, text in given.items() if text is not None})
    except OptionRefused as refusal:
        raise OptionRefused(_NAMED.sub(_name_here, str(refusal))) from refusal


def _name_here(named: re.Match[str]) -> str:
    return f"option {NAMES_HERE[named[1]]}"
