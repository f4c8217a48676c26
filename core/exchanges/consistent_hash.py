"""One destination per message, the same for equal keys: the choice of x-consistent-hash.

Keys fall into `SLOTS` slots by their hash. A slot belongs to the destination with the lowest score
for it: weighted rendezvous hashing, -ln(u) / weight, where u is a hash of destination and slot as a
number in (0, 1]. So a destination owns slots in proportion to its weight; when it goes, its slots
are the only ones that change hands, and when it comes, only it takes slots. A
slot's owner is worked out when a message first falls into it, and remembered until a binding
changes.

Hashes are the same in every process and release: nothing here depends on Python's `hash`.
"""

from __future__ import annotations

import math
import re
from hashlib import blake2b
from typing import NamedTuple
from zlib import crc32

from warren.core.erlang_text import binary_text
from warren.core.errors import PreconditionFailed
from warren.core.exchanges.binding import Binding, DestinationKind
from warren.core.field import KIND_NAMES, Field, Table, to_octets, to_text

SLOTS = 65_536
"""Enough that shares are even to 4 % between a hundred destinations, few enough to remember."""

HASH_HEADER = "hash-header"
HASH_PROPERTY = "hash-property"
PROPERTIES = ("correlation_id", "message_id", "timestamp")

_INTEGER = re.compile(r"[+-]?[0-9]+")


class HashSource(NamedTuple):
    """The part of a message that is hashed: this header, this property, or else the routing key."""

    header: str | None
    property: str | None


def hash_source(arguments: Table) -> HashSource:
    """Read the arguments of the exchange. Raises `PreconditionFailed`."""
    header = _name_in(arguments, HASH_HEADER)
    name = _name_in(arguments, HASH_PROPERTY)
    if header is not None and name is not None:
        raise PreconditionFailed(f"{HASH_HEADER} and {HASH_PROPERTY} are mutually exclusive")
    if name is not None and name not in PROPERTIES:
        raise PreconditionFailed(
            f"Unsupported property: {name}; expected {', '.join(PROPERTIES[:-1])}"
            f" or {PROPERTIES[-1]}"
        )
    return HashSource(header, name)


def hashed_value(field: Field | None) -> bytes:
    """The octets by which a header is hashed: of a string its own, else those of its value."""
    if field is None:
        return b""
    if isinstance(field.value, bytes):
        return field.value
    return repr(field.value).encode("ascii", "backslashreplace")


def weight_of(routing_key: str) -> int:
    """The weight a binding key stands for. Raises `PreconditionFailed`."""
    if _INTEGER.fullmatch(routing_key) is None:
        shown = binary_text(to_octets(routing_key))
        raise PreconditionFailed(f"The binding key must be an integer: {shown}")
    weight = int(routing_key)
    if weight < 1:
        raise PreconditionFailed("The binding key must be greater than 0")
    return weight


class ConsistentHash:
    """Bindings whose routing keys have been checked by `weight_of`.

    Of several bindings of one destination only the oldest counts.
    """

    def __init__(self) -> None:
        self._weights: dict[tuple[DestinationKind, str], dict[Binding, int]] = {}
        self._owners: dict[int, Binding] = {}

    def add(self, binding: Binding) -> None:
        destination = (binding.destination_kind, binding.destination)
        self._weights.setdefault(destination, {})[binding] = weight_of(binding.routing_key)
        self._owners.clear()

    def remove(self, binding: Binding) -> None:
        destination = (binding.destination_kind, binding.destination)
        weights = self._weights.get(destination, {})
        if weights.pop(binding, None) is None:
            return
        if not weights:
            del self._weights[destination]
        self._owners.clear()

    def choose(self, key: bytes) -> Binding | None:
        """The binding for messages with this key; None when there is no binding at all."""
        if not self._weights:
            return None
        slot = crc32(key) % SLOTS
        owner = self._owners.get(slot)
        if owner is None:
            owner = self._owners[slot] = self._owner_of(slot)
        return owner

    def _owner_of(self, slot: int) -> Binding:
        counting = (next(iter(weights.items())) for weights in self._weights.values())
        binding, _ = min(counting, key=lambda pair: _score(pair[0], pair[1], slot))
        return binding


def _score(binding: Binding, weight: int, slot: int) -> float:
    """Lower is better."""
    text = f"{slot} {binding.destination_kind} {binding.destination}"
    digest = blake2b(to_octets(text), digest_size=8).digest()
    u = (int.from_bytes(digest, "big") + 1) / 2**64
    return -math.log(u) / weight


def _name_in(arguments: Table, argument: str) -> str | None:
    field = arguments.get(argument)
    if field is None:
        return None
    if field.kind != "S":
        raise PreconditionFailed(
            f"invalid type '{KIND_NAMES[field.kind]}' for arg '{argument}'; expected longstr"
        )
    return to_text(field.value)
