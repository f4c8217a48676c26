"""The records that two nodes exchange in the handshake after both proofs, and their seal.

A record is one of `Introduction`, `Acceptance` and `Refusal` as MessagePack, at most 65,535 octets:

    u16 length | ciphertext | seal: 32 octets

A `Sealer` holds one direction of one connection. Its n-th record has a key of its own, the HMAC of
direction and n under the session's key. The record is XORed with the output of SHAKE-256 for that
key, and the seal is the HMAC of length and ciphertext. So a relay or listener learns only the size
of an identity; a record that was altered, repeated, left out or sent back to its sender is refused
before it is decoded; and no key stream is used twice.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import TypeAlias

import msgspec

from warren.mirror.links.ports import REFUSALS, Counter, EndReason, Identity, LinkRole

SEAL_BYTES = 32
LENGTH = struct.Struct("<H")
RECORD_BYTES_MAX = 0xFFFF


class Introduction(msgspec.Struct, frozen=True, tag="introduction"):
    """The sender's identity. `stamp` is the dialler's number for the link; see pairing.py."""

    identity: Identity
    stamp: Counter = 0


class Acceptance(msgspec.Struct, frozen=True, tag="acceptance"):
    """The acceptor says that the link is up; `stamp` is its number for the link."""

    stamp: Counter


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """The reason why there will be no link; a newer version may send one that we do not know."""

    reason: str
    name: str

    def known_reason(self) -> EndReason:
        return _REFUSALS.get(self.reason, EndReason.REFUSED)


Record: TypeAlias = Introduction | Acceptance | Refusal

_REFUSALS = {reason.value: reason for reason in REFUSALS}
_DECODER = msgspec.msgpack.Decoder(Record)


def check_identity(own: Identity) -> None:
    """Raises ValueError for an identity that every peer would refuse."""
    octets = msgspec.msgpack.encode(Introduction(own))
    if len(octets) > RECORD_BYTES_MAX // 2:
        raise ValueError(f"an identity of {len(octets)} octets, at most {RECORD_BYTES_MAX // 2}")
    _DECODER.decode(octets)


class UnreadableRecord(Exception):
    """A record with a valid seal that is none of the three records."""


class Sealer:
    """Seals or opens the records of one direction, in their order."""

    __slots__ = ("_count", "_direction", "_session_key")

    def __init__(self, session_key: bytes, sender: LinkRole) -> None:
        self._session_key = session_key
        self._direction = sender.value
        self._count = 0

    def seal(self, record: Record) -> bytes:
        plain = msgspec.msgpack.encode(record)
        assert len(plain) <= RECORD_BYTES_MAX, len(plain)
        key = self._next_key()
        sealed = LENGTH.pack(len(plain)) + _crypt(key, plain)
        return sealed + hmac.digest(key, sealed, "sha256")

    def open(self, sealed: bytes) -> Record | None:
        """The record in these octets, which are exactly one sealed record; None for a wrong seal.

        Raises `UnreadableRecord`.
        """
        key = self._next_key()
        content = sealed[:-SEAL_BYTES]
        if not hmac.compare_digest(sealed[-SEAL_BYTES:], hmac.digest(key, content, "sha256")):
            return None
        try:
            record: Record = _DECODER.decode(_crypt(key, content[LENGTH.size :]))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise UnreadableRecord(str(error)) from error
        return record

    def _next_key(self) -> bytes:
        self._count += 1
        label = self._direction + b" record " + LENGTH.pack(self._count)
        return hmac.digest(self._session_key, label, "sha256")


def _crypt(key: bytes, text: bytes) -> bytes:
    """The text XORed with the key's stream; the same function encrypts and decrypts."""
    stream = hashlib.shake_256(key).digest(len(text))
    mixed = int.from_bytes(text, "little") ^ int.from_bytes(stream, "little")
    return mixed.to_bytes(len(text), "little")
