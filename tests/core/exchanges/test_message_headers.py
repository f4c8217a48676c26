"""The headers of a message on its way through exchanges: what is decoded, and how often."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from warren.amqp.content_codec import AmqpContentCodec
from warren.core.exchanges.message_headers import MessageHeaders
from warren.core.field import Table, long, to_octets


class CountingCodec(AmqpContentCodec):
    def __init__(self) -> None:
        self.decoded = 0

    def headers(self, header: bytes) -> Table:
        self.decoded += 1
        return super().headers(header)

    def named_headers(self, header: bytes, names: Collection[bytes]) -> Table:
        self.decoded += 1
        return super().named_headers(header, names)


NAMES = st.sampled_from(["a", "b", "c", "\u00e4", "x-delay"])


@given(st.dictionaries(NAMES, st.integers(0, 9).map(long)), st.lists(st.sets(NAMES), max_size=6))
def test_each_exchange_gets_the_headers_that_it_asks_for(
    table: Table, asked: list[set[str]]
) -> None:
    codec = CountingCodec()
    headers = MessageHeaders(codec, codec.content_header(1, table))
    for names in asked:
        found = headers([to_octets(name) for name in names])
        assert found == {name: table[name] for name in names if name in table}
    assert codec.decoded == min(2, len(asked))


def test_a_broken_table_has_no_headers_for_any_exchange() -> None:
    codec = CountingCodec()
    header = codec.content_header(1, {"a": long(1)})
    headers = MessageHeaders(codec, header[:-9] + b"?" + header[-8:])
    assert [headers([b"a"]) for _ in range(3)] == [{}] * 3
    assert codec.decoded == 2
