"""What the page of a queue says of it, against simulated queues of which the truth is known.

The queue is a real one on a clock that stands still. Its counts give the rates that the API would
show; JavaScript runs in Node where that is installed.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from manual_clock import ManualClock

from warren.core.field import Table, long, longstr
from warren.core.messages.message import Envelope, Message
from warren.core.messages.message_observer import TracedClient
from warren.core.queues.local_queue import LocalQueue
from warren.core.scheduling.waiting import run
from warren.core.vhosts.vhost import VirtualHost
from warren.mgmt.statistics import figures

STATIC = Path(figures.__file__).parents[1] / "static"
CLIENT = TracedClient("connection", 1, "user")
STEP_S = 0.1
WARM_STEPS = 300
MEASURED_STEPS = 100
NODE = shutil.which("node")


class Simulation:
    """A queue to which the same is done in every step."""

    def __init__(self, vhost: VirtualHost, clock: ManualClock, arguments: Table) -> None:
        vhost.declare_queue(
            "q", durable=False, exclusive_owner=None, auto_delete=False, arguments=arguments
        )
        self.vhost = vhost
        self.clock = clock
        self.queue: LocalQueue = vhost.queues["q"]

    def publish(self, count: int) -> None:
        header = struct.pack(">HHQH", 60, 0, 1, 0)
        for _ in range(count):
            run(
                self.vhost.publish(Envelope("", "q", header, False, 0, None), b"x", ("q",)),
                lambda result: result(),
            )

    def taken(self, count: int) -> list[Message]:
        got = [self.queue.get(False, CLIENT) for _ in range(count)]
        return [message for message in got if message is not None]

    def ack(self, count: int) -> None:
        self.queue.ack(self.taken(count))

    def reject(self, count: int) -> None:
        self.queue.reject(self.taken(count))

    def get_no_ack(self, count: int) -> None:
        for _ in range(count):
            self.queue.get(True, CLIENT)

    def run(self, steps: int, work: Callable[[Simulation], None]) -> None:
        for _ in range(steps):
            work(self)
            self.clock.advance(STEP_S)
            self.clock.settle()

    def observed(self, work: Callable[[Simulation], None], consumers: int) -> dict[str, Any]:
        """The row of the API after some time of this work, and how fast the length really grew."""
        self.run(WARM_STEPS, work)
        before = figures.queue_figures(self.queue)
        self.run(MEASURED_STEPS, work)
        after = figures.queue_figures(self.queue)
        seconds = STEP_S * MEASURED_STEPS
        rate = {
            name: (new - old) / seconds
            for name, new, old in zip(figures.QUEUE, after, before, strict=True)
        }
        row: dict[str, Any] = {
            "messages_ready": self.queue.backing.length,
            "messages_unacknowledged": self.queue.unacked,
            "consumers": consumers,
            "arguments": {"x-max-length": 50} if self.queue.settings.max_length else {},
            "message_stats": {f"{name}_details": {"rate": rate[name]} for name in rate},
        }
        row |= {f"{name}_details": {"rate": rate[name]} for name in figures.WAYS_OUT}
        return {"queue": row, "truth": rate["messages"]}


FEW = {"x-max-length": long(50)}
SHORT_LIVED = {"x-message-ttl": long(2000)}
WORK: dict[str, tuple[Table, int, Callable[[Simulation], None], list[str], str]] = {
    # Arguments, consumers, what is done in each step, the findings, and words that are said.
    "held by its time to live": (
        SHORT_LIVED,
        1,
        lambda of: (of.publish(3), of.ack(1))[0],
        ["losing"],
        "30/s come in, 10/s are taken for good, 20/s expire",
    ),
    "held by its time to live, without consumers": (
        SHORT_LIVED,
        0,
        lambda of: of.publish(3),
        ["no-consumers"],
        "nobody takes them. 30/s expire.",
    ),
    "growing": ({}, 1, lambda of: (of.publish(3), of.ack(1))[0], ["growing"], "grows by 20/s"),
    "growing without consumers": ({}, 0, lambda of: of.publish(2), ["no-consumers"], "by 20/s"),
    "held by its length": (
        FEW,
        1,
        lambda of: (of.publish(3), of.ack(1))[0],
        ["losing"],
        "20/s are dropped for the length limit",
    ),
    "full and refusing": (
        {**FEW, "x-overflow": longstr("reject-publish")},
        1,
        lambda of: (of.publish(3), of.ack(1))[0],
        ["losing"],
        "20/s are refused",
    ),
    "held by rejections": (
        {},
        1,
        lambda of: (of.publish(2 if of.queue.published > 100 else 5), of.reject(2))[0],
        ["losing"],
        "20/s are rejected",
    ),
    "growing though much is rejected": (
        {},
        1,
        lambda of: (of.publish(5), of.reject(2), of.ack(1))[0],
        ["growing"],
        "20/s are rejected. The queue grows by 20/s",
    ),
    "steady": (
        {},
        1,
        lambda of: (of.publish(2 if of.queue.published > 100 else 5), of.get_no_ack(2))[0],
        ["steady"],
        "Consumers keep up",
    ),
    "shrinking": (
        {},
        1,
        lambda of: (of.publish(1 if of.queue.published > 2000 else 2001), of.ack(2))[0],
        ["shrinking"],
        "10/s come in, 20/s are taken for good",
    ),
    "expired at once": (
        {"x-message-ttl": long(0)},
        0,
        lambda of: of.publish(2),
        ["empty"],
        "empty",
    ),
    "purged": (
        {},
        0,
        lambda of: (of.publish(2), of.queue.purge() if of.queue.published % 20 == 0 else None)[0],
        ["empty"],
        "empty",
    ),
}


def observations(vhost_of: Callable[[], tuple[VirtualHost, ManualClock]]) -> list[dict[str, Any]]:
    found = []
    for arguments, consumers, work, _, _ in WORK.values():
        vhost, clock = vhost_of()
        found.append(Simulation(vhost, clock, arguments).observed(work, consumers))
    return found


def asked_of_javascript(program: str, given: Any) -> Any:
    assert NODE is not None
    ended = subprocess.run(
        [NODE, "--input-type=module", "-e", program, json.dumps(given)],
        cwd=STATIC,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.fixture
def observed(fresh_vhost: Callable[[], tuple[VirtualHost, ManualClock]]) -> list[dict[str, Any]]:
    return observations(fresh_vhost)


def test_every_way_in_and_out_is_counted(observed: list[dict[str, Any]]) -> None:
    for name, one in zip(WORK, observed, strict=True):
        row = one["queue"]
        passed = {key: value["rate"] for key, value in row["message_stats"].items()}
        lost = sum(row[f"{way}_details"]["rate"] for way in figures.WAYS_OUT)
        taken = sum(passed[f"{way}_details"] for way in ("ack", "deliver_no_ack", "get_no_ack"))
        growth = passed["publish_details"] - taken - lost
        assert growth == pytest.approx(one["truth"], abs=1e-6), name


@pytest.mark.skipif(NODE is None, reason="Node is not installed")
def test_the_page_says_what_is_true(observed: list[dict[str, Any]]) -> None:
    program = """
        const { explainQueue, flows } = await import("./diagnosis.js");
        const told = JSON.parse(process.argv[1]).map(({ queue }) =>
          [flows(queue).growth, explainQueue({ queue })]);
        console.log(JSON.stringify(told));
    """
    answers = asked_of_javascript(program, observed)
    for (name, (*_, codes, words)), one, (growth, findings) in zip(
        WORK.items(), observed, answers, strict=True
    ):
        assert growth == pytest.approx(one["truth"], abs=1e-6), name
        assert [finding["code"] for finding in findings] == codes, (name, findings)
        text = " ".join(finding["text"] for finding in findings)
        assert words in text, name
        assert ("grows by" in text) == (one["truth"] > 0.2), name


STREAM = {"type": "stream", "messages_ready": 626, "consumers": 0}


@pytest.mark.skipif(NODE is None, reason="Node is not installed")
@pytest.mark.parametrize(
    ("row", "codes", "words"),
    [
        (
            {**STREAM, "arguments": {"x-max-age": "7D", "x-max-length-bytes": 2_000_000}},
            ["stream"],
            "626 messages stay until they are older than 7D, or all together have more than 1.9",
        ),
        (
            {**STREAM, "consumers": 1, "effective_policy_definition": {"max-age": "1h"}},
            ["stream"],
            "stay until they are older than 1h",
        ),
        (STREAM, ["stream"], "stay for good"),
        (
            {
                **STREAM,
                "messages_unacknowledged": 5,
                "consumers": 1,
                "consumer_details": [{"ack_required": True, "prefetch_count": 5}],
            },
            ["stream", "prefetch"],
            "Every consumer is at its prefetch",
        ),
        (
            {
                "messages_unacknowledged": 5,
                "consumers": 1,
                "message_stats": {
                    "deliver_details": {"rate": 60},
                    "redeliver_details": {"rate": 60},
                },
            },
            ["returned", "unacked"],
            "Most deliveries are repeated (60/s of 60/s)",
        ),
        (
            {"state": "down", "node": "a", "waits_for": "its leader a, or 2 of b, c"},
            ["down"],
            "It waits for its leader a, or 2 of b, c.",
        ),
        (
            {"state": "down", "node": "a", "waits_for": "its leader a"},
            ["down"],
            "Node a, which has the queue",
        ),
        ({"state": "down", "node": "a", "slave_nodes": ["b"]}, ["down"], "Node a, which has"),
    ],
)
def test_what_a_queue_holds_and_waits_for_is_told(
    row: dict[str, Any], codes: list[str], words: str
) -> None:
    """Messages of a stream do not wait for consumers; returned ones may be out at the moment."""
    program = """
        const { explainQueue } = await import("./diagnosis.js");
        console.log(JSON.stringify(explainQueue({ queue: JSON.parse(process.argv[1]) })));
    """
    findings = asked_of_javascript(program, row)
    assert [finding["code"] for finding in findings] == codes, findings
    assert words in " ".join(finding["text"] for finding in findings)


THREE = [f"n{number}" for number in range(3)]


@pytest.mark.skipif(NODE is None, reason="Node is not installed")
@pytest.mark.parametrize(
    ("policy", "mirrors", "in_sync", "tone", "words"),
    [
        ({"ha-mode": "all"}, THREE[1:], THREE[1:], "good", "All mirrors are in sync"),
        ({"ha-mode": "all"}, THREE[1:2], THREE[1:2], "warn", "1 mirror is missing"),
        ({"ha-mode": "exactly", "ha-params": 3}, THREE[1:2], THREE[1:2], "warn", "1 mirror is mis"),
        ({"ha-mode": "exactly", "ha-params": 2}, THREE[1:2], THREE[1:2], "good", "All mirrors"),
        ({"ha-mode": "exactly", "ha-params": 9}, THREE[1:], THREE[1:], "good", "All mirrors"),
        ({"ha-mode": "nodes", "ha-params": THREE}, THREE[1:2], THREE[1:2], "warn", "is missing"),
        ({"ha-mode": "all"}, THREE[1:2], [], "bad", "No mirror is in sync"),
        ({"ha-mode": "all"}, [], [], "warn", "There is no mirror"),
    ],
)
def test_mirrors_that_are_missing_are_not_in_sync(
    policy: dict[str, Any], mirrors: list[str], in_sync: list[str], tone: str, words: str
) -> None:
    queue = {
        "slave_nodes": mirrors,
        "synchronised_slave_nodes": in_sync,
        "effective_policy_definition": policy,
    }
    program = """
        globalThis.document = { baseURI: "http://localhost/" };
        globalThis.window = globalThis;
        globalThis.localStorage = { getItem: () => null };
        const { verdict } = await import("./copies.js");
        console.log(JSON.stringify(verdict(JSON.parse(process.argv[1]), 3)));
    """
    told = asked_of_javascript(program, queue)
    assert told["tone"] == tone and words in told["text"], told
