"""The filter language: what it finds, what it says of bad filters, and that its work is bounded."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.amqp.content_codec import AmqpContentCodec
from warren.amqp.properties import encode_properties
from warren.core.field import Table, from_json
from warren.core.messages.message import Envelope, Message
from warren.core.messages.message_filter import (
    LENGTH_MAX,
    NESTING_MAX,
    SEARCHED_BYTES,
    TESTS_MAX,
    FilterTooSlow,
    InvalidFilter,
    MessageState,
    Subject,
    parse_filter,
)

NOW_S = 1_000_000.0
BODY = b'{"order": {"id": 7, "items": [{"sku": "a-1"}, {"sku": "b-2"}], "paid": true}, "note": "x"}'
HEADERS = {
    "tenant": "acme",
    "try": 3,
    "urgent": True,
    "x-death": [{"queue": "orders", "reason": "rejected"}],
    "odd name": "yes",
}


def subject(
    body: bytes = BODY, state: MessageState = MessageState.READY, **properties: Any
) -> Subject:
    sent_at = int(NOW_S) - 7200
    given = {"content_type": "application/json", "timestamp": sent_at, "expiration": "9000"}
    given |= properties
    header = encode_properties(len(body), given, from_json(HEADERS))
    envelope = Envelope("shop", "orders.eu.new", header, True, 0, None)
    message = Message(envelope, body, 42)
    return Subject(message, state, AmqpContentCodec(), NOW_S)


def found(text: str, **named: Any) -> bool:
    return parse_filter(text)(subject(**named))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        'routing_key = "orders.eu.new"',
        "routing_key = 'orders.eu.new'",
        'routing_key like "orders.*.new"',
        'routing_key like "*"',
        'routing_key like "orders*eu*"',
        'routing_key matches "^orders[.](eu|us)"',
        'exchange in ("mail", "shop")',
        "size = 90",
        "size < 1kb",
        "size >= 0.01kb and size <= 1MB",
        "age > 1h and age < 3h",
        "age = 7200",
        "position = 42",
        'state = "ready"',
        "not redelivered",
        "redelivered = false",
        'content_type = "application/json"',
        "not message_id exists",
        "message_id != 'x'",
        'headers.tenant = "acme"',
        "headers.try > 2 and headers.try < 4",
        "headers.urgent",
        "headers.urgent = true",
        "headers.x-death exists",
        'headers.x-death[0].queue = "orders"',
        'headers."odd name" = "yes"',
        'headers contains "tenant"',
        "expiration > 5000 and expiration < 60000",
        "expiration in (1, 9000)",
        'expiration = "9000" and expiration like "9*"',
        "timestamp = 992800",
        "timestamp < '1970-01-12T11:47:00Z'",
        "timestamp >= '1970-01-12T12:46:40+01:00'",
        "timestamp > '1970-01-12'",
        "json.order.id = 7",
        "json.order.id = 7.0",
        "json.order.paid",
        'json.order.items[1].sku = "b-2"',
        'body contains "a-1"',
        'body like "{*}"',
        'size = 1 or exchange = "shop"',
        'exchange = "shop" or size = 1 and size = 2',
        'not (exchange = "other" or size = 1)',
        'exchange = "shop" AND NOT size = 1',
    ],
)
def test_filters_that_find_the_message(text: str) -> None:
    assert found(text)


@pytest.mark.parametrize(
    "text",
    [
        'routing_key = "orders"',
        'routing_key like "orders.*.old"',
        'routing_key like "new*orders"',
        'routing_key like "orders.eu.new*w"',
        'routing_key matches "^eu"',
        "size > 1kb",
        "age > 3h",
        'state = "unacked"',
        "redelivered",
        "message_id exists",
        'message_id = ""',
        "message_id < 'z'",
        "expiration < 5000",
        'expiration = "5"',
        "timestamp > '1970-01-13'",
        "headers.try = '3'",
        "headers.urgent = 1",
        "headers.tenant > 1",
        "headers.x-death[1].queue exists",
        "headers.tenant.name exists",
        "json.order.items[0].sku = 'b-2'",
        "json.order.none exists",
        "json[0] exists",
        'body contains "A-1"',
        '(exchange = "shop" or size = 1) and size = 2',
    ],
)
def test_filters_that_do_not(text: str) -> None:
    assert not found(text)


def test_bodies_that_are_no_json_have_no_json() -> None:
    for body in (b"", b"{", b"\xff\xfe", b"[" * 100_000):
        assert not found("json exists", body=body)
    assert found("json exists", body=b"null")


def test_null_is_equal_to_null_only() -> None:
    body, null = b'{"a": null, "b": 0, "c": ""}', "json.a"
    for text in (f"{null} = null", f"{null} in (1, null)", f"{null} exists", f"{null} != 1"):
        assert found(text, body=body), text
    for text in (f"{null} != null", f"not {null} = NULL", f"{null} = 'null'", f"{null} = false"):
        assert not found(text, body=body), text
    for text in ("json.b = null", "json.c = null", "json.d = null", "headers.absent = null"):
        assert not found(text, body=body), text
    assert found("json.d != null and json.b != null", body=body)


def test_an_unacknowledged_message_and_one_without_a_timestamp() -> None:
    assert found('state = "unacked"', state=MessageState.UNACKED)
    bare = Envelope("", "q", encode_properties(0, {}, None), False, 0, None)
    without = Subject(Message(bare, b"", 0), MessageState.READY, AmqpContentCodec(), NOW_S)
    assert not parse_filter("age > 0")(without) and not parse_filter("age <= 0")(without)
    assert not parse_filter("headers exists")(without)


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("size >", 7, "a number, true, false, null or a text in quotation marks"),
        ("json.a < null", 10, "a value that may be less or greater than others"),
        ("siz > 1", 1, "one of the fields position, state"),
        ('exchange = "x', 12, "ends with the same quotation mark"),
        ("size > 1h", 8, "a number with one of b, kb, mb, gb"),
        ("priority > 1kb", 12, "a number alone"),
        ("(size = 1", 10, "')'"),
        ("size = 1 size = 2", 10, "'and', 'or' or the end"),
        ("and size = 1", 1, "one of the fields"),
        ("= 1", 1, "a field, 'not' or '('"),
        ("size # 1", 6, "a field, a value or an operator"),
        ("exchange in 'a'", 13, "'('"),
        ("exchange in ('a' 'b')", 18, "')'"),
        ("body contains 1", 15, "a text in quotation marks"),
        ("timestamp > 'yesterday'", 13, "a time such as '2026-11-20T10:30:00Z'"),
        ("headers.", 9, "a name"),
        ("headers[a]", 9, "a number, 0 being the first"),
        ("exchange matches '('", 18, "a regular expression ("),
        ("not " * (NESTING_MAX + 1) + "redelivered", 4 * NESTING_MAX + 1, "at most 32 levels"),
        ("redelivered or " * TESTS_MAX + "json", 15 * TESTS_MAX + 1, "at most 64 tests"),
        (" " * (LENGTH_MAX + 1), LENGTH_MAX + 1, "4096 characters at most"),
    ],
)
def test_a_bad_filter_says_where_and_what_was_expected(text: str, at: int, expected: str) -> None:
    with pytest.raises(InvalidFilter) as raised:
        parse_filter(text)
    assert raised.value.text.startswith(f"filter, character {at}: expected ")
    assert expected in raised.value.text


@given(st.text(max_size=60) | st.text(alphabet="()'\"ab=<> .[]0.notandor", max_size=60))
def test_every_text_is_a_filter_or_is_refused(text: str) -> None:
    try:
        test = parse_filter(text)
    except InvalidFilter as refused:
        assert 0 <= refused.at <= len(text)
    else:
        assert test(subject()) in (True, False)


def test_what_is_searched_is_bounded() -> None:
    large = b"x" * SEARCHED_BYTES + b"needle"
    assert not found('body contains "needle"', body=large)
    assert not found("json exists", body=b'"' + large + b'"')
    began = time.process_time()
    assert not found("body like '" + "*x" * 2000 + "*y*'", body=large)
    assert time.process_time() - began < 1
    assert not found("body matches 'x'", body=large)


def test_a_pattern_that_takes_too_long_is_refused_when_it_has() -> None:
    test = parse_filter("headers.slow matches '^(a|a?)+$'")
    header = encode_properties(0, {}, from_json({"slow": "a" * 500 + "b"}))
    slow = Message(Envelope("", "", header, False, 0, None), b"", 0)
    with pytest.raises(FilterTooSlow, match="takes too long"):
        for _ in range(1000):
            test(Subject(slow, MessageState.READY, AmqpContentCodec(), NOW_S))


class CountingCodec(AmqpContentCodec):
    """Counts how often headers are decoded."""

    def __init__(self) -> None:
        self.decoded = 0

    def headers(self, header: bytes) -> Table:
        self.decoded += 1
        return super().headers(header)


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        (
            'content_type = "application/json" and age > 1h and expiration > 1 and not type exists',
            0,
        ),
        ("headers.none exists or headers.none.below = 1", 0),
        ("headers.try = 3 and headers.urgent and headers.none = 1", 1),
        ("headers.x-death[0].queue = 'orders' and headers.x-death[0].reason = 'rejected'", 1),
    ],
)
def test_headers_are_decoded_only_if_their_octets_have_the_name(text: str, decoded: int) -> None:
    codec = CountingCodec()
    parse_filter(text)(Subject(subject().message, MessageState.READY, codec, NOW_S))
    assert codec.decoded == decoded


def test_properties_have_the_values_that_are_shown() -> None:
    given = {"delivery_mode": 2, "priority": 7, "timestamp": 5, "type": "\u00fc", "app_id": ""}
    one = subject(**given)
    for name, value in given.items():
        assert one.plain_property(name) == value == one.properties[name]
    for name, value in HEADERS.items():
        assert one.header(name) == value == one.properties["headers"][name]
