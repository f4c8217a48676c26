"""Arguments of queue.declare: which are valid, and when two declarations agree."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.core.errors import PreconditionFailed
from warren.core.field import INTEGER_KINDS, Field, Table, long, longstr
from warren.core.queues.queue_arguments import (
    NEVER_REACHED,
    OTHER_TYPES,
    QueueArguments,
    check_properties,
    parse,
)
from warren.core.queues.queue_type import QueueType

TEN_YEARS = 315_360_000_000
SHORT = Field("s", 5)
BYTE = Field("b", 1)
TRUE = Field("t", True)


@pytest.mark.parametrize(
    ("name", "field", "attribute", "value"),
    [
        ("x-expires", long(1), "expires_ms", 1),
        ("x-expires", long(TEN_YEARS), "expires_ms", TEN_YEARS),
        ("x-message-ttl", long(0), "message_ttl_ms", 0),
        ("x-message-ttl", Field("B", 5), "message_ttl_ms", 5),
        ("x-max-length", Field("I", 0), "max_length", 0),
        ("x-max-length-bytes", long(2**62), "max_length_bytes", 2**62),
        ("x-overflow", longstr("reject-publish-dlx"), "overflow", "reject-publish-dlx"),
        ("x-dead-letter-exchange", longstr(""), "dead_letter_exchange", ""),
        ("x-max-priority", Field("B", 255), "max_priority", 255),
        ("x-max-priority", SHORT, "max_priority", 5),
        ("x-queue-mode", longstr("lazy"), "queue_mode", "lazy"),
        ("x-queue-version", long(2), "queue_version", 2),
        ("x-single-active-consumer", TRUE, "single_active_consumer", True),
        ("x-queue-master-locator", longstr("min-masters"), "queue_master_locator", "min-masters"),
    ],
)
def test_valid_arguments_are_understood(
    name: str, field: Field, attribute: str, value: Any
) -> None:
    assert parse("q", "/", {name: field}) == QueueArguments(**{attribute: value})


def test_what_says_nothing_is_ignored() -> None:
    arguments = {
        "x-foo": long(-1),
        "x-ha-policy": longstr("all"),
        "x-queue-type": longstr("classic"),
    }
    assert parse("q", "/", arguments) == QueueArguments()


def test_names_may_hold_any_bytes() -> None:
    arguments = {
        "x-dead-letter-exchange": Field("S", b"caf\xe9"),
        "x-dead-letter-routing-key": Field("S", b"\xff"),
    }
    parsed = parse("q", "/", arguments)
    assert parsed.dead_letter_exchange == "caf\udce9"
    assert parsed.dead_letter_routing_key == "\udcff"


@given(kind=st.sampled_from(sorted(INTEGER_KINDS)))
def test_integers_may_have_any_integer_type(kind: str) -> None:
    assert parse("q", "/", {"x-max-length": Field(kind, 5)}) == QueueArguments(max_length=5)


@pytest.mark.parametrize(
    ("name", "field", "reason"),
    [
        ("x-expires", long(0), "{value_zero,0}"),
        ("x-expires", long(-1), "{value_negative,-1}"),
        ("x-expires", long(TEN_YEARS + 1), "{value_too_large,315360000001}"),
        ("x-expires", longstr("1"), '"expected integer, got longstr"'),
        ("x-message-ttl", long(-1), "{value_negative,-1}"),
        ("x-message-ttl", long(TEN_YEARS + 1), "{value_too_large,315360000001}"),
        ("x-message-ttl", Field("d", 1.0), '"expected integer, got double"'),
        ("x-message-ttl", TRUE, '"expected integer, got bool"'),
        ("x-max-length", long(-5), "{value_negative,-5}"),
        ("x-max-length", Field("T", 5), '"expected integer, got timestamp"'),
        ("x-max-length-bytes", Field("V", None), '"expected integer, got void"'),
        ("x-overflow", longstr("spill"), "invalid_overflow"),
        ("x-overflow", BYTE, "{unacceptable_type,byte}"),
        ("x-dead-letter-routing-key", longstr("k"), "routing_key_but_no_dlx_defined"),
        ("x-dead-letter-routing-key", SHORT, "{unacceptable_type,short}"),
        ("x-max-priority", long(256), "{max_value_exceeded,256}"),
        ("x-max-priority", long(-1), "{value_negative,-1}"),
        ("x-max-priority", longstr("5"), '"expected integer, got longstr"'),
        ("x-queue-mode", longstr("foo"), "\"unsupported queue mode 'foo'\""),
        ("x-queue-mode", BYTE, "{unacceptable_type,byte}"),
        ("x-queue-version", long(3), "\"unsupported queue version '3'\""),
        ("x-queue-version", long(-3), "{value_negative,-3}"),
        ("x-queue-version", longstr("1"), '"expected integer, got longstr"'),
        ("x-single-active-consumer", longstr("true"), "{unacceptable_type,longstr}"),
        ("x-queue-type", longstr("foo"), "\"unsupported queue type 'foo'\""),
        ("x-queue-type", BYTE, "{unacceptable_type,byte}"),
        (
            "x-queue-master-locator",
            longstr("moon"),
            "\"unsupported queue master locator 'moon'\"",
        ),
    ],
)
def test_what_is_wrong_is_named(name: str, field: Field, reason: str) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        parse("q", "v", {name: field})
    assert refused.value.text == f"invalid arg '{name}' for queue 'q' in vhost 'v': {reason}"


def test_a_dead_letter_exchange_is_a_string() -> None:
    with pytest.raises(PreconditionFailed) as refused:
        parse("q", "v", {"x-dead-letter-exchange": SHORT, "x-queue-type": longstr("foo")})
    assert refused.value.text == (
        "invalid type 'short' for arg 'x-dead-letter-exchange' in queue 'q' in vhost 'v'"
    )


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in OTHER_TYPES.items() for name in names]
)
def test_arguments_of_other_queue_types_are_refused(kind: QueueType, name: str) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        parse("q", "v", {"x-queue-type": longstr(kind), name: longstr("1")})
    assert refused.value.text == (
        f"invalid arg '{name}' for queue 'q' in vhost 'v' of queue type rabbit_{kind}_queue"
    )


@pytest.mark.parametrize(
    ("name", "field", "attribute", "value"),
    [
        ("x-expires", long(1), "expires_ms", 1),
        ("x-message-ttl", long(0), "message_ttl_ms", 0),
        ("x-delivery-limit", long(3), "delivery_limit", 3),
        ("x-delivery-limit", long(-1), "delivery_limit", -1),
        ("x-delivery-limit", longstr("few"), "delivery_limit", NEVER_REACHED),
        ("x-delivery-limit", TRUE, "delivery_limit", NEVER_REACHED),
        ("x-queue-leader-locator", longstr("balanced"), "queue_leader_locator", "balanced"),
        ("x-quorum-initial-group-size", long(5), "initial_members", 5),
        (
            "x-dead-letter-strategy",
            longstr("at-least-once"),
            "dead_letter_strategy",
            "at-least-once",
        ),
    ],
)
def test_arguments_of_quorum_queues_are_understood(
    name: str, field: Field, attribute: str, value: Any
) -> None:
    quorum = {"type": QueueType.QUORUM, attribute: value}
    arguments = {"x-queue-type": longstr("quorum"), name: field}
    assert parse("q", "/", arguments) == QueueArguments(**quorum)


@pytest.mark.parametrize(
    ("properties", "wrong"),
    [
        ({"auto_delete": True, "exclusive": True, "durable": False}, "auto-delete"),
        ({"exclusive": True, "durable": False}, "exclusive-owner"),
        ({"durable": False}, "non-durable"),
    ],
)
def test_a_quorum_queue_is_durable_and_for_all(properties: dict[str, bool], wrong: str) -> None:
    asked = {"durable": True, "exclusive": False, "auto_delete": False, **properties}
    check_properties("q", "v", {}, **asked)
    with pytest.raises(PreconditionFailed) as refused:
        check_properties("q", "v", {"x-queue-type": longstr("quorum")}, **asked)
    assert refused.value.text == f"invalid property '{wrong}' for queue 'q' in vhost 'v'"


def test_of_several_problems_always_the_same_is_reported() -> None:
    wrong: Table = {
        "x-max-age": longstr("1D"),
        "x-max-length": long(-1),
        "x-expires": long(0),
        "x-queue-type": longstr("foo"),
    }
    reported = []
    while wrong:
        with pytest.raises(PreconditionFailed) as refused:
            parse("q", "/", dict(reversed(wrong.items())))
        name = refused.value.text.split("'")[1]
        reported.append(name)
        del wrong[name]
    assert reported == ["x-queue-type", "x-expires", "x-max-length", "x-max-age"]
