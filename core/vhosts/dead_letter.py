"""The contents of dead letters: headers, routing keys, the cycle rule.

The rules are amqp_semantics.md section 9. Everything here is a pure function of the message; what
`DeadLetterEnvelopes` remembers only saves time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from warren.core.field import (
    INTEGER_KINDS,
    LONG_MAX,
    Field,
    Table,
    cut_to_short_string,
    long,
    longstr,
    to_text,
)
from warren.core.messages.message import Envelope
from warren.core.ports import ContentCodec
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.queue_type import QUORUM

DEATHS = "x-death"

COUNTS = INTEGER_KINDS | {"T"}
"""The types of field of which RabbitMQ takes a value for a number."""


class DeadLetterEnvelopes:
    """Makes the envelopes of dead letters.

    Messages that die for the first time in the same second, in the same queue and for the same
    reason get the same headers, if their routing keys are the same.
    """

    __slots__ = ("_codec", "_death", "_key")

    def __init__(self, codec: ContentCodec) -> None:
        self._codec = codec
        # What the last first death depends on, and its headers.
        self._key: tuple[object, ...] | None = None
        self._death: Table = {}

    def of(
        self, envelope: Envelope, queue: str, reason: str, settings: QueueSettings, died_at: float
    ) -> tuple[Envelope, tuple[str, ...], Collection[str | None]]:
        """The envelope to publish to the dead letter exchange, its routing keys, and the queues to
        which it must not return (`circle`)."""
        found = None if envelope.copies else self._with_death(envelope, queue, reason, died_at)
        if found is None:
            dead, keys, headers = dead_lettered(
                envelope, queue, reason, settings, died_at, self._codec
            )
            return dead, keys, circle(headers, reason)
        header, deaths = found
        key = settings.dead_letter_routing_key
        if key is None:
            key = envelope.routing_key
        dead = Envelope(
            settings.dead_letter_exchange or "",
            cut_to_short_string(key),
            header,
            _is_persistent(envelope, settings, self._codec),
            envelope.priority,
            None,
        )
        kinds = [(to_text(its_queue), to_text(its_reason)) for its_queue, its_reason in deaths]
        return dead, (key,), _circle(kinds, reason)

    def _with_death(
        self, envelope: Envelope, queue: str, reason: str, died_at: float
    ) -> tuple[bytes, list[tuple[bytes, bytes]]] | None:
        """The content header of the dead letter, and the queues and reasons of all deaths; None if
        the headers have to be decoded."""
        header, expires = envelope.header, envelope.expiration_ms is not None
        expiration = self._codec.property_text(header, "expiration") if expires else None
        exchange, routing_key = envelope.exchange, envelope.routing_key
        key = (queue, reason, exchange, routing_key, expiration, int(died_at))
        if key != self._key:
            self._key, self._death = key, {}
            _record_death(
                self._death, envelope, (routing_key,), queue, reason, int(died_at), expiration
            )
        return self._codec.with_death(header, self._death, expires=expires)


def dead_lettered(
    envelope: Envelope,
    queue: str,
    reason: str,
    settings: QueueSettings,
    died_at: float,
    codec: ContentCodec,
) -> tuple[Envelope, tuple[str, ...], Table]:
    """The envelope to publish to the dead letter exchange, its routing keys, and its headers."""
    headers = codec.headers(envelope.header)
    keys = (envelope.routing_key, *carbon_copies(headers, "CC"))
    expiration = codec.property_text(envelope.header, "expiration")
    _record_death(headers, envelope, keys, queue, reason, int(died_at), expiration)
    new_key = settings.dead_letter_routing_key
    if new_key is None:
        new_key = envelope.routing_key
        copies = envelope.copies
    else:
        headers.pop("CC", None)
        copies = ()
    dead = Envelope(
        settings.dead_letter_exchange or "",
        # The key of an argument or a policy may be longer than a routing key on the wire.
        cut_to_short_string(new_key),
        codec.for_dead_letter(envelope.header, headers),
        _is_persistent(envelope, settings, codec),
        envelope.priority,
        None,
        copies,
    )
    return dead, (new_key, *copies), headers


def _is_persistent(envelope: Envelope, settings: QueueSettings, codec: ContentCodec) -> bool:
    """Whether the publisher wanted it: a quorum queue keeps every message as if persistent."""
    if settings.type is QUORUM:
        return codec.is_persistent(envelope.header)
    return envelope.persistent


def carbon_copies(headers: Table, name: str) -> tuple[str, ...]:
    """The routing keys in a CC or BCC header; values that are no strings are passed over."""
    field = headers.get(name)
    if field is None or field.kind != "A":
        return ()
    return tuple(to_text(item.value) for item in field.value if item.kind == "S")


def circle(headers: Table, reason: str) -> set[str | None]:
    """The queues to which a message that died for this reason would return without end.

    Those are among its deaths, with no rejection since then.
    """
    return _circle([_key(death) for death in _deaths(headers)], reason)


def _circle(deaths: Iterable[tuple[str | None, str | None]], reason: str) -> set[str | None]:
    """`circle`, given the queues and reasons of the deaths."""
    queues: set[str | None] = set()
    if reason == "rejected":
        return queues
    for its_queue, its_reason in deaths:
        if its_reason == "rejected":
            break
        queues.add(its_queue)
    return queues


def _record_death(
    headers: Table,
    envelope: Envelope,
    keys: tuple[str, ...],
    queue: str,
    reason: str,
    died_at: int,
    expiration: bytes | None,
) -> None:
    first = DEATHS not in headers
    deaths = _merged(_deaths(headers))
    for index, death in enumerate(deaths):
        if _key(death) == (queue, reason):
            del deaths[index]
            count = death.get("count")
            times = 1
            if count is not None and count.kind in COUNTS:
                times = min(count.value + 1, LONG_MAX)
            death = dict(sorted({**death, "count": long(times)}.items()))
            break
    else:
        death = {
            "count": long(1),
            "reason": longstr(reason),
            "queue": longstr(queue),
            "time": Field("T", died_at),
            "exchange": longstr(envelope.exchange),
            "routing-keys": Field("A", [longstr(key) for key in keys]),
        }
        if expiration is not None:
            death["original-expiration"] = Field("S", expiration)
    headers[DEATHS] = Field("A", [Field("F", death), *(Field("F", other) for other in deaths)])
    if first:
        headers["x-first-death-reason"] = longstr(reason)
        headers["x-first-death-queue"] = longstr(queue)
        headers["x-first-death-exchange"] = longstr(envelope.exchange)


def _merged(deaths: list[Table]) -> list[Table]:
    """The deaths with one entry for each queue and reason, the first of them.

    Brokers of long ago, and shovels, make several of one kind, without a count: their number is
    the count then. As in RabbitMQ the order of several is turned round, and one alone stays as it
    is.
    """
    if len(deaths) < 2:
        return deaths
    found: dict[tuple[str | None, str | None], list[Table]] = {}
    for death in deaths:
        found.setdefault(_key(death), []).append(death)
    merged = [
        first if "count" in first else {"count": long(1 + len(others)), **first}
        for first, *others in found.values()
    ]
    return merged[::-1]


def _key(death: Table) -> tuple[str | None, str | None]:
    return _text(death, "queue"), _text(death, "reason")


def _deaths(headers: Table) -> list[Table]:
    """The deaths so far; the newest is first, and a header of another type counts as none."""
    field = headers.get(DEATHS)
    if field is None or field.kind != "A":
        return []
    return [item.value for item in field.value if item.kind == "F"]


def _text(table: Table, name: str) -> str | None:
    field: Any = table.get(name)
    return to_text(field.value) if field is not None and field.kind in ("S", "x") else None
