"""The effects of policies on queues and exchanges: reference on policies, section 1.

The tests need an administrator; each works in a vhost of its own. A policy reaches a queue a moment
after it is set, so tests wait for its effect.
"""

import time

import pytest

from warren.compat_tests.admin import Admin, Refused
from warren.compat_tests.factory import Raw
from warren.compat_tests.raw_client import RawChannel
from warren.compat_tests.raw_connection import PATIENCE_S, Surprise

AREA = "Policies"


@pytest.fixture
def own(raw: Raw, own_vhost: str) -> RawChannel:
    """A channel in the vhost of the test's own."""
    return raw(vhost=own_vhost).channel()


def effective(admin: Admin, vhost: str, wanted: dict[str, object]) -> None:
    """Wait until the API shows this merged definition for the queue q, which may take seconds."""
    deadline = time.monotonic() + 2 * PATIENCE_S
    while True:
        got = admin.call("GET", "queues", vhost, "q").get("effective_policy_definition") or {}
        if got == wanted:
            return
        assert time.monotonic() < deadline, f"wanted {wanted}, got {got}"
        time.sleep(0.1)


def keeps(ch: RawChannel, wanted: int, queue: str = "q") -> None:
    """Publish ten messages again and again, until the queue keeps `wanted` of them."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        ch.call("queue.purge", queue=queue)
        for _ in range(10):
            ch.publish(b"m", queue)
        ch.ping()
        if (ready := ch.ready(queue)) == wanted:
            return
        if time.monotonic() > deadline:
            raise Surprise(f"wanted {queue} to keep {wanted} of ten messages, it keeps {ready}")


def test_policy_holds_for_queues_declared_later(
    own: RawChannel, admin: Admin, own_vhost: str
) -> None:
    admin.put_policy(own_vhost, "p", "^q", {"max-length": 3})
    own.declare("q")
    own.declare("other")
    keeps(own, 3)
    keeps(own, 10, "other")


def test_policy_is_applied_to_and_taken_from_a_living_queue(
    own: RawChannel, admin: Admin, own_vhost: str
) -> None:
    own.declare("q")
    keeps(own, 10)
    admin.put_policy(own_vhost, "p", "^q$", {"max-length": 2})
    own.becomes_ready("q", 2)
    keeps(own, 2)
    admin.call("DELETE", "policies", own_vhost, "p")
    keeps(own, 10)


def test_excess_is_dead_lettered_when_a_policy_lowers_the_limit(
    own: RawChannel, admin: Admin, own_vhost: str
) -> None:
    own.declare("dead")
    own.declare("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    for number in range(5):
        own.publish(b"%d" % number, "q")
    own.ping()
    admin.put_policy(own_vhost, "p", "^q$", {"max-length": 2})
    messages = own.arriving("dead", 3)
    assert [message.body for message in messages] == [b"0", b"1", b"2"]
    assert messages[0].headers["x-first-death-reason"] == "maxlen"


def test_pattern_is_searched_not_anchored(own: RawChannel, admin: Admin, own_vhost: str) -> None:
    admin.put_policy(own_vhost, "p", "idd", {"max-length": 3})
    own.declare("middle")
    keeps(own, 3, "middle")


def test_highest_priority_wins_and_nothing_is_merged(
    own: RawChannel, admin: Admin, own_vhost: str
) -> None:
    admin.put_policy(own_vhost, "low", ".*", {"max-length": 2, "message-ttl": 60000}, priority=1)
    admin.put_policy(own_vhost, "high", "^q$", {"max-length": 5}, priority=1.5)
    own.declare("q")
    keeps(own, 5)


def test_policy_for_exchanges_does_not_touch_queues(
    own: RawChannel, admin: Admin, own_vhost: str
) -> None:
    admin.put_policy(own_vhost, "p", ".*", {"max-length": 1}, apply_to="exchanges")
    own.declare("q")
    keeps(own, 10)


@pytest.mark.parametrize(("argument", "policy", "wanted"), [(3, 6, 3), (6, 3, 3), (4, 4, 4)])
def test_smaller_of_policy_and_argument_limits_the_length(
    own: RawChannel, admin: Admin, own_vhost: str, argument: int, policy: int, wanted: int
) -> None:
    admin.put_policy(own_vhost, "p", "^q$", {"max-length": policy})
    own.declare("q", arguments={"x-max-length": argument})
    keeps(own, wanted)


@pytest.mark.parametrize(("argument", "policy"), [(50, 60000), (60000, 50)])
def test_smaller_of_policy_and_argument_is_the_time_to_live(
    own: RawChannel, admin: Admin, own_vhost: str, argument: int, policy: int
) -> None:
    admin.put_policy(own_vhost, "p", "^q$", {"message-ttl": policy})
    own.declare("q", arguments={"x-message-ttl": argument})
    own.publish(b"m", "q")
    own.becomes_ready("q", 0)


def test_policy_expires_a_queue(own: RawChannel, admin: Admin, own_vhost: str) -> None:
    own.declare("q")
    admin.put_policy(own_vhost, "p", "^q$", {"expires": 100})
    deadline = time.monotonic() + PATIENCE_S
    while own.queue_exists("q"):
        assert time.monotonic() < deadline
        # Each look is a use of the queue, so the looks must be further apart than its expiry.
        time.sleep(0.3)


def test_argument_wins_over_policy_for_overflow(
    own: RawChannel, admin: Admin, own_vhost: str
) -> None:
    admin.put_policy(own_vhost, "p", "^q$", {"max-length": 1, "overflow": "reject-publish"})
    own.declare("q", arguments={"x-overflow": "drop-head"})
    own.declare("q2")
    for body in (b"1", b"2"):
        own.publish(body, "q")
    own.ping()
    assert own.bodies("q") == [b"2"]


def test_policy_and_argument_are_combined_key_by_key(
    own: RawChannel, admin: Admin, own_vhost: str
) -> None:
    admin.put_policy(own_vhost, "p", "^q$", {"max-length": 1})
    own.declare("q", arguments={"x-overflow": "reject-publish"})
    own.call("confirm.select")
    for body in (b"1", b"2"):
        own.publish(body, "q")
    assert sorted(own.confirms(2)) == [("ack", 1), ("nack", 2)]
    assert own.bodies("q") == [b"1"]


def test_policy_gives_a_dead_letter_exchange_and_key(
    own: RawChannel, admin: Admin, own_vhost: str
) -> None:
    own.declare("dead")
    own.bind("dead", "amq.direct", "grave")
    definition = {"dead-letter-exchange": "amq.direct", "dead-letter-routing-key": "grave"}
    admin.put_policy(own_vhost, "p", "^q$", definition)
    own.declare("q")
    own.publish(b"m", "q")
    own.reject(own.got("q", no_ack=False)["delivery_tag"], requeue=False)
    assert own.arriving("dead", 1)[0]["routing_key"] == "grave"


def test_argument_wins_over_policy_for_dead_lettering(
    own: RawChannel, admin: Admin, own_vhost: str
) -> None:
    for queue in ("by-policy", "by-argument"):
        own.declare(queue)
        own.bind(queue, "amq.direct", queue)
    definition = {"dead-letter-exchange": "amq.direct", "dead-letter-routing-key": "by-policy"}
    admin.put_policy(own_vhost, "p", "^q$", definition)
    own.declare(
        "q",
        arguments={
            "x-dead-letter-exchange": "amq.direct",
            "x-dead-letter-routing-key": "by-argument",
        },
    )
    own.publish(b"m", "q")
    own.reject(own.got("q", no_ack=False)["delivery_tag"], requeue=False)
    own.arriving("by-argument", 1)
    assert own.ready("by-policy") == 0


def test_policy_gives_an_alternate_exchange(own: RawChannel, admin: Admin, own_vhost: str) -> None:
    own.declare_exchange("e")
    own.declare("q")
    own.bind("q", "amq.fanout")
    admin.put_policy(
        own_vhost, "p", "^e$", {"alternate-exchange": "amq.fanout"}, apply_to="exchanges"
    )
    deadline = time.monotonic() + PATIENCE_S
    while own.ready("q") == 0:
        assert time.monotonic() < deadline
        own.publish(b"m", "nowhere", "e")
        own.ping()


def test_time_to_live_of_a_policy_is_for_new_messages_only(
    own: RawChannel, admin: Admin, own_vhost: str
) -> None:
    own.declare("q")
    own.publish(b"old", "q")
    own.ping()
    admin.put_policy(own_vhost, "p", "^q$", {"message-ttl": 50})
    deadline = time.monotonic() + PATIENCE_S
    while True:
        own.publish(b"new", "q")
        time.sleep(0.1)
        old = own.got("q", b"old", no_ack=False)
        alone = not own.bodies("q")
        own.nack(old["delivery_tag"])
        if alone:
            break
        assert time.monotonic() < deadline
    own.becomes_ready("q", 1)


def test_operator_policy_takes_the_minimum(own: RawChannel, admin: Admin, own_vhost: str) -> None:
    admin.put_policy(own_vhost, "p", "^q$", {"max-length": 8, "overflow": "drop-head"})
    admin.put_policy(
        own_vhost, "o", "^q$", {"max-length": 3, "message-ttl": 60000}, kind="operator-policies"
    )
    own.declare("q")
    keeps(own, 3)
    admin.put_policy(own_vhost, "o", "^q$", {"max-length": 100}, kind="operator-policies")
    keeps(own, 8)


@pytest.mark.slow
def test_effective_definition_is_policy_and_operator_policy_merged(
    own: RawChannel, admin: Admin, own_vhost: str
) -> None:
    """The arguments of the queue are not part of it."""
    admin.put_policy(own_vhost, "p", "^q$", {"max-length": 8, "overflow": "drop-head"})
    admin.put_policy(
        own_vhost, "o", "^q$", {"max-length": 3, "message-ttl": 60000}, kind="operator-policies"
    )
    own.declare("q", arguments={"x-max-length": 1})
    effective(admin, own_vhost, {"max-length": 3, "message-ttl": 60000, "overflow": "drop-head"})


def test_operator_policy_works_alone_and_limits_arguments(
    own: RawChannel, admin: Admin, own_vhost: str
) -> None:
    admin.put_policy(
        own_vhost, "o", "^q$", {"max-length": 3}, apply_to="queues", kind="operator-policies"
    )
    own.declare("q", arguments={"x-max-length": 8})
    keeps(own, 3)


def test_policy_with_keys_of_other_queue_types_is_passed_over(
    own: RawChannel, admin: Admin, own_vhost: str
) -> None:
    quorum = {"dead-letter-strategy": "at-most-once", "max-length": 1}
    admin.put_policy(own_vhost, "quorum", ".*", quorum, priority=9)
    admin.put_policy(own_vhost, "classic", ".*", {"max-length": 4}, priority=1)
    own.declare("q")
    keeps(own, 4)


def test_exclusive_queues_obey_policies_too(own: RawChannel, admin: Admin, own_vhost: str) -> None:
    admin.put_policy(own_vhost, "p", "^amq\\.gen", {"max-length": 4})
    keeps(own, 4, own.own_queue())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"definition": {}}, "no policy provided"),
        ({"definition": {"max-length": "5"}}, "valid maximum length"),
        ({"definition": {"max-length": -1}}, "valid maximum length"),
        ({"definition": {"expires": 0}}, "valid queue expiry"),
        ({"definition": {"overflow": "spill"}}, "valid overflow value"),
        ({"definition": {"foo": 1}}, "are not recognised policy settings"),
        ({"pattern": "("}, "pattern should be regular expression but is invalid"),
        ({"priority": "3"}, "priority should be a number, actually was"),
        (
            {"apply-to": "x"},
            "apply-to 'x' unrecognised; should be 'queues', 'exchanges' or 'all'",
        ),
        ({"definition": {"ha-mode": "exactly"}}, "takes an integer"),
        ({"definition": {"ha-sync-mode": "automatic"}}, "ha-mode must be specified"),
    ],
    ids=str,
)
def test_bad_policy_is_refused(
    admin: Admin, own_vhost: str, change: dict[str, object], message: str
) -> None:
    body = {"pattern": ".*", "definition": {"max-length": 1}, "priority": 0, "apply-to": "all"}
    with pytest.raises(Refused) as refusal:
        admin.call("PUT", "policies", own_vhost, "p", body={**body, **change})
    assert refusal.value.status == 400
    assert message in refusal.value.body


def test_operator_policy_takes_only_limits(admin: Admin, own_vhost: str) -> None:
    with pytest.raises(Refused) as refusal:
        admin.put_policy(own_vhost, "o", ".*", {"ha-mode": "all"}, kind="operator-policies")
    assert refusal.value.status == 400
    assert "are not recognised policy settings" in refusal.value.body
