"""Which policy an object gets, and what it makes of it."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.core.definitions.records import VirtualHostRecord
from warren.core.definitions.validation import NoSuchVhost, NotThere, ValidationFailed
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.patterns.pattern import compile_pattern
from warren.core.policies.policy import (
    APPLY_US,
    Policies,
    effective_arguments,
    merged_definition,
)
from warren.core.policies.policy_definition import NOT_FOR
from warren.core.policies.policy_set import Policy, PolicySet
from warren.core.ports import Write
from warren.core.queues.queue_arguments import NEVER_REACHED, QueueArguments, QueueSettings
from warren.core.queues.queue_type import QueueType


@pytest.fixture
def store() -> VolatileMetadataStore:
    store = VolatileMetadataStore()
    store.transact([Write(("vhost", name), VirtualHostRecord()) for name in ("/", "other")])
    return store


@pytest.fixture
def policies(store: VolatileMetadataStore) -> Policies:
    return Policies(store)


def policy(
    name: str = "p",
    pattern: str = "",
    definition: dict[str, Any] | None = None,
    priority: float = 0,
    apply_to: str = "all",
    age: int = 1,
) -> Policy:
    return Policy(
        "/",
        name,
        pattern,
        apply_to,
        {"max-length": 1} if definition is None else definition,
        priority,
        age,
        compile_pattern(pattern),
    )


def chosen(policies: list[Policy], name: str = "q", kind: Any = "queue") -> str | None:
    found = PolicySet(policies).matching(name, kind)
    return found.name if found is not None else None


class TestMatching:
    def test_the_highest_priority_wins(self) -> None:
        low, high = policy("low", priority=1), policy("high", priority=1.5)
        assert chosen([low, high]) == chosen([high, low]) == "high"
        assert chosen([policy("zero"), policy("negative", priority=-1)]) == "zero"

    def test_among_equals_the_older_name_wins(self) -> None:
        older, younger = policy("z", age=1), policy("a", age=2)
        assert chosen([older, younger]) == chosen([younger, older]) == "z"

    def test_the_pattern_is_searched_and_knows_case(self) -> None:
        assert chosen([policy(pattern="rder")], "orders") == "p"
        assert chosen([policy(pattern="^rder")], "orders") is None
        assert chosen([policy(pattern="RDER")], "orders") is None

    @pytest.mark.parametrize(
        ("apply_to", "kind", "applies"),
        [
            ("queues", "queue", True),
            ("queues", "exchange", False),
            ("exchanges", "exchange", True),
            ("exchanges", "queue", False),
            ("all", "queue", True),
            ("all", "exchange", True),
        ],
    )
    def test_the_kind_counts(self, apply_to: str, kind: str, applies: bool) -> None:
        assert (chosen([policy(apply_to=apply_to)], kind=kind) == "p") is applies

    @pytest.mark.parametrize(
        "key",
        [
            "max-age",
            "stream-max-segment-size-bytes",
            "queue-leader-locator",
            "initial-cluster-size",
            "dead-letter-strategy",
            "max-in-memory-length",
            "max-in-memory-bytes",
        ],
    )
    def test_a_policy_for_another_queue_type_is_skipped_whole(self, key: str) -> None:
        foreign = policy("foreign", definition={"max-length": 1, key: 1}, priority=9)
        assert chosen([foreign, policy("next")]) == "next"
        assert chosen([foreign, policy("next")], kind="exchange") == "foreign"

    def test_mirroring_keys_are_for_classic_queues(self) -> None:
        assert chosen([policy(definition={"ha-mode": "all"})]) == "p"


class TestMergedDefinition:
    def test_without_policies_it_is_empty(self) -> None:
        assert merged_definition(None, None) == {}

    def test_one_alone_counts_as_it_is(self) -> None:
        one = policy(definition={"message-ttl": 5, "overflow": "drop-head"})
        assert merged_definition(one, None) == one.definition
        limit = policy(definition={"max-length": 5})
        assert merged_definition(None, limit) == limit.definition

    def test_of_both_the_smaller_value_counts(self) -> None:
        user = policy(definition={"message-ttl": 5, "max-length": 10, "overflow": "drop-head"})
        operator = policy(definition={"message-ttl": 7, "max-length": 3, "expires": 9})
        assert merged_definition(user, operator) == {
            "message-ttl": 5,
            "max-length": 3,
            "overflow": "drop-head",
            "expires": 9,
        }


QUORUM = QueueType.QUORUM


class TestQuorumQueues:
    def settings(self, definition: dict[str, Any], **declared: Any) -> QueueSettings:
        return effective_arguments(QueueArguments(type=QUORUM, **declared), definition)

    @pytest.mark.parametrize(
        ("attribute", "key"),
        [
            ("message_ttl_ms", "message-ttl"),
            ("max_length", "max-length"),
            ("max_length_bytes", "max-length-bytes"),
            ("delivery_limit", "delivery-limit"),
        ],
    )
    @given(argument=st.none() | st.integers(0, 5), limit=st.none() | st.integers(0, 5))
    def test_of_limits_the_smaller_counts(
        self, attribute: str, key: str, argument: int | None, limit: int | None
    ) -> None:
        settings = self.settings({} if limit is None else {key: limit}, **{attribute: argument})
        given_values = [value for value in (argument, limit) if value is not None]
        assert getattr(settings, attribute) == min(given_values, default=None)

    def test_a_text_as_delivery_limit_gives_way_to_a_policy(self) -> None:
        assert (
            self.settings({"delivery-limit": 5}, delivery_limit=NEVER_REACHED).delivery_limit == 5
        )

    def test_the_policy_decides_on_expiry_overflow_and_locator(self) -> None:
        declared = {"expires_ms": 1, "overflow": "reject-publish", "queue_leader_locator": "random"}
        policies = {"expires": 9, "overflow": "drop-head", "queue-leader-locator": "client-local"}
        settings = self.settings(policies, **declared)
        assert (settings.expires_ms, settings.overflow) == (9, "drop-head")
        assert settings.queue_master_locator == "client-local"
        assert self.settings({}, **declared).queue_master_locator == "min-masters"

    def test_the_argument_decides_on_dead_letters(self) -> None:
        policies = {
            "dead-letter-exchange": "p",
            "dead-letter-routing-key": "p",
            "dead-letter-strategy": "at-least-once",
        }
        settings = self.settings(policies, dead_letter_exchange="a")
        assert (settings.dead_letter_exchange, settings.dead_letter_routing_key) == ("a", "p")
        assert settings.dead_letter_strategy == "at-least-once" and not settings.keeps_dead
        assert self.settings({**policies, "overflow": "reject-publish"}).keeps_dead

    def test_reject_publish_dlx_is_drop_head(self) -> None:
        assert self.settings({}, overflow="reject-publish-dlx").overflow == "drop-head"

    @pytest.mark.parametrize("key", sorted(NOT_FOR[QUORUM]))
    def test_a_policy_for_other_queues_is_passed_over(self, key: str) -> None:
        other = policy("other", definition={key: 1}, priority=9)
        meant = policy("meant", definition={"dead-letter-strategy": "at-least-once"})
        assert PolicySet([other, meant]).matching("q", "queue", QUORUM) is meant
        assert PolicySet([meant]).matching("q", "queue") is None


class TestEffectiveArguments:
    def test_nothing_set_gives_the_defaults(self) -> None:
        assert effective_arguments(QueueArguments(), {}) == QueueSettings()

    @pytest.mark.parametrize(
        ("attribute", "key"),
        [
            ("message_ttl_ms", "message-ttl"),
            ("expires_ms", "expires"),
            ("max_length", "max-length"),
            ("max_length_bytes", "max-length-bytes"),
        ],
    )
    @given(
        argument=st.none() | st.integers(0, 5),
        user=st.none() | st.integers(0, 5),
        operator=st.none() | st.integers(0, 5),
    )
    def test_of_limits_the_smallest_counts(
        self, attribute: str, key: str, argument: int | None, user: int | None, operator: int | None
    ) -> None:
        given_values = [value for value in (argument, user, operator) if value is not None]
        definition = merged_definition(
            policy(definition={} if user is None else {key: user}),
            policy(definition={} if operator is None else {key: operator}),
        )
        settings = effective_arguments(QueueArguments(**{attribute: argument}), definition)
        assert getattr(settings, attribute) == min(given_values, default=None)

    @pytest.mark.parametrize(
        ("attribute", "key", "argument", "value"),
        [
            ("overflow", "overflow", "reject-publish", "reject-publish-dlx"),
            ("dead_letter_exchange", "dead-letter-exchange", "", "x"),
            ("dead_letter_routing_key", "dead-letter-routing-key", "", "k"),
            ("queue_mode", "queue-mode", "default", "lazy"),
            ("queue_version", "queue-version", 1, 2),
            ("queue_master_locator", "queue-master-locator", "client-local", "random"),
        ],
    )
    def test_of_everything_else_the_argument_counts(
        self, attribute: str, key: str, argument: Any, value: Any
    ) -> None:
        alone = effective_arguments(QueueArguments(), {key: value})
        assert getattr(alone, attribute) == value
        both = effective_arguments(QueueArguments(**{attribute: argument}), {key: value})
        assert getattr(both, attribute) == argument

    def test_keys_are_independent(self) -> None:
        settings = effective_arguments(
            QueueArguments(overflow="reject-publish"),
            {"max-length": 5, "dead-letter-routing-key": "k"},
        )
        assert settings == QueueSettings(
            max_length=5, overflow="reject-publish", dead_letter_routing_key="k"
        )

    def test_what_no_policy_can_set_comes_from_the_arguments(self) -> None:
        declared = QueueArguments(max_priority=0, single_active_consumer=True)
        assert effective_arguments(declared, {"max-length": 1}) == QueueSettings(
            max_length=1, max_priority=0, single_active_consumer=True
        )


class TestPolicies:
    @pytest.mark.parametrize(
        ("change", "text"),
        [
            (
                {"pattern": "("},
                'pattern should be regular expression but is invalid: {"missing )",1}',
            ),
            ({"pattern": 5}, "pattern should be a binary, actually was 5"),
            ({"definition": {}}, "no policy provided"),
            ({"priority": "3"}, 'priority should be a number, actually was <<"3">>'),
            ({"priority": True}, "priority should be a number, actually was true"),
            ({"priority": None}, "priority should be a number, actually was null"),
            (
                {"apply_to": "x"},
                "apply-to 'x' unrecognised; should be 'queues', 'exchanges' or 'all'",
            ),
        ],
    )
    def test_what_is_wrong_is_named_and_nothing_set(
        self, policies: Policies, change: dict[str, Any], text: str
    ) -> None:
        arguments = {"pattern": ".*", "definition": {"max-length": 1}} | change
        with pytest.raises(ValidationFailed) as refused:
            policies.set("/", "p", **arguments)
        assert refused.value.text == text
        assert policies.of_vhost("/") == []

    def test_the_vhost_must_exist(self, policies: Policies) -> None:
        with pytest.raises(NoSuchVhost):
            policies.set("nowhere", "p", ".*", {"max-length": 1})

    def test_policies_and_operator_policies_apply_together(self, policies: Policies) -> None:
        policies.set("/", "user", "^q", {"max-length": 10, "overflow": "reject-publish"}, 1.5)
        policies.set("/", "limit", "^q", {"max-length": 5}, operator=True)
        applied = policies.applied("/", "q1", "queue")
        assert (applied.policy, applied.operator_policy) == ("user", "limit")
        assert applied.definition == {"max-length": 5, "overflow": "reject-publish"}
        other = policies.applied("other", "q1", "queue")
        assert (other.policy, other.operator_policy, other.definition) == (None, None, {})
        assert policies.queue_settings("/", "q1", QueueArguments(max_length=3)) == QueueSettings(
            max_length=3, overflow="reject-publish"
        )

    def test_the_alternate_exchange_comes_from_a_policy_for_exchanges(
        self, policies: Policies
    ) -> None:
        policies.set("/", "ae", "^x", {"alternate-exchange": "lost"}, apply_to="exchanges")
        assert policies.alternate_exchange("/", "x1") == "lost"
        assert policies.alternate_exchange("/", "y") is None

    def test_a_replaced_policy_keeps_its_age_and_a_cleared_one_does_not(
        self, policies: Policies, store: VolatileMetadataStore
    ) -> None:
        for name in ("z", "a"):
            policies.set("/", name, "", {"max-length": 1})
        policies.set("/", "z", "", {"max-length": 2})
        assert policies.applied("/", "q", "queue").policy == "z"
        assert Policies(store).applied("/", "q", "queue").policy == "z"
        policies.clear("/", "z")
        policies.set("/", "z", "", {"max-length": 2})
        assert policies.applied("/", "q", "queue").policy == "a"

    def test_priorities_are_shown_as_they_were_given(self, policies: Policies) -> None:
        for priority in (0, 1.5, -2):
            policies.set("/", "p", "", {"max-length": 1}, priority)
            shown = policies.get("/", "p").priority
            assert shown == priority and type(shown) is type(priority)

    def test_all_are_listed_by_vhost_and_name(self, policies: Policies) -> None:
        for vhost, name in (("other", "a"), ("/", "b"), ("/", "a")):
            policies.set(vhost, name, "", {"max-length": 1})
        policies.set("/", "o", "", {"max-length": 1}, operator=True)
        assert [(p.vhost, p.name) for p in policies.all()] == [
            ("/", "a"),
            ("/", "b"),
            ("other", "a"),
        ]
        assert [p.name for p in policies.all(operator=True)] == ["o"]

    def test_clearing_what_is_not_there_is_refused(self, policies: Policies) -> None:
        policies.set("/", "p", "", {"max-length": 1}, operator=True)
        with pytest.raises(NotThere, match="Parameter does not exist"):
            policies.clear("/", "p")
        policies.clear("/", "p", operator=True)
        assert policies.of_vhost("/", operator=True) == []

    def test_watchers_hear_once_the_change_can_be_seen(
        self, policies: Policies, store: VolatileMetadataStore
    ) -> None:
        seen: list[tuple[str, str | None]] = []
        policies.watch(
            lambda vhost: seen.append((vhost, policies.applied(vhost, "q", "queue").policy))
        )
        policies.set("/", "p", "", {"max-length": 1})
        policies.set("other", "o", "", {"max-length": 1}, operator=True)
        store.transact([Write(("policy", "/", "p"), None)])
        assert seen == [("/", "p"), ("other", None), ("/", None)]


def test_policies_that_come_and_go_are_those_that_are_stored() -> None:
    """They are kept in order one by one, and are at any moment what the store has."""
    random = Random(1)
    store = VolatileMetadataStore()
    store.transact([Write(("vhost", "/"), VirtualHostRecord())])
    policies = Policies(store)
    for _ in range(300):
        name, operator = f"p{random.randrange(8)}", random.random() < 0.3
        if random.random() < 0.7:
            pattern, priority = random.choice(("^a", "b$", "")), random.randrange(3)
            policies.set("/", name, pattern, {"max-length": 1}, priority, operator=operator)
        else:
            with suppress(NotThere):
                policies.clear("/", name, operator=operator)
        stored = [one for one in Policies(store).all(operator=operator) if one.vhost == "/"]
        in_order = sorted(stored, key=lambda one: (-one.priority, one.age, one.name))
        found = policies.of_vhost("/", operator=operator)
        assert [(one.name, one.age) for one in found] == [(one.name, one.age) for one in in_order]
        first = next((one.name for one in in_order if one.expression.search("ab")), None)
        applied = policies.applied("/", "ab", "queue")
        assert (applied.operator_policy if operator else applied.policy) == first
    assert policies.cost_us("/") >= APPLY_US
