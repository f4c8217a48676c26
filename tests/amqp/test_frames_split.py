"""A socket cuts the stream where it likes: what the broker does must not depend on where.

The connection reads in several ways: repeated publishes by comparing octets, whole publishes from
one buffer, frame by frame, and a frame joined from pieces. All of them must be one protocol. Each
stream here is played in one piece to one broker and in many pieces to another, and what comes back
is compared: on each channel the same frames in the same order, and the same publishes confirmed.
How many confirms are told in one ack depends on the turns of the loop, and may differ.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import pairwise
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands
from pipe import Broker, Client, Frame, content_header, method_frame, publish_frames, start_ok
from sessions import make_openings, make_pool, random_session

from warren.amqp.frames import PROTOCOL_HEADER
from warren.amqp.methods import MalformedText
from warren.core.field import Field, Table, long, longstr

BODY, HEADER, METHOD = 3, 2, 1


OPENING = b"".join(
    (
        PROTOCOL_HEADER,
        start_ok(),
        method_frame(0, commands.Connection.TuneOk, channel_max=2047, frame_max=4096),
        method_frame(0, commands.Connection.Open, virtual_host="/"),
        *(method_frame(channel, commands.Channel.Open) for channel in (1, 2, 3)),
        *(method_frame(1, commands.Queue.Declare, queue=name) for name in ("q", "full")),
        *(
            method_frame(
                1,
                commands.Queue.Bind,
                queue=queue,
                exchange="amq.topic",
                routing_key=key,
                nowait=True,
            )
            for queue, key in (("q", "orders.#"), ("full", "#.full"))
        ),
        *(
            method_frame(
                1,
                commands.Queue.Bind,
                queue=queue,
                exchange="amq.headers",
                arguments={"x-match": longstr("any"), name: value},
                nowait=True,
            )
            for queue, name, value in (
                ("q", "to", longstr("q")),
                ("full", "to", longstr("full")),
                ("full", "n", long(1)),
            )
        ),
        method_frame(2, commands.Confirm.Select),
        method_frame(3, commands.Tx.Select),
        method_frame(1, commands.Basic.Consume, queue="q", consumer_tag="c"),
    )
)
"""A consumer on channel 1, confirms on channel 2 and a transaction on 3."""

ANSWERS = [
    struct.pack(">I", method.index)
    for method in (
        commands.Connection.Start,
        commands.Connection.Tune,
        commands.Connection.OpenOk,
        *3 * (commands.Channel.OpenOk,),
        *2 * (commands.Queue.DeclareOk,),
        commands.Confirm.SelectOk,
        commands.Tx.SelectOk,
        commands.Basic.ConsumeOk,
    )
]
"""How the payloads begin with which the broker answers that."""


def prepared_client() -> Client:
    """A client that has said its `OPENING`: thousands are made, so it says all of it at once."""
    client = Broker(max_message_size=50_000).accepts()
    client.sends_octets(OPENING)
    assert [frame.payload[:4] for frame in client.frames()] == ANSWERS
    return client


class Heard(NamedTuple):
    """What a client gets: frames by channel, and the numbers of publishes acked and nacked."""

    frames: dict[int, list[Frame]]
    acked: dict[int, set[int]]
    nacked: dict[int, set[int]]


def method_of(frame: Frame) -> object:
    """The method of a frame; None for content, and for a key that is not UTF-8."""
    try:
        return frame.method if frame.kind == METHOD else None
    except MalformedText:
        return None


def heard(client: Client) -> Heard:
    got = Heard({}, {}, {})
    ended: set[int] = set()
    for frame in client.frames():
        method = method_of(frame)
        if isinstance(method, commands.Basic.Ack | commands.Basic.Nack):
            told = got.acked if isinstance(method, commands.Basic.Ack) else got.nacked
            tag = method.delivery_tag
            numbers = range(1, tag + 1) if method.multiple else (tag,)
            told.setdefault(frame.channel, set()).update(numbers)
        else:
            got.frames.setdefault(frame.channel, []).append(frame)
            if isinstance(method, commands.Channel.Close | commands.Connection.Close):
                ended.add(frame.channel)
    # What was not confirmed when a channel or the connection failed may never be.
    for told in (got.acked, got.nacked):
        for channel in [channel for channel in told if {0, channel} & ended]:
            del told[channel]
    return got


def played(pieces: Iterable[bytes]) -> tuple[Heard, dict[str, object]]:
    """What the broker says when these pieces arrive, and what it knows afterwards."""
    client = prepared_client()
    for piece in pieces:
        client.sends_octets(piece)
    result = heard(client), outcome(client)
    client.broker.lets_go()
    return result


def outcome(client: Client) -> dict[str, object]:
    connection = client.connection
    return {
        "state": connection.state,
        "channels": sorted(connection.channels),
        "expects": {number: c.expects for number, c in connection.channels.items()},
        "queues": {
            name: (queue.backing.length, queue.backing.ready_bytes, queue.unacked)
            for name, queue in client.broker.vhost.queues.items()
        },
        "ended": client.pipe.ended,
    }


def assert_same(stream: bytes, pieces: Iterable[bytes]) -> None:
    assert played(pieces) == played([stream])


def cut(stream: bytes, positions: Iterable[int]) -> list[bytes]:
    bounds = [0, *sorted(positions), len(stream)]
    return [stream[a:b] for a, b in pairwise(bounds) if a < b]


def run(channel: int, count: int, size: int = 5, key: str = "q") -> bytes:
    """The same publish again and again, with other bodies."""
    return b"".join(
        publish_frames(channel, "", key, bytes((n % 256,)) * size) for n in range(count)
    )


def in_frames(channel: int, *sizes: int, announced: int | None = None) -> bytes:
    """A publish whose body comes in frames of these sizes."""
    size = sum(sizes) if announced is None else announced
    return (
        method_frame(channel, commands.Basic.Publish, routing_key="q")
        + Frame(HEADER, channel, content_header(size)).octets
        + b"".join(
            Frame(BODY, channel, bytes((number,)) * size).octets
            for number, size in enumerate(sizes)
        )
    )


def keys(channel: int, *keys: str, mandatory: bool = False) -> bytes:
    """Publishes to a topic exchange, with these keys."""
    return b"".join(
        publish_frames(channel, "amq.topic", key, b"hello", mandatory=mandatory) for key in keys
    )


def expiring(channel: int, *expirations: str, queue: str = "full") -> bytes:
    """Publishes with these times to live, each with one that has none behind it."""
    return b"".join(
        publish_frames(channel, "", queue, b"hello", expiration=expiration)
        + publish_frames(channel, "", queue, b"hello")
        for expiration in expirations
    )


def said_by(channel: int, *users: str) -> bytes:
    """Publishes that say which user they are from."""
    return b"".join(publish_frames(channel, "", "q", b"hello", user_id=user) for user in users)


def routed_by(channel: int, *tables: Table, key: str = "", mandatory: bool = False) -> bytes:
    """Publishes to a headers exchange, each with the same headers twice."""
    return b"".join(
        publish_frames(
            channel,
            "amq.headers",
            key,
            b"hello",
            mandatory=mandatory,
            headers=table,
            message_id=name,
        )
        for table in tables
        for name in ("a", "b")
    )


TO_Q, TO_FULL = {"id": longstr("1"), "to": longstr("q")}, {"to": longstr("full"), "x": long(5)}
TO_BOTH, TO_NONE = {"to": longstr("q"), "n": long(1)}, {"n": long(2)}

HALF_PUBLISH = method_frame(1, commands.Basic.Publish, routing_key="z")
ACKS = b"".join(method_frame(1, commands.Basic.Ack, delivery_tag=tag) for tag in (1, 2, 3))

STREAMS = {
    "a run": run(1, 6),
    "a run with confirms": run(2, 6),
    "a run into a transaction": run(3, 4) + method_frame(3, commands.Tx.Commit),
    "runs on two channels": run(1, 3) + run(2, 3) + run(1, 3) + run(2, 1) + run(1, 1),
    "acks between publishes": run(1, 3) + ACKS + run(1, 3),
    "an ack of an unknown tag in a run": run(1, 3)
    + method_frame(1, commands.Basic.Ack, delivery_tag=77)
    + run(1, 3)
    + run(2, 2),
    "a channel closed and opened again in a run": run(2, 3)
    + method_frame(2, commands.Channel.Close)
    + method_frame(2, commands.Channel.Open)
    + run(2, 3),
    "confirms selected in a run": run(1, 3) + method_frame(1, commands.Confirm.Select) + run(1, 3),
    "the queue deleted in a run": run(2, 3)
    + method_frame(2, commands.Queue.Delete, queue="q")
    + run(2, 3),
    "bodies of several frames": run(1, 3, size=4089) + run(2, 2, size=9000),
    "bodies in frames of many sizes": in_frames(1, 1024, 1024, 5)
    + in_frames(2, 2000, 1, 2047)
    + in_frames(2, 4088, 4088, 4088, 1)
    + in_frames(3, 4088, 4087)
    + in_frames(1, 5, 4000)
    + method_frame(3, commands.Tx.Commit)
    + in_frames(2, 4088, 4088)
    + run(1, 2)
    + in_frames(2, 4088, 4089),
    "a body of several frames of which one is another's": run(1, 2)
    + in_frames(1, 4088, 4088)[:-4096]
    + Frame(BODY, 2, b"x" * 4088).octets
    + run(1, 2),
    "a body of several frames with a wrong end": run(1, 2)
    + in_frames(2, 4088, 3000)[:-1]
    + b"\x00"
    + run(1, 2),
    "a body of several frames that is longer than announced": run(1, 2)
    + in_frames(2, 4088, 3000, announced=7087)
    + run(2, 2),
    "a body of several frames that is interrupted": run(1, 2)
    + in_frames(2, 4088, 3000)[:-3008]
    + Frame(8, 0, b"").octets
    + in_frames(2, 4088, 3000)[-3008:]
    + in_frames(1, 4088, 3000)[:-3008]
    + run(1, 2),
    "empty bodies": run(1, 3, size=0)
    + run(2, 3, size=0)
    + run(2, 2)
    + run(2, 1, size=0)
    + run(1, 2),
    "empty bodies of other keys and queues": run(2, 2, size=0, key="full")
    + run(3, 2, size=0)
    + keys(2, "orders.1")
    + publish_frames(2, "amq.topic", "orders.2", b"", message_id="a")
    + publish_frames(2, "amq.topic", "orders.3", b"", message_id="b")
    + publish_frames(2, "", "full", b"", expiration="60000")
    + publish_frames(2, "amq.headers", "", b"", headers=TO_BOTH)
    + method_frame(3, commands.Tx.Commit)
    + run(2, 1, size=0)[:-1]
    + b"\x00"
    + run(1, 1),
    "an empty body with a body frame": publish_frames(1, "", "q", b"")
    + Frame(BODY, 1, b"").octets
    + run(1, 2),
    "empty body frames": HALF_PUBLISH
    + Frame(HEADER, 1, content_header(3)).octets
    + Frame(BODY, 1, b"").octets * 3
    + Frame(BODY, 1, b"abc").octets
    + run(1, 2),
    "a publish without content before a run": run(1, 3) + HALF_PUBLISH + run(1, 3),
    "a header without a body in a run": run(1, 3)
    + HALF_PUBLISH
    + Frame(HEADER, 1, content_header(5)).octets
    + run(1, 3),
    "content of two channels interleaved": HALF_PUBLISH
    + run(2, 2)
    + Frame(HEADER, 1, content_header(2)).octets
    + run(2, 2)
    + Frame(BODY, 1, b"ab").octets
    + run(1, 2),
    "a publish to an exchange that is not there": run(1, 2)
    + publish_frames(1, "nowhere", "q", b"hello")
    + run(1, 2)
    + run(2, 2),
    "a wrong frame end in a run": run(1, 2) + run(1, 1)[:-1] + b"\x00" + run(1, 2),
    "a wrong end of a header frame": HALF_PUBLISH
    + Frame(HEADER, 1, content_header(5)).octets[:-1]
    + b"\x00"
    + Frame(BODY, 1, b"hello").octets,
    "a header of another class": HALF_PUBLISH
    + Frame(HEADER, 1, struct.pack(">HHQH", 61, 0, 1, 0)).octets
    + Frame(BODY, 1, b"x").octets,
    "a header that is too short": HALF_PUBLISH
    + Frame(HEADER, 1, struct.pack(">HHQ", 60, 0, 1)).octets
    + Frame(BODY, 1, b"x").octets,
    "a header that ends in its properties": HALF_PUBLISH
    + Frame(HEADER, 1, struct.pack(">HHQH", 60, 0, 1, 0x8000)).octets
    + Frame(BODY, 1, b"x").octets,
    "a short header for an exchange that is not there": method_frame(
        1, commands.Basic.Publish, exchange="nowhere"
    )
    + Frame(HEADER, 1, struct.pack(">HHQ", 60, 0, 1)).octets
    + Frame(BODY, 1, b"x").octets,
    "a body longer than announced": HALF_PUBLISH
    + Frame(HEADER, 1, content_header(2)).octets
    + Frame(BODY, 1, b"xyz").octets
    + run(2, 1),
    "a body on another channel": HALF_PUBLISH
    + Frame(HEADER, 1, content_header(2)).octets
    + Frame(BODY, 2, b"xy").octets,
    "publish arguments that are cut short": Frame(
        METHOD, 1, struct.pack(">HHHB", 60, 40, 0, 9) + b"abc"
    ).octets
    + Frame(HEADER, 1, content_header(1)).octets
    + Frame(BODY, 1, b"x").octets,
    "a frame that is too large": run(1, 2) + struct.pack(">BHI", BODY, 1, 4097) + b"x" * 50,
    "a message that is too large": publish_frames(1, "", "q", b"x" * 50_001) + run(2, 2),
    "close of the connection in a run": run(1, 3)
    + method_frame(0, commands.Connection.Close)
    + run(1, 3),
    "keys of a topic exchange": keys(1, "orders.1", "orders.22", "orders.3")
    + keys(2, "orders.4", "orders.5", "nobody", "orders.6.full", "a.full", "orders.7")
    + keys(3, "orders.8", "orders.9")
    + method_frame(3, commands.Tx.Commit)
    + keys(2, "orders.a", mandatory=True)
    + keys(2, "orders.b", "nobody", "orders.c", "orders", "", mandatory=True)
    + run(2, 2)
    + keys(2, "orders.d", "orders.e"),
    "expirations": expiring(1, "60000", "1", "0", "007")
    + expiring(2, "60000", "0", "60000", queue="q")
    + expiring(3, "60000", "60000", "0")
    + method_frame(3, commands.Tx.Commit)
    + keys(2, "orders.1")
    + expiring(1, "315360000000", "+5"),
    "expirations that are refused": expiring(1, "5", "")
    + expiring(2, "5", "315360000001")
    + expiring(3, "-1", "5"),
    "the user's name": said_by(1, "guest", "guest") + said_by(2, "guest"),
    "another user's name": said_by(2, "guest", "guest", "root", "guest") + said_by(1, ""),
    "a headers exchange": routed_by(1, TO_Q, TO_BOTH, TO_Q, TO_FULL, TO_NONE)
    + routed_by(2, TO_FULL, TO_NONE, TO_BOTH, mandatory=True)
    + routed_by(2, TO_Q, key="k")
    + run(2, 2)
    + routed_by(2, TO_BOTH, {"CC": Field("A", [longstr("k")]), **TO_Q}, {}, TO_Q, key="k")
    + publish_frames(2, "amq.headers", "k", b"hello", message_id="a", mandatory=True)
    + routed_by(3, TO_Q, TO_NONE, TO_BOTH)
    + method_frame(3, commands.Tx.Commit),
    "a binding of a headers exchange that goes": routed_by(2, TO_BOTH, TO_BOTH)
    + method_frame(
        1,
        commands.Queue.Unbind,
        queue="full",
        exchange="amq.headers",
        arguments={"x-match": longstr("any"), "n": long(1)},
    )
    + routed_by(2, TO_BOTH, TO_FULL),
    "heartbeats in a run": run(2, 2) + Frame(8, 0, b"").octets + run(2, 2),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_fed_octet_by_octet_does_the_same(name: str) -> None:
    stream = STREAMS[name]
    step = max(1, len(stream) // 3000)
    assert_same(stream, [stream[at : at + step] for at in range(0, len(stream), step)])


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_cut_in_two_anywhere_does_the_same(name: str) -> None:
    stream = STREAMS[name]
    whole = played([stream])
    step = max(1, len(stream) // 80)
    for at in range(1, len(stream), step):
        assert played(cut(stream, [at])) == whole, f"cut at {at}"


def publish_with(header: bytes) -> bytes:
    """A publish of five octets, with the payload of its header frame as it is given."""
    parts = (Frame(HEADER, 2, header).octets, Frame(BODY, 2, b"hello").octets)
    return method_frame(2, commands.Basic.Publish, routing_key="q") + b"".join(parts)


NEARLY_ALIKE = {
    "an id and a time": (0xD080, b"\x01t\x01e\x02\x03abc"),
    "priority, correlation id, reply address": (0x1E00, b"\x01\x07\x02id\x02me"),
    "an expiration, an id": (0x0180, b"\x0560000\x02id"),
    "type, user, application": (0x0038, b"\x01a\x05guest\x02bc"),
    "type, application": (0x0068, bytes(8) + b"\x01a\x02bc"),
    "headers": (0x2000, b"\x00\x00\x00\x07\x01aS\x00\x00\x00\x00"),
    "headers and a persistent message": (0x3000, b"\x00\x00\x00\x08\x02CDt\x01\x01xt\x01"),
}


@pytest.mark.parametrize("name", NEARLY_ALIKE)
def test_a_header_that_differs_in_one_bit_from_the_one_before_is_read_for_itself(name: str) -> None:
    flags, properties = NEARLY_ALIKE[name]
    header = struct.pack(">HHQH", 60, 0, 5, flags) + properties
    for at in range(len(header)):
        for bit in range(8):
            other = bytearray(header)
            other[at] ^= 1 << bit
            pieces = [publish_with(bytes(each)) for each in (header, header, other, header)]
            assert played(pieces) == played([b"".join(pieces)]), (at, bit)


def test_a_method_that_differs_in_one_bit_from_those_before_is_read_for_itself() -> None:
    before, last = keys(2, "orders.1", "orders.2"), keys(2, "orders.3")
    method = len(
        method_frame(2, commands.Basic.Publish, exchange="amq.topic", routing_key="orders.3")
    )
    for at in range(method):
        for bit in range(8):
            other = bytearray(last)
            other[at] ^= 1 << bit
            pieces = [before, bytes(other), last]
            whole = played([b"".join(pieces)])
            of_pieces = played(pieces[:1] + [bytes((octet,)) for octet in other] + [last])
            assert of_pieces == whole, (at, bit)


def test_confirms_of_a_run_are_written_though_the_next_publish_is_not_whole() -> None:
    for missing in range(1, len(run(2, 1))):
        client = prepared_client()
        client.sends_octets(run(2, 2))
        client.frames()
        client.sends_octets(run(2, 4)[:-missing])
        client.broker.settle()
        acks = [f.method for f in client.frames() if f.channel == 2]
        assert [ack.delivery_tag for ack in acks] == [5], missing


_sizes = st.sampled_from((0, 1, 4, 5, 5, 5, 100, 4087, 4088, 4089, 8176, 8177, 20_000))
_publishes = st.builds(
    run, st.sampled_from((1, 2, 3)), st.integers(1, 4), _sizes, st.sampled_from(("q", "full", "no"))
)
_keys = st.builds(
    lambda channel, words, mandatory: keys(channel, *words, mandatory=mandatory),
    st.sampled_from((1, 2, 3)),
    st.lists(
        st.sampled_from(("orders.1", "orders.22", "orders.full", "a.full", "no")),
        min_size=1,
        max_size=5,
    ),
    st.booleans(),
)
_steps = st.one_of(
    _publishes,
    _publishes,
    _keys,
    st.builds(
        lambda channel, tag, multiple: method_frame(
            channel, commands.Basic.Ack, delivery_tag=tag, multiple=multiple
        ),
        st.sampled_from((1, 1, 1, 2)),
        st.integers(0, 4),
        st.booleans(),
    ),
    st.builds(
        lambda channel, kind: method_frame(channel, kind),
        st.sampled_from((1, 2, 3)),
        st.sampled_from(
            (
                commands.Channel.Close,
                commands.Channel.Open,
                commands.Channel.CloseOk,
                commands.Tx.Commit,
                commands.Tx.Rollback,
                commands.Basic.Recover,
                commands.Confirm.Select,
                commands.Basic.Publish,
            )
        ),
    ),
    st.sampled_from(list(STREAMS.values())),
    st.binary(min_size=1, max_size=12),
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(parts=st.lists(_steps, min_size=1, max_size=8), data=st.data())
def test_a_stream_cut_at_random_does_the_same(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(parts)
    positions = data.draw(st.lists(st.integers(1, len(stream)), max_size=12))
    assert_same(stream, cut(stream, positions))


def test_random_sessions_cut_at_random_do_the_same() -> None:
    """The sessions of the fuzzer, in which nearly everything occurs."""
    pool, openings = make_pool(Random(1), 1000), make_openings(Random(2), 50)
    for number in range(400):
        random = Random(number)
        stream = b"".join(random_session(random, pool, openings))
        positions = [random.randrange(len(stream) + 1) for _ in range(random.choice((1, 5, 40)))]
        assert played(cut(stream, positions)) == played([stream]), f"session {number}"


@pytest.mark.parametrize("seed", range(20))
def test_what_waited_during_an_alarm_is_read_before_what_comes_after_it(seed: int) -> None:
    """Several frames and a piece of one wait in the connection when reading goes on."""
    random = Random(seed)
    client = prepared_client()
    bodies = [b"%05d" % n for n in range(10)]
    stream = b"".join(publish_frames(1, "", "full", body) for body in bodies)
    pieces = cut(stream, [random.randrange(1, len(stream)) for _ in range(3)])
    client.broker.alarm(True)
    client.sends_octets(pieces[0])
    for piece in pieces[1:-1]:
        client.sends_octets(piece)
    client.broker.alarm(False)
    # The socket is read again before the loop comes round to what waits in the connection.
    client.sends_octets(pieces[-1])
    client.broker.settle()
    client.frames()
    got = [client.gets("full", no_ack=True) for _ in bodies]
    assert [content.body for content in got if content] == bodies
