"""Writes one more death into the headers of a message, without decoding them.

Most messages have plain headers, and deaths that this broker has written. Then the new headers are
put together from the octets of the old ones. The rules, and what becomes of all other messages, are
in `core/vhosts/dead_letter.py`: this is a faster way to the same octets.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from warren.amqp.field_table import encoded_pairs, items_of_kind, plain_pairs
from warren.amqp.properties import find_headers, with_pairs
from warren.core.field import LONG_MAX, Table

DEATHS: Final = b"x-death"

_COPIES = frozenset((b"CC", b"BCC"))
_TABLE, _STRING = ord("F"), ord("S")
_HEAD = b"\x07x-deathA"
_ITEMS_AT = len(_HEAD) + 4
"""The octets before the length of the deaths, and the offset behind that."""

_QUEUE, _REASON, _COUNT = b"\x05queueS", b"\x06reasonS", b"\x05countl"
_KEYS = b"\x0crouting-keysA"
"""The name and the type of values in a death."""

_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">q")


class DeathEntry(NamedTuple):
    """One entry of `x-death`: the octets of it all, and of its pairs by their names."""

    octets: bytes
    pairs: dict[bytes, bytes]

    @property
    def queue(self) -> bytes:
        return self.pairs[b"queue"][len(_QUEUE) + 4 :]

    @property
    def reason(self) -> bytes:
        return self.pairs[b"reason"][len(_REASON) + 4 :]

    def once_more(self) -> bytes | None:
        """The entry with a higher count; None if there is none."""
        (count,) = _NUMBER.unpack_from(self.pairs[b"count"], len(_COUNT))
        if count >= LONG_MAX:
            return None
        pairs = {**self.pairs, b"count": _COUNT + _NUMBER.pack(count + 1)}
        table = b"".join([pairs[name] for name in sorted(pairs)])
        return b"F" + _LENGTH.pack(len(table)) + table


class FirstDeath(NamedTuple):
    """The headers of a message that has died once, encoded and by their names, and its death."""

    headers: Mapping[bytes, bytes]
    death: DeathEntry

    @classmethod
    def of(cls, headers: Table) -> FirstDeath:
        encoded = encoded_pairs(headers)
        deaths = _deaths(encoded[DEATHS])
        assert deaths is not None
        return cls(encoded, deaths[0])


def with_death(header: bytes, first: FirstDeath) -> tuple[bytes, list[tuple[bytes, bytes]]] | None:
    """The content header with one more death, and the queues and reasons of its deaths in their
    order. `first` is what there would be if this were its first death.

    None if the headers have to be decoded: they are not plain, have CC or BCC, or deaths that
    another program may have written.
    """
    start, end = find_headers(header)
    pairs = plain_pairs(header, start, (DEATHS,)) if start < end else {}
    if pairs is None or not _COPIES.isdisjoint(pairs):
        return None
    new = first.death
    known = pairs.get(DEATHS)
    if known is None:
        if not first.headers.keys().isdisjoint(pairs):
            return None
        pairs.update(first.headers)
        return with_pairs(header, pairs), [(new.queue, new.reason)]
    deaths = _deaths(known)
    if deaths is None:
        return None
    found = _one_more(deaths, new)
    if found is None:
        return None
    items = b"".join([octets for octets, _, _ in found])
    pairs[DEATHS] = _HEAD + _LENGTH.pack(len(items)) + items
    return with_pairs(header, pairs), [(queue, reason) for _, queue, reason in found]


def _one_more(
    deaths: Sequence[DeathEntry], new: DeathEntry
) -> list[tuple[bytes, bytes, bytes]] | None:
    """The deaths with a new one in front: the octets, queue and reason of each. None if that takes
    decoding."""
    if len(deaths) > 1:
        # As in RabbitMQ, the order of several is turned round.
        deaths = deaths[::-1]
    kinds = [(death.queue, death.reason) for death in deaths]
    if len(set(kinds)) < len(kinds):
        return None
    octets: bytes | None = new.octets
    kind = (new.queue, new.reason)
    others = []
    for death, its_kind in zip(deaths, kinds, strict=True):
        if its_kind == kind:
            octets = death.once_more()
        else:
            others.append((death.octets, *its_kind))
    return None if octets is None else [(octets, *kind), *others]


def _deaths(pair: bytes) -> list[DeathEntry] | None:
    """The entries of `x-death`, given as a pair; None unless all are as this broker writes them."""
    if not pair.startswith(_HEAD):
        return None
    items = items_of_kind(pair, _ITEMS_AT, len(pair), _TABLE)
    deaths: list[DeathEntry] = []
    for item in items or ():
        pairs = plain_pairs(item, 1, (b"routing-keys",))
        if pairs is None:
            return None
        keys = pairs.get(b"routing-keys", b"")
        if not (
            pairs.get(b"queue", b"").startswith(_QUEUE)
            and pairs.get(b"reason", b"").startswith(_REASON)
            and pairs.get(b"count", b"").startswith(_COUNT)
            and keys.startswith(_KEYS)
            and items_of_kind(keys, len(_KEYS) + 4, len(keys), _STRING) is not None
        ):
            return None
        deaths.append(DeathEntry(item, pairs))
    return deaths or None
