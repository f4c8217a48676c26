"""Messages as bytes: what is encoded is decoded the same, and nonsense is refused."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.mirror.carriers.ports import MemberId
from warren.mirror.gm.messages import (
    ANY,
    NONE,
    Activity,
    AddOnRight,
    Catchup,
    CheckNeighbours,
    Known,
    MalformedMessage,
    MemberNews,
    NotReady,
    RingFrame,
    decode,
    encode,
)

counts = st.integers(0, (1 << 62) - 1)
ids = st.builds(MemberId, st.text(max_size=20).filter(str.isprintable), counts)
payloads = st.lists(st.binary(max_size=50), max_size=4).map(tuple)
entries = st.builds(MemberNews, ids, counts, payloads, counts)
known = st.builds(lambda m, n, p: Known(m, n + len(p), p), ids, st.integers(-1, 1 << 40), payloads)
messages = st.one_of(
    st.builds(AddOnRight, counts, counts),
    st.builds(NotReady, counts, counts),
    st.builds(Catchup, counts, counts, counts, st.lists(known, max_size=4).map(tuple)),
    st.builds(Activity, counts, counts, counts, st.lists(entries, max_size=4).map(tuple)),
    st.builds(CheckNeighbours, counts, counts, st.sampled_from((NONE, 0, 17, ANY))),
)
frames = st.builds(RingFrame, ids, ids, messages)


@given(frames)
def test_what_is_encoded_is_decoded_the_same(frame: RingFrame) -> None:
    decoded = decode(encode(frame))
    assert decoded == frame
    assert type(decoded.message) is type(frame.message)
    assert type(decoded.sender) is MemberId


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(octets: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode(octets)


@given(frames, st.randoms())
def test_damaged_frames_are_refused_or_are_frames(frame: RingFrame, random: Random) -> None:
    octets = bytearray(encode(frame))
    for _ in range(random.randint(1, 3)):
        octets[random.randrange(len(octets))] = random.randrange(256)
    try:
        decoded = decode(bytes(octets))
    except MalformedMessage:
        return
    assert decode(encode(decoded)) == decoded


@given(frames)
def test_a_frame_cut_short_or_with_more_behind_it_is_refused(frame: RingFrame) -> None:
    octets = encode(frame)
    for wrong in (octets[:-1], octets[: len(octets) // 2], octets + b"\x00", b""):
        with pytest.raises(MalformedMessage):
            decode(wrong)


def frame_of(message: list[object]) -> bytes:
    return msgspec.msgpack.encode([["a", 1], ["b", 1], message])


@pytest.mark.parametrize(
    "message",
    [
        [5, 1, 1, -2],
        [5, -1, 1, -1],
        [5, 1, 1, -1, 0],
        [6, 1, 1],
        [1, 1, 1 << 63],
        [4, 1, 1, 0, [[["a", 1], 0, [], -1]]],
        [4, 1, 1, 0, [[["a", 1], 0, ["text"], -1]]],
        [4, 1, 1, 0, [[["a", -1], 0, [b""], -1]]],
        [4, 1, 1, 0, [[["a", 1], 0, [b""], 0]] * 1025],
        [3, 1, 1, 0, [[["a", 1], 0, [b"", b""]]]],
        [[[[[[]]]]]],
        [],
    ],
)
def test_what_has_no_meaning_is_refused(message: list[object]) -> None:
    with pytest.raises(MalformedMessage):
        decode(frame_of(message))


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(MalformedMessage):
        decode(b"\x91" * 100_000)


def test_what_is_too_long_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warren.mirror.gm.messages.FRAME_BYTES_MAX", 100)
    with pytest.raises(MalformedMessage, match="at most 100"):
        decode(bytes(101))
