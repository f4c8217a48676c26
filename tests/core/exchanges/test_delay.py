"""What is a delay, and what an exchange that delays may be declared as."""

from __future__ import annotations

import pytest

from warren.amqp.content_codec import AmqpContentCodec
from warren.core.errors import BrokerError, CommandInvalid, PreconditionFailed
from warren.core.exchanges.delay import (
    NAME_BYTES_MAX,
    check_name,
    delay_ms,
    delay_queue_name,
    exchange_behind,
    routing_type,
    when_due,
)
from warren.core.field import Field, long, longstr
from warren.core.messages.message import Envelope

CODEC = AmqpContentCodec()


@pytest.mark.parametrize(
    ("field", "delay"),
    [
        *[(Field(kind, 100), 100) for kind in "bBsuIilL"],
        (long(1), 1),
        (long(4_294_967_295), 4_294_967_295),
        (long(4_294_967_296), None),
        (long(0), None),
        (long(-5), None),
        (longstr("300"), 300),
        (longstr("-5"), None),
        (longstr("0"), None),
        (longstr("9" * 5000), None),
        (longstr("abc"), None),
        (longstr(""), None),
        (longstr("300.5"), None),
        (longstr("٣"), None),
        (Field("d", 300.9), 300),
        (Field("f", 1.5), 1),
        (Field("d", 0.5), None),
        (Field("d", float("nan")), None),
        (Field("d", float("inf")), None),
        (Field("D", (2, 100)), None),
        (Field("t", True), None),
        (Field("V", None), None),
        (Field("A", [long(5)]), None),
        (Field("F", {}), None),
    ],
)
def test_a_delay_is_a_number_of_milliseconds_in_range(field: Field, delay: int | None) -> None:
    assert delay_ms({"x-delay": field}) == delay


def test_without_the_header_there_is_no_delay() -> None:
    assert delay_ms({}) is None


def test_when_it_is_due_the_delay_is_negative_and_all_else_is_as_it_was() -> None:
    headers = {"a": longstr("b"), "x-delay": Field("I", 250)}
    envelope = Envelope("x", "k", CODEC.content_header(1, headers), True, 3, 500, ("copy",))
    due = when_due(envelope, CODEC)
    assert CODEC.headers(due.header) == {"a": longstr("b"), "x-delay": long(-250)}
    assert delay_ms(CODEC.headers(due.header)) is None
    assert (due.exchange, due.routing_key, due.persistent, due.priority) == ("x", "k", True, 3)
    assert (due.expiration_ms, due.copies) == (500, ("copy",))


@pytest.mark.parametrize(
    ("field", "kind", "text"),
    [
        (None, PreconditionFailed, "'x-delayed-type' must be an existing exchange type"),
        (long(1), PreconditionFailed, "'x-delayed-type' must be an existing exchange type"),
        (longstr(""), CommandInvalid, "invalid exchange type ''"),
        (
            longstr("x-delayed-message"),
            PreconditionFailed,
            "'x-delayed-message' can't be used for 'x-delayed-type'",
        ),
    ],
)
def test_the_type_that_routes_has_to_be_named(
    field: Field | None, kind: type[BrokerError], text: str
) -> None:
    with pytest.raises(kind) as refused:
        routing_type({} if field is None else {"x-delayed-type": field})
    assert refused.value.text.endswith(text)


def test_the_name_of_a_delay_queue_has_room() -> None:
    check_name("é" * (NAME_BYTES_MAX // 2), "/")
    assert len(delay_queue_name("x" * NAME_BYTES_MAX).encode()) == 255
    with pytest.raises(PreconditionFailed, match="octets"):
        check_name("x" * (NAME_BYTES_MAX + 1), "/")


def test_a_delay_queue_is_known_by_its_name() -> None:
    assert exchange_behind(delay_queue_name("orders")) == "orders"
    assert exchange_behind("orders") is None
    assert exchange_behind("amq.gen-1") is None
