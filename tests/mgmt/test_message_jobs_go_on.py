"""Jobs that were interrupted go on where they were when they are started again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest
from api_client import ApiClient
from message_jobs import NUMBERS, begin, bodies, fill, over

from warren import Broker
from warren.core.node import Node
from warren.core.queues.queue import Queue
from warren.mgmt.messages import job as jobs
from warren.mgmt.messages.job import Job
from warren.mgmt.messages.jobs import JobKey, MessageJobs

DONE = 5
"""Messages after which a job waits in its first life."""

KINDS = {
    "classic": ("copy", {}),
    "priorities": ("copy", {"x_max_priority": 3}),
    "quorum": ("copy", {"x_queue_type": "quorum"}),
    "stream copied": ("copy", {"x_queue_type": "stream"}),
    "stream replayed": ("replay", {"x_queue_type": "stream"}),
}


@contextmanager
def running(directory: Path) -> Iterator[tuple[Broker, ApiClient, Any]]:
    with Broker(http_port=0, data_dir=directory) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        with connection:
            yield broker, ApiClient(broker), connection.channel()


@pytest.fixture
def halting() -> Iterator[pytest.MonkeyPatch]:
    """Jobs do one message after the other and wait after some, until this is undone."""

    async def one_by_one(job: Job) -> None:
        while job.under_way:
            job._less_under_way.clear()
            await job._less_under_way.wait()
        if job.done == DONE:
            await job._stop_wanted.wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "BATCH", 1)
        patch.setattr(Job, "_keep_to_rate", one_by_one)
        yield patch


def until_it_waits(broker: Broker, api: ApiClient, path: str) -> None:
    while over(broker, api, path, "running")["done"] < DONE:
        pass


async def keeps_nothing(jobs: MessageJobs, key: JobKey, job: Job, done: int) -> None:
    """As if the node had crashed before it could write this."""


@pytest.mark.parametrize("kind", KINDS)
def test_copies_are_made_once_when_the_node_is_stopped_in_order(
    tmp_path: Path, halting: pytest.MonkeyPatch, kind: str
) -> None:
    action, arguments = KINDS[kind]
    with running(tmp_path) as (broker, api, channel):
        fill(channel, **arguments)
        fill(channel, "target", [])
        path = begin(api, action, to_queue="target", filter="body != '3'")
        until_it_waits(broker, api, path)
    halting.undo()
    with running(tmp_path) as (broker, api, channel):
        before = bodies(api, "target")
        job = over(broker, api, path)
        assert (job["state"], job["done"]) == ("interrupted", len(before))
        fill(channel, bodies=["12"], **arguments)
        assert api.post(f"{path}/restart")[0] == 200
        job = over(broker, api, path)
        assert (job["state"], job["done"], job["left"]) == ("completed", 11, [])
        wanted = [number for number in NUMBERS if number != "3"]
        assert bodies(api, "target") == wanted, "the job ends where it was to end when it began"


def test_after_a_crash_only_the_last_copies_are_made_twice(
    tmp_path: Path, halting: pytest.MonkeyPatch
) -> None:
    halting.setattr(jobs, "RECORDED", 3)
    with running(tmp_path) as (broker, api, channel):
        fill(channel)
        fill(channel, "target", [])
        path = begin(api, "copy", to_queue="target")
        until_it_waits(broker, api, path)
        halting.setattr(MessageJobs, "_keep", keeps_nothing)
    halting.undo()
    with running(tmp_path) as (broker, api, channel):
        assert api.post(f"{path}/restart")[0] == 200
        assert over(broker, api, path)["state"] == "completed"
        made = Counter(bodies(api, "target"))
        assert set(made) == set(NUMBERS)
        assert {made[number] for number in [*NUMBERS[:2], *NUMBERS[DONE:]]} == {1}


def test_positions_that_were_copied_before_are_not_missed(
    tmp_path: Path, halting: pytest.MonkeyPatch
) -> None:
    with running(tmp_path) as (broker, api, channel):
        fill(channel)
        fill(channel, "target", [])
        places = [row["position"] for row in api.get("/queues/%2F/q/messages")[1]["messages"]]
        path = begin(api, "copy", to_queue="target", positions=places[2:8])
        until_it_waits(broker, api, path)
    halting.undo()
    with running(tmp_path) as (broker, api, channel):
        assert api.post(f"{path}/restart")[0] == 200
        job = over(broker, api, path)
        assert (job["state"], job["done"], job["left"]) == ("completed", 6, [])
        assert bodies(api, "target") == NUMBERS[2:8]


def test_what_is_retained_again_meanwhile_is_not_replayed_again(
    tmp_path: Path, halting: pytest.MonkeyPatch
) -> None:
    with running(tmp_path) as (broker, api, channel):
        broker.set_policy("keep", "^q$", {"retention": {"max-age": "1D"}})
        channel.confirm_delivery()
        fill(channel)
        assert sum(1 for _ in iter(lambda: channel.basic_get("q", auto_ack=True)[2], None)) == 12
        path = begin(api, "replay", to_queue="q")
        until_it_waits(broker, api, path)
        assert channel.basic_get("q", auto_ack=True)[2] == b"0"
    halting.undo()
    with running(tmp_path) as (broker, api, _):
        assert api.post(f"{path}/restart")[0] == 200
        assert over(broker, api, path)["done"] == 12
        assert bodies(api) == NUMBERS[1:]


def test_under_another_leader_copies_begin_anew(
    tmp_path: Path, halting: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path) as (broker, api, channel):
        fill(channel)
        fill(channel, "target", [])
        path = begin(api, "copy", to_queue="target")
        until_it_waits(broker, api, path)

    def next_epoch(node: Node, queue: Queue) -> int:
        return 1

    monkeypatch.setattr(jobs, "epoch_of", next_epoch)
    halting.undo()
    with running(tmp_path) as (broker, api, channel):
        before = bodies(api, "target")
        assert api.post(f"{path}/restart")[0] == 200
        over(broker, api, path)
        assert bodies(api, "target") == before + NUMBERS


def test_a_queue_that_was_declared_anew_is_copied_from_its_first_message(
    tmp_path: Path, halting: pytest.MonkeyPatch
) -> None:
    with running(tmp_path) as (broker, api, channel):
        fill(channel)
        fill(channel, "target", [])
        path = begin(api, "copy", to_queue="target")
        until_it_waits(broker, api, path)
    halting.undo()
    with running(tmp_path) as (broker, api, channel):
        channel.queue_delete("q")
        channel.queue_purge("target")
        fill(channel)
        assert api.post(f"{path}/restart")[0] == 200
        over(broker, api, path)
        assert bodies(api, "target") == NUMBERS
