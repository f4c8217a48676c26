"""Snapshots as `spark_export/snapshot/unit.py` has them, made from lists of messages, octet by
octet."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np

from warren.amqp.properties import encode_properties
from warren.core.field import Table
from warren.core.messages.message import Envelope
from warren.persist.layout.envelopes import encode_envelope
from warren.persist.layout.format import (
    FILE_HEADER_BYTES,
    PERSISTENT,
    PUBLISH,
    SHARED,
    SHARED_MESSAGE,
    FileHeader,
    Footer,
    Survivors,
    encode_batch,
    encode_file_header,
    encode_footer,
    encode_survivors,
    place_of,
    record_head,
)
from warren.persist.log.log_writer import file_name
from warren.spark_export.snapshot.unit import (
    ENTRY,
    LOG_DIRECTORY,
    QUEUES_DIRECTORY,
    LocalFiles,
    Unit,
    entries_path,
)

NODE_ID = bytes(range(16))
QUEUE_ID = 0x700
VHOST = "/"
QUEUE = "orders"
FIRST_POSITION = 1 << 40
ENQUEUED_US = 1_767_225_600_000_000
"""The first moment of 2026; each message comes a second after the one before."""


@dataclass(frozen=True)
class Sent:
    """A message. `header` is its content header; `gap` octets of another queue stand before it."""

    body: bytes = b""
    header: bytes = b""
    exchange: str = ""
    routing_key: str = ""
    copies: tuple[str, ...] = ()
    shared: bool = False
    gap: int = 0
    expires_us: int = 0


def sent(
    body: bytes,
    headers: Table | None = None,
    exchange: str = "",
    routing_key: str = "",
    **properties: str | int,
) -> Sent:
    header = encode_properties(len(body), properties, headers)
    return Sent(body, header, exchange, routing_key)


def write_snapshot(
    directory: Path,
    files: Sequence[Sequence[Sent]],
    *,
    sealed: bool = True,
    combined: bool = False,
    vhost: str = VHOST,
    queue: str = QUEUE,
    order: Sequence[int] | None = None,
) -> Unit:
    """One queue whose messages are in these log files; `order` is that of their positions."""
    (directory / LOG_DIRECTORY).mkdir(parents=True)
    (directory / QUEUES_DIRECTORY).mkdir()
    messages = [message for file in files for message in file]
    order = list(range(len(messages))) if order is None else order
    entries = np.zeros(len(messages), ENTRY)
    first = 0
    for number, file in enumerate(files, 1):
        positions = [FIRST_POSITION + order[first + at] for at in range(len(file))]
        places = _write_file(directory, number, file, positions, sealed, combined)
        for position, message, (place, length) in zip(positions, file, places, strict=True):
            entries[first] = (
                position,
                place | message.shared,
                message.expires_us,
                length,
                len(message.body),
            )
            first += 1
    np.save(entries_path(directory, QUEUE_ID), np.sort(entries, order="position"))
    octets = int(entries["length"].sum())
    return Unit(LocalFiles(directory), vhost, queue, QUEUE_ID, 0, len(entries), octets)


def log_directory(unit: Unit) -> Path:
    return snapshot_directory(unit) / LOG_DIRECTORY


def snapshot_directory(unit: Unit) -> Path:
    assert isinstance(unit.files, LocalFiles)
    return unit.files.directory


def log_path(unit: Unit, file_id: int = 1, generation: int = 0) -> Path:
    return log_directory(unit) / file_name(file_id, generation)


def record_of(message: Sent, position: int) -> bytes:
    envelope = encode_envelope(
        Envelope(
            message.exchange, message.routing_key, message.header, True, 0, None, message.copies
        )
    )
    shared = message.shared
    head = record_head(
        SHARED_MESSAGE if shared else PUBLISH,
        PERSISTENT,
        0 if shared else QUEUE_ID,
        0 if shared else position,
        0,
        ENQUEUED_US + (position - FIRST_POSITION) * 1_000_000,
        envelope,
        crc32(envelope),
        message.body,
    )
    return head + envelope + message.body


def _write_file(
    directory: Path,
    number: int,
    messages: Sequence[Sent],
    positions: Sequence[int],
    sealed: bool,
    combined: bool,
) -> list[tuple[int, int]]:
    """Returns place and length of each record."""
    generation = 3 if combined else 0
    header = FileHeader(NODE_ID, number, generation, 1, ENQUEUED_US, combined)
    parts: list[bytes] = []
    lengths = array("I")
    offsets = []
    at = FILE_HEADER_BYTES + (0 if combined else 32)
    for message, position in zip(messages, positions, strict=True):
        for record in (b"\x55" * message.gap, record_of(message, position)):
            if record:
                parts.append(record + bytes(-len(record) & 7))
                lengths.append(len(record))
                offsets.append(at)
                at += len(parts[-1])
        if message.gap:
            del offsets[-2]
    whole = encode_file_header(header)
    sizes = array(
        "I", [len(record_of(one, at)) for one, at in zip(messages, positions, strict=True)]
    )
    places = offsets
    if combined:
        # They were further apart before.
        places = [FILE_HEADER_BYTES + 3 * (offset - FILE_HEADER_BYTES) + 64 for offset in offsets]
        whole += b"".join(parts)
        whole += encode_survivors(Survivors(array("I", places), array("I", offsets), sizes))
    else:
        octets = sum(map(len, parts))
        whole += encode_batch(place_of(number, FILE_HEADER_BYTES), octets, parts, lengths)
        if sealed:
            whole += encode_footer(Footer(1, len(whole), crc32(whole)))
    (directory / LOG_DIRECTORY / file_name(number, generation)).write_bytes(whole)
    assert SHARED == 1
    return [(place_of(number, at), size) for at, size in zip(places, sizes, strict=True)]
