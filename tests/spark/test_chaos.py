"""`benchmarks/spark_chaos.py` with a bound: a broker of its own, and steps counted, not seconds."""

from __future__ import annotations

import sys
from pathlib import Path

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")

BATCHES = 5
SNAPSHOTS = 3


def test_snapshots_beside_a_broker_that_works_are_right(tmp_path: Path) -> None:
    if BENCHMARKS not in sys.path:
        sys.path.append(BENCHMARKS)
    import spark_chaos

    result = spark_chaos.run(
        tmp_path, lambda batches, snapshots: batches < BATCHES or snapshots < SNAPSHOTS
    )
    assert spark_chaos.is_good(result), result
    assert result["snapshots"] > SNAPSHOTS
