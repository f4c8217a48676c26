"""How far messages and bindings go, and what they are told of their way."""

from __future__ import annotations

from typing import Any

import pytest

from warren.amqp.content_codec import AmqpContentCodec
from warren.amqp.field_table import encode_table
from warren.client.events import Delivered
from warren.core.errors import PreconditionFailed
from warren.core.exchanges.binding import Binding
from warren.core.exchanges.exchange import make_exchange
from warren.core.exchanges.federation_hops import HopBroker, HopRule, hop_rule
from warren.core.field import Field, Table, from_json, long, longstr, to_json
from warren.federation.bindings import Way, carried
from warren.federation.marking import Marker

CODEC = AmqpContentCodec()
HERE, THERE, ELSEWHERE = (
    HopBroker("here", "/"),
    HopBroker("there", "/"),
    HopBroker("elsewhere", "v"),
)


def passed(*brokers: HopBroker, name: str = "x-received-from", **more: Any) -> Table:
    tables: list[Table] = [
        {"cluster-name": longstr(one.cluster), "vhost": longstr(one.vhost), **more}
        for one in brokers
    ]
    return {name: Field("A", [Field("F", table) for table in tables])}


@pytest.mark.parametrize(
    ("headers", "hops_max", "passes"),
    [
        ({}, 1, True),
        ({}, 0, False),
        ({"x-received-from": longstr("nonsense")}, 1, True),
        (passed(ELSEWHERE), 1, False),
        (passed(ELSEWHERE), 2, True),
        (passed(HERE), 2, False),
        (passed(HopBroker("here", "other")), 2, True),
        (passed(ELSEWHERE, HERE, THERE), 9, False),
    ],
)
def test_message_passes(headers: Table, hops_max: int, passes: bool) -> None:
    assert HopRule(HERE, hops_max).lets_pass(headers) is passes


def test_helper_exchange_asks_the_headers() -> None:
    arguments = {
        "x-max-hops": long(2),
        "x-downstream-name": longstr("here"),
        "x-downstream-vhost": longstr("/"),
    }
    helper = make_exchange("x-federation-upstream", "h", arguments=arguments, random=None)  # type: ignore[arg-type]
    binding = Binding("h", "queue", "q", "", {})
    helper.add(binding)
    assert not helper.by_key_only
    assert list(helper.destinations("k", lambda names: passed(ELSEWHERE), lambda name: None)) == [
        binding
    ]
    assert list(helper.destinations("k", lambda names: passed(HERE), lambda name: None)) == []


@pytest.mark.parametrize("arguments", [{}, {"x-max-hops": longstr("2")}])
def test_helper_exchange_needs_a_number_of_hops(arguments: Table) -> None:
    with pytest.raises(PreconditionFailed):
        hop_rule(arguments)


def bound(key: str, arguments: Table | None = None, queue: str = "q") -> Binding:
    return Binding("x", "queue", queue, key, arguments or {})


def way(hops_max: int = 1) -> Way:
    return Way(HERE, THERE, "/:x A", hops_max)


def from_here(hops: int) -> dict[str, Any]:
    return {"cluster-name": "here", "vhost": "/", "exchange": "/:x A", "hops": hops}


def test_bindings_of_one_key_and_arguments_are_one_upstream() -> None:
    bindings = [bound("a"), bound("a", queue="r"), bound("a", {"n": Field("s", 1)}), bound("b")]
    found = carried(bindings, way())
    assert [key for key, _ in found] == ["a", "a", "b"]
    for (_, _), arguments in found.items():
        shown = to_json(arguments)
        assert shown["x-bound-from"] == [from_here(1)]
        assert arguments["x-bound-from"].value[0].value["hops"].kind == "s"
    # What was there keeps its type.
    assert list(found.values())[1]["n"] == Field("s", 1)


@pytest.mark.parametrize(
    ("earlier", "hops_before", "hops_max", "hops"),
    [
        ((ELSEWHERE,), 3, 5, 2),
        ((ELSEWHERE,), 3, 1, 1),
        ((ELSEWHERE,), 1, 5, None),
        # It came from there.
        ((THERE,), 3, 5, None),
        ((ELSEWHERE, THERE), 3, 5, None),
        ((), 0, 0, None),
        ((), 0, -1, None),
    ],
)
def test_hops_of_a_binding_run_out(
    earlier: tuple[HopBroker, ...], hops_before: int, hops_max: int, hops: int | None
) -> None:
    before = passed(*earlier, name="x-bound-from", hops=Field("s", hops_before)) if earlier else {}
    found = list(carried([bound("a", before)], way(hops_max)).values())
    if hops is None:
        assert found == []
        return
    shown = to_json(found[0])["x-bound-from"]
    assert shown[0] == from_here(hops)
    assert len(shown) == 1 + len(earlier)


# Messages


def delivered(headers: Table, redelivered: bool = False) -> Delivered:
    header = CODEC.content_header(0, headers)
    return Delivered(1, 1, redelivered, b"x", b"k", header, b"")


def marker(*, keeps_user: bool = False) -> Marker:
    return Marker(CODEC, encode_table, keeps_user)


def headers_of(header: bytes) -> Any:
    return to_json(CODEC.headers(header))


def test_message_of_an_exchange_says_where_it_was_the_newest_first() -> None:
    before = {**passed(ELSEWHERE), "n": Field("u", 7)}
    header = marker().of_exchange(delivered(before, redelivered=True), "amqp://up", "x", THERE)
    assert CODEC.headers(header)["n"] == Field("u", 7)
    assert headers_of(header)["x-received-from"] == [
        {
            "uri": "amqp://up",
            "exchange": "x",
            "redelivered": True,
            "cluster-name": "there",
            "vhost": "/",
        },
        {"cluster-name": "elsewhere", "vhost": "v"},
    ]


USER = b"\x00\x3c\0\0" + bytes(8) + b"\x00\x10\x03ann"
"""A content header with a `user_id`, for an empty body."""


@pytest.mark.parametrize("keeps_user", [True, False])
def test_user_id_stays_where_it_is_to_stay(keeps_user: bool) -> None:
    message = delivered({})._replace(header=USER)
    header = marker(keeps_user=keeps_user).of_exchange(message, "amqp://up", "x", THERE)
    assert ("user_id" in CODEC.as_table(header)) is keeps_user


def test_message_of_a_queue_counts_its_visits() -> None:
    message = delivered({"CC": Field("A", [longstr("c")])})
    for uri, times in (("amqp://one", 1), ("amqp://two", 1), ("amqp://one", 2)):
        header = marker().of_queue(message, uri, "q")
        (newest, *_) = headers_of(header)["x-received-from"]
        assert (newest["uri"], newest["queue"], newest["visit-count"]) == (uri, "q", times)
        message = message._replace(header=header, exchange=b"", routing_key=b"q")
    headers = headers_of(message.header)
    assert [entry["uri"] for entry in headers["x-received-from"]] == ["amqp://one", "amqp://two"]
    assert (headers["x-original-exchange"], headers["x-original-routing-key"]) == ("x", "k")
    assert (headers["x-original-cc"], "CC" in headers) == (["c"], False)


def test_trace_that_is_none_is_replaced() -> None:
    before = from_json({"x-received-from": "nonsense"})
    header = marker().of_exchange(delivered(before), "amqp://up", "x", THERE)
    assert len(headers_of(header)["x-received-from"]) == 1
