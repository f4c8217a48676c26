"""Record batches as the frames that publish their rows, without a step of Python per row.

The frames of a row consist of pieces: fixed ones, such as frame headers, and ones of any length,
such as the body. For each piece there is an Arrow array with one value per row (empty if the row
does not have it), made by numpy or taken from the batch as it is. Arrow joins the arrays row by
row, and the buffer of the result is sent to the socket.

    method frame    01 channel size | 60 40 reserved | exchange | routing key | bits | CE
    content header  02 channel size | 60 0 body size flags | properties | CE
    body frames     03 channel size | octets | CE       none for an empty body
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, VariantType

from warren.client.frames import FRAME_END, OVERHEAD
from warren.spark_export.errors import PublishFailed
from warren.spark_export.sink.encoded_rows import EncodedRows
from warren.spark_export.sink.publisher_protocol import CHANNEL
from warren.spark_export.sink.sink_columns import SinkColumns
from warren.spark_export.sink.sink_options import SHORT_STRING_MAX, SinkOptions
from warren.spark_export.values.basic_properties import FIXED_BYTES, PROPERTIES, Property
from warren.spark_export.values.field_writing import (
    NAME_BYTES_MAX,
    fields_of,
    fields_of_json,
    fields_of_variant,
)

Octets: TypeAlias = NDArray[np.uint8]
Numbers: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

ENCODED_BYTES: Final = 8 << 20
"""The approximate size of a portion: beside it, a few calls of numpy and Arrow cost nothing."""

_MANDATORY = 1
_METHOD_FIXED = 9
"""Octets of a basic.publish without exchange and routing key: class, method, reserved, two lengths,
bits."""


class _Part(NamedTuple):
    """A property in the rows: which have it (None: all), its pieces, its length in each."""

    present: Mask | None
    pieces: tuple[Octets | pa.Array, ...]
    lengths: Numbers


class FrameEncoder:
    """Encodes the rows of one task. Row numbers count from its first row."""

    def __init__(
        self, columns: SinkColumns, options: SinkOptions, *, id_prefix: str, frame_max: int
    ) -> None:
        """`id_prefix` begins the message ids of rows without an id of their own, if the options ask
        for ids; the number of the row ends them."""
        self._columns = columns
        self._exchange = options.exchange
        self._routing_key = options.routing_key
        self._delivery_mode = options.delivery_mode
        self._bits = _MANDATORY if options.mandatory else 0
        self._id_prefix = id_prefix.encode() if options.generate_message_ids else None
        self._payload_bytes_max = frame_max - OVERHEAD
        self._encode_headers = _headers_encoder(columns.headers_type)

    def encode(self, batch: pa.RecordBatch, first_row: int) -> Iterator[EncodedRows]:
        """The rows of the batch, in one or more portions; `first_row` is the first row's number.

        Raises `PublishFailed` for a row that cannot be a message, before its portion is sent.
        """
        start = 0
        for rows in _portions(batch, self._columns.numbers["body"]):
            portion = batch.slice(start, rows)
            yield _Portion(self, portion, first_row + start).encode()
            start += rows


def _portions(batch: pa.RecordBatch, body: int) -> Iterator[int]:
    """The numbers of rows in the successive portions of a batch."""
    rows = batch.num_rows
    if batch.nbytes <= ENCODED_BYTES:
        if rows:
            yield rows
        return
    bodies = _binary(batch.column(body))
    others = max(0, batch.nbytes - bodies.nbytes) // rows + 1
    ends = np.cumsum(_lengths(bodies) + others)
    first = 0
    while first < rows:
        before = int(ends[first - 1]) if first else 0
        end = max(first + 1, int(np.searchsorted(ends, before + ENCODED_BYTES)))
        yield end - first
        first = end


class _Portion:
    """Rows that are being turned into frames."""

    def __init__(self, encoder: FrameEncoder, batch: pa.RecordBatch, first_row: int) -> None:
        self._encoder = encoder
        self._batch = batch
        self._first_row = first_row
        self._rows = batch.num_rows

    def encode(self) -> EncodedRows:
        encoder = self._encoder
        exchange = self._name("exchange", encoder._exchange, None)
        routing_key = self._name("routing_key", encoder._routing_key, "")
        body = pc.fill_null(_binary(self._column("body")), b"")
        body_lengths = _lengths(body)
        properties = [
            (one, part) for one in PROPERTIES if (part := self._property(one)) is not None
        ]
        flags = np.zeros(self._rows, np.int64)
        header_lengths = np.full(self._rows, FIXED_BYTES, np.int64)
        for one, part in properties:
            flags += one.flag if part.present is None else one.flag * part.present
            header_lengths += part.lengths
        self._check_one_frame(header_lengths)

        pieces = _Pieces(self._rows)
        method_lengths = np.full(self._rows, _METHOD_FIXED, np.int64)
        method_lengths += _lengths_of(exchange) + _lengths_of(routing_key)
        pieces.add(_constant(struct.pack(">BH", 1, CHANNEL)), _packed(method_lengths, ">u4"))
        pieces.add(_constant(struct.pack(">HHH", 60, 40, 0)))
        pieces.add(*_short_string(exchange), *_short_string(routing_key))
        pieces.add(_constant(bytes((encoder._bits, FRAME_END))))
        pieces.add(_constant(struct.pack(">BH", 2, CHANNEL)), _packed(header_lengths, ">u4"))
        pieces.add(_constant(struct.pack(">HH", 60, 0)), _packed(body_lengths, ">u8"))
        pieces.add(_packed(flags, ">u2"))
        for _, part in properties:
            pieces.add(*part.pieces)
        pieces.add(_constant(bytes((FRAME_END,))))
        for piece in self._body(body, body_lengths):
            pieces.add(piece)
        return _encoded_rows(pieces.join(), self._first_row)

    def _column(self, part: str) -> pa.Array | None:
        number = self._encoder._columns.numbers.get(part)
        return None if number is None else self._batch.column(number)

    def _refuse(self, number: int, text: str) -> PublishFailed:
        return PublishFailed(f"row {self._first_row + number}: {text}")

    def _checked(self, array: pa.Array, name: str) -> pa.Array:
        """The array, in which each value must fit a short string. Raises `PublishFailed`."""
        lengths = _lengths(array)
        if lengths.max(initial=0) > SHORT_STRING_MAX:
            number = int(np.argmax(lengths > SHORT_STRING_MAX))
            raise self._refuse(
                number, f"{name} has {lengths[number]} octets, of {SHORT_STRING_MAX} at most"
            )
        return array

    def _check_one_frame(self, header_lengths: Numbers) -> None:
        """A content header is one frame. Raises `PublishFailed` if one is too long for that."""
        most = self._encoder._payload_bytes_max
        if header_lengths.max(initial=0) > most:
            number = int(np.argmax(header_lengths > most))
            raise self._refuse(
                number,
                f"its properties and headers have {header_lengths[number]} octets, of {most} at"
                " most that the broker takes in a frame (frame_max)",
            )

    def _name(self, part: str, option: str | None, otherwise: str | None) -> pa.Array | bytes:
        """The exchange or the routing key: octets that are the same in all rows, or an array.

        An option applies to all rows, whatever a column says, as in Spark's Kafka sink.
        """
        if option is not None:
            return option.encode()
        column = self._column(part)
        if column is None:
            assert otherwise is not None, "the columns were checked"
            return otherwise.encode()
        array = self._checked(_binary(column), part)
        if array.null_count:
            if otherwise is None:
                number = int(np.argmin(_present(array)))
                raise self._refuse(number, f"{part} is null, and there is no option for it")
            array = pc.fill_null(array, otherwise.encode())
        return array

    def _property(self, one: Property) -> _Part | None:
        """The property in the rows; None if no row has it."""
        column = self._column(one.name)
        if one.name == "message_id" and self._encoder._id_prefix is not None:
            column = self._message_ids(column, self._encoder._id_prefix)
        if one.name == "delivery_mode" and self._encoder._delivery_mode is not None:
            mode = pa.scalar(self._encoder._delivery_mode, pa.int64())
            if column is None:
                return self._octet_constant(self._encoder._delivery_mode)
            column = pc.fill_null(column.cast(pa.int64()), mode)
        if column is None or column.null_count == self._rows:
            return None
        return _PART_MAKERS[one.wire_type](self, column, one.name)

    def _message_ids(self, column: pa.Array | None, prefix: bytes) -> pa.Array:
        numbers = pa.array(np.arange(self._first_row, self._first_row + self._rows))
        digits = numbers.cast(pa.string()).cast(pa.binary())
        own = pc.binary_join_element_wise(pa.scalar(prefix), digits, b"")
        return own if column is None else pc.coalesce(_binary(column), own)

    def _octet_constant(self, value: int) -> _Part:
        return _Part(None, (_constant(bytes((value,))),), np.ones(self._rows, np.int64))

    def _short_string_part(self, column: pa.Array, name: str) -> _Part:
        if pa.types.is_integer(column.type):
            column = column.cast(pa.string())
        array = self._checked(_binary(column), name)
        present = _present(array) if array.null_count else None
        array = pc.fill_null(array, b"")
        lengths = _lengths(array)
        size = lengths.astype(np.uint8).reshape(-1, 1)
        return _Part(present, (_where(present, size), array), lengths + _ones(present, self._rows))

    def _octet_part(self, column: pa.Array, name: str) -> _Part:
        values, present = self._integers(column, name, 255)
        size = values.astype(np.uint8).reshape(-1, 1)
        return _Part(present, (_where(present, size),), _ones(present, self._rows))

    def _timestamp_part(self, column: pa.Array, name: str) -> _Part:
        if pa.types.is_timestamp(column.type):
            unit = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}[column.type.unit]
            column = column.cast(pa.int64())
            values = column.fill_null(0).to_numpy(zero_copy_only=False) // unit
            seconds = pa.array(values, mask=None if not column.null_count else ~_present(column))
        else:
            seconds = column
        values, present = self._integers(seconds, name, (1 << 63) - 1)
        lengths = 8 * _ones(present, self._rows)
        return _Part(present, (_where(present, _packed(values, ">u8")),), lengths)

    def _integers(self, column: pa.Array, name: str, most: int) -> tuple[Numbers, Mask | None]:
        present = _present(column) if column.null_count else None
        values = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        wrong = (values < 0) | (values > most)
        if wrong.any():
            number = int(np.argmax(wrong))
            limits = f"0 to {most}" if most < 1 << 32 else "0 or more (seconds since 1970)"
            raise self._refuse(number, f"{name} is {values[number]}, not {limits}")
        return values, present

    def _headers_part(self, column: pa.Array, name: str) -> _Part:
        present = _present(column) if column.null_count else None
        array = pc.fill_null(self._encoder._encode_headers(column, self._refuse), b"")
        lengths = _lengths(array)
        size = _where(present, _packed(lengths, ">u4"))
        return _Part(present, (size, array), lengths + 4 * _ones(present, self._rows))

    def _body(self, body: pa.Array, lengths: Numbers) -> Iterator[Octets | pa.Array]:
        most = self._encoder._payload_bytes_max
        first_lengths = np.minimum(lengths, most)
        if lengths.max(initial=0) > most:
            body = _in_several_frames(body, lengths, most)
        present = None if lengths.all() else lengths > 0
        start = np.hstack(
            (_repeated(struct.pack(">BH", 3, CHANNEL), self._rows), _packed(first_lengths, ">u4"))
        )
        yield _where(present, start)
        yield body
        yield _where(present, _repeated(bytes((FRAME_END,)), self._rows))


_PART_MAKERS: Final[dict[str, Callable[[_Portion, pa.Array, str], _Part]]] = {
    "shortstr": _Portion._short_string_part,
    "octet": _Portion._octet_part,
    "timestamp": _Portion._timestamp_part,
    "table": _Portion._headers_part,
}


# Pieces


class _Pieces:
    """The pieces of each row, in order. Neighbouring fixed pieces become one array."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._fixed: list[Octets] = []
        self._arrays: list[pa.Array] = []

    def add(self, *pieces: Octets | pa.Array) -> None:
        """Add pieces: octets of the shape (rows or 1, width), or arrays of binary without nulls."""
        for piece in pieces:
            if isinstance(piece, np.ndarray):
                shape = (self._rows, piece.shape[1])
                self._fixed.append(np.broadcast_to(piece, shape))
            else:
                self._flush()
                self._arrays.append(piece)

    def join(self) -> pa.Array:
        self._flush()
        return pc.binary_join_element_wise(*self._arrays, b"")

    def _flush(self) -> None:
        if self._fixed:
            self._arrays.append(_fixed_array(np.hstack(self._fixed), None))
            self._fixed = []


def _constant(octets: bytes) -> Octets:
    return np.frombuffer(octets, np.uint8).reshape(1, -1)


def _repeated(octets: bytes, rows: int) -> Octets:
    return np.broadcast_to(_constant(octets), (rows, len(octets)))


def _packed(values: Numbers, dtype: str) -> Octets:
    """Each number in big-endian octets."""
    packed = values.astype(dtype)
    return packed.view(np.uint8).reshape(len(values), packed.itemsize)


def _where(present: Mask | None, octets: Octets) -> Octets | pa.Array:
    """The octets in the rows where `present`, nothing in the others."""
    return octets if present is None else _fixed_array(octets, present)


def _fixed_array(octets: Octets, present: Mask | None) -> pa.Array:
    rows, width = octets.shape
    offsets = np.zeros(rows + 1, np.int32)
    if present is None:
        offsets[1:] = width
    else:
        offsets[1:] = width * present
        octets = octets[present]
    np.cumsum(offsets, out=offsets)
    data = np.ascontiguousarray(octets).reshape(-1)
    return _from_buffers(rows, offsets, pa.py_buffer(data))


def _from_buffers(rows: int, offsets: NDArray[np.int32], data: pa.Buffer) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), data])


def _ones(present: Mask | None, rows: int) -> Numbers:
    return np.ones(rows, np.int64) if present is None else present.astype(np.int64)


def _present(array: pa.Array) -> Mask:
    mask: Mask = array.is_valid().to_numpy(zero_copy_only=False)
    return mask


def _binary(array: pa.Array) -> pa.Array:
    return array if array.type == pa.binary() else array.cast(pa.binary())


def _lengths(array: pa.Array) -> Numbers:
    lengths = pc.binary_length(array)
    if lengths.null_count:
        lengths = lengths.fill_null(0)
    numbers: Numbers = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _lengths_of(name: pa.Array | bytes) -> Numbers | int:
    return len(name) if isinstance(name, bytes) else _lengths(name)


def _short_string(name: pa.Array | bytes) -> tuple[Octets | pa.Array, ...]:
    if isinstance(name, bytes):
        return (_constant(bytes((len(name),)) + name),)
    return (_lengths(name).astype(np.uint8).reshape(-1, 1), name)


def _in_several_frames(body: pa.Array, lengths: Numbers, most: int) -> pa.Array:
    """The bodies; those too long for one frame get frame ends and frame headers inside."""
    values = body.to_pylist()
    for number in np.flatnonzero(lengths > most):
        value = values[number]
        parts = [value[:most]]
        for at in range(most, len(value), most):
            piece = value[at : at + most]
            parts.append(struct.pack(">BBHI", FRAME_END, 3, CHANNEL, len(piece)))
            parts.append(piece)
        values[number] = b"".join(parts)
    return pa.array(values, pa.binary())


def _encoded_rows(joined: pa.Array, first_row: int) -> EncodedRows:
    _, offsets, data = joined.buffers()
    ends = np.frombuffer(offsets, np.int32)[joined.offset : joined.offset + len(joined) + 1]
    return EncodedRows(memoryview(data).cast("B"), ends.tolist(), first_row)


# Headers

_HeadersEncoder: TypeAlias = Callable[[pa.Array, Callable[[int, str], PublishFailed]], pa.Array]
"""Encodes the inside of the header table of each row, given a maker of errors for a row."""


def _headers_encoder(headers_type: DataType | None) -> _HeadersEncoder:
    if headers_type is None or isinstance(headers_type, StringType):
        return _encode_json
    if isinstance(headers_type, VariantType):
        return _encode_variants
    if isinstance(headers_type, MapType) and isinstance(
        headers_type.valueType, StringType | BinaryType
    ):
        letter = b"S" if isinstance(headers_type.valueType, StringType) else b"x"
        return lambda column, refuse: _encode_text_map(column, letter, refuse)
    write = fields_of(headers_type)
    assert write is not None, "the columns were checked"
    return lambda column, refuse: _encode_each(_values(column, refuse), write, refuse)


def _values(column: pa.Array, refuse: Callable[[int, str], PublishFailed]) -> list[Any]:
    """The values of the column. Python has no dates and times from the year 10000 on."""
    column = column.cast(_in_utc(column.type))
    try:
        values: list[Any] = column.to_pylist()
    except OverflowError:
        for number, value in enumerate(column):
            try:
                value.as_py()
            except OverflowError as error:
                raise refuse(number, f"a header cannot be read: {error}") from error
        raise
    return values


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """The type with UTC as the time zone of its times. Spark uses the session's, which may be one
    that Python does not know, such as GMT+8."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(_in_utc(kind.item_type)))
    return kind


def _encode_each(
    values: list[Any],
    write: Callable[[Any], bytes],
    refuse: Callable[[int, str], PublishFailed],
) -> pa.Array:
    encoded: list[bytes | None] = []
    for number, value in enumerate(values):
        try:
            encoded.append(None if value is None else write(value))
        except ValueError as error:
            raise refuse(number, str(error)) from error
    return pa.array(encoded, pa.binary())


def _encode_json(column: pa.Array, refuse: Callable[[int, str], PublishFailed]) -> pa.Array:
    """Encode headers that are JSON; equal texts are parsed once."""
    texts = _binary(column).dictionary_encode()

    def refuse_first(number: int, text: str) -> PublishFailed:
        return refuse(texts.indices.index(number).as_py(), text)

    distinct = _encode_each(texts.dictionary.to_pylist(), fields_of_json, refuse_first)
    return distinct.take(texts.indices)


def _encode_variants(column: pa.Array, refuse: Callable[[int, str], PublishFailed]) -> pa.Array:
    """Encode headers that are variants; equal variants are read once."""
    values, metadata = (
        one.to_pylist() for one in (column.field("value"), column.field("metadata"))
    )
    known: dict[tuple[bytes, bytes], bytes] = {}

    def write(pair: tuple[bytes, bytes]) -> bytes:
        written = known.get(pair)
        if written is None:
            written = known[pair] = fields_of_variant(*pair)
        return written

    pairs: list[Any] = list(zip(values, metadata, strict=True))
    if column.null_count:
        pairs = [
            pair if there else None for pair, there in zip(pairs, _present(column), strict=True)
        ]
    return _encode_each(pairs, write, refuse)


def _encode_text_map(
    column: pa.Array, letter: bytes, refuse: Callable[[int, str], PublishFailed]
) -> pa.Array:
    """Encode headers that are maps of text: all fields of all rows are encoded as one array. A
    row's fields are neighbours in its buffer, so only the offsets of the rows are left to find."""
    offsets = column.offsets.to_numpy()
    first, end = int(offsets[0]), int(offsets[-1])
    names = _binary(column.keys)[first:end]
    values = _binary(column.items)[first:end]
    name_lengths = _lengths(names)
    if name_lengths.max(initial=0) > NAME_BYTES_MAX:
        at = int(np.argmax(name_lengths > NAME_BYTES_MAX))
        raise refuse(
            int(np.searchsorted(offsets, first + at, side="right")) - 1,
            f"the name of a header has {name_lengths[at]} octets, of {NAME_BYTES_MAX} at most",
        )
    there = _present(values) if values.null_count else None
    pieces = _Pieces(len(names))
    pieces.add(name_lengths.astype(np.uint8).reshape(-1, 1), names)
    if there is None:
        pieces.add(_constant(letter), _packed(_lengths(values), ">u4"), values)
    else:
        letters = np.where(there, letter[0], ord("V")).astype(np.uint8).reshape(-1, 1)
        pieces.add(letters, _where(there, _packed(_lengths(values), ">u4")))
        pieces.add(pc.fill_null(values, b""))
    fields = pieces.join()
    _, field_offsets, data = fields.buffers()
    starts = np.frombuffer(field_offsets, np.int32)[fields.offset :][offsets - first]
    rows = _from_buffers(len(column), np.ascontiguousarray(starts), data)
    # A null map may have fields in Arrow; here it has none.
    return pc.if_else(column.is_valid(), rows, b"") if column.null_count else rows
