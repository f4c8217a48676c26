"""Octets nobody meant: nothing raises, nothing unbounded is kept, strangers learn nothing."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from link_pipe import SECRET, End, acceptor, dialler, linked, talk

from warren.mirror.links.handshake import HELLO, PROOF_BYTES
from warren.mirror.links.ports import FRAME_BYTES_MAX

KEPT_MAX = FRAME_BYTES_MAX + 100_000

pieces = st.lists(st.binary(max_size=200), max_size=12)


def heard(from_dialler: bool) -> list[bytes]:
    """What one side says in a good handshake followed by some frames, message by message."""
    ann, bob = dialler(), acceptor()
    speaker, listener = (ann, bob) if from_dialler else (bob, ann)
    said: list[bytes] = []
    for _ in range(4):
        words = speaker.says()
        if words:
            said.append(words)
            listener.takes(words)
        answer = listener.says()
        if answer:
            speaker.takes(answer)
    for number in range(5):
        speaker.link.send(number, (bytes(number * 7),))
        speaker.note(speaker.link.tick())
    said.append(speaker.says())
    return said


DIALLER_SAID, ACCEPTOR_SAID = heard(True), heard(False)

mutation = st.tuples(
    st.integers(0, 3),
    st.integers(0, 1_000),
    st.sampled_from(["flip", "cut", "double", "insert", "drop"]),
    st.binary(min_size=1, max_size=8),
)


def mutated(messages: list[bytes], changes: list[tuple[int, int, str, bytes]]) -> list[bytes]:
    result = list(messages)
    for message, place, what, octets in changes:
        which = message % len(result)
        data = result[which]
        at = place % (len(data) + 1)
        if what == "flip" and at < len(data):
            data = data[:at] + bytes([data[at] ^ octets[0]]) + data[at + 1 :]
        elif what == "cut":
            data = data[:at]
        elif what == "double":
            data = data + data[at:]
        elif what == "insert":
            data = data[:at] + octets + data[at:]
        elif what == "drop":
            data = data[:at] + data[at + len(octets) :]
        result[which] = data
    return result


def kept_octets(end: End) -> int:
    """What an end holds of what it was sent."""
    return len(end.link._handshake._buffer) + len(end.link._reader._partial)


@given(pieces)
def test_random_octets_teach_a_stranger_nothing(words: list[bytes]) -> None:
    for prefix in (b"", HELLO.pack(b"\x00WARREN\n", 1, b"s" * 32)):
        bob = acceptor()
        for piece in [prefix, *words]:
            bob.takes(piece)
            assert kept_octets(bob) <= HELLO.size
        assert bob.says() in (b"", HELLO.pack(b"\x00WARREN\n", 1, b"b" * 32))
        assert bob.peer is None and not bob.link.authenticated


@given(pieces)
def test_random_octets_get_a_proof_out_of_a_dialler_and_no_more(words: list[bytes]) -> None:
    for prefix in (b"", HELLO.pack(b"\x00WARREN\n", 1, b"s" * 32)):
        ann = dialler()
        for piece in [prefix, *words]:
            ann.takes(piece)
            assert kept_octets(ann) <= 70_000
        assert len(ann.says()) <= HELLO.size + PROOF_BYTES
        assert ann.peer is None and not ann.link.authenticated


@settings(max_examples=300)
@given(st.booleans(), st.lists(mutation, min_size=1, max_size=3))
@example(True, [(0, 9, "flip", b"\x01")])
def test_a_mutated_conversation_never_raises(
    from_dialler: bool, changes: list[tuple[int, int, str, bytes]]
) -> None:
    said = DIALLER_SAID if from_dialler else ACCEPTOR_SAID
    listener = acceptor() if from_dialler else dialler()
    for words in mutated(said, changes):
        listener.takes(words)
        assert kept_octets(listener) <= KEPT_MAX
    listener.note(listener.link.connection_lost())
    handshake = b"".join(mutated(said, changes))[: len(b"".join(said[:-1]))]
    if handshake != b"".join(said[:-1]):
        assert listener.peer is None
    assert listener.ended is not None


@settings(max_examples=300)
@given(pieces)
def test_random_octets_on_a_link_that_is_up_never_raise(words: list[bytes]) -> None:
    _, bob = linked()
    for piece in words:
        bob.takes(piece)
        assert kept_octets(bob) <= KEPT_MAX
    bob.note(bob.link.tick())


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 0xFEFF), st.binary(max_size=300)), max_size=20),
    st.lists(st.integers(1, 200), min_size=1, max_size=50),
)
def test_frames_survive_any_splitting(frames: list[tuple[int, bytes]], sizes: list[int]) -> None:
    ann, bob = linked()
    for kind, payload in frames:
        ann.link.send(kind, (payload,))
    octets, at, turn = ann.says(), 0, 0
    while at < len(octets):
        size = sizes[turn % len(sizes)]
        bob.takes(octets[at : at + size])
        at, turn = at + size, turn + 1
    assert bob.frames == frames


@given(st.binary(min_size=16, max_size=60))
def test_no_other_secret_opens_a_link(secret: bytes) -> None:
    ann, bob = dialler(secret=secret), acceptor()
    talk(ann, bob)
    assert (ann.peer is not None) == (bob.peer is not None) == (secret == SECRET)
