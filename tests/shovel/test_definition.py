"""The parameter of a shovel: all its problems in RabbitMQ's words, and what it says."""

from __future__ import annotations

from typing import Any

import pytest

from warren.core.definitions.validation import ValidationFailed
from warren.shovel.definition import check, parse
from warren.shovel.transfer import AckMode

LEAST = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://"}


def problems(value: Any) -> list[str]:
    try:
        check("NAME", value)
    except ValidationFailed as error:
        return error.text.split("\n")
    return []


def test_the_least_a_shovel_needs() -> None:
    assert problems(LEAST) == []
    definition = parse(LEAST)
    assert (definition.ack_mode, definition.delete_after) == (AckMode.ON_CONFIRM, None)
    assert (definition.source.prefetch, definition.reconnect_delay_s) == (1000, 5)
    assert definition.destination.queue is None
    assert definition.destination.exchange_key is None


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"src-uri": 5}, "src-uri should be list, actually was 5"),
        (
            {"dest-uri": ["amqp://", "http://x"]},
            '"http://x" not a valid URI: {{unexpected_uri_scheme,"http"},"http://x"}',
        ),
        (
            {"src-protocol": "stomp"},
            'src-protocol should be one of [<<"amqp091">>], actually was <<"stomp">>',
        ),
        ({"src-exchange": "x"}, "Cannot specify 'src-exchange' and 'src-queue'"),
        (
            {"dest-queue": "q", "dest-exchange": "x"},
            "Cannot specify 'dest-exchange' and 'dest-queue'",
        ),
        (
            {"dest-queue-args": {"x-foo": 1}},
            'Unrecognised terms [{<<"x-foo">>,1}] in dest-queue-args',
        ),
        (
            {"src-consumer-args": {"x-foo": 1}},
            'Unrecognised terms [{<<"x-foo">>,1}] in src-consumer-args',
        ),
        (
            {"src-prefetch-count": "a"},
            'src-prefetch-count should be a number, actually was <<"a">>',
        ),
        ({"prefetch-count": "a"}, 'prefetch-count should be a number, actually was <<"a">>'),
        (
            {"src-delete-after": -1},
            'src-delete-after should be a number greater than or equal to 0, "never" or'
            ' "queue-length", actually was -1',
        ),
        (
            {"src-delete-after": 5, "ack-mode": "no-ack"},
            "Cannot specify 'no-ack' and numerical 'delete-after'",
        ),
        (
            {"dest-add-forward-headers": "true"},
            'dest-add-forward-headers should be boolean, actually was <<"true">>',
        ),
        (
            {"ack-mode": "foo"},
            'ack-mode should be one of [<<"no-ack">>,<<"on-publish">>,<<"on-confirm">>],'
            ' actually was <<"foo">>',
        ),
        ({"reconnect-delay": "1"}, 'reconnect-delay should be a number, actually was <<"1">>'),
        (
            {"dest-publish-properties": {"headers": 1}},
            'Unrecognised terms [{<<"headers">>,1}] in dest-publish-properties',
        ),
        (
            {"dest-publish-properties": {"priority": "1"}},
            'priority should be a number, actually was <<"1">>',
        ),
        ({"src-queue": ""}, "src-queue should not be empty"),
        ({"dest-queue": ""}, "dest-queue should not be empty"),
        ({"foo": 1}, 'Unrecognised terms [{<<"foo">>,1}] in NAME'),
    ],
)
def test_each_problem_has_its_text(more: dict[str, Any], text: str) -> None:
    assert problems({**LEAST, **more}) == [text]


def test_all_problems_are_told_at_once() -> None:
    assert problems({"src-prefetch-count": "a", "foo": 1}) == [
        'Key "src-uri" not found in NAME',
        'Key "dest-uri" not found in NAME',
        'src-prefetch-count should be a number, actually was <<"a">>',
        'Unrecognised terms [{<<"foo">>,1}] in NAME',
        "Must specify 'src-exchange' or 'src-queue'",
    ]


def test_what_is_no_object_is_refused() -> None:
    assert problems(5) == ["NAME not a list 5"]


@pytest.mark.parametrize(
    "properties",
    [{"app_id": "a" * 256}, {"priority": 256}, {"timestamp": -1}],
)
def test_property_that_fits_no_message_is_refused(properties: dict[str, Any]) -> None:
    assert len(problems({**LEAST, "dest-publish-properties": properties})) == 1


@pytest.mark.parametrize(
    "more",
    [
        {"src-uri": []},
        {"src-prefetch-count": -5},
        {"src-delete-after": 0},
        {"src-queue-args": []},
        {"dest-queue-args": {"x-queue-type": "quorum"}},
        {"src-consumer-args": {"x-stream-offset": "first"}},
        {"reconnect-delay": 0.5},
    ],
)
def test_what_rabbitmq_takes_is_taken(more: dict[str, Any]) -> None:
    assert problems({**LEAST, **more}) == []
    parse({**LEAST, **more})


def test_names_of_older_versions_count_where_the_new_one_is_missing() -> None:
    former = {
        "prefetch-count": 7,
        "delete-after": "queue-length",
        "add-forward-headers": True,
        "publish-properties": {"priority": 3},
    }
    assert problems({**LEAST, **former}) == []
    definition = parse({**LEAST, **former})
    assert (definition.source.prefetch, definition.delete_after) == (7, "queue-length")
    assert definition.destination.add_forward_headers
    assert definition.destination.properties == {"priority": b"\x03"}
    both = parse({**LEAST, **former, "src-prefetch-count": 8})
    assert both.source.prefetch == 8


@pytest.mark.parametrize(("given", "used"), [(-5, 0), (0, 0), (1.5, 1), (1 << 20, 65535)])
def test_prefetch_is_what_qos_has_room_for(given: float, used: int) -> None:
    assert parse({**LEAST, "src-prefetch-count": given}).source.prefetch == used


@pytest.mark.parametrize(("given", "used"), [(0, None), (-1, None), (0.5, 0.5), (3, 3)])
def test_delay_of_zero_or_less_tries_never_again(given: float, used: float | None) -> None:
    assert parse({**LEAST, "reconnect-delay": given}).reconnect_delay_s == used
