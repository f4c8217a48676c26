"""Frames, heartbeats and the end of a link, without a socket."""

from __future__ import annotations

import tracemalloc

import pytest
from link_pipe import End, acceptor, dialler, linked, talk

from warren.mirror.links.frames import HEADER, Control
from warren.mirror.links.handshake import Ended, Established
from warren.mirror.links.ports import FRAME_BYTES_MAX, USER_KINDS, EndReason, Part
from warren.mirror.links.protocol import RECEIVED, Frames

SILENT_TICKS = 5


def sends(end: End, kind: int, *parts: Part) -> None:
    end.link.send(kind, parts)


def tick(end: End) -> None:
    end.note(end.link.tick())


def heartbeat(received: int) -> bytes:
    """What a peer says that has received so much."""
    return HEADER.pack(RECEIVED.size, Control.HEARTBEAT, 0) + RECEIVED.pack(received)


def test_frames_arrive_in_order_with_their_kinds() -> None:
    ann, bob = linked()
    sends(ann, 1, b"one")
    sends(ann, 2)
    sends(ann, 0xFEFF, b"three", b" parts", memoryview(b" of it"))
    talk(ann, bob)
    assert bob.frames == [(1, b"one"), (2, b""), (0xFEFF, b"three parts of it")]


def test_all_frames_of_one_call_come_as_one_event() -> None:
    ann, bob = linked()
    for number in range(100):
        sends(ann, number, b"x")
    talk(ann, bob)
    assert isinstance(bob.events[-1], Frames) and len(bob.events[-1].frames) == 100


def test_payloads_are_bytes_of_their_own() -> None:
    ann, bob = linked()
    sends(ann, 1, memoryview(bytearray(b"payload")))
    talk(ann, bob)
    assert type(bob.frames[0][1]) is bytes


def test_frames_arrive_whole_however_they_are_split() -> None:
    ann, bob = linked()
    sends(ann, 1, b"one")
    sends(ann, 2, b"twotwo")
    octets = ann.says()
    for at in range(len(octets) + 1):
        _, bob = linked()
        bob.takes(octets[:at])
        bob.takes(octets[at:])
        assert bob.frames == [(1, b"one"), (2, b"twotwo")], at
    _, bob = linked()
    for octet in octets:
        bob.takes(bytes([octet]))
    assert bob.frames == [(1, b"one"), (2, b"twotwo")]


def test_frames_that_follow_the_acceptance_at_once_come_after_the_link_is_up() -> None:
    ann, bob = dialler(), acceptor()
    bob.takes(ann.says())
    ann.takes(bob.says())
    bob.takes(ann.says())
    ann.takes(bob.says())
    bob.takes(ann.says())
    sends(bob, 9, b"early")
    sends(bob, 9, b"birds")
    ann.takes(bob.says())
    assert [type(event) for event in ann.events[-2:]] == [Established, Frames]
    assert ann.frames == [(9, b"early"), (9, b"birds")]


def test_the_largest_frame_passes_and_a_larger_one_is_not_sent() -> None:
    ann, bob = linked()
    largest = bytes(FRAME_BYTES_MAX)
    sends(ann, 1, largest)
    octets = ann.says()
    for at in range(0, len(octets), 60_000):
        bob.takes(octets[at : at + 60_000])
    assert bob.frames == [(1, largest)]
    with pytest.raises(ValueError, match="at most 1048576 octets"):
        sends(ann, 1, largest, b"x")
    assert ann.says() == b""


@pytest.mark.parametrize("kind", [-1, USER_KINDS, 0x1_0000])
def test_a_kind_that_is_not_the_users_is_not_sent(kind: int) -> None:
    ann, _ = linked()
    with pytest.raises(ValueError, match=f"kind {kind} "):
        sends(ann, kind, b"x")


@pytest.mark.parametrize("header", [(FRAME_BYTES_MAX + 1, 1, 0), (0xFFFFFFFF, 1, 0), (1, 1, 1)])
def test_octets_that_are_no_frame_end_the_link_after_those_that_are(
    header: tuple[int, int, int],
) -> None:
    ann, bob = linked()
    sends(ann, 1, b"good")
    bob.takes(ann.says() + HEADER.pack(*header))
    assert bob.frames == [(1, b"good")]
    assert bob.ended is not None and bob.ended.reason is EndReason.DAMAGED


def test_a_large_frame_announced_costs_nothing_before_it_comes() -> None:
    _, bob = linked()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        bob.takes(HEADER.pack(FRAME_BYTES_MAX, 1, 0))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 4096


def test_kinds_of_the_link_that_are_not_known_are_passed_over() -> None:
    ann, bob = linked()
    bob.takes(HEADER.pack(3, 0xFFFF, 0) + b"new")
    sends(ann, 1, b"x")
    talk(ann, bob)
    assert bob.frames == [(1, b"x")] and bob.ended is None


def test_unsent_octets_are_counted_until_they_are_taken() -> None:
    ann, _ = linked()
    sends(ann, 1, bytes(100))
    sends(ann, 1, bytes(30), bytes(12))
    assert ann.link.unsent_bytes == 100 + 42 + 2 * HEADER.size
    assert len(ann.says()) == 100 + 42 + 2 * HEADER.size
    assert ann.link.unsent_bytes == 0


def test_two_ends_that_beat_stay_linked_and_report_nothing() -> None:
    ann, bob = linked()
    for _ in range(10 * SILENT_TICKS):
        tick(ann)
        tick(bob)
        talk(ann, bob)
    assert ann.ended is None and bob.ended is None
    assert not ann.frames and not bob.frames


def test_a_silent_peer_is_down_after_as_many_ticks_as_were_agreed() -> None:
    _, bob = linked()
    tick(bob)  # It heard the handshake.
    for _ in range(SILENT_TICKS - 1):
        tick(bob)
        assert bob.ended is None
    tick(bob)
    assert bob.ended == Ended(EndReason.SILENT)


def test_any_octet_is_a_sign_of_life() -> None:
    ann, bob = linked()
    sends(ann, 1, bytes(100))
    for octet in ann.says():
        bob.takes(bytes([octet]))
        for _ in range(SILENT_TICKS - 1):
            tick(bob)
    assert bob.ended is None


def test_a_peer_that_beats_but_does_not_read_is_down() -> None:
    _, bob = linked()
    for _ in range(SILENT_TICKS + 1):
        assert bob.ended is None
        bob.takes(heartbeat(received=500))
        tick(bob)
    assert bob.ended == Ended(EndReason.NOT_READING)


def test_a_peer_that_reads_slowly_is_not_one_that_does_not_read() -> None:
    _, bob = linked()
    for received in range(10 * SILENT_TICKS):
        bob.takes(heartbeat(received // (SILENT_TICKS - 1)))
        tick(bob)
    assert bob.ended is None


def test_a_peer_whose_heartbeats_are_on_their_way_for_long_is_not_one_that_does_not_read() -> None:
    ann, bob = linked()
    for _ in range(3 * SILENT_TICKS):
        sends(ann, 1, b"what it sent before them")
        talk(ann, bob)
        tick(bob)
    assert bob.ended is None


def test_a_process_that_was_stopped_does_not_hold_it_against_its_peers() -> None:
    ann, bob = linked()
    tick(ann)
    for _ in range(SILENT_TICKS - 1):
        tick(ann)
    waiting = ann.says()
    # However long bob stood still, its timer fires once; then it reads what waited.
    tick(bob)
    bob.takes(waiting)
    for _ in range(3 * SILENT_TICKS):
        tick(bob)
        talk(bob, ann)
        tick(ann)
        talk(ann, bob)
    assert bob.ended is None


def test_heartbeats_do_not_wait_behind_a_body_that_is_sent_in_pieces() -> None:
    ann, bob = linked()
    sends(ann, 1, bytes(FRAME_BYTES_MAX))
    first = ann.says()
    tick(ann)
    sends(ann, 1, bytes(FRAME_BYTES_MAX))
    second = ann.says()
    assert HEADER.unpack_from(second) == (RECEIVED.size, Control.HEARTBEAT, 0)
    bob.takes(first + second)
    assert len(bob.frames) == 2 and bob.ended is None


@pytest.mark.parametrize("octets", [b"", b"\x01", bytes(9)])
def test_a_heartbeat_of_another_size_ends_the_link(octets: bytes) -> None:
    _, bob = linked()
    bob.takes(HEADER.pack(len(octets), Control.HEARTBEAT, 0) + octets)
    assert bob.ended == Ended(EndReason.DAMAGED, f"a heartbeat of {len(octets)} octets")


def test_a_goodbye_comes_behind_everything_sent_and_says_why() -> None:
    ann, bob = linked()
    sends(ann, 1, b"last")
    ann.note(ann.link.say_goodbye(EndReason.STOPPED))
    talk(ann, bob)
    assert ann.ended == Ended(EndReason.STOPPED)
    assert bob.frames == [(1, b"last")]
    assert bob.ended == Ended(EndReason.PEER_STOPPED, "stopped", by_peer=True)


def test_nothing_is_reported_after_the_end() -> None:
    ann, bob = linked()
    sends(ann, 1, b"late")
    late = ann.says()
    bob.note(bob.link.connection_lost())
    assert bob.ended == Ended(EndReason.CONNECTION_LOST)
    bob.takes(late)
    bob.note(bob.link.connection_lost())
    tick(bob)
    assert bob.frames == [] and bob.says() == b""
