"""The queues that a message reaches: reference 3, the routing table, e2e and alternates."""

from typing import Any

import pytest

from warren.compat_tests.field_table import Typed
from warren.compat_tests.names import Names
from warren.compat_tests.raw_client import RawChannel

AREA = "Routing"


def routed(
    ch: RawChannel, exchange: str, key: str, queues: list[str], **properties: Any
) -> list[int]:
    """Publishes one message; returns the number of copies in each of the queues."""
    ch.publish(b"m", key, exchange, **properties)
    ch.ping()
    return [len(ch.bodies(queue)) for queue in queues]


def exchange_of(ch: RawChannel, names: Names, type: str) -> str:
    """A new exchange, which is deleted with its last binding."""
    exchange = names.new()
    ch.declare_exchange(exchange, type, auto_delete=True)
    return exchange


def test_default_exchange_routes_by_queue_name(ch: RawChannel) -> None:
    queue = ch.own_queue()
    ch.publish(b"m", queue)
    message = ch.got(queue, b"m")
    assert (message["exchange"], message["routing_key"]) == ("", queue)


def test_direct_exchange_wants_the_exact_key(ch: RawChannel, names: Names) -> None:
    exchange, queue = exchange_of(ch, names, "direct"), ch.own_queue()
    ch.bind(queue, exchange, "Key")
    assert routed(ch, exchange, "Key", [queue]) == [1]
    for other in ("key", "Key ", "Ke", "Key.x", "*", ""):
        assert routed(ch, exchange, other, [queue]) == [0]


def test_fanout_exchange_ignores_keys(ch: RawChannel, names: Names) -> None:
    exchange, queues = exchange_of(ch, names, "fanout"), [ch.own_queue() for _ in range(3)]
    for number, queue in enumerate(queues):
        ch.bind(queue, exchange, f"key {number}")
    assert routed(ch, exchange, "other", queues) == [1, 1, 1]


TOPICS = [
    ("a.b.c", "a.b.c", True),
    ("a.b.c", "a.b", False),
    ("a.b", "a.b.c", False),
    ("A.b", "a.b", False),
    ("*", "a", True),
    ("*", "", False),
    ("*", "a.b", False),
    ("*.*", "a.b", True),
    ("*.*", "a.", True),
    ("*.*", ".", True),
    ("*.*", "a", False),
    ("a.*.b", "a..b", True),
    ("a.*.b", "a.x.b", True),
    ("a.*.b", "a.b", False),
    ("#", "", True),
    ("#", "a", True),
    ("#", "a.b.c", True),
    ("", "", True),
    ("", "a", False),
    ("a.#", "a", True),
    ("a.#", "a.b.c", True),
    ("a.#", "b.a", False),
    ("a.#", "ab", False),
    ("#.b", "b", True),
    ("#.b", "a.a.b", True),
    ("#.b", "a.b.c", False),
    ("a.#.c", "a.c", True),
    ("a.#.c", "a.x.y.c", True),
    ("a.#.c", "a.x.y", False),
    ("#.#", "a", True),
    ("#.*.#", "a", True),
    ("#.*.#", "", False),
    ("*.#.*", "a", False),
    ("*.#.*", "a.b", True),
    ("#.a.#.b.#", "x.a.y.z.b", True),
    ("#.a.#.b.#", "x.b.a", False),
    ("a*", "a*", True),
    ("a*", "ab", False),
    ("a#", "ab", False),
    ("a.**", "a.x", False),
]


@pytest.mark.parametrize(("pattern", "key", "matches"), TOPICS)
def test_topic_exchange_matches_word_by_word(
    ch: RawChannel, names: Names, pattern: str, key: str, matches: bool
) -> None:
    exchange, queue = exchange_of(ch, names, "topic"), ch.own_queue()
    ch.bind(queue, exchange, pattern)
    assert routed(ch, exchange, key, [queue]) == [int(matches)]


def test_topic_exchange_forgets_only_the_pattern_unbound(ch: RawChannel, names: Names) -> None:
    exchange, queue, other = exchange_of(ch, names, "topic"), ch.own_queue(), ch.own_queue()
    for pattern in ("a.*", "a.#", "a.b"):
        ch.bind(queue, exchange, pattern)
    ch.bind(other, exchange, "a.*")
    for pattern, left in (("a.*", 1), ("a.b", 1), ("a.#", 0)):
        ch.call("queue.unbind", queue=queue, exchange=exchange, routing_key=pattern)
        assert routed(ch, exchange, "a.b", [queue, other]) == [left, 1]


HEADERS: list[tuple[dict[str, object], dict[str, object], bool]] = [
    ({"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 3}, True),
    ({"a": 1, "b": "x"}, {"a": 1}, False),
    ({"x-match": "all", "a": 1, "b": "x"}, {"a": 1, "b": "y"}, False),
    ({"x-match": "all"}, {}, True),
    ({}, {"a": 1}, True),
    ({"x-match": "any"}, {"a": 1}, False),
    ({"x-match": "any", "a": 1, "b": "x"}, {"b": "x"}, True),
    ({"x-match": "any", "a": 1, "b": "x"}, {"a": 2, "b": "y"}, False),
    ({"x-match": "all", "x-key": 1, "a": 1}, {"a": 1}, True),
    ({"x-match": "all-with-x", "x-key": 1, "a": 1}, {"a": 1}, False),
    ({"x-match": "all-with-x", "x-key": 1, "a": 1}, {"a": 1, "x-key": 1}, True),
    ({"x-match": "any", "x-key": 1}, {"x-key": 1}, False),
    ({"x-match": "any-with-x", "x-key": 1}, {"x-key": 1}, True),
    ({"a": None}, {"a": "whatever"}, True),
    ({"a": None}, {"b": "whatever"}, False),
    ({"a": Typed("s", 5)}, {"a": Typed("l", 5)}, True),
    ({"a": Typed("b", 5)}, {"a": Typed("d", 5.0)}, True),
    ({"a": Typed("d", 5.5)}, {"a": 5}, False),
    ({"a": True}, {"a": 1}, False),
    ({"a": "5"}, {"a": 5}, False),
    ({"a": "x"}, {"a": "X"}, False),
    ({"a": Typed("T", 5)}, {"a": 5}, True),
    ({"a": 5.0}, {"a": Typed("T", 5)}, True),
    ({"a": "x"}, {"a": Typed("x", b"x")}, True),
    ({"a": {}}, {"a": []}, True),
    ({"a": [1]}, {"a": [1]}, True),
    ({"a": [1]}, {"a": [1.0]}, False),
    ({"a": {"b": 1}}, {"a": {"b": Typed("l", 1)}}, False),
    ({"a": Typed("D", (0, 1))}, {"a": 1}, False),
]


@pytest.mark.parametrize(("binding", "headers", "matches"), HEADERS, ids=range(len(HEADERS)))
def test_headers_exchange_compares_headers(
    ch: RawChannel,
    names: Names,
    binding: dict[str, object],
    headers: dict[str, object],
    matches: bool,
) -> None:
    exchange, queue = exchange_of(ch, names, "headers"), ch.own_queue()
    ch.bind(queue, exchange, "ignored", binding)
    assert routed(ch, exchange, "other", [queue], headers=headers) == [int(matches)]


def test_message_without_headers_has_an_empty_table_to_match(ch: RawChannel, names: Names) -> None:
    exchange, all_of, any_of = exchange_of(ch, names, "headers"), ch.own_queue(), ch.own_queue()
    ch.bind(all_of, exchange, "", {"x-match": "all"})
    ch.bind(any_of, exchange, "", {"x-match": "any", "a": 1})
    assert routed(ch, exchange, "", [all_of, any_of]) == [1, 0]


def test_exchanges_bound_to_exchanges_route_with_the_original_key(
    ch: RawChannel, names: Names
) -> None:
    outer, inner, queue = (
        exchange_of(ch, names, "direct"),
        exchange_of(ch, names, "topic"),
        ch.own_queue(),
    )
    ch.bind_exchange(inner, outer, "a.b")
    ch.bind(queue, inner, "a.*")
    ch.publish(b"m", "a.b", outer)
    ch.ping()
    message = ch.got(queue, b"m")
    assert (message["exchange"], message["routing_key"]) == (outer, "a.b")


def test_several_ways_to_a_queue_make_one_copy(ch: RawChannel, names: Names) -> None:
    outer, inner, queue = (
        exchange_of(ch, names, "fanout"),
        exchange_of(ch, names, "fanout"),
        ch.own_queue(),
    )
    ch.bind_exchange(inner, outer)
    ch.bind(queue, inner)
    ch.bind(queue, outer)
    assert routed(ch, outer, "", [queue]) == [1]


def test_exchanges_bound_in_a_circle_route_once(ch: RawChannel, names: Names) -> None:
    one, two, queue = names.new(), names.new(), ch.own_queue()
    for exchange in (one, two):
        ch.declare_exchange(exchange, "fanout")
        ch.bind(queue, exchange)
    ch.bind_exchange(one, two)
    ch.bind_exchange(two, one)
    ch.bind_exchange(one, one)
    assert routed(ch, one, "", [queue]) == [1]
    ch.call("exchange.unbind", destination=one, source=two)
    assert routed(ch, two, "", [queue]) == [1]


def test_message_nobody_wants_takes_the_alternate_exchange(ch: RawChannel, names: Names) -> None:
    exchange, alternate, wanted, rest = names.new(), names.new(), ch.own_queue(), ch.own_queue()
    ch.declare_exchange(alternate, "fanout")
    ch.declare_exchange(exchange, "direct", arguments={"alternate-exchange": alternate})
    ch.bind(wanted, exchange, "key")
    ch.bind(rest, alternate)
    assert routed(ch, exchange, "key", [wanted, rest]) == [1, 0]
    ch.publish(b"m", "other", exchange, mandatory=True)
    ch.ping()
    message = ch.got(rest, b"m")
    assert (message["exchange"], message["routing_key"]) == (exchange, "other")
    ch.expect_silence()


def test_alternate_exchanges_form_a_chain(ch: RawChannel, names: Names) -> None:
    one, two, three, queue = names.new(), names.new(), names.new(), ch.own_queue()
    ch.declare_exchange(one, "direct", arguments={"alternate-exchange": two})
    ch.declare_exchange(two, "direct", arguments={"alternate-exchange": three})
    ch.declare_exchange(three, "fanout")
    ch.bind(queue, three)
    assert routed(ch, one, "key", [queue]) == [1]


def test_alternate_exchanges_in_a_circle_end(ch: RawChannel, names: Names) -> None:
    one, two = names.new(), names.new()
    ch.declare_exchange(one, "direct", arguments={"alternate-exchange": two})
    ch.declare_exchange(two, "direct", arguments={"alternate-exchange": one})
    ch.publish(b"m", "key", one, mandatory=True)
    assert ch.expect("basic.return")["reply_code"] == 312


def test_missing_alternate_exchange_drops_silently(ch: RawChannel, names: Names) -> None:
    exchange = names.new()
    ch.declare_exchange(exchange, "direct", arguments={"alternate-exchange": "cf-no-such-exchange"})
    ch.publish(b"m", "key", exchange)
    ch.expect_silence()


def test_alternate_exchange_may_be_internal(ch: RawChannel, names: Names) -> None:
    exchange, internal, queue = names.new(), names.new(), ch.own_queue()
    ch.declare_exchange(internal, "fanout", internal=True)
    ch.declare_exchange(exchange, "direct", arguments={"alternate-exchange": internal})
    ch.bind(queue, internal)
    assert routed(ch, exchange, "key", [queue]) == [1]


def test_cc_and_bcc_are_further_routing_keys(ch: RawChannel) -> None:
    to, cc, bcc = ch.own_queue(), ch.own_queue(), ch.own_queue()
    ch.publish(b"m", to, headers={"CC": [cc], "BCC": [bcc], "other": 1})
    ch.ping()
    for queue in (to, cc, bcc):
        message = ch.got(queue, b"m")
        assert message["routing_key"] == to
        assert message.headers == {"CC": [cc], "other": 1}


def test_one_queue_by_several_keys_gets_one_copy(ch: RawChannel) -> None:
    queue = ch.own_queue()
    assert routed(ch, "", queue, [queue], headers={"CC": [queue, queue], "BCC": [queue]}) == [1]


def test_items_of_cc_that_are_no_strings_are_ignored(ch: RawChannel) -> None:
    queue = ch.own_queue()
    assert routed(ch, "", "nowhere", [queue], headers={"CC": [5, True, queue]}) == [1]


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_cc_that_is_no_array_is_refused(ch: RawChannel, header: str) -> None:
    ch.publish(b"m", "nowhere", headers={header: "queue"})
    ch.expect_close(
        406, f'invalid message: {{unacceptable_type_in_header,"{header}",longstr}}', (60, 40)
    )


def test_cc_matches_patterns_of_a_topic_exchange(ch: RawChannel, names: Names) -> None:
    exchange, queue = exchange_of(ch, names, "topic"), ch.own_queue()
    ch.bind(queue, exchange, "a.*")
    assert routed(ch, exchange, "nothing", [queue], headers={"CC": ["a.b"]}) == [1]


def plugin_exchange(ch: RawChannel, names: Names, type: str, **fields: object) -> str:
    """An exchange of a type that a plugin brings; skips the test if the broker has no such type."""
    exchange = names.new()
    ch.send("exchange.declare", exchange=exchange, type=type, **fields)
    method = ch.client.next_either(ch.number)
    if method.name == "connection.close":
        assert method["reply_code"] == 503, method
        pytest.skip(f"the broker has no exchange type {type}")
    assert method.name == "exchange.declare-ok", method
    return exchange


def test_consistent_hash_exchange_picks_one_queue_per_key(ch: RawChannel, names: Names) -> None:
    exchange = plugin_exchange(ch, names, "x-consistent-hash")
    queues = [ch.own_queue() for _ in range(3)]
    for queue in queues:
        ch.bind(queue, exchange, "10")
    for key in map(str, range(100)):
        for _ in range(2):
            ch.publish(key.encode(), key, exchange)
    ch.ping()
    shares = [ch.bodies(queue) for queue in queues]
    assert sum(map(len, shares)) == 200
    assert all(shares), "each queue has a share of a hundred keys"
    assert all(share.count(body) == 2 for share in shares for body in share)


def test_consistent_hash_exchange_may_hash_a_header(ch: RawChannel, names: Names) -> None:
    exchange = plugin_exchange(ch, names, "x-consistent-hash", arguments={"hash-header": "id"})
    queues = [ch.own_queue() for _ in range(3)]
    for queue in queues:
        ch.bind(queue, exchange, "10")
    for number in range(30):
        ch.publish(b"m", str(number), exchange, headers={"id": "same"})
    ch.ping()
    assert sorted(len(ch.bodies(queue)) for queue in queues) == [0, 0, 30]


@pytest.mark.parametrize(
    ("weight", "text"),
    [
        ("abc", "The binding key must be an integer: "),
        ("0", "The binding key must be greater than 0"),
    ],
    ids=["no number", "zero"],
)
def test_weights_of_a_consistent_hash_exchange_are_positive_numbers(
    ch: RawChannel, names: Names, weight: str, text: str
) -> None:
    exchange, queue = plugin_exchange(ch, names, "x-consistent-hash"), ch.own_queue()
    ch.send("queue.bind", queue=queue, exchange=exchange, routing_key=weight)
    close = ch.expect("channel.close")
    assert close["reply_code"] == 406
    assert close["reply_text"].startswith(f"PRECONDITION_FAILED - {text}")


def test_random_exchange_picks_one_queue_per_message(ch: RawChannel, names: Names) -> None:
    exchange = plugin_exchange(ch, names, "x-random")
    queues = [ch.own_queue() for _ in range(2)]
    for queue in queues:
        ch.bind(queue, exchange, "ignored")
    for _ in range(60):
        ch.publish(b"m", "other", exchange)
    ch.ping()
    shares = [len(ch.bodies(queue)) for queue in queues]
    assert sum(shares) == 60 and all(shares)


def test_modulus_hash_exchange_picks_one_queue_per_key(ch: RawChannel, names: Names) -> None:
    exchange = plugin_exchange(ch, names, "x-modulus-hash")
    queues = [ch.own_queue() for _ in range(3)]
    for queue in queues:
        ch.bind(queue, exchange, "ignored")
    for key in map(str, range(100)):
        for _ in range(2):
            ch.publish(key.encode(), key, exchange)
    ch.ping()
    shares = [ch.bodies(queue) for queue in queues]
    assert sum(map(len, shares)) == 200
    assert all(shares), "each queue has a share of a hundred keys"
    assert all(share.count(body) == 2 for share in shares for body in share)
