"""The parameters of upstreams and sets: all problems in RabbitMQ's words, and what they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from warren.core.definitions.validation import ValidationFailed
from warren.federation import sets, upstream
from warren.federation.sets import SetMember, members
from warren.federation.upstream import parse
from warren.shovel.transfer import AckMode

LEAST = {"uri": "amqp://host"}


def problems(check: Callable[[str, Any], None], value: Any) -> list[str]:
    try:
        check("NAME", value)
    except ValidationFailed as error:
        return error.text.split("\n")
    return []


def test_the_least_an_upstream_needs() -> None:
    assert problems(upstream.check, LEAST) == []
    parsed = parse("u", LEAST, "v")
    assert (parsed.prefetch, parsed.reconnect_delay_s, parsed.hops_max) == (1000, 5, 1)
    assert (parsed.ack_mode, parsed.trusts_user_id) == (AckMode.ON_CONFIRM, False)
    assert (parsed.exchange, parsed.queue, parsed.consumer_tag) == (None, None, "federation-link-u")
    assert (parsed.queue_arguments, parsed.keeps_queue) == ({}, False)


def test_uri_without_a_path_means_the_virtual_host_of_the_upstream() -> None:
    uris = parse("u", {"uri": ["amqp://host", "amqp://host/other", "amqp://"]}, "v").uris
    assert [uri.vhost for uri in uris] == ["v", "other", "v"]


def test_everything_an_upstream_can_say() -> None:
    value = {
        **LEAST,
        "exchange": "x",
        "queue": "q",
        "consumer-tag": "tag",
        "prefetch-count": 7.0,
        "reconnect-delay": 0,
        "ack-mode": "no-ack",
        "trust-user-id": True,
        "max-hops": 3,
        "expires": 1000.0,
        "message-ttl": 5,
        "ha-policy": "all",
        "queue-type": "quorum",
        "resource-cleanup-mode": "never",
        "bind-nowait": True,
        "channel-use-mode": "single",
    }
    assert problems(upstream.check, value) == []
    parsed = parse("u", value, "/")
    assert (parsed.exchange, parsed.queue, parsed.consumer_tag) == ("x", "q", "tag")
    assert (parsed.prefetch, parsed.ack_mode, parsed.hops_max) == (7, AckMode.NO_ACK, 3)
    # It is tried again in any case.
    assert 0 < parsed.reconnect_delay_s < 1
    assert parsed.queue_arguments == {
        "x-expires": 1000,
        "x-message-ttl": 5,
        "x-ha-policy": "all",
        "x-queue-type": "quorum",
    }
    assert parsed.keeps_queue and parsed.trusts_user_id


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (5, ["NAME not a list 5"]),
        ({}, ['Key "uri" not found in NAME']),
        (
            {"uri": ["amqp://", "http://x"]},
            ['"http://x" not a valid URI: {{unexpected_uri_scheme,"http"},"http://x"}'],
        ),
        (
            {"prefetch-count": "x", "foo": 1, "exchange": 1},
            [
                'Key "uri" not found in NAME',
                "exchange should be binary, actually was 1",
                'prefetch-count should be a number, actually was <<"x">>',
                'Unrecognised terms [{<<"foo">>,1}] in NAME',
            ],
        ),
        (
            {**LEAST, "ack-mode": "z"},
            [
                'ack-mode should be one of [<<"no-ack">>,<<"on-publish">>,<<"on-confirm">>],'
                ' actually was <<"z">>'
            ],
        ),
        (
            {**LEAST, "resource-cleanup-mode": "q"},
            [
                'resource-cleanup-mode should be one of [<<"default">>,<<"never">>],'
                ' actually was <<"q">>'
            ],
        ),
        (
            {**LEAST, "trust-user-id": "true", "bind-nowait": 1},
            [
                'trust-user-id should be boolean, actually was <<"true">>',
                "bind-nowait should be boolean, actually was 1",
            ],
        ),
    ],
)
def test_problems_of_an_upstream(value: Any, texts: list[str]) -> None:
    assert problems(upstream.check, value) == texts


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ([], []),
        ({}, []),
        ([{"upstream": "u", "max-hops": 2}], []),
        (5, ["NAME should be list, actually was 5"]),
        ({"upstream": "u"}, ['NAME should be list, actually was [{<<"upstream">>,<<"u">>}]']),
        ([5], ["NAME not a list 5"]),
        (
            [{"x": 1, "exchange": 2}],
            [
                'Key "upstream" not found in NAME',
                "exchange should be binary, actually was 2",
                'Unrecognised terms [{<<"x">>,1}] in NAME',
            ],
        ),
        (
            [{"upstream": "u", "uri": "amqp://"}],
            ['Unrecognised terms [{<<"uri">>,<<"amqp://">>}] in NAME'],
        ),
        (
            [{"upstream": "u", "max-hops": "x"}, {"exchange": "e"}],
            [
                'max-hops should be a number, actually was <<"x">>',
                'Key "upstream" not found in NAME',
            ],
        ),
    ],
)
def test_problems_of_a_set(value: Any, texts: list[str]) -> None:
    assert problems(sets.check, value) == texts


UPSTREAMS = {name: {"uri": f"amqp://{name}", "max-hops": 1} for name in ("a", "b", "ab")}
SETS = {
    "few": [{"upstream": "b", "max-hops": 5}, {"upstream": "none"}],
    "all": [{"upstream": "a"}],
    "empty": {},
}


@pytest.mark.parametrize(
    ("definition", "names"),
    [
        ({"federation-upstream": "a"}, ["a"]),
        ({"federation-upstream": "none"}, []),
        ({"federation-upstream-pattern": "^a"}, ["a", "ab"]),
        ({"federation-upstream-set": "few"}, ["b"]),
        ({"federation-upstream-set": "empty"}, []),
        ({"federation-upstream-set": "none"}, []),
        # The set of all upstreams is always there, whatever is stored under its name.
        ({"federation-upstream-set": "all"}, ["a", "b", "ab"]),
        ({"max-length": 5}, []),
    ],
)
def test_upstreams_that_a_policy_asks_for(definition: dict[str, Any], names: list[str]) -> None:
    assert [member.upstream for member in members(definition, UPSTREAMS, SETS)] == names


def test_set_has_the_last_word() -> None:
    definition = {"federation-upstream-set": "few"}
    assert members(definition, UPSTREAMS, SETS) == [
        SetMember("b", {"uri": "amqp://b", "max-hops": 5})
    ]
