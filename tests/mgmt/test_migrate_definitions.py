"""Which definitions `warren migrate` sends, and how it reports the others."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest
from definitions_node import binding_item, exchange_item, policy_item, queue_item

from warren.mgmt.ctl.errors import RequestRefused
from warren.mgmt.migrate.definitions import (
    Fate,
    TargetFacts,
    identity,
    move_definitions,
    sort_out,
    unknown_keys,
)
from warren.mgmt.migrate.errors import MigrateError, WrongAddress
from warren.mgmt.migrate.run import is_stream, left_because
from warren.mgmt.migrate.side import AmqpAddress, Side, amqp_listener, side

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


def test_exclusive_and_auto_delete_queues_are_left_and_streams_known() -> None:
    assert left_because({"type": "classic", "arguments": {}}) == ""
    assert is_stream({"type": "stream"}) and is_stream({"arguments": {"x-queue-type": "stream"}})
    assert not is_stream({"type": "classic", "arguments": {}})
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


class FakeSide(Side):
    """A broker that keeps what it is sent, except what it refuses or passes over."""

    def __init__(
        self,
        definitions: dict[str, list[dict[str, Any]]],
        *,
        refusals: Callable[[str, dict[str, Any]], str | None] = lambda section, item: None,
        passed_over: Collection[str] = (),
    ) -> None:
        super().__init__("target", "http://there", "admin", "secret")
        self.definitions = definitions
        self.requests = 0
        self._refusals = refusals
        self._passed_over = passed_over

    def get(self, *path: str, **query: str) -> Any:
        if path == ("definitions",):
            return self.definitions
        if path == ("vhosts",):
            return [{"name": item["name"]} for item in self.definitions.get("vhosts", [])]
        assert path == ("overview",)
        return {"exchange_types": [{"name": "direct"}, {"name": "topic"}]}

    def post(self, *path: str, body: Any) -> Any:
        self.requests += 1
        for section, items in body.items():
            for item in items if isinstance(items, list) else ():
                reason = self._refusals(section, item)
                if reason is not None:
                    raise RequestRefused(400, {"reason": ["atom", reason]}, "")
                if item["name" if "name" in item else "routing_key"] not in self._passed_over:
                    self.definitions.setdefault(section, []).append(item)


def move(source: FakeSide, target: FakeSide) -> dict[tuple[str, ...], tuple[Fate, str]]:
    return {
        (one.section, *one.identity): (one.fate, one.reason)
        for one in move_definitions(source, target)
    }


def test_refused_items_are_found_among_thousands_and_the_others_taken() -> None:
    queues = [queue_item(f"q{number}") for number in range(2500)]
    bad = {"q7": "too short", "q2400": "too long"}
    target = FakeSide({}, refusals=lambda section, item: bad.get(item["name"]))
    outcomes = move(FakeSide({"queues": queues}), target)
    refused = {key[2]: said for key, said in outcomes.items() if said[0] is not Fate.TAKEN}
    assert refused == {name: (Fate.REFUSED, reason) for name, reason in bad.items()}
    assert {item["name"] for item in target.definitions["queues"]} == {
        item["name"] for item in queues
    } - {*bad}
    assert target.requests < 60


def test_policy_is_taken_without_the_keys_that_the_target_does_not_know() -> None:
    def refusal(section: str, item: dict[str, Any]) -> str | None:
        # One at a time, as a validation may end at the first.
        unknown = [key for key in item["definition"] if key.startswith("log-")]
        return f'[{{<<"{unknown[0]}">>,1}}] are not recognised policy settings' if unknown else None

    definition = {"ha-mode": "all", "log-acks": 1, "log-flush": 2}
    target = FakeSide({}, refusals=refusal)
    outcomes = move(FakeSide({"policies": [policy_item(definition=definition)]}), target)
    (said,) = outcomes.values()
    text = "taken without what the target does not know: log-acks, log-flush"
    assert said == (Fate.REFUSED, text)
    assert target.definitions["policies"][0]["definition"] == {"ha-mode": "all"}


def test_limits_are_taken_without_those_that_rabbitmq_does_not_know() -> None:
    """It answers 500 for such limits of a user, and says nothing of them."""

    def fails(section: str, item: dict[str, Any]) -> str | None:
        if section == "users" and {"max-messages", "max-bytes"} & item["limits"].keys():
            raise RequestRefused(500, {}, "")
        if section == "parameters" and "max-bytes" in item["value"]:
            return "not recognised limits"
        return None

    users = [
        {"name": "lu", "limits": {"max-messages": 5}},
        {"name": "mu", "limits": {"max-bytes": 5, "max-channels": 3}},
        {"name": "nu", "limits": {}},
    ]
    limits = {"max-queues": 7, "max-bytes": 5}
    parameter = {"vhost": "/", "component": "vhost-limits", "name": "limits", "value": limits}
    target = FakeSide({}, refusals=fails)
    outcomes = move(FakeSide({"users": users, "parameters": [parameter]}), target)
    text = "taken without what the target does not know: "
    assert outcomes["users", "lu"] == (Fate.REFUSED, text + "max-messages")
    assert outcomes["users", "mu"] == (Fate.REFUSED, text + "max-bytes")
    assert outcomes["users", "nu"] == (Fate.TAKEN, "")
    assert outcomes["parameters", "/", "vhost-limits", "limits"] == (
        Fate.REFUSED,
        text + "max-bytes",
    )
    assert [user["limits"] for user in target.definitions["users"]] == [{}, {"max-channels": 3}, {}]
    assert target.definitions["parameters"][0]["value"] == {"max-queues": 7}


def test_policy_that_is_refused_for_its_values_is_not_taken_in_part() -> None:
    target = FakeSide({}, refusals=lambda section, item: '"max-length" is no number')
    outcomes = move(FakeSide({"policies": [policy_item()]}), target)
    assert [*outcomes.values()] == [(Fate.REFUSED, '"max-length" is no number')]
    assert "policies" not in target.definitions


def test_what_the_target_passed_over_is_named() -> None:
    source = FakeSide(
        {
            "exchanges": [exchange_item("e", "x-strange"), exchange_item("f")],
            "queues": [queue_item("q")],
            "bindings": [
                binding_item("e", "q", routing_key="lost"),
                binding_item("f", "q", routing_key="lost too"),
                binding_item("f", "q", routing_key="kept"),
            ],
        }
    )
    outcomes = move(source, FakeSide({}, passed_over={"lost", "lost too", "q"}))
    said = {key[2] if key[0] != "bindings" else key[5]: value for key, value in outcomes.items()}
    silent = (Fate.REFUSED, "the target passed over it and did not say why")
    assert said == {
        "e": (Fate.REFUSED, "the target has no exchanges of the type x-strange"),
        "f": (Fate.TAKEN, ""),
        "q": silent,
        "lost": (Fate.REFUSED, "exchange 'e' was not taken"),
        "lost too": silent,
        "kept": (Fate.TAKEN, ""),
    }
