"""Whatever a peer sends: no exception escapes, nobody else notices, and nothing of it stays.

Hypothesis makes the sessions here, from the methods as pamqp describes them; `fuzz_long.py` plays
a million sessions from a seed. What is checked is in `survivors.py`.
"""

from __future__ import annotations

import gc
import struct
from random import Random
from typing import Any

import pytest
from fuzz_script import Script, play
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pamqp import commands
from pipe import Broker, Frame, cut_frames, method_frame, publish_frames, start_ok
from sessions import make_openings, make_pool, reactions
from survivors import BUFFER_MAX, Stage, connections_alive

from warren.amqp.frames import PROTOCOL_HEADER
from warren.amqp.methods import METHODS
from warren.amqp.state import State
from warren.core.field import Field, Table

bounded = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

_names = st.sampled_from(("q0", "q1", "x0", "", "amq.fanout", "amq.rabbitmq.reply-to", "a.b", "#"))
_texts = st.one_of(_names, _names, _names, st.text(max_size=20), st.just("n" * 255))

_integers = {
    "octet": st.integers(0, 255),
    "short": st.one_of(st.integers(0, 3), st.integers(0, 0xFFFF)),
    "long": st.one_of(st.integers(0, 3), st.integers(0, 0xFFFFFFFF)),
    "longlong": st.one_of(st.integers(0, 5), st.integers(0, (1 << 64) - 1)),
}

_scalars = st.one_of(
    st.builds(Field, st.just("S"), st.one_of(_names.map(str.encode), st.binary(max_size=8))),
    st.builds(Field, st.just("x"), st.binary(max_size=8)),
    st.builds(Field, st.just("t"), st.booleans()),
    st.builds(Field, st.just("l"), st.integers(-(1 << 63), (1 << 63) - 1)),
    st.builds(Field, st.just("I"), st.integers(-3, 10)),
    st.builds(Field, st.just("B"), st.integers(0, 255)),
    st.builds(Field, st.just("T"), st.integers(0, (1 << 64) - 1)),
    st.builds(Field, st.just("d"), st.floats()),
    st.builds(Field, st.just("D"), st.tuples(st.integers(0, 255), st.integers(0, 1 << 31))),
    st.builds(Field, st.just("V"), st.none()),
)

_argument_names = st.sampled_from(
    (
        "x-max-length", "x-message-ttl", "x-expires", "x-max-priority", "x-dead-letter-exchange",
        "x-dead-letter-routing-key", "x-overflow", "x-single-active-consumer", "x-priority",
        "x-match", "alternate-exchange", "hash-header", "CC", "BCC", "x-death", "count", "reason",
        "queue", "any",
    )
)  # fmt: skip


def _tables(values: st.SearchStrategy[Field]) -> st.SearchStrategy[Table]:
    return st.dictionaries(st.one_of(_argument_names, st.text(max_size=5)), values, max_size=3)


_fields = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.builds(Field, st.just("A"), st.lists(inner, max_size=3)),
        st.builds(Field, st.just("F"), _tables(inner)),
    ),
    max_leaves=6,
)
_any_table = st.one_of(st.just({}), _tables(_fields))

_by_wire_type: dict[str, st.SearchStrategy[Any]] = {
    **_integers,
    "bit": st.booleans(),
    "shortstr": _texts,
    "longstr": st.binary(max_size=20),
    "table": _any_table,
}

_channels = st.sampled_from((1, 1, 1, 2, 2, 3, 0, 9))


@st.composite
def _methods(draw: st.DrawFn) -> bytes:
    """Any method with any arguments that fit its wire types."""
    kind = draw(st.sampled_from(list(METHODS.values())))
    arguments = {name: draw(_by_wire_type[kind.amqp_type(name)]) for name in kind.__slots__}
    if kind is commands.Exchange.Declare:
        arguments["exchange_type"] = draw(st.sampled_from(("fanout", "topic", "headers", "?")))
    try:
        return method_frame(draw(_channels), kind, **arguments)
    except ValueError:
        return b""  # A text of more than 255 octets.


_publishes = st.builds(
    lambda channel, exchange, key, body, headers: publish_frames(
        channel, exchange, key, body, headers=headers
    ),
    st.sampled_from((1, 1, 2, 3)),
    st.sampled_from(("", "x0", "amq.fanout", "amq.headers", "none")),
    _names,
    st.one_of(st.binary(max_size=10), st.builds(lambda: b"z" * 5000)),
    _any_table,
)

_acknowledgements = st.builds(
    lambda channel, kind, tag, bits: (
        Frame(1, channel, struct.pack(">HHQB", 60, kind, tag, bits)).octets
    ),
    st.sampled_from((1, 2, 3)),
    st.sampled_from((80, 90, 120)),
    st.integers(0, 5),
    st.integers(0, 3),
)

_broken = st.one_of(
    st.binary(min_size=1, max_size=30),
    st.builds(
        lambda kind, channel, payload: Frame(kind, channel, payload).octets,
        st.integers(0, 9),
        st.integers(0, 4),
        st.binary(max_size=30),
    ),
    st.builds(
        lambda index, payload: Frame(1, 1, struct.pack(">I", index) + payload).octets,
        st.sampled_from(list(METHODS)),
        st.binary(max_size=30),
    ),
    st.builds(
        lambda size: struct.pack(">BHI", 1, 1, size), st.sampled_from((4096, 4097, 0xFFFFFFFF))
    ),
)

_steps = st.one_of(_methods(), _methods(), _publishes, _publishes, _acknowledgements, _broken)

_openings = make_openings(Random(4), 40)


@settings(bounded, max_examples=400)
@given(
    opening=st.sampled_from(_openings),
    steps=st.lists(_steps, max_size=15),
    listens=st.booleans(),
    seed=st.integers(0, 1 << 16),
)
def test_a_peer_may_send_anything(
    opening: bytes, steps: list[bytes], listens: bool, seed: int
) -> None:
    random = Random(seed)
    stage = Stage()
    peer = stage.peer()
    for octets in (opening, *steps):
        peer.sends_octets(octets)
        if listens:
            peer.sends_octets(reactions(random, peer.frames()))
        stage.check_while_connected(peer)
        stage.check_witness()
    stage.broker.advance(0.1)
    peer.vanishes()
    stage.check_after(peer)


@settings(bounded, max_examples=300)
@given(
    responses=st.lists(
        st.one_of(
            st.just(start_ok()),
            st.builds(
                lambda mechanism, response, properties: method_frame(
                    0,
                    commands.Connection.StartOk,
                    mechanism=mechanism,
                    response=response,
                    client_properties=properties,
                ),
                st.sampled_from(("PLAIN", "AMQPLAIN", "EXTERNAL", "")),
                st.one_of(
                    st.binary(max_size=40),
                    st.just(b"\0guest\0\xff\xfe"),
                    st.just(b"\x05LOGINS\0\0\0\5guest\x08PASSWORDS\0\0\0\5guest"),
                ),
                _any_table,
            ),
            st.builds(
                lambda channels, size, heartbeat: method_frame(
                    0,
                    commands.Connection.TuneOk,
                    channel_max=channels,
                    frame_max=size,
                    heartbeat=heartbeat,
                ),
                st.sampled_from((8, 0, 9, 0xFFFF)),
                st.sampled_from((4096, 0, 4095, 4097, 0xFFFFFFFF)),
                st.sampled_from((0, 1, 60, 0xFFFF)),
            ),
            st.builds(
                lambda vhost: method_frame(0, commands.Connection.Open, virtual_host=vhost), _texts
            ),
            _methods(),
            _broken,
        ),
        max_size=8,
    ),
    cut_at=st.integers(0, 200),
    header=st.sampled_from((PROTOCOL_HEADER, PROTOCOL_HEADER, b"AMQP\0\1\0\0", b"GET / HTTP/1.1")),
)
def test_a_peer_may_send_anything_before_it_is_let_in(
    responses: list[bytes], cut_at: int, header: bytes
) -> None:
    stage = Stage()
    peer = stage.broker.accepts()
    octets = header + b"".join(responses)
    peer.sends_octets(octets[:cut_at])
    peer.sends_octets(octets[cut_at:])
    stage.broker.settle()
    assert len(peer.connection._buffer) <= BUFFER_MAX
    stage.check_witness()
    stage.broker.advance(30.0)
    assert peer.pipe.ended or peer.connection.state is State.RUNNING
    peer.vanishes()
    stage.check_after(peer)


@pytest.mark.parametrize("traced", [False, True], ids=["untraced", "traced"])
def test_random_sessions_leave_nothing_behind(traced: bool) -> None:
    """The first inputs of `fuzz_long.py` with a seed of its own."""
    script = Script(make_pool(Random(9)), make_openings(Random(9)))
    stage = Stage(traced)
    for number in range(250):
        play(stage, Random(f"9/{traced}/{number}"), script)


def test_a_lost_connection_is_forgotten_by_everybody() -> None:
    """Nothing refers to it any more: not the node, not the queues, no timer."""
    stage = Stage()
    gc.collect()
    before = connections_alive(gc.get_objects())
    script = Script(make_pool(Random(9)), make_openings(Random(9)))
    for number in range(30):
        play(stage, Random(number), script)
    gc.collect()
    assert connections_alive(gc.get_objects()) == before


def test_frames_a_peer_sends_in_pieces_do_not_pile_up() -> None:
    """The largest frame, octet by octet; the buffer never holds more than that frame."""
    broker = Broker(frame_max=8192)
    client = broker.connects(frame_max=8192)
    client.opens_channel(1)
    frame = Frame(3, 1, b"x" * 8192).octets
    for octet in frame:
        client.sends_octets(bytes((octet,)))
        assert len(client.connection._buffer) <= len(frame)
    frames, rest = cut_frames(client.connection._buffer)
    assert (frames, rest) == ([], b"")


def test_body_frames_without_octets_are_not_kept() -> None:
    """A peer can send them for ever without its message being complete."""
    stage = Stage()
    peer = stage.peer()
    peer.sends(commands.Basic.Publish, routing_key="q0")
    peer.sends_octets(Frame(2, 1, struct.pack(">HHQH", 60, 0, 10, 0)).octets)
    peer.sends_octets(Frame(3, 1, b"").octets * 5000)
    assert len(peer.connection.channels[1]._body) == 0
