"""Who gets through the handshake, who does not, and what those who do not are told: nothing."""

from __future__ import annotations

from typing import Any

import pytest
from link_pipe import End, acceptor, dialler, identity, talk

from warren.mirror.links.handshake import (
    HELLO,
    LEGAL,
    PROOF_BYTES,
    SECRET_BYTES_MIN,
    Ended,
    HandshakeStep,
    Identified,
)
from warren.mirror.links.ports import EndReason, LinkRole
from warren.mirror.links.records import (
    RECORD_BYTES_MAX,
    Acceptance,
    Refusal,
    Sealer,
    check_identity,
)

OTHER_SECRET = b"the secret of this clusteR"


def challenge(end: End) -> bytes:
    """The dialler's hello answered, for an acceptor under attack."""
    hello = dialler().says()
    end.takes(hello)
    return end.says()


def test_two_nodes_that_know_the_secret_learn_who_the_other_is() -> None:
    ann, bob = dialler(), acceptor()
    talk(ann, bob)
    assert ann.peer == identity("bob")
    assert bob.peer == identity("ann")
    assert ann.ended is None and bob.ended is None


def test_each_side_learns_the_stamp_of_the_other() -> None:
    ann, bob = dialler(agrees=False), acceptor(agrees=False)
    talk(ann, bob)
    ann.note(ann.link.agree(41))
    talk(ann, bob)
    assert bob.events == [Identified(identity("ann"), 41)]
    bob.note(bob.link.agree(42))
    talk(ann, bob)
    assert bob.events[-1] == (identity("ann"), 41)
    assert ann.events[-1] == (identity("bob"), 42)


def test_the_handshake_works_octet_by_octet() -> None:
    ann, bob = dialler(), acceptor()
    for _ in range(4):
        for octet in ann.says():
            bob.takes(bytes([octet]))
        for octet in bob.says():
            ann.takes(bytes([octet]))
    assert ann.peer is not None and bob.peer is not None


def test_the_handshake_works_with_every_split_of_every_message() -> None:
    whole_ann, whole_bob = dialler(), acceptor()
    talk(whole_ann, whole_bob)
    for at in range(max(len(whole_ann.said), len(whole_bob.said))):
        ann, bob = dialler(), acceptor()
        for _ in range(4):
            for speaker, listener in ((ann, bob), (bob, ann)):
                said = len(speaker.said)
                words = speaker.says()
                cut = min(max(at - said, 0), len(words))
                for piece in (words[:cut], words[cut:]):
                    if piece:
                        listener.takes(piece)
        assert ann.peer is not None and bob.peer is not None, at


def test_a_dialler_with_another_secret_gets_the_challenge_and_nothing_else() -> None:
    mallory, bob = dialler("mallory", secret=OTHER_SECRET), acceptor()
    talk(mallory, bob)
    assert bob.ended == Ended(EndReason.WRONG_SECRET)
    assert len(bob.said) == HELLO.size
    assert not bob.link.authenticated
    mallory.note(mallory.link.connection_lost())
    assert mallory.ended is not None and mallory.ended.reason is EndReason.SECRET_NOT_ACCEPTED


def test_a_secret_that_is_nearly_right_gets_the_same_answer_as_one_that_is_not() -> None:
    said = []
    for secret in (OTHER_SECRET, b"x" * 40):
        bob = acceptor()
        talk(dialler("mallory", secret=secret), bob)
        said.append((bob.said, bob.events))
    assert said[0] == said[1]


def test_an_acceptor_with_another_secret_learns_a_proof_and_nothing_else() -> None:
    ann, mallory = dialler(), acceptor("mallory", secret=OTHER_SECRET)
    challenge = HELLO.pack(b"\x00WARREN\n", 1, b"m" * 32)
    ann.takes(challenge)
    ann.takes(bytes(PROOF_BYTES) + bytes(100))
    assert ann.ended == Ended(EndReason.WRONG_SECRET)
    assert len(ann.says()) == HELLO.size + PROOF_BYTES
    talk(dialler(), mallory)
    assert mallory.ended == Ended(EndReason.WRONG_SECRET)


def test_neither_names_nor_cluster_nor_software_can_be_overheard() -> None:
    ann = dialler("ann-of-the-green-meadow", software="software-of-ann")
    bob = acceptor("bob-of-the-green-meadow", software="software-of-bob")
    talk(ann, bob)
    assert ann.peer is not None
    for word in (b"meadow", b"software", b"gm", ann.peer.node_id.encode()):
        assert word not in ann.said + bob.said


def test_a_proof_sent_back_to_its_sender_proves_nothing() -> None:
    ann = dialler()
    hello = ann.says()
    ann.takes(hello)
    ann.takes(ann.says())
    assert ann.ended == Ended(EndReason.WRONG_SECRET)
    assert len(ann.said) == HELLO.size + PROOF_BYTES


def test_an_acceptor_made_to_answer_its_own_dialler_says_who_it_is_to_nobody_else() -> None:
    ann_out, ann_in = dialler("ann", nonce=b"1" * 32), acceptor("ann", nonce=b"2" * 32)
    talk(ann_out, ann_in)
    assert ann_out.ended is not None and ann_out.ended.reason is EndReason.OURSELVES
    assert ann_in.ended is not None and ann_in.ended.reason is EndReason.OURSELVES
    assert b"meadow" not in ann_out.said + ann_in.said


def test_a_recorded_handshake_played_again_to_an_acceptor_ends_at_the_proof() -> None:
    ann, bob = dialler(), acceptor()
    talk(ann, bob)
    again = acceptor(nonce=b"n" * 32)
    again.takes(ann.said[: HELLO.size])
    again.takes(ann.said[HELLO.size : HELLO.size + PROOF_BYTES])
    assert again.ended == Ended(EndReason.WRONG_SECRET)
    assert len(again.says()) == HELLO.size


def test_a_recorded_handshake_played_again_to_a_dialler_ends_at_the_proof() -> None:
    ann, bob = dialler(), acceptor()
    talk(ann, bob)
    again = dialler(nonce=b"n" * 32)
    again.takes(bob.said[: HELLO.size])
    again.takes(bob.said[HELLO.size :])
    assert again.ended == Ended(EndReason.WRONG_SECRET)
    assert len(again.says()) == HELLO.size + PROOF_BYTES


@pytest.mark.parametrize("altered", ["dialler", "acceptor"])
def test_an_octet_altered_on_its_way_never_leads_to_a_link_of_who_received_it(altered: str) -> None:
    whole = dialler(), acceptor()
    talk(*whole)
    length = len(whole[0].said if altered == "dialler" else whole[1].said)
    for at in range(length):
        ann, bob = dialler(), acceptor()
        speaker = ann if altered == "dialler" else bob

        def tamper(words: bytes, at: int = at, speaker: End = speaker) -> bytes:
            begins = len(speaker.said) - len(words)
            if not begins <= at < len(speaker.said):
                return words
            place = at - begins
            return words[:place] + bytes([words[place] ^ 0x20]) + words[place + 1 :]

        if altered == "dialler":
            talk(ann, bob, to_other=tamper)
            assert bob.peer is None, at
            assert ann.peer is None, at
        else:
            talk(ann, bob, to_one=tamper)
            assert ann.peer is None, at


def test_a_handshake_cut_short_anywhere_leads_to_no_link() -> None:
    whole_ann, whole_bob = dialler(), acceptor()
    talk(whole_ann, whole_bob)
    for at in range(len(whole_ann.said)):
        bob = acceptor()
        bob.takes(whole_ann.said[: min(at, HELLO.size)])
        for begin, end in ((HELLO.size, HELLO.size + PROOF_BYTES), (HELLO.size + PROOF_BYTES, at)):
            if at > begin:
                bob.takes(whole_ann.said[begin : min(end, at)])
        bob.note(bob.link.connection_lost())
        assert bob.peer is None and bob.ended is not None
        assert bob.ended.reason is EndReason.CONNECTION_LOST, at
    for at in range(len(whole_bob.said)):
        ann = dialler()
        ann.takes(whole_bob.said[: min(at, HELLO.size)])
        if at > HELLO.size:
            ann.takes(whole_bob.said[HELLO.size : at])
        ann.note(ann.link.connection_lost())
        assert ann.peer is None and ann.ended is not None, at


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cluster_id": "moor"}, EndReason.WRONG_CLUSTER),
        ({"name": "bob", "node_id": "77"}, EndReason.DUPLICATE_NAME),
        ({"protocol_min": 2, "protocol_max": 3}, EndReason.NO_COMMON_VERSION),
        ({"node_id": "626f62"}, EndReason.OURSELVES),
    ],
)
@pytest.mark.parametrize("dials", ["bob", "the other"])
def test_a_mismatch_is_told_to_a_peer_that_knows_the_secret(
    changes: dict[str, Any], reason: EndReason, dials: str
) -> None:
    name = changes.get("name", "ann")
    rest = {key: value for key, value in changes.items() if key != "name"}
    if dials == "bob":
        one, other = dialler("bob", nonce=b"1" * 32), acceptor(name, **rest)
    else:
        one, other = dialler(name, nonce=b"1" * 32, **rest), acceptor("bob")
    talk(one, other)
    assert one.peer is None and other.peer is None
    assert one.ended is not None and one.ended.reason is reason and not one.ended.by_peer
    assert other.ended is not None and other.ended.reason is reason and other.ended.by_peer


def test_a_dialler_that_reaches_another_node_than_it_meant_says_so() -> None:
    ann, bob = dialler(expected="carol"), acceptor("bob")
    talk(ann, bob)
    assert ann.ended == Ended(EndReason.ANOTHER_NODE, "wanted carol, reached bob")
    assert bob.ended == Ended(EndReason.ANOTHER_NODE, "ann: another_node", by_peer=True)


def test_who_refuses_an_identified_peer_tells_it_why() -> None:
    ann, bob = dialler(), acceptor(agrees=False)
    talk(ann, bob)
    bob.note(bob.link.refuse(EndReason.ALREADY_LINKED))
    talk(ann, bob)
    assert bob.ended == Ended(EndReason.ALREADY_LINKED)
    assert ann.ended == Ended(EndReason.ALREADY_LINKED, "bob: already_linked", by_peer=True)


def test_versions_that_overlap_agree_on_the_highest_common_one() -> None:
    ours, theirs = identity("ann", protocol_max=4), identity("bob", protocol_min=2, protocol_max=3)
    assert ours.common_protocol(theirs) == theirs.common_protocol(ours) == 3
    assert ours.common_protocol(identity("bob", protocol_min=5, protocol_max=9)) is None


@pytest.mark.parametrize(
    "words",
    [b"G", b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x00\x00\x09\x01", b"\x16\x03\x01", b"\x00WARREN\r"],
)
def test_who_speaks_something_else_is_told_nothing(words: bytes) -> None:
    bob = acceptor()
    bob.takes(words)
    assert bob.ended is not None and bob.ended.reason is EndReason.NOT_A_LINK
    assert bob.says() == b""


def test_another_version_of_the_handshake_is_told_nothing() -> None:
    bob = acceptor()
    bob.takes(HELLO.pack(b"\x00WARREN\n", 2, bytes(32)))
    assert bob.ended == Ended(EndReason.HANDSHAKE_VERSION, "handshake version 2, ours is 1")
    assert bob.says() == b""


def test_a_stranger_that_says_more_than_its_turn_allows_is_dropped() -> None:
    bob = acceptor()
    bob.takes(dialler().says() + bytes(PROOF_BYTES + 1))
    assert bob.ended is not None
    bob = acceptor()
    challenge(bob)
    bob.takes(bytes(PROOF_BYTES - 1))
    assert bob.ended is None
    bob.takes(bytes(100_000))
    assert bob.ended is not None
    assert bob.says() == b""


def test_a_record_in_the_wrong_place_ends_the_handshake() -> None:
    # Each side is answered by the same role: what it reads is sealed right but not its turn.
    ann, bob = dialler(agrees=False), acceptor(agrees=False)
    talk(ann, bob)
    ann.note(ann.link.agree(1))
    introduction = ann.says()
    bob.takes(introduction + introduction)
    assert bob.ended is not None and bob.ended.reason is EndReason.DAMAGED


def test_every_record_that_may_come_is_one_that_is_sent() -> None:
    assert {(role, step) for role, step, _ in LEGAL} == {
        (LinkRole.ACCEPTOR, HandshakeStep.INTRODUCTION),
        (LinkRole.DIALLER, HandshakeStep.INTRODUCTION),
        (LinkRole.DIALLER, HandshakeStep.ACCEPTANCE),
    }


def test_a_short_secret_is_not_accepted() -> None:
    with pytest.raises(ValueError, match="at least 16"):
        dialler(secret=b"x" * (SECRET_BYTES_MIN - 1))


@pytest.mark.parametrize(
    "changes",
    [
        {"capabilities": {"long": "x" * RECORD_BYTES_MAX}},
        {"node_id": "not hex"},
        {"incarnation": -1},
        {"name": ""},
    ],
)
def test_an_identity_that_no_peer_would_take_is_refused_where_it_is_made(
    changes: dict[str, Any],
) -> None:
    check_identity(identity("ann"))
    with pytest.raises(ValueError):
        check_identity(identity(**{"name": "ann", **changes}))


def test_a_record_does_not_open_twice_nor_in_the_other_direction() -> None:
    sealed = Sealer(b"k" * 32, LinkRole.ACCEPTOR).seal(Acceptance(3))
    opener = Sealer(b"k" * 32, LinkRole.ACCEPTOR)
    assert opener.open(sealed) == Acceptance(3)
    assert opener.open(sealed) is None
    assert Sealer(b"k" * 32, LinkRole.DIALLER).open(sealed) is None


@pytest.mark.parametrize("reason", ["out_of_apples", "silent", ""])
def test_a_reason_for_refusing_that_is_none_of_ours_is_a_refusal_all_the_same(reason: str) -> None:
    assert Refusal(reason, "bob").known_reason() is EndReason.REFUSED
    assert Refusal("wrong_cluster", "bob").known_reason() is EndReason.WRONG_CLUSTER
