"""Which definitions have to be sent, and what is said of the others."""

from __future__ import annotations

from typing import Any

import pytest
from definitions_node import exchange_item, policy_item, queue_item

from warren.mgmt.migrate.definitions import Fate, TargetFacts, identity, sort_out, unknown_keys
from warren.mgmt.migrate.errors import MigrateError, WrongAddress
from warren.mgmt.migrate.run import left_because
from warren.mgmt.migrate.side import AmqpAddress, amqp_listener, side

TARGET = TargetFacts("admin", frozenset({"direct", "topic"}))


def sorted_out(
    section: str, item: dict[str, Any], there: dict[str, Any] | None = None
) -> tuple[Fate | None, str]:
    """None for what has to be sent."""
    present = {} if there is None else {identity(section, there): there}
    to_send, settled = sort_out(section, [item], present, TARGET)
    assert len(to_send) + len(settled) == 1
    return (None, "") if to_send else (settled[0].fate, settled[0].reason)


def test_what_the_target_has_is_not_sent_again() -> None:
    queue = queue_item("q", arguments={"x-max-length": 1, "x-expires": 2})
    there = queue_item("q", arguments={"x-expires": 2, "x-max-length": 1})
    assert sorted_out("queues", queue) == (None, "")
    assert sorted_out("queues", queue, there) == (Fate.SAME, "")


def test_queue_that_differs_cannot_be_changed_but_a_policy_can() -> None:
    fate, reason = sorted_out("queues", queue_item("q"), queue_item("q", durable=False))
    assert (fate, reason) == (Fate.REFUSED, "the target has it already, with another durable")
    assert sorted_out("policies", policy_item(), policy_item(priority=1)) == (None, "")


@pytest.mark.parametrize(
    "section, item, reason",
    [
        ("queues", queue_item("s", arguments={"x-queue-type": "stream"}), "a stream"),
        ("queues", queue_item("amq.gen-x"), "begins with amq."),
        ("exchanges", exchange_item("e", "x-delayed-message"), "type x-delayed-message"),
    ],
)
def test_what_no_target_takes_is_not_sent(section: str, item: dict[str, Any], reason: str) -> None:
    fate, said = sorted_out(section, item)
    assert fate is Fate.REFUSED
    assert reason in said


def test_target_stays_the_cluster_it_is_and_keeps_the_user_of_this_command() -> None:
    cluster = {"name": "cluster_name", "value": "old"}
    assert sorted_out("global_parameters", cluster)[0] is Fate.LEFT
    admin = {"name": "admin", "password_hash": "x", "tags": []}
    there = {**admin, "password_hash": "y"}
    assert sorted_out("users", admin, there)[0] is Fate.LEFT
    assert sorted_out("users", admin) == (None, "")
    other = {**admin, "name": "other"}
    assert sorted_out("users", other, {**there, "name": "other"}) == (None, "")


def test_keys_that_a_refusal_names_as_unknown_are_found() -> None:
    definition = {"ha-mode": "all", "ha-replication": "log"}
    reason = '[{<<"ha-replication">>,<<"log">>}] are not recognised policy settings'
    assert unknown_keys(reason, definition) == ["ha-replication"]
    assert unknown_keys('"ha-mode" should be something else', definition) == []


def test_streams_exclusive_and_auto_delete_queues_are_left() -> None:
    assert left_because({"type": "classic", "arguments": {}}) == ""
    assert "stream" in left_because({"type": "stream"})
    assert "exclusive" in left_because({"exclusive": True, "auto_delete": True})
    assert "2 consumers" in left_because({"auto_delete": True, "consumers": 2})


OVERVIEW = {
    "node": "a@host",
    "listeners": [
        {"node": "b@host", "protocol": "amqp", "port": 1},
        {"node": "a@host", "protocol": "clustering", "port": 2},
        {"node": "a@host", "protocol": "amqp", "port": 3, "ip_address": "::"},
        {"node": "a@host", "protocol": "amqp/ssl", "port": 4, "ip_address": "::"},
    ],
}


def test_amqp_address_is_that_of_the_node_that_was_asked() -> None:
    assert amqp_listener("http://h:15672", OVERVIEW, "source") == AmqpAddress("amqp", "h", 3)
    assert amqp_listener("https://h:15671", OVERVIEW, "source") == AmqpAddress("amqps", "h", 4)
    with pytest.raises(MigrateError, match="give --target-amqp"):
        amqp_listener("http://h:15672", {"node": "a@host", "listeners": []}, "target")


def test_urls_are_taken_apart_and_a_wrong_one_is_not_shown() -> None:
    found = side("source", "https://ann:p%40ss@h:15671/under", "amqps://other:5671")
    assert (found.url, found.username, found.password) == ("https://h:15671/under", "ann", "p@ss")
    assert found.find_amqp() == AmqpAddress("amqps", "other", 5671)
    assert "p@ss" not in repr(found)
    for url in ("amqp://u:secret@h", "http://", "http://u:secret@h:port"):
        with pytest.raises(WrongAddress) as failure:
            side("source", url)
        assert "secret" not in str(failure.value)
    with pytest.raises(WrongAddress, match="belongs into the management URL"):
        side("source", "http://h:15672", "amqp://user:secret@h")
