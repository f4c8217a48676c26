"""Every subcommand of RabbitMQ's own command line tool against a broker, one after the other.

    python -P tests/mgmt/rabbitmqadmin_long.py PATH_OF_RABBITMQADMIN [--host H --port 15672]

Starts a broker of its own unless a port is given. The tool is the one RabbitMQ 3.10 serves at
/cli/rabbitmqadmin; it is not part of this repository. Prints each command with what became of it,
and ends with 1 if one did not do what it should.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pika

from warren import Broker


class Step(NamedTuple):
    """A command, what its output must contain, and its exit code."""

    command: str
    wanted: str = ""
    code: int = 0


STEPS = [
    Step("show overview", "3.10.8"),
    Step("list nodes", "disc"),
    Step("declare vhost name=admin-test", "vhost declared"),
    Step("list vhosts name", "admin-test"),
    Step("declare user name=tester password=secret tags=management,policymaker", "user declared"),
    Step("declare user name=hashed password_hash= tags=", "user declared"),
    Step("list users", "policymaker"),
    Step(
        "declare permission vhost=admin-test user=guest configure=.* write=.* read=.*",
        "permission declared",
    ),
    Step(
        "declare permission vhost=admin-test user=tester configure=.* write=.* read=.*",
        "permission declared",
    ),
    Step("list permissions", "tester"),
    Step("-V admin-test declare exchange name=x type=topic", "exchange declared"),
    Step("-V admin-test declare exchange name=x type=fanout", "inequivalent arg", 1),
    Step("-V admin-test declare exchange name=y type=fanout durable=false auto_delete=true",
         "exchange declared"),
    Step("-V admin-test list exchanges name type", "amq.topic"),
    Step("-V admin-test declare queue name=q durable=true", "queue declared"),
    Step(
        '-V admin-test declare queue name=limited arguments={"x-max-length":5}',
        "queue declared",
    ),
    Step("-V admin-test declare queue name=classic queue_type=classic", "queue declared"),
    Step("-V admin-test list queues name durable", "limited"),
    Step(
        "-V admin-test declare binding source=x destination=q routing_key=a.#", "binding declared"
    ),
    Step(
        "-V admin-test declare binding source=x destination=y destination_type=exchange"
        " routing_key=b",
        "binding declared",
    ),
    Step("-V admin-test list bindings source destination routing_key", "a.#"),
    Step("-V admin-test publish exchange=x routing_key=a.b payload=hello", "Message published"),
    Step(
        "-V admin-test publish exchange=x routing_key=nowhere payload=hello", "NOT routed"
    ),
    Step(
        "-V admin-test publish routing_key=q payload=aGVsbG8= payload_encoding=base64"
        ' properties={"delivery_mode":2,"headers":{"h":1}}',
        "Message published",
    ),
    Step("-V admin-test get queue=q", "hello"),
    Step("-V admin-test get queue=q count=2 ackmode=ack_requeue_false", "hello"),
    Step("-V admin-test get queue=q", "No items"),
    Step("-V admin-test get queue=none", "Not found", 1),
    Step("-V admin-test publish routing_key=q payload=x", "Message published"),
    Step("-V admin-test purge queue name=q", "queue purged"),
    Step(
        "-V admin-test declare policy name=p pattern=^q definition={\"max-length\":10}"
        " apply-to=queues priority=1",
        "policy declared",
    ),
    Step("-V admin-test list policies", "max-length"),
    Step(
        '-V admin-test declare policy name=bad pattern=^q definition={"foo":1}',
        "not recognised",
        1,
    ),
    Step(
        "-V admin-test declare operator_policy name=op pattern=^q definition={\"max-length\":10}"
        " apply-to=queues priority=1",
        "operator_policy declared",
    ),
    Step("-V admin-test list operator_policies", "max-length"),
    Step(
        "declare vhost_limit vhost=admin-test name=max-queues value=20", "vhost_limit declared"
    ),
    Step("list vhost_limits", "max-queues"),
    Step(
        "-V admin-test declare parameter component=vhost-limits name=limits"
        ' value={"max-queues":30}',
        "parameter declared",
    ),
    Step("list parameters", "vhost-limits"),
    Step("list connections name user state", "guest"),
    Step("list channels name", "("),
    Step("list consumers", "ctag"),
    Step("-f tsv list queues name messages", "open"),
    Step("-f long list queues", "messages: 0"),
    Step("-f kvp list queues name", "name="),
    Step("-f raw_json list queues name", '"name"'),
    Step("-f pretty_json list queues name", '"name"'),
    Step("-f bash list queues name", "open"),
    Step("-d 2 list exchanges", "amq.topic"),
    Step("-S messages -R list queues name messages", "open"),
    Step("export {definitions}", "Exported definitions"),
    Step("-V admin-test export {of_vhost}", "Exported definitions"),
    Step("import {definitions}", "Uploaded definitions"),
    Step("-V admin-test import {of_vhost}", "Uploaded definitions"),
    Step("close connection name={connection}", "connection closed"),
    Step("-V admin-test delete vhost_limit vhost=admin-test name=max-queues",
         "vhost_limit deleted"),
    Step("-V admin-test delete parameter component=vhost-limits name=limits",
         "parameter deleted"),
    Step("-V admin-test delete operator_policy name=op", "operator_policy deleted"),
    Step("-V admin-test delete policy name=p", "policy deleted"),
    Step(
        "-V admin-test delete binding source=x destination=q destination_type=queue"
        " properties_key=a.%23",
        "binding deleted",
    ),
    Step("-V admin-test delete exchange name=x", "exchange deleted"),
    Step("-V admin-test delete queue name=q", "queue deleted"),
    Step("-V admin-test delete queue name=q", "Not found", 1),
    Step("delete permission vhost=admin-test user=tester", "permission deleted"),
    Step("delete user name=tester", "user deleted"),
    Step("delete user name=hashed", "user deleted"),
    Step("delete vhost name=admin-test", "vhost deleted"),
    Step("-u nobody -p wrong list queues", "Access refused", 1),
]  # fmt: skip


def run(tool: str, where: list[str], step: Step, names: dict[str, str]) -> bool:
    words = [word.format_map(_Names(names)) for word in _split(step.command)]
    # Options of the tool itself stand before the subcommand.
    finished = subprocess.run(
        [sys.executable, tool, *where, *words], capture_output=True, text=True, timeout=60
    )
    output = finished.stdout + finished.stderr
    good = finished.returncode == step.code and step.wanted in output
    print("ok  " if good else "BAD ", step.command)
    if not good:
        print(f"     exit {finished.returncode}, wanted {step.code} with {step.wanted!r}:")
        print("     " + output.strip().replace("\n", "\n     ")[:2000])
    return good


class _Names(dict[str, str]):
    """Leaves braces of JSON as they are."""

    def __missing__(self, key: str) -> str:
        return "{" + key + "}"


def _split(command: str) -> list[str]:
    return command.split(" ") if "{" not in command else _split_json(command)


def _split_json(command: str) -> list[str]:
    """At blanks; a word with JSON is protected from `format_map` by doubled braces."""
    return [
        word.replace("{", "{{").replace("}", "}}") if '"' in word else word
        for word in command.split(" ")
    ]


def go(tool: str, amqp_url: str, where: list[str]) -> int:
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    channel = connection.channel()
    channel.queue_declare("open", exclusive=True)
    channel.basic_consume("open", lambda *_: None)
    connection.process_data_events(0.2)
    sock = connection._impl._transport._sock
    name = "{}:{} -> {}:{}".format(*sock.getsockname()[:2], *sock.getpeername()[:2])
    time.sleep(0.5)
    with tempfile.TemporaryDirectory() as folder:
        names = {
            "definitions": str(Path(folder) / "all.json"),
            "of_vhost": str(Path(folder) / "vhost.json"),
        }
        bad = 0
        for step in STEPS:
            if "{connection}" in step.command:
                finished = subprocess.run(
                    [sys.executable, tool, *where, "close", "connection", f"name={name}"],
                    capture_output=True,
                    text=True,
                )
                good = "connection closed" in finished.stdout
                print("ok  " if good else "BAD ", step.command, "" if good else finished)
                bad += not good
                continue
            bad += not run(tool, where, step, names)
    print(f"{len(STEPS) - bad} of {len(STEPS)} as wanted")
    return 1 if bad else 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tool")
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", type=int)
    parser.add_argument("--amqp", type=int, default=5672)
    options = parser.parse_args()
    if options.port is not None:
        url = f"amqp://guest:guest@{options.host}:{options.amqp}/%2F"
        sys.exit(go(options.tool, url, ["-H", options.host, "-P", str(options.port)]))
    with Broker(http_port=0) as broker:
        where = ["-H", broker.host, "-P", str(broker.http_port)]
        sys.exit(go(options.tool, broker.url, where))


if __name__ == "__main__":
    main()
