"""Publications as octets, and the stream that counts frames in a broker's octets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from warren.amqp.frames import BODY, HEADER, HEARTBEAT_FRAME, METHOD, frame
from warren.amqp.methods import Method, decode_method, encode_method, make
from warren.amqp.properties import headers, scan
from warren.core.field import Table, long, longstr
from warren.mgmt.perf.errors import ProtocolFault
from warren.mgmt.perf.publication import STAMPED_BYTES_MIN, Publications
from warren.mgmt.perf.stream import Arrivals, Stream


def publications(
    sizes: tuple[int, ...] = (100,),
    keys: tuple[str, ...] = ("q",),
    exchange: str = "",
    table: Table | None = None,
    persistent: bool = False,
    mandatory: bool = False,
    frame_max: int = 4096,
) -> Publications:
    return Publications(
        exchange,
        list(keys),
        sizes,
        headers=table or {},
        persistent=persistent,
        mandatory=mandatory,
        frame_max=frame_max,
    )


def frames_of(octets: bytes) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    while octets:
        size = int.from_bytes(octets[3:7], "big")
        assert octets[7 + size] == 0xCE
        found.append((octets[0], octets[7 : 7 + size]))
        octets = octets[8 + size :]
    return found


def method_frame(method: Method) -> bytes:
    return frame(METHOD, 1, encode_method(method))


def deliveries(size: int, tags: range, stamp: int = 77, frame_max: int = 4096) -> bytes:
    """What a broker delivers of messages we published."""
    octets = b""
    for tag in tags:
        publish, _ = publications((size,), frame_max=frame_max).take(1, stamp)
        deliver = make(commands.Basic.Deliver, consumer_tag="ctag", delivery_tag=tag)
        published = len(publish) - sum(len(part) + 8 for _, part in frames_of(publish)[1:])
        octets += method_frame(deliver) + publish[published:]
    return octets


def receive(stream: Stream, octets: bytes, step: int) -> Arrivals:
    """All arrivals of the octets in pieces of `step`."""
    total = Arrivals()
    for start in range(0, len(octets), step):
        some = stream.receive_data(octets[start : start + step])
        total.deliveries += some.deliveries
        total.body_bytes += some.body_bytes
        total.last_tag = some.last_tag or total.last_tag
        total.returned += some.returned
        total.stamps += some.stamps
        total.confirms += some.confirms
        total.methods += some.methods
    return total


# Publications


def test_a_publication_is_what_the_options_say() -> None:
    row = publications(
        exchange="x", table={"a": long(1)}, persistent=True, mandatory=True, sizes=(20,)
    )
    octets, body_bytes = row.take(1, 5)
    (_, method), (_, header), (_, body) = frames_of(octets)
    publish = decode_method(method)
    assert isinstance(publish, commands.Basic.Publish)
    assert (publish.exchange, publish.routing_key, publish.mandatory) == ("x", "q", True)
    assert headers(header) == {"a": long(1)}
    assert scan(header).delivery_mode == 2
    assert len(body) == body_bytes == 20
    assert body.startswith(b"WPRF" + (5).to_bytes(8, "big"))


@pytest.mark.parametrize("size", [0, 1, STAMPED_BYTES_MIN - 1, STAMPED_BYTES_MIN, 4088, 4089, 9000])
def test_a_body_has_its_size_and_no_frame_is_too_long(size: int) -> None:
    _, (kind, header), *bodies = frames_of(publications((size,)).take(1, 0)[0])
    assert kind == HEADER
    assert int.from_bytes(header[4:12], "big") == size == sum(len(body) for _, body in bodies)
    assert all(kind == BODY and 0 < len(body) <= 4096 - 8 for kind, body in bodies)


def test_sizes_and_routing_keys_take_turns_across_bursts() -> None:
    row = publications(sizes=(1, 20), keys=("a", "b"))
    octets = row.take(3, 0)[0] + row.take(5, 0)[0]
    seen: list[tuple[str, int]] = []
    for kind, payload in frames_of(octets):
        if kind == METHOD:
            publish = decode_method(payload)
            assert isinstance(publish, commands.Basic.Publish)
            seen.append((publish.routing_key, 0))
        elif kind == BODY:
            seen[-1] = (seen[-1][0], len(payload))
    assert seen == [("a", 1), ("b", 1), ("a", 20), ("b", 20)] * 2


def test_large_messages_make_small_bursts() -> None:
    assert publications((100,)).burst_max == 64
    assert publications((10_000_000,)).burst_max == 1


# Stream


@given(st.sampled_from([0, 3, 12, 100, 4089, 10_000]), st.integers(1, 5000))
def test_deliveries_are_counted_however_they_are_cut(size: int, step: int) -> None:
    arrivals = receive(Stream(), deliveries(size, range(1, 6)), step)
    assert (arrivals.deliveries, arrivals.last_tag) == (5, 5)
    assert arrivals.body_bytes == 5 * size
    assert arrivals.stamps == ([77] * 5 if size >= STAMPED_BYTES_MIN else [])


def test_a_delivery_counts_when_its_last_octet_is_there() -> None:
    stream = Stream()
    octets = deliveries(10_000, range(1, 2))
    before = stream.receive_data(octets[:-1])
    assert (before.deliveries, before.last_tag, before.stamps) == (0, 0, [])
    after = stream.receive_data(octets[-1:])
    assert (after.deliveries, after.last_tag, after.stamps) == (1, 1, [77])


def test_a_message_of_somebody_else_has_no_latency() -> None:
    octets = deliveries(100, range(1, 2)).replace(b"WPRF", b"????")
    arrivals = Stream().receive_data(octets)
    assert (arrivals.deliveries, arrivals.stamps) == (1, [])


@pytest.mark.parametrize("step", [1, 1000])
def test_confirms_returns_and_methods_are_told_apart(step: int) -> None:
    publish, _ = publications().take(1, 0)
    content = publish[len(frames_of(publish)[0][1]) + 8 :]
    octets = (
        method_frame(make(commands.Basic.Return, reply_code=312, reply_text="NO_ROUTE"))
        + content
        + method_frame(make(commands.Basic.Ack, delivery_tag=7, multiple=True))
        + HEARTBEAT_FRAME
        + method_frame(make(commands.Basic.Nack, delivery_tag=8))
        + method_frame(make(commands.Connection.Blocked, reason="low on memory"))
        + deliveries(100, range(1, 2))
    )
    arrivals = receive(Stream(), octets, step)
    assert arrivals.returned == 1
    assert arrivals.confirms == [(7, True, False), (8, False, True)]
    assert [method.name for method in arrivals.methods] == ["Connection.Blocked"]
    assert (arrivals.deliveries, arrivals.body_bytes) == (1, 100)


@pytest.mark.parametrize(
    "octets",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"AMQP\x00\x00\x09\x01",
        frame(METHOD, 1, b"\0\x3c"),
        frame(METHOD, 1, b"\xff\xff\xff\xff"),
        HEARTBEAT_FRAME[:-1] + b"\x00",
        b"\x01\x00\x01\x7f\xff\xff\xff\x00",
    ],
)
def test_what_is_no_amqp_is_a_fault(octets: bytes) -> None:
    with pytest.raises(ProtocolFault):
        Stream().receive_data(octets)


def test_header_names_and_texts_survive() -> None:
    table: Table = {"größe": longstr("übergroß")}
    (_, _), (_, header), _ = frames_of(publications(table=table).take(1, 0)[0])
    assert headers(header) == table
