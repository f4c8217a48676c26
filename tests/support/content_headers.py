"""Content headers with any properties, for tests with random input."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

from warren.amqp.field_table import encode_table
from warren.amqp.properties import PROPERTIES
from warren.core.field import Field

FLAGS = {name: flag for name, flag, _ in PROPERTIES}
TYPES = {name: wire_type for name, _, wire_type in PROPERTIES}

shortstrs = st.binary(max_size=255)
header_tables = st.dictionaries(
    st.text(max_size=4),
    st.one_of(
        st.integers(-128, 127).map(lambda number: Field("b", number)),
        st.binary(max_size=6).map(lambda value: Field("S", value)),
        st.just(Field("V", None)),
    ),
    max_size=3,
)
STRATEGIES: dict[str, st.SearchStrategy[bytes]] = {
    "shortstr": shortstrs.map(lambda value: bytes((len(value),)) + value),
    "octet": st.binary(min_size=1, max_size=1),
    "timestamp": st.binary(min_size=8, max_size=8),
    "table": header_tables.map(encode_table),
}
encoded_properties = st.fixed_dictionaries(
    {}, optional={name: STRATEGIES[wire_type] for name, wire_type in TYPES.items()}
)


def content_header(
    properties: dict[str, bytes], body_size: int = 5, undefined_bits: int = 0
) -> bytes:
    flags = sum(FLAGS[name] for name in properties) | undefined_bits
    return struct.pack(">HHQH", 60, 0, body_size, flags) + b"".join(
        properties[name] for name, _, _ in PROPERTIES if name in properties
    )
