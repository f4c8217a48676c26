"""Content headers: facts are found without decoding, edits leave all other bytes as they were."""

from __future__ import annotations

import struct
from datetime import UTC, datetime

import pytest
from content_headers import (
    STRATEGIES,
    TYPES,
    content_header,
    encoded_properties,
    header_tables,
    shortstrs,
)
from hypothesis import assume, given
from hypothesis import strategies as st
from pamqp import commands, header

from warren.amqp.content_codec import AmqpContentCodec
from warren.amqp.field_table import encode_table
from warren.amqp.properties import (
    EXPIRATION_AT,
    EXPIRATION_MS_MAX,
    EXPIRING,
    NO_FACTS,
    PERSISTENT,
    PRIORITY,
    UNUSUAL,
    Facts,
    InvalidExpiration,
    MalformedProperties,
    headers,
    may_have_copies,
    ordinary,
    parse_expiration,
    property_bytes,
    replace,
    scan,
)
from warren.core.field import Field, Table, longstr
from warren.core.vhosts.reply_to import REPLY_TO

USER = b"guest"


def value_of(name: str, encoded: bytes) -> bytes:
    return encoded[1:] if TYPES[name] == "shortstr" else encoded


@given(encoded_properties)
def test_the_scan_finds_what_is_there(properties: dict[str, bytes]) -> None:
    raw = content_header(properties)
    facts = scan(raw)
    for name in ("expiration", "reply_to", "user_id"):
        expected = value_of(name, properties[name]) if name in properties else None
        assert getattr(facts, name) == expected
    for name in ("delivery_mode", "priority"):
        assert getattr(facts, name) == (properties[name][0] if name in properties else None)
    if "headers" in properties:
        assert facts.headers is not None
        start, length = facts.headers
        assert raw[start : start + length] == properties["headers"]
    else:
        assert facts.headers is None
        assert headers(raw) == {}


tables_with_copies = st.dictionaries(
    st.sampled_from(["CC", "BCC", "C", "cC", "ACC", "x"]),
    st.sampled_from([Field("S", b"CC"), Field("A", [longstr("k")]), Field("S", b"\x02CC")]),
    max_size=3,
).map(encode_table)
publishable_properties = st.fixed_dictionaries(
    {},
    optional={
        **{name: STRATEGIES[wire_type] for name, wire_type in TYPES.items()},
        "delivery_mode": st.sampled_from([b"\x00", b"\x01", b"\x02", b"\x03"]),
        "headers": st.one_of(STRATEGIES["table"], tables_with_copies),
        "reply_to": st.one_of(STRATEGIES["shortstr"], st.just(b"\x15amq.rabbitmq.reply-to")),
        "expiration": st.one_of(
            STRATEGIES["shortstr"],
            st.sampled_from(
                [b"0", b"007", b"60000", b"+5", b"-1", b"315360000001", b"1x", b""]
            ).map(lambda digits: bytes((len(digits),)) + digits),
        ),
        "user_id": st.one_of(
            STRATEGIES["shortstr"], st.just(bytes((len(USER),)) + USER), st.just(b"\x03gue")
        ),
    },
)


def is_time_to_live(raw: bytes) -> bool:
    """Whether it is one that publishing reads without `scan`: a sign is for a closer look."""
    return raw.isdigit() and int(raw) <= EXPIRATION_MS_MAX


@given(publishable_properties, st.integers(0, 3), st.integers(0, 3))
def test_what_is_ordinary_is_what_the_scan_finds(
    properties: dict[str, bytes], cut: int, undefined_bits: int
) -> None:
    raw = content_header(properties, undefined_bits=undefined_bits)
    raw = raw[: max(14, len(raw) - cut)]
    found, _ = ordinary(raw, int.from_bytes(raw[12:14], "big"), USER)
    try:
        facts = scan(raw)
    except MalformedProperties:
        assert found == UNUSUAL
        return
    if found == UNUSUAL:
        # Nothing but what may need a closer look takes the longer way.
        assert (
            (facts.expiration is not None and not is_time_to_live(facts.expiration))
            or facts.user_id not in (None, USER)
            or (facts.reply_to is not None and len(facts.reply_to) == len(REPLY_TO))
            or facts.delivery_mode not in (None, 1, 2)
            or may_have_copies(raw, facts)
        )
        return
    assert found & PRIORITY == (facts.priority or 0)
    assert (found & PERSISTENT > 0) == (facts.delivery_mode == 2)
    assert facts.delivery_mode in (None, 1, 2)
    assert (found >= EXPIRING) == (facts.expiration is not None)
    if facts.expiration is not None:
        assert (found >> EXPIRATION_AT) - 1 == parse_expiration(facts.expiration)
    assert facts.user_id in (None, USER) and facts.reply_to != REPLY_TO
    try:
        assert not headers(raw).keys() & {"CC", "BCC"}
    except MalformedProperties:
        assert facts.headers is not None


@given(st.binary(max_size=80), st.integers(0, 0xFFFF))
def test_nothing_is_ordinary_that_the_scan_refuses(octets: bytes, flags: int) -> None:
    raw = struct.pack(">HHQH", 60, 0, 1, flags) + octets
    try:
        scan(raw)
    except MalformedProperties:
        assert ordinary(raw, flags, USER) == (UNUSUAL, 0)


@given(publishable_properties, st.data())
def test_headers_that_are_the_same_in_what_decides_are_ordinary_alike(
    properties: dict[str, bytes], data: st.DataObject
) -> None:
    raw = content_header(properties)
    flags = int.from_bytes(raw[12:14], "big")
    found, decided = ordinary(raw, flags, USER)
    assume(found != UNUSUAL)
    rest = len(raw) - decided
    other = raw[:decided] + data.draw(st.binary(min_size=rest, max_size=rest))
    assert ordinary(other, flags, USER) == (found, decided)


@given(encoded_properties)
def test_every_property_is_found_by_its_name(properties: dict[str, bytes]) -> None:
    raw = content_header(properties)
    for name in TYPES:
        expected = value_of(name, properties[name]) if name in properties else None
        assert property_bytes(raw, name) == expected


@given(encoded_properties)
def test_a_cut_header_is_malformed_at_every_length(properties: dict[str, bytes]) -> None:
    raw = content_header(properties)
    for length in range(len(raw)):
        for read in (scan, headers, replace, lambda cut: property_bytes(cut, "timestamp")):
            with pytest.raises(MalformedProperties):
                read(raw[:length])


@given(st.binary(max_size=60))
def test_arbitrary_bytes_give_only_the_declared_error(raw: bytes) -> None:
    try:
        facts = scan(raw)
    except MalformedProperties:
        with pytest.raises(MalformedProperties):
            replace(raw)
        return
    assert replace(raw) == raw
    try:
        table = headers(raw)
    except MalformedProperties:
        return
    assert facts.headers is not None or table == {}


def test_headers_that_are_no_table_are_malformed() -> None:
    raw = content_header({"headers": struct.pack(">I", 3) + b"\x01a?"})
    assert scan(raw).headers == (14, 7)
    with pytest.raises(MalformedProperties, match="unknown field type"):
        headers(raw)


def test_a_header_without_facts_gives_the_shared_constant() -> None:
    assert scan(content_header({})) is NO_FACTS
    assert scan(content_header({"content_type": b"\x01a", "app_id": b"\x00"})) is NO_FACTS


def test_pamqp_headers_are_read() -> None:
    raw = header.ContentHeader(
        0,
        5,
        commands.Basic.Properties(
            content_type="text/plain",
            headers={"key": "value"},
            delivery_mode=2,
            priority=3,
            correlation_id="c",
            reply_to="r",
            expiration="100",
            timestamp=datetime.fromtimestamp(1234567890, UTC),
            user_id="guest",
        ),
    ).marshal()
    facts = scan(raw)
    assert facts._replace(headers=None) == Facts(2, 3, b"100", b"r", b"guest", None)
    assert headers(raw) == {"key": longstr("value")}
    codec = AmqpContentCodec()
    assert codec.property_text(raw, "timestamp") == b"1234567890"
    assert codec.property_text(raw, "correlation_id") == b"c"
    assert codec.property_text(raw, "message_id") is None
    assert codec.headers(raw) == headers(raw)


@given(encoded_properties, header_tables, shortstrs)
def test_an_edit_changes_what_it_names_and_nothing_else(
    properties: dict[str, bytes], table: Table, reply_to: bytes
) -> None:
    raw = content_header(properties)
    edited = replace(raw, headers=table, reply_to=reply_to, expiration=None)
    expected = {name: value for name, value in properties.items() if name != "expiration"}
    expected["reply_to"] = bytes((len(reply_to),)) + reply_to
    expected["headers"] = encode_table(table)
    assert edited == content_header(expected)
    assert list(headers(edited)) == list(table)


@given(encoded_properties)
def test_removing_everything_editable_leaves_the_rest(properties: dict[str, bytes]) -> None:
    edited = replace(content_header(properties), headers=None, reply_to=None, expiration=None)
    kept = {
        name: value
        for name, value in properties.items()
        if name not in ("headers", "reply_to", "expiration")
    }
    assert edited == content_header(kept)


@given(encoded_properties, st.binary(min_size=1, max_size=3))
def test_what_follows_the_properties_is_refused_and_not_lost_by_an_edit(
    properties: dict[str, bytes], rest: bytes
) -> None:
    """RabbitMQ refuses it (541): clients that it was delivered to would fail."""
    raw = content_header(properties) + rest
    with pytest.raises(MalformedProperties, match="behind its properties"):
        scan(raw)
    assert ordinary(raw, int.from_bytes(raw[12:14], "big"), USER)[0] == UNUSUAL
    edited = {**properties, "expiration": b"\x0210"}
    assert replace(raw, expiration=b"10") == content_header(edited) + rest


@given(encoded_properties, st.integers(1, 3))
def test_bits_that_no_property_has_are_ignored_and_lost_by_an_edit(
    properties: dict[str, bytes], undefined_bits: int
) -> None:
    raw = content_header(properties, undefined_bits=undefined_bits)
    plain = content_header(properties)
    assert scan(raw) == scan(plain)
    assert ordinary(raw, int.from_bytes(raw[12:14], "big"), USER) == ordinary(
        plain, int.from_bytes(plain[12:14], "big"), USER
    )
    edited = {**properties, "expiration": b"\x0210"}
    assert replace(raw, expiration=b"10") == content_header(edited)


def test_a_dead_lettered_message_has_its_headers_and_no_expiration() -> None:
    raw = content_header({"content_type": b"\x01a", "expiration": b"\x0210", "priority": b"\x04"})
    edited = AmqpContentCodec().for_dead_letter(
        raw, {"x-b": Field("s", 1), "x-a": Field("V", None)}
    )
    assert list(headers(edited).items()) == [("x-a", Field("V", None)), ("x-b", Field("s", 1))]
    assert scan(edited).expiration is None
    assert scan(edited).priority == 4
    assert property_bytes(edited, "content_type") == b"a"


def test_a_reply_to_of_256_bytes_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="256 bytes"):
        replace(content_header({}), reply_to=b"a" * 256)


@pytest.mark.parametrize(
    ("raw", "milliseconds"),
    [(b"0", 0), (b"10", 10), (b"+10", 10), (b"007", 7), (b"315360000000", EXPIRATION_MS_MAX)],
)
def test_a_decimal_number_is_an_expiration(raw: bytes, milliseconds: int) -> None:
    assert parse_expiration(raw) == milliseconds


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"abc", "no_integer"),
        (b"", "no_integer"),
        (b" 10", "no_integer"),
        (b"+", "no_integer"),
        (b"1.5", '{leftover_string,".5"}'),
        (b"1_0", '{leftover_string,"_0"}'),
        (b'1"', '{leftover_string,"\\""}'),
        (b"1\xff", "{leftover_string,[255]}"),
        (b"-1", "{value_negative,-1}"),
        (b"315360000001", "{value_too_large,315360000001}"),
    ],
)
def test_everything_else_is_refused_with_the_reason(raw: bytes, reason: str) -> None:
    with pytest.raises(InvalidExpiration) as error:
        parse_expiration(raw)
    assert error.value.reason == reason


@given(st.binary(max_size=255))
def test_arbitrary_expirations_give_only_the_declared_error(raw: bytes) -> None:
    try:
        assert 0 <= parse_expiration(raw) <= EXPIRATION_MS_MAX
    except InvalidExpiration as error:
        assert error.reason
