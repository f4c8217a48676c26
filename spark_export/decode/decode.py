"""Messages of a unit as Arrow record batches.

How. The index has the place and the length of each record, so records need not be walked through:
the fixed parts of thousands of records are gathered at once, lengths become offsets, and Arrow
copies each column from the octets that were read. Python handles single values only for header
tables not seen before, for bodies that are parsed, and for damage.

A record is damaged if its checksum or its own description differs from the index, or if its content
header ends before its properties. Depending on `mode`, it becomes a row with `seq`, `vhost`,
`queue` and the octets found, or no row, or ends the reading. A header table or JSON body that
cannot be read was published like that: its row has all other columns, too.

A batch has 20,000 rows or 16 MiB of records at most, and one message at least.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from warren.persist.layout.format import PUBLISH, RECORD_BYTES, SHARED_MESSAGE
from warren.spark_export.decode.header_tables import HeaderTables, nulls, variants
from warren.spark_export.decode.message_state import included, redelivered, states
from warren.spark_export.decode.props import Span, locate
from warren.spark_export.decode.schema import ALWAYS_PRESENT
from warren.spark_export.errors import DataLost, RecordDamaged
from warren.spark_export.snapshot.deliveries import UNKNOWN, Deliveries
from warren.spark_export.snapshot.filters import RowFilter
from warren.spark_export.snapshot.layout import (
    HEAD,
    HEAD_BYTES,
    SHARED,
    gather,
    octets_at,
    sums_wrong,
)
from warren.spark_export.snapshot.options import BodyFormat, Include, Mode, ReadOptions
from warren.spark_export.snapshot.pinned_log import FetchedRecords, PinnedLog, Trouble
from warren.spark_export.values import arrow_columns
from warren.spark_export.values.basic_properties import BY_NAME
from warren.spark_export.values.variant import TIMESTAMP_END_S, parse_json

if TYPE_CHECKING:
    from warren.spark_export.snapshot.unit import Unit

log = logging.getLogger("warren.spark_export")

BATCH_ROWS_MAX = 20_000
BATCH_BYTES_MAX = 16 << 20

_EVERY_ROW = RowFilter()

Rows: TypeAlias = NDArray[np.int64]


def decode_unit(
    unit: Unit,
    schema: pa.Schema,
    options: ReadOptions,
    *,
    deliveries: Deliveries = UNKNOWN,
    keep: RowFilter = _EVERY_ROW,
) -> Iterator[pa.RecordBatch]:
    """The messages of a unit with the columns of `schema` (see `schema.py`), in order.

    `keep` filters messages; damaged ones cannot be judged, and are kept. Raises `SnapshotGone`,
    `StoreRefused`, `DataLost`, `RecordDamaged`, OSError.
    """
    entries = unit.entries() if unit.retained else included(unit.entries(), options, deliveries)
    decoder = _UnitDecoder(unit, entries, schema, options, deliveries, keep)
    try:
        for first, end in cuts(entries["length"]):
            batch = decoder.decode(entries[first:end])
            if batch.num_rows:
                yield batch
    finally:
        decoder.close()
    if decoder.damaged or decoder.lost:
        log.warning(
            "messages_damaged vhost=%r queue=%r damaged=%d lost=%d",
            unit.vhost,
            unit.queue,
            decoder.damaged,
            decoder.lost,
        )


def cuts(lengths: NDArray[np.uint32]) -> Iterator[tuple[int, int]]:
    """The first row and the end of each batch, for records of these lengths."""
    ends = np.cumsum(lengths, dtype=np.int64)
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        end = int(np.searchsorted(ends, before + BATCH_BYTES_MAX, side="right"))
        end = max(first + 1, min(end, first + BATCH_ROWS_MAX))
        yield first, end
        first = end


class _Messages:
    """Undamaged records side by side, and the offsets of their parts.

    `rows` are their numbers in the batch, `data` the octets they are in, `at` their offsets there.
    """

    def __init__(
        self,
        entries: NDArray[np.void],
        data: NDArray[np.uint8],
        rows: Rows,
        at: Rows,
        head: NDArray[np.void],
        files: Rows,
        offsets: Rows,
    ) -> None:
        self.entries = entries
        self.data = data
        self.rows = rows
        self.at = at
        self.head = head
        self.files = files
        self.offsets = offsets
        self.spans: dict[str, Span] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, which: NDArray[np.bool_]) -> _Messages:
        return _Messages(
            self.entries[which],
            self.data,
            self.rows[which],
            self.at[which],
            self.head[which],
            self.files[which],
            self.offsets[which],
        )

    def octets(self, at: int) -> bytes:
        """The octets of the record with this number."""
        start = int(self.at[at])
        return self.data[start : start + int(self.entries["length"][at])].tobytes()

    def size(self, field: str) -> Rows:
        return self.head[field].astype(np.int64)

    @cached_property
    def exchange_bytes(self) -> Rows:
        return self.size("exchange")

    @cached_property
    def routing_key_bytes(self) -> Rows:
        return self.size("routing_key")

    @cached_property
    def exchange_at(self) -> Rows:
        return self.at + HEAD_BYTES

    @cached_property
    def routing_key_at(self) -> Rows:
        return self.exchange_at + self.exchange_bytes

    @cached_property
    def body_at(self) -> Rows:
        """The offset of the body, which is also the end of the content header."""
        return self.at + RECORD_BYTES + self.size("envelope")

    @cached_property
    def header_at(self) -> Rows:
        return self.body_at - self.size("header")


class _UnitDecoder:
    """Makes batches from the entries of one unit."""

    def __init__(
        self,
        unit: Unit,
        entries: NDArray[np.void],
        schema: pa.Schema,
        options: ReadOptions,
        deliveries: Deliveries,
        keep: RowFilter,
    ) -> None:
        self.unit = unit
        self._schema = schema
        self._options = options
        self._deliveries = deliveries
        self._keep = keep
        self.damaged = 0
        """The number of damaged messages, which have a row or not depending on `mode`."""
        self.lost = 0
        """The number of messages without a row because their log file is gone."""
        self._log = PinnedLog(unit.files, entries)
        self._tables = HeaderTables(options.headers) if "headers" in schema.names else None
        self._properties = [name for name in BY_NAME if name in schema.names]
        self._corrupt = options.corrupt_column if options.mode is Mode.PERMISSIVE else None
        self._malformed: dict[int, str] = {}

    def close(self) -> None:
        self._log.close()

    def decode(self, entries: NDArray[np.void]) -> pa.RecordBatch:
        fetched = self._log.fetch(entries)
        troubles = fetched.troubles
        messages = self._whole(entries, fetched, troubles)
        messages = self._wanted(messages)
        messages = self._located(messages, troubles)
        self._malformed = {}
        arrays = [self._column(name, messages) for name in self._schema.names]
        return self._batch(entries, messages, arrays, troubles)

    # Damage

    def _whole(
        self, entries: NDArray[np.void], fetched: FetchedRecords, troubles: dict[int, Trouble]
    ) -> _Messages:
        """The undamaged records; the others are added to `troubles`."""
        rows = fetched.rows
        messages = _Messages(
            entries if len(rows) == len(entries) else entries[rows],
            fetched.data,
            rows,
            fetched.at,
            gather(HEAD, fetched.data, fetched.at),
            fetched.files,
            fetched.offsets,
        )
        reasons = self._faults(messages, fetched.trusted)
        return self._without(messages, reasons, troubles)

    def _faults(self, messages: _Messages, trusted: NDArray[np.bool_]) -> dict[int, str]:
        entries, head = messages.entries, messages.head
        lengths = entries["length"].astype(np.int64)
        framed = (head["length"] == entries["length"]) & (
            messages.size("envelope") <= lengths - RECORD_BYTES
        )
        checked = _sums_wrong(messages, lengths, framed & ~trusted)
        entered = self._entered(messages, lengths)
        if framed.all() and entered.all() and not checked:
            return {}
        reasons = dict.fromkeys(np.flatnonzero(~entered).tolist(), "")
        reasons = {at: self._mismatch(messages, at) for at in reasons}
        reasons |= dict.fromkeys(checked, "checksum of the record")
        for at in np.flatnonzero(~framed).tolist():
            reasons[at] = (
                f"a record of {head['length'][at]} octets where one of "
                f"{entries['length'][at]} was written"
            )
        return reasons

    def _entered(self, messages: _Messages, lengths: Rows) -> NDArray[np.bool_]:
        """Whether each record is the one that the index entry describes, and its parts fill it."""
        entries, head = messages.entries, messages.head
        envelope = messages.size("envelope")
        kind, queue, position = self._identity(entries)
        good: NDArray[np.bool_] = lengths - RECORD_BYTES - envelope == entries["body_bytes"]
        good &= head["position"] == position
        good &= head["queue"] == queue
        good &= head["type"] == kind
        good &= (
            HEAD_BYTES
            - RECORD_BYTES
            + messages.exchange_bytes
            + messages.routing_key_bytes
            + messages.size("copies")
            + messages.size("header")
            == envelope
        )
        return good

    def _identity(self, entries: NDArray[np.void]) -> tuple[np.generic | NDArray[np.generic], ...]:
        """The type, queue and position that the records of these entries must have."""
        queue_id = np.uint64(self.unit.queue_id)
        shared = (entries["place"] & SHARED).astype(np.bool_)
        if not shared.any():
            return np.uint8(PUBLISH), queue_id, entries["position"]
        nothing = np.uint64(0)
        return (
            np.where(shared, np.uint8(SHARED_MESSAGE), np.uint8(PUBLISH)),
            np.where(shared, nothing, queue_id),
            np.where(shared, nothing, entries["position"]),
        )

    def _mismatch(self, messages: _Messages, at: int) -> str:
        entry, head = messages.entries[at : at + 1], messages.head[at]
        body = int(entry["length"][0]) - RECORD_BYTES - int(head["envelope"])
        if body != entry["body_bytes"][0]:
            return f"a body of {body} octets where one of {entry['body_bytes'][0]} was entered"
        wanted = tuple(int(np.ravel(value)[0]) for value in self._identity(entry))
        found = (int(head["type"]), int(head["queue"]), int(head["position"]))
        if found != wanted:
            return f"record (type, queue, position) {found} where {wanted} was entered"
        return "an envelope whose parts do not fill it"

    def _located(self, messages: _Messages, troubles: dict[int, Trouble]) -> _Messages:
        """Find the properties; messages that end too early are added to `troubles`."""
        if not self._properties or not len(messages):
            return messages
        located = locate(messages.data, messages.header_at, messages.body_at, self._properties)
        if located.broken is not None:
            reason = "a content header that ends before its properties"
            reasons = dict.fromkeys(np.flatnonzero(located.broken).tolist(), reason)
            return self._located(self._without(messages, reasons, troubles), troubles)
        messages.spans = located.spans
        return messages

    def _without(
        self, messages: _Messages, reasons: Mapping[int, str], troubles: dict[int, Trouble]
    ) -> _Messages:
        if not reasons:
            return messages
        good = np.ones(len(messages), np.bool_)
        for at, reason in reasons.items():
            good[at] = False
            troubles[int(messages.rows[at])] = self._trouble(messages, at, reason)
        return messages.only(good)

    def _trouble(self, messages: _Messages, at: int, reason: str) -> Trouble:
        file = self._log.file(int(messages.files[at]))
        name = "" if file is None else file.name
        return Trouble(name, int(messages.offsets[at]), reason, messages.octets(at))

    # Filters

    def _wanted(self, messages: _Messages) -> _Messages:
        interval, exchanges = self._keep.enqueued_us, self._keep.exchanges
        if interval.start is not None:
            since = np.uint64(max(0, interval.start))
            messages = messages.only(self.enqueued_us(messages) >= since)
        if interval.end is not None:
            until = np.uint64(max(0, interval.end))
            messages = messages.only(self.enqueued_us(messages) < until)
        if exchanges is not None:
            found = pc.is_in(_exchange(self, messages), pa.array(sorted(exchanges), pa.string()))
            messages = messages.only(found.to_numpy(zero_copy_only=False))
        return messages

    # Columns

    def _column(self, name: str, messages: _Messages) -> pa.Array:
        kind = self._schema.field(name).type
        if name == self._corrupt:
            return pa.nulls(len(messages), kind)
        make = _COLUMNS.get(name)
        if make is not None:
            return make(self, messages)
        span = messages.spans.get(name)
        if span is None:
            return nulls(kind, len(messages))
        return _PROPERTIES[BY_NAME[name].wire_type](self, messages.data, span)

    def enqueued_us(self, messages: _Messages) -> NDArray[np.uint64]:
        """The times of enqueueing; for retained messages, those of their acknowledgement."""
        retained = self.unit.retained
        return messages.entries["expires_us"] if retained else messages.head["enqueued_us"]

    def vhost(self, messages: _Messages) -> pa.Array:
        return arrow_columns.repeated(self.unit.vhost, len(messages))

    def queue(self, messages: _Messages) -> pa.Array:
        return arrow_columns.repeated(self.unit.queue, len(messages))

    def state(self, messages: _Messages) -> pa.Array:
        if self.unit.retained:
            return arrow_columns.repeated(Include.RETAINED, len(messages))
        return states(messages.entries["position"], self._deliveries)

    def redelivered(self, messages: _Messages) -> pa.Array:
        return redelivered(messages.entries["position"], self._deliveries)

    def body(self, messages: _Messages) -> pa.Array:
        size = messages.entries["body_bytes"].astype(np.int64)
        binary = arrow_columns.octets(messages.data, messages.body_at, size)
        match self._options.body_format:
            case BodyFormat.BINARY:
                return binary
            case BodyFormat.STRING:
                return arrow_columns.texts(binary)
            case BodyFormat.JSON:
                return self._parsed(binary)

    def _parsed(self, bodies: pa.BinaryArray) -> pa.Array:
        parsed: list[tuple[bytes, bytes] | None] = []
        for at, body in enumerate(bodies.to_pylist()):
            try:
                parsed.append(parse_json(body))
            except (ValueError, RecursionError) as error:
                parsed.append(None)
                self._malformed[at] = f"a body that is not JSON: {error}"
        return variants(parsed)

    def table(self, data: NDArray[np.uint8], span: Span) -> pa.Array:
        assert self._tables is not None
        raw = arrow_columns.octets(data, span.start, span.size, span.present)
        column, broken = self._tables.decode(raw)
        for at, reason in broken.items():
            self._malformed[at] = f"headers that are no table: {reason}"
        return column

    def generation(self, messages: _Messages) -> pa.Array:
        return self._of_file(messages, pa.int32(), self._log.generation)

    def store_uuid(self, messages: _Messages) -> pa.Array:
        return self._of_file(messages, pa.string(), self._node_id)

    def _of_file(
        self, messages: _Messages, kind: pa.DataType, say: Callable[[int], int | str | None]
    ) -> pa.Array:
        files, which = np.unique(messages.files, return_inverse=True)
        words = pa.array([say(int(file_id)) for file_id in files], kind)
        return words.take(pa.array(which))

    def _node_id(self, file_id: int) -> str | None:
        file = self._log.file(file_id)
        return None if file is None or file.header is None else file.header.node_id.hex()

    # Batches

    def _batch(
        self,
        entries: NDArray[np.void],
        messages: _Messages,
        arrays: list[pa.Array],
        troubles: dict[int, Trouble],
    ) -> pa.RecordBatch:
        rows = messages.rows
        if self._malformed:
            arrays, good = self._judge_malformed(messages, arrays)
            rows = rows[good]
        damaged = self._judge(entries, troubles)
        if damaged:
            arrays = self._with_damaged(entries, rows, arrays, damaged)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _judge_malformed(
        self, messages: _Messages, arrays: list[pa.Array]
    ) -> tuple[list[pa.Array], NDArray[np.bool_]]:
        """Treat malformed messages as `mode` says; returns the columns, and which rows stay."""
        good = np.ones(len(messages), np.bool_)
        mode = self._options.mode
        if mode is Mode.FAILFAST:
            at = min(self._malformed)
            trouble = self._trouble(messages, at, self._malformed[at])
            raise self._damaged(int(messages.entries["position"][at]), trouble)
        self.damaged += len(self._malformed)
        if mode is Mode.DROPMALFORMED:
            good[list(self._malformed)] = False
            return [array.filter(pa.array(good)) for array in arrays], good
        if self._corrupt in self._schema.names:
            octets: list[bytes | None] = [None] * len(messages)
            for at in self._malformed:
                octets[at] = messages.octets(at)
            column = self._schema.names.index(self._corrupt)
            arrays[column] = pa.array(octets, pa.binary())
        return arrays, good

    def _judge(self, entries: NDArray[np.void], troubles: dict[int, Trouble]) -> dict[int, Trouble]:
        """The troubles that become rows. Raises `DataLost`, `RecordDamaged`."""
        if not troubles:
            return {}
        damaged = {row: trouble for row, trouble in sorted(troubles.items()) if not trouble.lost}
        lost = len(troubles) - len(damaged)
        if lost and self._options.fail_on_data_loss:
            row, trouble = next(item for item in sorted(troubles.items()) if item[1].lost)
            raise DataLost(
                f"{trouble.reason}, and with it message {entries['position'][row]} of queue "
                f"{self.unit.queue!r} in virtual host {self.unit.vhost!r}, and more; with "
                "failOnDataLoss=false (warren export: --allow-data-loss) such messages are left out"
            )
        self.lost += lost
        if damaged and self._options.mode is Mode.FAILFAST:
            row, trouble = next(iter(damaged.items()))
            raise self._damaged(int(entries["position"][row]), trouble)
        self.damaged += len(damaged)
        return damaged if self._options.mode is Mode.PERMISSIVE else {}

    def _damaged(self, position: int, trouble: Trouble) -> RecordDamaged:
        return RecordDamaged(
            f"message {position} of queue {self.unit.queue!r} in virtual host "
            f"{self.unit.vhost!r}, log file {trouble.file} at octet {trouble.offset}: "
            f"{trouble.reason}"
        )

    def _with_damaged(
        self,
        entries: NDArray[np.void],
        rows: Rows,
        arrays: list[pa.Array],
        damaged: dict[int, Trouble],
    ) -> list[pa.Array]:
        """The columns with a row for each damaged record, in its place."""
        their_rows = np.fromiter(damaged, np.int64, len(damaged))
        order = pa.array(np.argsort(np.concatenate([rows, their_rows]), kind="stable"))
        blank = [
            self._blank(name, entries[their_rows], list(damaged.values()))
            for name in self._schema.names
        ]
        return [
            pa.concat_arrays([array, other]).take(order)
            for array, other in zip(arrays, blank, strict=True)
        ]

    def _blank(self, name: str, entries: NDArray[np.void], damaged: list[Trouble]) -> pa.Array:
        kind = self._schema.field(name).type
        if name == self._corrupt:
            return pa.array([trouble.octets for trouble in damaged], kind)
        if name not in ALWAYS_PRESENT:
            return nulls(kind, len(entries))
        if name == "seq":
            return arrow_columns.numbers(kind, entries["position"].astype(np.int64))
        return arrow_columns.repeated(
            self.unit.vhost if name == "vhost" else self.unit.queue, len(entries)
        )


def _sums_wrong(messages: _Messages, lengths: Rows, which: NDArray[np.bool_]) -> list[int]:
    """The numbers of the selected records whose checksum is wrong."""
    suspects = np.flatnonzero(which)
    sums = messages.head["crc"][suspects]
    wrong = sums_wrong(messages.data, messages.at[suspects], lengths[suspects], sums)
    return [int(suspects[at]) for at in wrong]


def _exchange(decoder: _UnitDecoder, messages: _Messages) -> pa.Array:
    binary = arrow_columns.octets(messages.data, messages.exchange_at, messages.exchange_bytes)
    return arrow_columns.texts(binary)


def _routing_key(decoder: _UnitDecoder, messages: _Messages) -> pa.Array:
    binary = arrow_columns.octets(
        messages.data, messages.routing_key_at, messages.routing_key_bytes
    )
    return arrow_columns.texts(binary)


def _seq(decoder: _UnitDecoder, messages: _Messages) -> pa.Array:
    return arrow_columns.numbers(pa.int64(), messages.entries["position"].astype(np.int64))


def _enqueued_at(decoder: _UnitDecoder, messages: _Messages) -> pa.Array:
    return arrow_columns.timestamps(np.ascontiguousarray(decoder.enqueued_us(messages)))


def _expires_at(decoder: _UnitDecoder, messages: _Messages) -> pa.Array:
    """Times of expiry; null for never. Expired messages stay until the queue removes them."""
    expires_us = np.ascontiguousarray(messages.entries["expires_us"])
    return arrow_columns.timestamps(expires_us, (expires_us != 0) & (not decoder.unit.retained))


def _segment(decoder: _UnitDecoder, messages: _Messages) -> pa.Array:
    return arrow_columns.numbers(pa.int32(), messages.files.astype(np.int32))


def _offset(decoder: _UnitDecoder, messages: _Messages) -> pa.Array:
    return arrow_columns.numbers(pa.int64(), messages.offsets)


_COLUMNS: Mapping[str, Callable[[_UnitDecoder, _Messages], pa.Array]] = {
    "vhost": _UnitDecoder.vhost,
    "queue": _UnitDecoder.queue,
    "seq": _seq,
    "enqueued_at": _enqueued_at,
    "exchange": _exchange,
    "routing_key": _routing_key,
    "redelivered": _UnitDecoder.redelivered,
    "state": _UnitDecoder.state,
    "body": _UnitDecoder.body,
    "segment": _segment,
    "generation": _UnitDecoder.generation,
    "offset": _offset,
    "store_uuid": _UnitDecoder.store_uuid,
    "expires_at": _expires_at,
}


def _shortstr(decoder: _UnitDecoder, data: NDArray[np.uint8], span: Span) -> pa.Array:
    return arrow_columns.texts(arrow_columns.octets(data, span.start, span.size, span.present))


def _octet(decoder: _UnitDecoder, data: NDArray[np.uint8], span: Span) -> pa.Array:
    return arrow_columns.numbers(pa.int16(), data[span.start].astype(np.int16), span.present)


def _timestamp(decoder: _UnitDecoder, data: NDArray[np.uint8], span: Span) -> pa.Array:
    seconds = octets_at(data, span.start, 8)
    seconds = np.minimum(seconds, np.uint64(TIMESTAMP_END_S))
    return arrow_columns.timestamps(seconds * np.uint64(1_000_000), span.present)


_PROPERTIES: Mapping[str, Callable[[_UnitDecoder, NDArray[np.uint8], Span], pa.Array]] = {
    "shortstr": _shortstr,
    "octet": _octet,
    "timestamp": _timestamp,
    "table": _UnitDecoder.table,
}
