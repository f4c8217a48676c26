"""Dead letters that are sent back to where they came from."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from moving import End, until
from pamqp import encode

from warren import Broker
from warren.client.content_header import MalformedContent, header_fields
from warren.shovel.redrive import Back, DecidingDeath, LeftBehind, back

QUEUE, EXCHANGE = Back.QUEUE, Back.EXCHANGE
LAST, FIRST = DecidingDeath.LAST, DecidingDeath.FIRST


def header(headers: dict[str, Any] | None) -> bytes:
    table = b"" if headers is None else encode.field_table(headers)
    flags = 0 if headers is None else 1 << 13
    return b"\0\x3c\0\0" + bytes(8) + flags.to_bytes(2, "big") + table


def died(queue: str, exchange: str = "x", *keys: str) -> dict[str, Any]:
    return {"queue": queue, "exchange": exchange, "routing-keys": list(keys), "count": 1}


DIED_TWICE = {"x-death": [died("second", "", "second"), died("first", "orders", "eu", "us")]}


@pytest.mark.parametrize(
    ("to", "death", "address"),
    [
        (QUEUE, LAST, (b"", b"second")),
        (QUEUE, FIRST, (b"", b"first")),
        (EXCHANGE, LAST, (b"", b"second")),
        (EXCHANGE, FIRST, (b"orders", b"eu")),
    ],
)
def test_x_death_says_where_it_goes(
    to: Back, death: DecidingDeath, address: tuple[bytes, bytes]
) -> None:
    found, octets = back(header(DIED_TWICE), to, death)
    assert found == address
    if (to, death) != (EXCHANGE, FIRST):
        assert octets == header(DIED_TWICE), "nothing else changes"


@pytest.mark.parametrize(
    ("said", "first"),
    [
        ({"x-first-death-queue": "work", "x-first-death-reason": "rejected"}, b"work"),
        ({"x-first-death-queue": "work"}, b"work"),
        ({"x-first-death-queue": "elsewhere", "x-first-death-reason": "rejected"}, b"retry"),
        ({"x-first-death-queue": "work", "x-first-death-reason": "maxlen"}, b"retry"),
        ({"x-first-death-queue": 1}, b"retry"),
        ({}, b"retry"),
    ],
)
def test_a_first_death_that_counted_on_in_a_cycle_is_the_first(
    said: dict[str, Any], first: bytes
) -> None:
    """A queue in which a message dies again stands first in `x-death` then."""
    work = {**died("work"), "count": 2, "reason": "rejected"}
    retry = {**died("retry"), "reason": "expired"}
    cycle = {"x-death": [work, retry], **said}
    assert back(header(cycle), QUEUE, FIRST)[0] == (b"", first)
    assert back(header(cycle), QUEUE, LAST)[0] == (b"", b"work")


def test_further_routing_keys_are_copies_again() -> None:
    _, octets = back(header(DIED_TWICE), EXCHANGE, FIRST)
    assert header_fields(octets).get(b"CC") == encode.encode_table_value(["us"])
    own = {**DIED_TWICE, "CC": ["other"]}
    assert back(header(own), EXCHANGE, FIRST)[1] == header(own)


def test_the_count_of_deliveries_begins_anew() -> None:
    known = {"x-delivery-count": 3, **DIED_TWICE, "other": "stays"}
    _, octets = back(header(known), QUEUE, LAST)
    del known["x-delivery-count"]
    assert octets == header(known)


@pytest.mark.parametrize(
    "headers",
    [
        None,
        {},
        {"x-death": "no list"},
        {"x-death": []},
        {"x-death": ["no table"]},
        {"x-death": [{}]},
        {"x-death": [{"queue": 1, "exchange": "x", "routing-keys": []}]},
        {"x-death": [{"queue": "q" * 256, "exchange": "x", "routing-keys": ["k" * 256]}]},
    ],
)
def test_what_does_not_say_where_it_came_from_is_left(headers: dict[str, Any] | None) -> None:
    for to in Back:
        with pytest.raises(LeftBehind):
            back(header(headers), to, LAST)


def test_what_is_no_header_is_malformed() -> None:
    whole = header(DIED_TWICE)
    for cut in range(len(whole) - 1, 14, -1):
        with pytest.raises((MalformedContent, LeftBehind)):
            back(whole[:cut], EXCHANGE, LAST)


# With a broker


@pytest.fixture
def end(source: End) -> End:
    """A queue `orders` whose dead letters are in `dead`: five, of which the last cannot go back."""
    source.declare("dead")
    source.declare("orders", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    source.channel.exchange_declare("in", "topic", durable=True)
    source.channel.queue_bind("orders", "in", "#")
    for number in range(4):
        source.channel.basic_publish("in", f"eu.{number}", b"%d" % number, mandatory=True)
    for _ in range(4):
        method, _, _ = until(lambda: _got(source))
        source.channel.basic_reject(method.delivery_tag, requeue=False)
    # Dead letters come a turn later.
    source.broker.wait_until(queue="dead", ready=4)
    source.publish("dead", "stranger")
    return source


def _got(end: End) -> Any:
    found = end.channel.basic_get("orders")
    return found if found[0] is not None else None


def redrive(end: End, **body: Any) -> Any:
    """The job when it is over."""
    status, begun = end.api.post("/queues/%2F/dead/redrive", body)
    assert status == 200, begun
    path = f"/message-jobs/%2F/{quote(begun['job'])}"

    def over() -> Any:
        status, job = end.api.get(path)
        assert status == 200, job
        return job if job["state"] not in ("running", "stopping") else None

    return until(over)


@pytest.mark.parametrize("to", ["exchange", "queue"])
def test_dead_letters_go_back_and_what_cannot_stays(end: End, to: str) -> None:
    job = redrive(end, to=to)
    assert (job["state"], job["done"]) == ("completed", 4)
    assert job["left"] == [
        {"reason": "it has no x-death that says where it came from", "messages": 1}
    ]
    found = end.take("orders", 4)
    keys = [f"eu.{number}" for number in range(4)] if to == "exchange" else ["orders"] * 4
    assert [(m.routing_key, body) for m, _, body in found] == [
        (key, b"%d" % number) for number, key in enumerate(keys)
    ]
    assert [p.headers["x-death"][0]["queue"] for _, p, _ in found] == ["orders"] * 4
    assert end.bodies("dead", 1) == ["stranger"]


def test_so_many_go_back_and_no_more(end: End) -> None:
    assert redrive(end, limit=2)["done"] == 2
    assert end.bodies("orders", 2) == ["0", "1"]
    assert end.bodies("dead", 3) == ["2", "3", "stranger"]


def test_a_filter_chooses_and_a_dry_run_only_counts(end: End) -> None:
    chosen = "headers.x-death[0].queue = 'orders' and body in ('1', '2')"
    job = redrive(end, filter=chosen, dry_run=True)
    assert (job["state"], job["done"], job["matched"]) == ("completed", 2, 2)
    assert [sample["payload"] for sample in job["samples"]] == ["1", "2"]
    assert redrive(end, filter=chosen, rate=1000, death="first")["done"] == 2
    assert end.bodies("orders", 2) == ["1", "2"]
    assert end.bodies("dead", 3) == ["0", "3", "stranger"]


def test_what_no_queue_takes_any_more_is_told_why(end: End) -> None:
    end.channel.queue_delete("orders")
    job = redrive(end, to="queue")
    assert job["done"] == 0 and job["left"][0] == {"reason": "no queue takes it", "messages": 4}
    assert end.bodies("dead", 5) == ["0", "1", "2", "3", "stranger"]


def test_what_no_queue_takes_stays_and_a_shovel_that_goes_on_says_why(end: End) -> None:
    end.channel.queue_delete("orders")
    uri = "amqp:///%2F"
    keys = {"src-uri": uri, "src-queue": "dead", "dest-uri": uri, "dest-redrive": "queue"}
    end.shovel("back", keys)
    row = until(lambda: _with_left(end, 5))
    assert row["state"] == "running" and row["messages_moved"] == 0
    assert row["left_because"] in ("it has no x-death that says where it came from", "312 NO_ROUTE")
    end.clear("back")
    end.until_gone("back")
    assert end.bodies("dead", 5) == ["0", "1", "2", "3", "stranger"]


def _with_left(end: End, count: int) -> Any:
    row = end.row("back")
    return row if row is not None and row.get("messages_left") == count else None


def test_what_makes_no_sense_is_refused(end: End) -> None:
    for body in ({"to": "moon"}, {"limit": "many"}, {"limit": 0}, {"rate": 0}, {"filter": "x"}):
        assert end.api.post("/queues/%2F/dead/redrive", body)[0] == 400
    status, answer = end.api.post("/queues/%2F/dead/redrive", {"to": "foo"})
    assert (status, answer["reason"]) == (400, "to should be queue or exchange, not 'foo'")
    assert end.api.post("/queues/%2F/none/redrive", {})[0] == 404
    uri = "amqp:///%2F"
    keys = {"src-uri": uri, "src-queue": "dead", "dest-uri": uri, "dest-redrive": "queue"}
    for more in ({"dest-queue": "q"}, {"dest-exchange-key": "k"}, {"ack-mode": "no-ack"}):
        status, answer = end.api.put("/parameters/shovel/%2F/s", {"value": {**keys, **more}})
        assert status == 400 and "dest-redrive" in answer["reason"], answer


def test_rights_of_who_asks_count(end: End, brokers: tuple[Broker, Broker]) -> None:
    from api_client import ApiClient

    brokers[0].add_user("mover", "mover", ("management",))
    mover = ApiClient(brokers[0], "mover")
    brokers[0].set_permissions("mover", read="", write=".*", configure=".*")
    assert mover.post("/queues/%2F/dead/redrive", {})[0] == 401
    brokers[0].set_permissions("mover", read="^dead$", write="^other$", configure="")
    _, begun = mover.post("/queues/%2F/dead/redrive", {})
    path = f"/message-jobs/%2F/{quote(begun['job'])}"
    job = until(lambda: (one := mover.get(path)[1])["state"] == "completed" and one)
    refused = "access to exchange 'in' in vhost '/' refused for user 'mover'"
    assert job["left"][0] == {"reason": refused, "messages": 4}, job
    assert len(end.take("dead", 5)) == 5
