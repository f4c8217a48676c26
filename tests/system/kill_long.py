"""Kills a node under load again and again, and audits it; not collected by pytest.

    python tests/system/kill_long.py --rounds 200 --seed 1

Round n of a seed has the same publishers, sizes and plan, but what happens is up to the machine.
Messages come with confirms and in transactions, some with bodies of megabytes. They are
acknowledged, requeued, or become dead letters: rejected, expired, pushed out by a length limit, or
on their way through a chain of queues with a time to live of 0. `message_ledger.py` and
`mortal_ledger.py` say what must be where.

The first complaint ends it, with exit code 1; the data directory is left for looking at then.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / folder) for folder in ("support", "simulation", "system")]

from durable_load import Load, audit, audit_mortal, declare, ledgers, take_in  # noqa: E402
from mortal_ledger import MortalLedger  # noqa: E402
from server_process import ServerProcess, launch  # noqa: E402

CONFIRMS_MAX = 20_000
KEPT_MAX = 15_000
"""Queues with more messages are drained."""

CONFIGURATIONS = (
    "",
    "msg_store_file_size_limit = 1048576",
    "msg_store_file_size_limit = 65536\nqueue_index_embed_msgs_below = 100",
    # Half of very little: the queues page out all the time.
    "vm_memory_high_watermark.absolute = 2GB\nvm_memory_high_watermark_paging_ratio = 0.01",
    "msg_store_file_size_limit = 2097152\n"
    "vm_memory_high_watermark.absolute = 2GB\nvm_memory_high_watermark_paging_ratio = 0.01",
)


class Torture:
    """One data directory through many lives of its node."""

    def __init__(self, directory: Path, seed: int, say: Callable[[str], None]) -> None:
        self.server: ServerProcess | None = None
        self._directory = directory
        self._seed = seed
        self._say = say
        self._ledgers = ledgers()
        self._mortal = MortalLedger()

    def play(self, number: int, confirms_max: int = CONFIRMS_MAX) -> None:
        """Restart, audit, load, kill."""
        chance = random.Random(f"{self._seed}/{number}")
        config = self._directory / "warren.conf"
        config.write_text(chance.choice(CONFIGURATIONS), encoding="utf-8")
        arguments = ["--data-dir", "data", "--amqp", "127.0.0.1:0", "--config", str(config)]
        starts_cut = 0
        while number and chance.random() < 0.3:
            self._cut_a_start(arguments, chance.uniform(0.05, 0.8))
            starts_cut += 1
            self._mortal.crashed()
        began = time.monotonic()
        self.server = ServerProcess(arguments, self._directory)
        start_s = time.monotonic() - began
        port = self.server.port
        declare(port)
        counts = self._audit(port, chance)
        load = Load(port, number, f"{self._seed}/{number}")
        load.wait_for_confirms(chance.randint(1, confirms_max))
        clean = chance.random() < 0.1
        if clean:
            self.server.signal(signal.SIGTERM)
            assert self.server.wait() == 0
        self.server.kill()
        life = load.ended()
        take_in(life, self._ledgers, self._mortal)
        if not clean:
            self._mortal.crashed()
        self._check_log()
        sent = sum(len(one.published.sent) for one in life.all_publishers)
        seen = sum(len(one.consumed.seen) for one in life.all_consumers)
        acked = sum(len(one.consumed.acked) for one in life.all_consumers)
        self._say(
            f"round {number}: {starts_cut} starts cut, ready after {start_s:.2f} s, "
            f"audited {counts}; sent {sent}, confirmed {life.confirmed}, delivered {seen}, "
            f"acked {acked}, {'stopped' if clean else 'killed'}"
        )

    def _cut_a_start(self, arguments: list[str], after_s: float) -> None:
        with (self._directory / "cut.log").open("wb") as log:
            process = launch(arguments, self._directory, log)
        time.sleep(after_s)
        process.kill()
        process.wait()
        process.stdout.close()

    def _audit(self, port: int, chance: random.Random) -> str:
        counts = []
        for ledger in self._ledgers.values():
            kind = chance.random()
            if kind < 0.2 and len(ledger.may) < KEPT_MAX:
                counts.append(f"{ledger.name} -")
                continue
            drain = kind > 0.6 or len(ledger.may) >= KEPT_MAX
            count = audit(port, ledger, drain=drain)
            counts.append(f"{ledger.name} {count}{' drained' if drain else ''}")
        drain = chance.random() < 0.6
        mortal = audit_mortal(port, self._mortal, drain=drain)
        counts += [f"{queue} {count}" for queue, count in mortal.items()]
        return ", ".join(counts)

    def audit_all(self) -> None:
        """One more start, and nothing but the audit."""
        arguments = ["--data-dir", "data", "--amqp", "127.0.0.1:0"]
        self.server = ServerProcess(arguments, self._directory)
        for ledger in self._ledgers.values():
            audit(self.server.port, ledger, drain=False)
        audit_mortal(self.server.port, self._mortal, drain=False)
        self._check_log()

    def _check_log(self) -> None:
        """Nothing is damaged but ends that were torn off."""
        assert self.server is not None
        for line in self.server.log.splitlines():
            if " ERROR " in line or "Traceback" in line:
                raise AssertionError(f"the node says: {line}")

    def end(self) -> None:
        if self.server is not None:
            self.server.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--confirms", type=int, default=CONFIRMS_MAX, help="at most in a round")
    parser.add_argument("--directory", type=Path, help="where to keep data [a temporary one]")
    options = parser.parse_args()
    directory = options.directory or Path(tempfile.mkdtemp(prefix="warren-kill-"))
    directory.mkdir(parents=True, exist_ok=True)
    torture = Torture(directory, options.seed, lambda line: print(line, flush=True))
    began = time.monotonic()
    number = 0
    try:
        for number in range(options.rounds):
            torture.play(number, options.confirms)
        torture.audit_all()
    except BaseException:
        traceback.print_exc()
        print(f"seed {options.seed} round {number}: see {directory}", flush=True)
        return 1
    finally:
        torture.end()
    print(f"{options.rounds} rounds in {time.monotonic() - began:.0f} s, no complaint", flush=True)
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
