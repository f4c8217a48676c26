"""Feeds many random sessions to an in-memory broker; not collected by pytest.

    python tests/amqp/fuzz_long.py --inputs 1000000 --seed 1

Input n of a seed is always the same; the node under it is a new one every `STAGE_INPUTS` inputs, so
a failure is repeated with `--first` at the start of its stage: the report says which that is.
Exit code 1 and a traceback for each kind of failure.
"""

from __future__ import annotations

import argparse
import gc
import logging
import signal
import sys
import time
import traceback
from pathlib import Path
from random import Random

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / folder) for folder in ("support", "simulation", "system")]

from fuzz_script import Script, play  # noqa: E402
from sessions import make_openings, make_pool  # noqa: E402
from survivors import Stage, connections_alive  # noqa: E402

STAGE_INPUTS = 200
INPUT_SECONDS_MAX = 10
FAILURES_MAX = 20


def _hangs(_signal: int, _frame: object) -> None:
    raise TimeoutError(f"an input takes more than {INPUT_SECONDS_MAX} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    logging.disable()
    script = Script(make_pool(Random(options.seed)), make_openings(Random(options.seed)))
    signal.signal(signal.SIGALRM, _hangs)
    started = time.monotonic()
    failures: dict[str, int] = {}
    stage: Stage | None = None
    for number in range(options.first, options.inputs):
        if stage is None or number % STAGE_INPUTS == 0:
            stage = Stage(traced=number // STAGE_INPUTS % 10 == 0)
            if number % (STAGE_INPUTS * 50) == 0:
                gc.collect()
                alive = connections_alive(gc.get_objects())
                assert alive <= 2, f"{alive} connections are still alive"
                _say(number - options.first, started, failures)
        signal.alarm(INPUT_SECONDS_MAX)
        try:
            play(stage, Random(f"{options.seed}/{number}"), script)
        except Exception:
            text = traceback.format_exc()
            kind = "\n".join(text.splitlines()[-3:])
            failures[kind] = failures.get(kind, 0) + 1
            if failures[kind] == 1:
                first = number - number % STAGE_INPUTS
                print(f"seed {options.seed} input {number} (--first {first}):\n{text}", flush=True)
            if len(failures) >= FAILURES_MAX:
                break
            stage = None
        finally:
            signal.alarm(0)
    _say(number + 1 - options.first, started, failures)
    return 1 if failures else 0


def _say(inputs: int, started: float, failures: dict[str, int]) -> None:
    seconds = time.monotonic() - started
    print(f"{inputs} inputs in {seconds:.0f} s, {sum(failures.values())} failures", flush=True)


if __name__ == "__main__":
    sys.exit(main())
