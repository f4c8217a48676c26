"""The handshake: two nodes prove that they know the cluster's secret, then tell their identities.

    dialler                                     acceptor
       | magic, version, nonce: 41 octets          |
       |------------------------------------------>|
       |            magic, version, nonce          |
       |<------------------------------------------|
       | HMAC("dialler", both hellos)              |   checks it, or closes without a word
       |------------------------------------------>|
       |  HMAC("acceptor", both hellos, the proof) |
       |  sealed: Introduction                     |
       |<------------------------------------------|
       | checks both; sealed: Introduction         |
       |------------------------------------------>|
       |            sealed: Acceptance             |   from here on it is up
       |<------------------------------------------|
       | up

All HMACs are SHA-256 under the secret, compared in constant time. Either side may send a sealed
Refusal in place of its own next record; records are sealed as records.py says, under a key
that is the HMAC of everything before.

**Order of the proofs.** The dialler proves itself first. The acceptor must answer everyone that
finds its port, so it must give nothing away: after the magic a stranger gets 32 random octets, and
no text against which it could try secrets offline. A dialler that proves itself to a false acceptor
does give such a text away, but only a node that was configured to dial there does so. The only
defence against trying secrets offline is their length, so the secret has a minimum.

**Attacks that fail.** A proof sent back to its sender has the wrong role in it. A proof recorded
earlier has other nonces in it. A hello altered on the way gives the two sides different
transcripts, so that no proof fits; an altered proof or record fits no transcript. If a dialler is
led to itself, or to another node than it wanted, the proofs fit, but the records are sealed for
these two ends: a relay cannot read them, and the names show the ends that they reached a wrong
node.

**What is left to TLS**, where it is configured: frames after the handshake are neither sealed nor
encrypted.

Before the peer has proved itself, a handshake reads fixed sizes only, at most `HELLO.size` octets
of an acceptor's peer. The size of a record has 16 bits. The owner limits the time. Nothing that a
peer sends raises an exception.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from warren.mirror.links.ports import EndReason, Identity, LinkRole
from warren.mirror.links.records import (
    LENGTH,
    SEAL_BYTES,
    Acceptance,
    Introduction,
    Record,
    Refusal,
    Sealer,
    UnreadableRecord,
)
from warren.mirror.links.tls import TLS_RECORDS

MAGIC = b"\x00WARREN\n"
"""No text protocol begins like this, so a scanner is turned away by its first octet."""
HANDSHAKE_VERSION = 1

HELLO = struct.Struct("<8sB32s")
NONCE_BYTES = 32
PROOF_BYTES = 32

SECRET_BYTES_MIN = 16
"""128 bits, if the secret is random; an Erlang cookie of 20 letters is long enough."""


class Identified(NamedTuple):
    """The peer knows the secret and has told its identity; the owner calls `agree` or `refuse`."""

    peer: Identity
    stamp: int


class Established(NamedTuple):
    """Both nodes agreed. `stamp` is the peer's number for this link (`pairing`)."""

    peer: Identity
    stamp: int


class Ended(NamedTuple):
    """The link was not made, or has ended; `by_peer` if the peer said so. `detail` is for logs."""

    reason: EndReason
    detail: str | None = None
    by_peer: bool = False


HandshakeEvent: TypeAlias = Identified | Established | Ended


class HandshakeStep(Enum):
    """The step of a handshake, named after what this side waits for."""

    HELLO = auto()
    PROOF = auto()
    INTRODUCTION = auto()
    VERDICT = auto()
    """The owner's call of `agree` or `refuse`."""
    ACCEPTANCE = auto()
    DONE = auto()


HELLO_STEP, DONE = HandshakeStep.HELLO, HandshakeStep.DONE

_FIXED_BYTES = {HandshakeStep.HELLO: HELLO.size, HandshakeStep.PROOF: PROOF_BYTES}
_SEALED = frozenset({HandshakeStep.INTRODUCTION, HandshakeStep.ACCEPTANCE})

LEGAL: frozenset[tuple[LinkRole, HandshakeStep, type[Record]]] = frozenset(
    {
        (LinkRole.ACCEPTOR, HandshakeStep.INTRODUCTION, Introduction),
        (LinkRole.ACCEPTOR, HandshakeStep.INTRODUCTION, Refusal),
        (LinkRole.DIALLER, HandshakeStep.INTRODUCTION, Introduction),
        (LinkRole.DIALLER, HandshakeStep.INTRODUCTION, Refusal),
        (LinkRole.DIALLER, HandshakeStep.ACCEPTANCE, Acceptance),
        (LinkRole.DIALLER, HandshakeStep.ACCEPTANCE, Refusal),
    }
)
"""The records that each side may get at each step."""


class Handshake:
    """One side of a handshake, from the first octet to `Established` or `Ended`.

    `nonce` is 32 unforeseeable octets, used for this connection only. `expected` is the name of the
    node that a dialler wants to reach.
    """

    def __init__(
        self,
        role: LinkRole,
        secret: bytes,
        own: Identity,
        nonce: bytes,
        expected: str | None = None,
    ) -> None:
        assert len(nonce) == NONCE_BYTES, len(nonce)
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(
                f"a cluster secret of {len(secret)} octets, at least {SECRET_BYTES_MIN} are needed"
            )
        self.role = role
        self.step = HandshakeStep.HELLO
        self.authenticated = False
        self._secret = secret
        self._own = own
        self._expected = expected
        self._hello = HELLO.pack(MAGIC, HANDSHAKE_VERSION, nonce)
        self._transcript = b""
        self._buffer = b""
        self._output: list[bytes] = []
        self._sealer: Sealer
        self._opener: Sealer
        self._introduced: Introduction
        self._readers: dict[HandshakeStep, Callable[[bytes], HandshakeEvent | None]] = {
            HandshakeStep.HELLO: self._read_hello,
            HandshakeStep.PROOF: self._read_proof,
            HandshakeStep.INTRODUCTION: self._read_record,
            HandshakeStep.ACCEPTANCE: self._read_record,
        }
        if role is LinkRole.DIALLER:
            self._output.append(self._hello)

    def take_output(self) -> bytes:
        """Remove and return the octets to send now."""
        output = b"".join(self._output)
        self._output.clear()
        return output

    def take_rest(self) -> bytes:
        """Remove and return the octets that the peer sent behind its last record: first frames."""
        rest, self._buffer = self._buffer, b""
        return rest

    def receive_data(self, data: bytes) -> HandshakeEvent | None:
        """Take received octets; returns an event once there is one. `take_rest` has the octets
        behind the handshake."""
        if self.step is DONE:
            return None
        self._buffer += data
        event = None
        while event is None and self.step in self._readers:
            size = self._size_wanted()
            if isinstance(size, Ended):
                return self._end(size)
            if len(self._buffer) < size:
                break
            taken, self._buffer = self._buffer[:size], self._buffer[size:]
            event = self._readers[self.step](taken)
        if isinstance(event, Ended):
            self._end(event)
        elif len(self._buffer) > self._ahead_max():
            return self._end(Ended(EndReason.DAMAGED, "octets ahead of their turn"))
        return event

    def agree(self, stamp: int) -> Established | None:
        """Accept this link, after `Identified`. The acceptor agrees last: its Acceptance makes the
        link."""
        assert self.step is HandshakeStep.VERDICT, self.step
        if self.role is LinkRole.DIALLER:
            self._output.append(self._sealer.seal(Introduction(self._own, stamp)))
            self.step = HandshakeStep.ACCEPTANCE
            return None
        self._output.append(self._sealer.seal(Acceptance(stamp)))
        self.step = DONE
        return Established(self._introduced.identity, self._introduced.stamp)

    def refuse(self, reason: EndReason, detail: str | None = None) -> Ended:
        """Refuse this link, after `Identified`, and tell the peer why."""
        assert self.step is HandshakeStep.VERDICT, self.step
        self._output.append(self._sealer.seal(Refusal(reason.value, self._own.name)))
        return self._end(Ended(reason, detail))

    def connection_lost(self) -> Ended:
        """End the handshake; the step at which the connection was lost tells the reason."""
        step = self.step
        if self.role is LinkRole.DIALLER and step is HandshakeStep.PROOF:
            return self._end(Ended(EndReason.SECRET_NOT_ACCEPTED, "the peer closed at our proof"))
        return self._end(Ended(EndReason.CONNECTION_LOST, f"while waiting for {step.name.lower()}"))

    def _end(self, ended: Ended) -> Ended:
        self.step = DONE
        self._buffer = b""
        return ended

    def _size_wanted(self) -> int | Ended:
        """The number of octets that the present step reads."""
        if self.step not in _SEALED:
            if self.step is HELLO_STEP and not MAGIC.startswith(self._buffer[: len(MAGIC)]):
                return Ended(EndReason.NOT_A_LINK, _beginning_described(self._buffer))
            return _FIXED_BYTES[self.step]
        if len(self._buffer) < LENGTH.size:
            return LENGTH.size
        (length,) = LENGTH.unpack_from(self._buffer)
        return LENGTH.size + int(length) + SEAL_BYTES

    def _ahead_max(self) -> int:
        """The number of octets that a peer may have sent before their step has come.

        Each side waits for the other's answer, except that an acceptor sends its introduction
        directly after its proof.
        """
        if self.step is DONE:
            return len(self._buffer)
        if self.step in _FIXED_BYTES and (
            self.role is LinkRole.ACCEPTOR or self.step is HELLO_STEP
        ):
            return _FIXED_BYTES[self.step]
        return (
            0
            if self.step is HandshakeStep.VERDICT
            else LENGTH.size + 0xFFFF + SEAL_BYTES + PROOF_BYTES
        )

    def _read_hello(self, hello: bytes) -> Ended | None:
        _, version, _ = HELLO.unpack(hello)
        if version != HANDSHAKE_VERSION:
            detail = f"handshake version {version}, ours is {HANDSHAKE_VERSION}"
            return Ended(EndReason.HANDSHAKE_VERSION, detail)
        if self.role is LinkRole.ACCEPTOR:
            self._transcript = hello + self._hello
            self._output.append(self._hello)
        else:
            self._transcript = self._hello + hello
            self._prove()
        self.step = HandshakeStep.PROOF
        return None

    def _read_proof(self, proof: bytes) -> Ended | None:
        if not hmac.compare_digest(proof, self._proof_of(_other(self.role))):
            return Ended(EndReason.WRONG_SECRET)
        self.authenticated = True
        self._transcript += proof
        if self.role is LinkRole.ACCEPTOR:
            self._prove()
        session_key = hmac.digest(self._secret, b"session" + self._transcript, "sha256")
        self._sealer = Sealer(session_key, self.role)
        self._opener = Sealer(session_key, _other(self.role))
        if self.role is LinkRole.ACCEPTOR:
            self._output.append(self._sealer.seal(Introduction(self._own)))
        self.step = HandshakeStep.INTRODUCTION
        return None

    def _prove(self) -> None:
        proof = self._proof_of(self.role)
        self._transcript += proof
        self._output.append(proof)

    def _proof_of(self, role: LinkRole) -> bytes:
        return hmac.digest(self._secret, role.value + self._transcript, "sha256")

    def _read_record(self, sealed: bytes) -> HandshakeEvent | None:
        try:
            record = self._opener.open(sealed)
        except UnreadableRecord as error:
            return Ended(EndReason.DAMAGED, f"a record cannot be read: {error}")
        if record is None:
            return Ended(EndReason.DAMAGED, "a record was altered on its way")
        if (self.role, self.step, type(record)) not in LEGAL:
            detail = f"{type(record).__name__.lower()} while waiting for {self.step.name.lower()}"
            return Ended(EndReason.DAMAGED, detail)
        return self._take_record(record)

    def _take_record(self, record: Record) -> HandshakeEvent:
        if isinstance(record, Refusal):
            return Ended(record.known_reason(), f"{record.name}: {record.reason}", by_peer=True)
        if isinstance(record, Acceptance):
            self.step = DONE
            return Established(self._introduced.identity, record.stamp)
        self._introduced = record
        self.step = HandshakeStep.VERDICT
        mismatch = find_mismatch(self._own, record.identity, self._expected)
        if mismatch is not None:
            return self.refuse(*mismatch)
        return Identified(record.identity, record.stamp)


def find_mismatch(
    own: Identity, peer: Identity, expected: str | None
) -> tuple[EndReason, str] | None:
    """The reason why two nodes can never have a link, whatever other links there are, or None."""
    if peer.cluster_id != own.cluster_id:
        return EndReason.WRONG_CLUSTER, f"{peer.name} is of {peer.cluster_id}"
    if peer.node_id == own.node_id:
        return EndReason.OURSELVES, f"{peer.name} has our node id {own.node_id}"
    if peer.name == own.name:
        return EndReason.DUPLICATE_NAME, f"node {peer.node_id} has our name {own.name}"
    if expected is not None and peer.name != expected:
        return EndReason.ANOTHER_NODE, f"wanted {expected}, reached {peer.name}"
    if own.common_protocol(peer) is None:
        detail = (
            f"{peer.name} speaks {peer.protocol_min} to {peer.protocol_max}, "
            f"we speak {own.protocol_min} to {own.protocol_max}"
        )
        return EndReason.NO_COMMON_VERSION, detail
    return None


def _beginning_described(beginning: bytes) -> str:
    if beginning.startswith(TLS_RECORDS):
        return "the peer speaks TLS, and this node does not"
    return f"it began with {beginning[:8]!r}"


def _other(role: LinkRole) -> LinkRole:
    return LinkRole.ACCEPTOR if role is LinkRole.DIALLER else LinkRole.DIALLER
