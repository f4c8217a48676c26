"""`warren ctl`: listing, exporting, moving and deleting messages."""

from __future__ import annotations

import json

import pytest
from ctl_node import CtlNode
from pika import BasicProperties

from warren.mgmt.ctl import messages


@pytest.fixture
def queues(ctl_node: CtlNode) -> None:
    with ctl_node.connected() as connection:
        channel = connection.channel()
        for queue in ("hand", "other"):
            channel.queue_delete(queue)
            channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
        for number in range(5):
            properties = BasicProperties(headers={"n": number})
            channel.basic_publish("", "hand", b"m%d" % number, properties)


pytestmark = pytest.mark.usefixtures("queues")


def payloads(node: CtlNode, queue: str, *arguments: str) -> list[str]:
    listed = node("list_messages", queue, "--formatter", "json", *arguments)
    assert listed.code == 0, listed
    return [row["payload"] for row in listed.json]


def test_messages_are_listed_and_exported(ctl_node: CtlNode) -> None:
    rows = ctl_node.rows("list_messages", "hand", "--limit", "2")
    assert [row[1:] for row in rows] == [
        ["ready", "false", "", "hand", "2", "m0"],
        ["ready", "false", "", "hand", "2", "m1"],
    ]
    assert payloads(ctl_node, "hand", "--newest", "--filter", "headers.n < 3") == ["m2", "m1", "m0"]
    assert payloads(ctl_node, "hand", "--from", rows[1][0], "--limit", "2") == ["m1", "m2"]
    for options in ([], ["--formatter", "json"]):
        lines = ctl_node("export_messages", "hand", *options).out.splitlines()
        assert [json.loads(line)["payload"] for line in lines] == [f"m{n}" for n in range(5)]


def test_a_search_and_a_job_that_take_long_show_how_far_they_are(
    ctl_node: CtlNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = ("--filter", "headers.n >= 3")
    quiet = ctl_node("list_messages", "hand", *chosen)
    assert quiet.err == ""
    monkeypatch.setattr(messages, "is_watched", lambda: True)
    monkeypatch.setattr(messages, "PAGE", 1)
    watched = ctl_node("list_messages", "hand", *chosen)
    assert watched.out == quiet.out
    lines = watched.err.split("\r")
    assert "4 messages looked at, 1 found" in [line.strip() for line in lines]
    assert lines[-1] == "" and lines[-2].isspace(), "nothing of it is left on the screen"
    moved = ctl_node(
        "move_messages", "hand", "--to-queue", "other", *chosen, "--rate", "5", "--wait"
    )
    assert "messages looked at" in moved.err and moved.err.endswith("\r")


def test_messages_are_moved_copied_requeued_and_deleted(ctl_node: CtlNode) -> None:
    chosen = ("--filter", "headers.n >= 3")
    dry = ctl_node("move_messages", "hand", "--to-queue", "other", *chosen, "--dry-run")
    assert dry.lines[0] == "Would move: 2 messages" and dry.lines[1].endswith('\thand\t"m3"')
    assert payloads(ctl_node, "other") == []
    moved = ctl_node("move_messages", "hand", "--to-queue", "other", *chosen, "--wait", "-q")
    assert moved.out == "move: 2 messages\n"
    assert (
        ctl_node("copy_messages", "other", "--to-queue", "hand", "--limit", "1", "--wait").code == 0
    )
    assert payloads(ctl_node, "hand") == ["m0", "m1", "m2", "m3"]
    (first, *_) = ctl_node.rows("list_messages", "hand")
    assert ctl_node("requeue_messages", "hand", "--position", first[0], "--wait").code == 0
    assert payloads(ctl_node, "hand") == ["m1", "m2", "m3", "m0"]
    assert ctl_node("delete_messages", "hand", "--filter", "body = 'm2'", "--wait").code == 0
    assert payloads(ctl_node, "hand") == ["m1", "m3", "m0"]
    whole = ctl_node("delete_messages", "hand")
    assert whole.code == 64 and "say which: --filter, --position or --limit" in whole.err
    refused = ctl_node("move_messages", "hand")
    assert refused.code != 0 and "either to_queue or to_exchange" in refused.err


def test_jobs_are_shown_and_stopped(ctl_node: CtlNode) -> None:
    begun = ctl_node("move_messages", "hand", "--to-queue", "other", "--rate", "0.1", "-q")
    name = begun.out.split("'")[1]
    row = next(row for row in ctl_node.rows("message_jobs") if row[0] == name)
    assert row[1:3] == ["hand", "move"]
    assert ctl_node("stop_message_job", name).code == 0
    assert ctl_node("restart_message_job", "none").code == 64
    while next(row for row in ctl_node.rows("message_jobs") if row[0] == name)[4] != "stopped":
        pass
    refused = ctl_node("restart_message_job", name)
    assert refused.code != 0 and "the job was stopped: begin a new one" in refused.err


@pytest.mark.parametrize("rate", ["nan", "0", "-1", "inf", "1e10", "fast"])
def test_rate_that_is_none_is_wrong_usage(ctl_node: CtlNode, rate: str) -> None:
    """JSON has neither `nan` nor `inf`: they would be no limit at all."""
    refused = ctl_node("delete_messages", "hand", "--filter", "size > 0", "--rate", rate)
    assert refused.code == 64 and "--rate" in refused.err


def test_dead_letters_are_sent_back(ctl_node: CtlNode) -> None:
    missing = ctl_node("redrive", "none")
    assert (missing.code, missing.err) == (64, "Error:\nQueue not found\n")
    done = ctl_node("redrive", "hand", "--to", "queue", "--death", "first", "--wait", "-q")
    assert done.lines == [
        "redrive: 0 messages",
        "Left: 5, it has no x-death that says where it came from",
    ]


def test_messages_that_wait_are_counted(ctl_node: CtlNode) -> None:
    with ctl_node.connected() as connection:
        channel = connection.channel()
        arguments = {"x-redelivery-delay": [3_600_000]}
        channel.queue_declare("waits", durable=True, arguments=arguments)
        channel.basic_publish("", "waits", b"m")
        channel.basic_nack(channel.basic_get("waits")[0].delivery_tag)
        # What was returned waits when this is answered.
        channel.basic_qos()
        listed = ctl_node.rows("list_queues", "name", "messages_ready", "messages_waiting")
        assert ["waits", "0", "1"] in listed and ["hand", "5", ""] in listed
        channel.queue_delete("waits")
