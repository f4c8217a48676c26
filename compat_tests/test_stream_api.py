"""Streams over HTTP: shown, declared, refused, limits and policies (stream reference)."""

import time
from typing import Any

import pytest

from warren.compat_tests.api import Api, eventually
from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel
from warren.compat_tests.raw_connection import PATIENCE_S
from warren.compat_tests.streams import STREAM, fill, offset_of, read_from, stream

AREA = "Streams: API, limits and policies"

SMALL = {"x_stream_max_segment_size_bytes": 2000}


@pytest.mark.slow
def test_row(api: Api, vhost: str, ch: RawChannel, names: Names) -> None:
    queue = stream(ch, names, x_max_age="1D")
    fill(ch, queue, 3)
    read_from(ch, queue, "first")
    ch.delivery(b"0")
    row = eventually(
        lambda: api.get("queues", vhost, queue),
        lambda row: row.get("messages") == 3 and "members" in row,
    )
    assert (row["type"], row["durable"], row["auto_delete"]) == ("stream", True, False)
    assert row["arguments"] == {**STREAM, "x-max-age": "1D"}
    assert row["messages_ready"] == 3
    assert row["messages_unacknowledged"] == 0
    assert row["members"] == row["online"]
    assert row["members"]
    assert not {"leader", "message_bytes", "head_message_timestamp"} & row.keys()
    row = eventually(
        lambda: api.get("queues", vhost, queue), lambda row: sum(row["readers"].values()) == 1
    )
    assert list(row["readers"]) == row["members"]
    row = eventually(lambda: api.get("queues", vhost, queue), lambda row: row["consumer_details"])
    (consumer,) = row["consumer_details"]
    assert consumer["ack_required"] is True
    assert consumer["prefetch_count"] == 100
    assert consumer["arguments"] == {"x-stream-offset": "first"}


def test_declared(api: Api, vhost: str, names: Names) -> None:
    queue = names.new()
    body = {"durable": True, "arguments": {**STREAM, "x-max-length-bytes": 1000}}
    assert api.put("queues", vhost, queue, body=body) == 201
    assert api.put("queues", vhost, queue, body=body) == 204
    body = {"durable": False, "arguments": STREAM}
    refused = api.ask("PUT", "queues", vhost, names.new(), body=body)
    assert refused.status == 400
    assert "invalid property 'non-durable'" in refused.json["reason"]


def test_what_it_does_not_do(api: Api, vhost: str, ch: RawChannel, names: Names) -> None:
    queue = stream(ch, names)
    described = f"stream queues queue '{queue}' in vhost '{vhost}'"
    body = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    answer = api.ask("POST", "queues", vhost, queue, "get", body=body)
    assert answer.refusal == (400, f"540 basic.get not supported by {described}")
    answer = api.ask("DELETE", "queues", vhost, queue, "contents")
    assert answer.refusal == (400, f"queue.purge not supported by {described}")


def test_deleted_on_no_condition(api: Api, vhost: str, ch: RawChannel, names: Names) -> None:
    queue = stream(ch, names)
    fill(ch, queue, 1)
    read_from(ch, queue, "first")
    query = {"if-empty": "true", "if-unused": "true"}
    assert api.ask("DELETE", "queues", vhost, queue, query=query).status == 204


def first_offset(ch: RawChannel, queue: str) -> int:
    """The offset of the oldest message."""
    reader = ch.client.channel()
    read_from(reader, queue, "first", prefetch=1)
    offset = offset_of(reader.delivery())
    reader.client.send_method(reader.number, "channel.close", reply_code=200, reply_text="")
    return offset


def trimmed(ch: RawChannel, queue: str) -> None:
    """Wait until the oldest messages are gone."""
    deadline = time.monotonic() + PATIENCE_S
    while not first_offset(ch, queue):
        assert time.monotonic() < deadline, "nothing goes"
        fill(ch, queue, 5)


def test_limit_of_octets_takes_the_oldest(ch: RawChannel, names: Names) -> None:
    queue = stream(ch, names, x_max_length_bytes=5000, **SMALL)
    fill(ch, queue, 100, message_id="m" * 100)
    trimmed(ch, queue)
    read_from(ch, queue, "last")
    last = offset_of(ch.delivery())
    assert last >= 99


def test_large_pieces_stay(ch: RawChannel, names: Names) -> None:
    """The newest segment is kept whole, whatever the limit is."""
    queue = stream(ch, names, x_max_length_bytes=1000)
    fill(ch, queue, 50, message_id="m" * 100)
    assert first_offset(ch, queue) == 0


@pytest.mark.slow
def test_limit_of_age_takes_the_oldest(ch: RawChannel, names: Names) -> None:
    queue = stream(ch, names, x_max_age="1s", **SMALL)
    fill(ch, queue, 30, message_id="m" * 100)
    time.sleep(1.5)
    fill(ch, queue, 30, message_id="m" * 100)
    trimmed(ch, queue)


@pytest.mark.parametrize(
    "definition",
    [{"message-ttl": 5}, {"max-length": 5}, {"expires": 100_000}, {"dead-letter-exchange": "x"}],
    ids=str,
)
def test_policy_that_is_not_for_streams(
    api: Api, own_vhost: str, names: Names, definition: dict[str, Any]
) -> None:
    queue = names.new()
    api.put("queues", own_vhost, queue, body={"durable": True, "arguments": STREAM})
    both = {"max-length-bytes": 1000, **definition}
    api.put("policies", own_vhost, "p", body={"pattern": ".*", "definition": both})
    body = {"pattern": ".*", "definition": {"max-age": "7D"}, "priority": -1}
    api.put("policies", own_vhost, "stream", body=body)
    row = eventually(
        lambda: api.get("queues", own_vhost, queue), lambda row: row.get("policy") is not None
    )
    assert row["policy"] == "stream"
    assert row["effective_policy_definition"] == {"max-age": "7D"}


@pytest.mark.parametrize(
    "definition",
    [{"max-age": "1w"}, {"stream-max-segment-size-bytes": -1}, {"queue-leader-locator": "zzz"}],
    ids=str,
)
def test_policy_that_is_refused(api: Api, own_vhost: str, definition: dict[str, Any]) -> None:
    body = {"pattern": ".*", "definition": definition}
    answer = api.ask("PUT", "policies", own_vhost, "p", body=body)
    assert answer.status == 400


def test_operators_limit_octets_only(api: Api, own_vhost: str) -> None:
    body = {"pattern": ".*", "definition": {"max-length-bytes": 1000}}
    api.put("operator-policies", own_vhost, "p", body=body)
    body = {"pattern": ".*", "definition": {"max-age": "1h"}}
    assert api.ask("PUT", "operator-policies", own_vhost, "p2", body=body).status == 400
