"""How long a client waits while another one asks something costly of the same node.

    python benchmarks/witness.py [--only NAME] [--rounds 3] [--limit-ms 20] [--list]

For each scenario (`witness_scenarios.py`) a node is started and prepared; then a witness
(`witness_process.py`) publishes and gets one message at a time, while the costly thing is done and
until the node is quiet again. Prints a table; exit code 1 if the witness waited longer than the
limit anywhere. Two cores are needed, with nothing else to do. Standard library only.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from amqp_socket import Refused
from witness_process import Waits, Witness
from witness_scenarios import SCENARIOS, Scenario, Work
from witness_stage import Stage

FAILED_MS = float("inf")


class Result(NamedTuple):
    """What the witness of one round saw. `failure` is empty if the scenario came to its end."""

    waits: Waits
    took_s: float
    failure: str = ""


def play(scenario: Scenario, directory: Path) -> Result:
    """One scenario with a node of its own."""
    began = time.perf_counter()
    stage = Stage(directory, http=scenario.http)
    try:
        return _watched(scenario.prepare(stage), stage.port)
    except (OSError, HTTPException, Refused) as error:
        waits = Waits(0, FAILED_MS, FAILED_MS)
        return Result(waits, time.perf_counter() - began, repr(error))
    finally:
        stage.end()


def _watched(work: Work, port: int) -> Result:
    witness = Witness(port)
    try:
        witness.measure()
        began = time.perf_counter()
        work()
        took_s = time.perf_counter() - began
        return Result(witness.report(), took_s)
    finally:
        witness.end()


def median(results: list[Result]) -> Result:
    worst_ms = statistics.median(one.waits.worst_ms for one in results)
    p99_ms = statistics.median(one.waits.p99_ms for one in results)
    took_s = statistics.median(one.took_s for one in results)
    failures = [one.failure for one in results if one.failure]
    asked = min(one.waits.asked for one in results)
    return Result(Waits(asked, worst_ms, p99_ms), took_s, "; ".join(failures))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", help="scenarios whose name contains this")
    parser.add_argument("--list", action="store_true", help="say which scenarios there are")
    parser.add_argument("--rounds", type=int, default=1, help="each figure is a median of these")
    parser.add_argument("--limit-ms", type=float, default=20.0, help="of the worst wait")
    parser.add_argument("--directory", type=Path, help="where to make directories for the data")
    options = parser.parse_args()
    parts: list[str] = options.only or [""]
    chosen = [one for one in SCENARIOS if any(part in one.name for part in parts)]
    if options.list:
        for scenario in chosen:
            print(f"{scenario.name:30} {scenario.what}")
        return 0
    print("| what | worst wait ms | p99 ms | it took s |\n|---|---|---|---|", flush=True)
    too_long = []
    for scenario in chosen:
        results = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory(
                prefix="warren-witness-", dir=options.directory
            ) as path:
                results.append(play(scenario, Path(path)))
        (_, worst_ms, p99_ms), took_s, failure = median(results)
        print(f"| {scenario.what} | {worst_ms:.1f} | {p99_ms:.2f} | {took_s:.2f} |", flush=True)
        if failure:
            print(f"{scenario.name}: {failure}", file=sys.stderr)
        if failure or worst_ms > options.limit_ms:
            too_long.append(scenario.name)
    if too_long:
        print(f"above {options.limit_ms:g} ms: {', '.join(too_long)}", file=sys.stderr)
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
