"""Limits of virtual hosts and users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from warren.core.access.limits import (
    VhostLimits,
    check_user_channel,
    check_user_connection,
    validate_user_limits,
    validate_vhost_limits,
)
from warren.core.definitions.records import VirtualHostRecord
from warren.core.definitions.validation import NoSuchVhost, NotThere, ValidationFailed
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.errors import NotAllowed, PreconditionFailed
from warren.core.ports import Write


@pytest.fixture
def limits() -> VhostLimits:
    store = VolatileMetadataStore()
    store.transact([Write(("vhost", "/"), VirtualHostRecord())])
    return VhostLimits(store)


@pytest.mark.parametrize(
    ("validate", "value", "text"),
    [
        (validate_vhost_limits, {"bogus": 1}, 'Unrecognised terms [{<<"bogus">>,1}] in limits'),
        (
            validate_vhost_limits,
            {"max-queues": "x"},
            'max-queues should be a number, actually was <<"x">>',
        ),
        (
            validate_vhost_limits,
            {"max-connections": True},
            "max-connections should be a number, actually was true",
        ),
        (validate_vhost_limits, [], "limits not a list []"),
        (validate_user_limits, {"bogus": 1}, 'Unrecognised terms [{<<"bogus">>,1}] in user-limits'),
        (
            validate_user_limits,
            {"max-channels": 1.5},
            "max-channels should be a number, actually was 1.5",
        ),
        (
            validate_user_limits,
            {"max-queues": 1},
            'Unrecognised terms [{<<"max-queues">>,1}] in user-limits',
        ),
    ],
)
def test_what_is_no_limit_is_refused(
    validate: Callable[[Any], dict[str, int]], value: Any, text: str
) -> None:
    with pytest.raises(ValidationFailed) as refused:
        validate(value)
    assert refused.value.text == text


def test_limits_are_put_one_by_one_and_replaced_whole(limits: VhostLimits) -> None:
    limits.put("/", "max-queues", 5)
    limits.put("/", "max-connections", 6)
    assert limits.get("/") == {"max-queues": 5, "max-connections": 6}
    limits.replace("/", {"max-queues": 7})
    assert limits.get("/") == {"max-queues": 7}
    assert limits.get("other") == {}


def test_limits_need_their_vhost(limits: VhostLimits) -> None:
    with pytest.raises(NoSuchVhost):
        limits.put("nowhere", "max-queues", 5)


def test_removing_the_last_limit_leaves_an_empty_set(limits: VhostLimits) -> None:
    limits.put("/", "max-queues", 5)
    limits.remove("/", "max-queues")
    assert list(limits.all()) == [("/", {})]
    limits.clear("/")
    assert list(limits.all()) == []
    with pytest.raises(NotThere, match="Parameter does not exist"):
        limits.clear("/")


def test_a_limit_of_queues_bites_when_it_is_reached(limits: VhostLimits) -> None:
    limits.check_queue("/", "q", 1000)
    limits.put("/", "max-queues", 2)
    limits.check_queue("/", "q", 1)
    with pytest.raises(PreconditionFailed) as refused:
        limits.check_queue("/", "q", 2)
    assert refused.value.text == (
        "cannot declare queue 'q': queue limit in vhost '/' (2) is reached"
    )


def test_zero_allows_none_and_a_negative_limit_any_number(limits: VhostLimits) -> None:
    limits.put("/", "max-connections", 0)
    with pytest.raises(NotAllowed) as refused:
        limits.check_connection("/", "bob", 0)
    assert refused.value.text == (
        "access to vhost '/' refused for user 'bob': connection limit (0) is reached"
    )
    limits.put("/", "max-connections", -1)
    limits.check_connection("/", "bob", 10**6)


def test_limits_of_a_user() -> None:
    check_user_connection({}, "bob", 10)
    check_user_channel({"max-channels": 3}, "bob", 2)
    with pytest.raises(NotAllowed) as refused:
        check_user_connection({"max-connections": 1}, "bob", 1)
    assert refused.value.text == (
        "connection refused for user 'bob': user connection limit (1) is reached"
    )
    with pytest.raises(NotAllowed) as refused:
        check_user_channel({"max-channels": 3}, "bob", 3)
    assert refused.value.text == (
        "number of channels opened for user 'bob' has reached the maximum allowed user limit of (3)"
    )
