"""What the pages and a scraper cost: the throughput of the load generator's rows, with and without.

    python benchmarks/management_load.py --generator amqpload.py --port 5672 --http 15672

Without, nobody asks anything. With, one client asks every 5 seconds what the overview and a queue's
page ask, and another scrapes /metrics every 5 seconds. Prints a table. Standard library only.
"""

from __future__ import annotations

import argparse
import base64
import json
import statistics
import subprocess
import sys
import threading
import urllib.error
import urllib.request

from beside_rabbitmq import ROWS

ASKED = (
    "/api/overview?lengths_age=600&lengths_incr=5&msg_rates_age=600&msg_rates_incr=5",
    "/api/nodes?node_stats_age=600&node_stats_incr=5",
    "/api/queues/%2F/amqpload?lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5",
    "/api/queues?page=1&page_size=100",
    "/api/connections?page=1&page_size=100",
)
EVERY_S = 5.0


class Asker:
    """Asks these paths again and again in a thread."""

    def __init__(self, port: int, paths: tuple[str, ...]) -> None:
        self._port = port
        self._paths = paths
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        token = base64.b64encode(b"guest:guest").decode("ascii")
        while not self._over.wait(EVERY_S):
            for path in self._paths:
                request = urllib.request.Request(f"http://127.0.0.1:{self._port}{path}")
                request.add_header("Authorization", f"Basic {token}")
                try:
                    with urllib.request.urlopen(request) as answer:
                        answer.read()
                except urllib.error.HTTPError as error:
                    # A queue that is just being declared anew.
                    if error.code != 404:
                        raise

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--generator", required=True)
    parser.add_argument("--port", required=True)
    parser.add_argument("--http", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=8.0, help="of the messages of each row")
    options = parser.parse_args()
    print("| scenario | alone | watched | |\n|---|---|---|---|")
    for row in ROWS[:4]:
        rates: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(options.rounds):
            for watched in (False, True):
                paths = (ASKED, ("/metrics",))
                askers = [Asker(options.http, one) for one in paths] if watched else []
                command = [sys.executable, options.generator, "--port", options.port]
                command += ["-n", str(int(row.messages * options.scale)), *row.options]
                finished = subprocess.run(command, check=True, capture_output=True)
                for asker in askers:
                    asker.stop()
                rates[watched].append(json.loads(finished.stdout)["consume_per_s"])
        alone, watched_rate = (statistics.median(rates[watched]) for watched in (False, True))
        print(f"| {row.name} | {alone:,.0f} | {watched_rate:,.0f} | {watched_rate / alone:.1%} |")


if __name__ == "__main__":
    main()
