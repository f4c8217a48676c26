"""What may stand in the definition of a policy, with the texts of the refusals."""

from __future__ import annotations

from typing import Any

import pytest

from warren.core.definitions.validation import ValidationFailed
from warren.core.policies.policy_definition import check_definition

VALID: list[dict[str, Any]] = [
    {"alternate-exchange": ""},
    {"dead-letter-exchange": "x", "dead-letter-routing-key": "k"},
    {"dead-letter-routing-key": "k"},
    {"message-ttl": 0, "expires": 1, "max-length": 0, "max-length-bytes": 0},
    {"message-ttl": 2**62},
    {"overflow": "drop-head"},
    {"overflow": "reject-publish"},
    {"overflow": "reject-publish-dlx"},
    {"queue-mode": "lazy", "queue-version": 2},
    {"queue-mode": "default", "queue-version": 1},
    {"federation-upstream": "u"},
    {"federation-upstream-set": "all", "max-length": 5},
    {"federation-upstream-pattern": "^a|b$"},
    {"queue-master-locator": "min-masters"},
    {"ha-mode": "all"},
    {"ha-mode": "exactly", "ha-params": 2, "ha-sync-mode": "automatic"},
    {"ha-mode": "nodes", "ha-params": ["a@b"], "ha-sync-batch-size": 1},
    {"ha-mode": "all", "ha-promote-on-failure": "when-synced", "ha-promote-on-shutdown": "always"},
    {"delivery-limit": 0, "max-in-memory-length": 0, "max-in-memory-bytes": 1},
    {"dead-letter-strategy": "at-least-once", "queue-leader-locator": "balanced"},
    {"initial-cluster-size": 3, "max-age": "7D", "stream-max-segment-size-bytes": 3_000_000_000},
]


@pytest.mark.parametrize("definition", VALID)
def test_every_known_key_is_accepted(definition: dict[str, Any]) -> None:
    check_definition(definition, operator=False)


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        ({}, "no policy provided"),
        ([], "no policy provided"),
        ("x", 'parse error while reading policy: <<"x">>'),
        ({"foo": 1}, '[{<<"foo">>,1}] are not recognised policy settings'),
        (
            {"foo": 1, "bar": None},
            '[{<<"foo">>,1},{<<"bar">>,null}] are not recognised policy settings',
        ),
        ({"foo": 1, "max-length": -1}, "-1 is not a valid maximum length"),
        ({"alternate-exchange": 1}, "1 is not a valid alternate exchange name"),
        ({"dead-letter-exchange": 1}, "1 is not a valid dead letter exchange name"),
        ({"dead-letter-routing-key": ["k"]}, '[<<"k">>] is not a valid dead letter routing key'),
        ({"message-ttl": -1}, "-1 is not a valid message TTL"),
        ({"federation-upstream": 1}, "1 is not a valid federation upstream name"),
        ({"federation-upstream-set": 1}, "1 is not a valid federation upstream set name"),
        ({"federation-upstream-pattern": 1}, "1 is not a valid federation upstream pattern name"),
        (
            {"federation-upstream-pattern": "("},
            'could not compile pattern ( to a regular expression. Error: {"missing )",1}',
        ),
        (
            {"federation-upstream": 1, "federation-upstream-set": "all"},
            "cannot specify federation-upstream, federation-upstream-set or"
            " federation-upstream-pattern together",
        ),
        ({"message-ttl": 1.5}, "1.5 is not a valid message TTL"),
        ({"message-ttl": 2**63}, "9223372036854775808 is not a valid message TTL"),
        ({"expires": 0}, "0 is not a valid queue expiry"),
        ({"max-length": "5"}, '<<"5">> is not a valid maximum length'),
        ({"max-length": True}, "true is not a valid maximum length"),
        ({"max-length-bytes": None}, "null is not a valid maximum length in bytes"),
        ({"overflow": "spill"}, '<<"spill">> is not a valid overflow value'),
        ({"queue-mode": "eager"}, '<<"eager">> is not a valid queue-mode value'),
        ({"queue-version": "1"}, '<<"1">> is not a valid queue-version value'),
        ({"queue-version": 1.0}, "1.0 is not a valid queue-version value"),
        ({"queue-master-locator": "here"}, '<<"here">> invalid queue-master-locator value'),
        ({"ha-mode": "some"}, '<<"some">> is not a valid ha-mode value'),
        ({"ha-mode": "all", "ha-params": 2}, 'ha-mode="all" does not take parameters'),
        ({"ha-mode": "exactly"}, 'ha-mode="exactly" takes an integer, none given'),
        (
            {"ha-mode": "exactly", "ha-params": "2"},
            'ha-mode="exactly" takes an integer, <<"2">> given',
        ),
        ({"ha-mode": "exactly", "ha-params": 0}, 'ha-mode="exactly" takes an integer, 0 given'),
        ({"ha-mode": "nodes", "ha-params": []}, 'ha-mode="nodes" list must be non-empty'),
        ({"ha-mode": "nodes", "ha-params": 1}, 'ha-mode="nodes" takes a list, 1 given'),
        (
            {"ha-mode": "nodes", "ha-params": ["a", 1]},
            'ha-mode="nodes" takes a list of strings, 1 was not a string',
        ),
        (
            {"ha-sync-mode": "automatic"},
            "ha-mode must be specified to specify ha-params, ha-sync-mode or"
            " ha-promote-on-shutdown",
        ),
        (
            {"ha-mode": "all", "ha-sync-mode": "auto"},
            'ha-sync-mode must be "manual" or "automatic", got <<"auto">>',
        ),
        (
            {"ha-mode": "all", "ha-sync-batch-size": 0},
            "ha-sync-batch-size takes an integer greater than 0, 0 given",
        ),
        (
            {"ha-mode": "all", "ha-sync-batch-size": 2**63},
            "ha-sync-batch-size takes integers up to 9223372036854775807,"
            " 9223372036854775808 given",
        ),
        (
            {"ha-mode": "exactly", "ha-params": 2**63},
            'ha-mode="exactly" takes integers up to 9223372036854775807, 9223372036854775808 given',
        ),
        (
            {"ha-mode": "all", "ha-promote-on-shutdown": 1},
            'ha-promote-on-shutdown must be "always" or "when-synced", got 1',
        ),
        (
            {"ha-mode": "all", "ha-promote-on-failure": "never"},
            'ha-promote-on-failure must be "always" or "when-synced", got <<"never">>',
        ),
        ({"delivery-limit": -1}, "-1 is not a valid delivery limit"),
        ({"max-in-memory-length": "x"}, '<<"x">> is not a valid maximum memory in bytes'),
        ({"dead-letter-strategy": "x"}, '<<"x">> is not a valid dead letter strategy'),
        (
            {"stream-max-segment-size-bytes": 3_000_000_001},
            "3000000001 is not a valid segment size",
        ),
        ({"max-age": "1w"}, '<<"1w">> is not a valid max age'),
    ],
)
def test_what_is_wrong_is_named(definition: Any, text: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        check_definition(definition, operator=False)
    assert refused.value.text == text


def test_an_operator_can_only_limit() -> None:
    check_definition({"message-ttl": 1, "expires": 1, "max-length": 1}, operator=True)
    check_definition({"max-length-bytes": 1, "delivery-limit": 1}, operator=True)
    for definition, text in (
        ({"ha-mode": "all"}, '[{<<"ha-mode">>,<<"all">>}] are not recognised policy settings'),
        ({"overflow": "x"}, '[{<<"overflow">>,<<"x">>}] are not recognised policy settings'),
        (
            {"federation-upstream": "u"},
            '[{<<"federation-upstream">>,<<"u">>}] are not recognised policy settings',
        ),
        ({"max-length": -1}, "-1 is not a valid maximum length"),
    ):
        with pytest.raises(ValidationFailed) as refused:
            check_definition(definition, operator=True)
        assert refused.value.text == text
