"""Generated requests against every endpoint: none may be answered with a server error.

    python -P tests/mgmt/schemathesis_long.py [--examples 50]

Needs schemathesis (`pip install schemathesis`), which need not be in the same environment:
`--program` names it. Starts a broker of its own with something in it, and gives the generator the
names of what is there, so that it does not only meet 404.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pika

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / folder) for folder in ("support", "simulation", "system")]

from api_client import ApiClient  # noqa: E402

from warren import Broker  # noqa: E402
from warren.core.access import login_throttle  # noqa: E402

USER, PASSWORD = "fuzzer", "fuzzer-password"
NAMES = {
    "vhost": ["/", "other", "none"],
    "queue": ["q", "durable", "new"],
    "exchange": ["amq.default", "amq.topic", "x", "new"],
    "source": ["x", "amq.default", "amq.topic"],
    "destination": ["q", "amq.fanout", "x"],
    "kind": ["q", "e"],
    "key": ["~", "a", "none"],
    "user": ["guest", "somebody", "new"],
    "name": ["max-queues", "max-connections", "p", "new", "limits"],
    "component": ["vhost-limits", "operator_policy", "bogus"],
    "node": ["warren@localhost", "none@nowhere"],
    "unit": ["days", "weeks", "months", "years", "eons"],
    "port": ["5672", "x"],
    "protocol": ["amqp", "http", "nothing"],
}


def populate(broker: Broker) -> None:
    broker.add_user(USER, PASSWORD, ("administrator",))
    broker.add_vhost("other")
    for vhost in ("/", "other"):
        broker.set_permissions(USER, vhost)
    channel = pika.BlockingConnection(pika.URLParameters(broker.url)).channel()
    channel.queue_declare("q")
    channel.queue_declare("durable", durable=True, arguments={"x-max-priority": 3})
    channel.exchange_declare("x", "topic", durable=True)
    channel.queue_bind("q", "x", "a")
    channel.exchange_bind("amq.fanout", "x", "b", {"k": [1, None, {"t": True}]})
    channel.basic_publish("x", "a", b"\xff\xfe", pika.BasicProperties(headers={"h": [1, None]}))
    channel.basic_consume("durable", lambda *_: None)


def named(description: dict[str, object]) -> dict[str, object]:
    """The description, with the names of what there is as the values of parameters."""
    paths = description["paths"]
    assert isinstance(paths, dict)
    for path in paths.values():
        for parameter in path.get("parameters", ()):
            if parameter["name"] in NAMES:
                parameter["schema"] = {"enum": NAMES[parameter["name"]]}
    return description


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--examples", type=int, default=50)
    parser.add_argument("--program", default="schemathesis")
    options = parser.parse_args()
    login_throttle.OF_NAME_MAX = login_throttle.OF_ADDRESS_MAX = 10**9
    with Broker(http_port=0) as broker, tempfile.TemporaryDirectory() as folder:
        populate(broker)
        _, description = ApiClient(broker, USER, PASSWORD).get("/openapi.json")
        schema = Path(folder) / "openapi.json"
        schema.write_text(json.dumps(named(description)))
        command = [options.program, "run", str(schema), "--url", f"{broker.http_url}/api"]
        command += ["--auth", f"{USER}:{PASSWORD}", "--checks", "not_a_server_error"]
        # A check that fails answers 503, and that is no fault.
        command += ["--exclude-path-regex", "/health/checks/(port|protocol)-listener"]
        command += ["--phases", "coverage,fuzzing", "--max-examples", str(options.examples)]
        finished = subprocess.run(command, cwd=folder)
        alive = ApiClient(broker, USER, PASSWORD).get("/whoami")[0] == 200
    print("the broker still answers" if alive else "THE BROKER DOES NOT ANSWER")
    sys.exit(finished.returncode or not alive)


if __name__ == "__main__":
    main()
