"""Dead letters: what becomes of them, and that they come to rest."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from content_headers import content_header, encoded_properties
from hypothesis import given, settings
from hypothesis import strategies as st
from manual_clock import ManualClock

from warren.amqp.content_codec import AmqpContentCodec
from warren.amqp.field_table import TableError, encode_table
from warren.core.backing.backing_queue import BackingSpec
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.field import LONG_MAX, Field, Table, long, longstr
from warren.core.messages.message import Envelope, Message
from warren.core.messages.message_observer import TracedClient
from warren.core.queues.local_queue import LocalQueue
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.queues.queue_type import CLASSIC, QUORUM
from warren.core.scheduling.waiting import run
from warren.core.vhosts.dead_letter import (
    DeadLetterEnvelopes,
    carbon_copies,
    circle,
    dead_lettered,
)
from warren.core.vhosts.vhost import VirtualHost

CODEC = AmqpContentCodec()
SOMEBODY = TracedClient("connection", 1, "user")


class DecodingCodec(AmqpContentCodec):
    """Notes whether headers were decoded."""

    decoded = False

    def headers(self, header: bytes) -> Table:
        self.decoded = True
        return super().headers(header)


def envelope(headers: Table | None = None, key: str = "key", exchange: str = "x") -> Envelope:
    headers = headers or {}
    copies = carbon_copies(headers, "CC")
    return Envelope(exchange, key, CODEC.content_header(1, headers), True, 3, None, copies)


def died(
    of: Envelope, reason: str = "expired", queue: str = "q", **settings: Any
) -> tuple[Envelope, tuple[str, ...], Table]:
    chosen = QueueSettings(**({"dead_letter_exchange": "dlx"} | settings))
    return dead_lettered(of, queue, reason, chosen, 1_700_000_000.9, CODEC)


def deaths(headers: Table) -> list[tuple[str, str, int]]:
    return [
        (
            entry.value["queue"].value.decode(),
            entry.value["reason"].value.decode(),
            entry.value["count"].value,
        )
        for entry in headers["x-death"].value
    ]


def written(
    raw: bytes,
    queue: str = "q",
    reason: str = "expired",
    settings: QueueSettings | None = None,
) -> Envelope:
    """The dead letter of a message; it is the same as if its headers had been decoded."""
    settings = settings or QueueSettings(dead_letter_exchange="dlx")
    expiration = CODEC.property_text(raw, "expiration")
    copies = carbon_copies(CODEC.headers(raw), "CC")
    of = Envelope("x", "key", raw, True, 3, None if expiration is None else 1000, copies)
    expected, keys, headers = dead_lettered(of, queue, reason, settings, 1.5, CODEC)
    envelopes = DeadLetterEnvelopes(CODEC)
    for _ in range(2):
        made, its_keys, avoided = envelopes.of(of, queue, reason, settings, 1.5)
        assert made.header == expected.header
        assert set(avoided) == circle(headers, reason)
        assert its_keys == keys
        for name in ("exchange", "routing_key", "persistent", "priority", "expiration_ms"):
            assert getattr(made, name) == getattr(expected, name), name
        assert made.copies == expected.copies
    return expected


def table_header(headers: Table) -> bytes:
    return content_header({"headers": encode_table(headers)})


def a_death(**changed: Field | None) -> Field:
    death: dict[str, Field | None] = {
        "count": long(1),
        "reason": longstr("expired"),
        "queue": longstr("q"),
        "time": Field("T", 1),
        "exchange": longstr("x"),
        "routing-keys": Field("A", [longstr("key")]),
        **changed,
    }
    return Field("F", {name: field for name, field in death.items() if field is not None})


REASONS = ("expired", "rejected", "maxlen", "delivery_limit")


class TestWithoutDecoding:
    """Most deaths are written without decoding the headers, and are the same octets."""

    @given(
        encoded_properties,
        st.sampled_from(REASONS),
        st.sampled_from((None, "other", "")),
        st.booleans(),
    )
    def test_first_deaths(
        self, properties: dict[str, bytes], reason: str, key: str | None, quorum: bool
    ) -> None:
        settings = QueueSettings(
            type=QUORUM if quorum else CLASSIC,
            dead_letter_exchange="dlx",
            dead_letter_routing_key=key,
        )
        written(content_header(properties), reason=reason, settings=settings)

    @given(
        encoded_properties,
        st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(REASONS)), max_size=8),
    )
    def test_many_deaths(self, properties: dict[str, bytes], dies: list[tuple[str, str]]) -> None:
        raw = content_header(properties)
        for queue, reason in dies:
            raw = written(raw, queue, reason).header

    @pytest.mark.parametrize(
        "known",
        [
            Field("A", []),
            Field("A", [a_death(count=None)]),
            Field("A", [a_death(count=None), a_death(count=None)]),
            Field("A", [a_death(), a_death(count=None, queue=longstr("r"))]),
            Field("A", [a_death(), a_death()]),
            Field("A", [a_death(count=Field("I", 5))]),
            Field("A", [a_death(count=long(LONG_MAX))]),
            Field("A", [a_death(count=long(-7))]),
            Field("A", [a_death(queue=Field("x", b"q"))]),
            Field("A", [a_death(queue=None)]),
            Field("A", [a_death(reason=long(1))]),
            Field("A", [a_death(**{"routing-keys": longstr("key")})]),
            Field("A", [a_death(**{"routing-keys": Field("A", [long(1)])})]),
            Field("A", [a_death(**{"routing-keys": Field("A", [])})]),
            Field("A", [a_death(more=Field("F", {"deep": Field("A", [])}))]),
            Field("A", [a_death(more=Field("t", True)), a_death(queue=longstr("r"))]),
            Field("A", [longstr("no death"), a_death()]),
            Field("F", {"count": long(1)}),
            longstr("text"),
        ],
    )
    @pytest.mark.parametrize("queue", ["q", "r", "s"])
    def test_deaths_that_others_have_written(self, known: Field, queue: str) -> None:
        raw = table_header({"z": longstr("z"), "x-death": known, "a": long(1)})
        for _ in range(3):
            raw = written(raw, queue).header

    @settings(max_examples=400)
    @given(st.data())
    def test_damaged_headers(self, data: st.DataObject) -> None:
        raw = written(written(table_header({"a": longstr("a")})).header, "r").header
        octets = bytearray(raw)
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(18, len(octets) - 1))
            octets[at] = data.draw(
                st.one_of(st.sampled_from(b"ASFltIx\0\1\2"), st.integers(0, 255))
            )
        with suppress(TableError):
            written(bytes(octets))

    @pytest.mark.parametrize(
        ("headers", "is_decoded"),
        [
            ({}, False),
            ({"task": longstr("t"), "retries": long(0), "done": Field("t", False)}, False),
            ({"b": Field("x", b"1"), "a": Field("T", 5), "c": Field("I", -1)}, False),
            ({"CC": Field("A", [longstr("copy")])}, True),
            ({"CC": longstr("no array")}, True),
            ({"nested": Field("F", {"a": long(1)})}, True),
            ({"x-first-death-queue": longstr("of another broker")}, True),
        ],
    )
    def test_headers_are_decoded_only_where_that_is_needed(
        self, headers: Table, is_decoded: bool
    ) -> None:
        settings = QueueSettings(dead_letter_exchange="dlx")
        of, codec = envelope(headers), DecodingCodec()
        for queue, reason in (("q", "expired"), ("r", "rejected"), ("q", "expired")):
            of, _, _ = DeadLetterEnvelopes(codec).of(of, queue, reason, settings, 1)
            assert codec.decoded == is_decoded
        assert deaths(CODEC.headers(of.header)) == [("q", "expired", 2), ("r", "rejected", 1)]

    @given(st.binary(max_size=40))
    def test_octets_that_are_no_table_count_as_no_headers(self, octets: bytes) -> None:
        raw = content_header({"headers": len(octets).to_bytes(4, "big") + octets})
        of = Envelope("x", "key", raw, True, 3, None, carbon_copies(CODEC.headers(raw), "CC"))
        settings = QueueSettings(dead_letter_exchange="dlx")
        expected, _, _ = dead_lettered(of, "q", "expired", settings, 1, CODEC)
        made, _, _ = DeadLetterEnvelopes(CODEC).of(of, "q", "expired", settings, 1)
        assert made.header == expected.header

    def test_each_death_is_told_as_it_was(self) -> None:
        envelopes = DeadLetterEnvelopes(CODEC)
        settings = QueueSettings(dead_letter_exchange="dlx")
        told = []
        for of, queue, reason, died_at in (
            (envelope(), "q", "expired", 1.0),
            (envelope(), "q", "expired", 1.9),
            (envelope(), "q", "expired", 2.0),
            (envelope(), "q", "rejected", 2.0),
            (envelope(), "r", "rejected", 2.0),
            (envelope(key="k"), "r", "rejected", 2.0),
            (envelope(exchange="y"), "r", "rejected", 2.0),
        ):
            dead, _, _ = envelopes.of(of, queue, reason, settings, died_at)
            (death,) = CODEC.headers(dead.header)["x-death"].value
            told.append(
                (
                    death.value["time"].value,
                    *(death.value[name].value for name in ("reason", "queue", "exchange")),
                    *(key.value for key in death.value["routing-keys"].value),
                )
            )
        assert told == [
            (1, b"expired", b"q", b"x", b"key"),
            (1, b"expired", b"q", b"x", b"key"),
            (2, b"expired", b"q", b"x", b"key"),
            (2, b"rejected", b"q", b"x", b"key"),
            (2, b"rejected", b"r", b"x", b"key"),
            (2, b"rejected", b"r", b"x", b"k"),
            (2, b"rejected", b"r", b"y", b"key"),
        ]


class TestHeaders:
    def test_the_first_death_is_told_in_full(self) -> None:
        dead, keys, headers = died(envelope({"CC": Field("A", [longstr("copy")])}))
        assert headers["x-death"].value[0].value == {
            "count": long(1),
            "reason": longstr("expired"),
            "queue": longstr("q"),
            "time": Field("T", 1_700_000_000),
            "exchange": longstr("x"),
            "routing-keys": Field("A", [longstr("key"), longstr("copy")]),
        }
        assert headers["x-first-death-reason"] == longstr("expired")
        assert headers["x-first-death-queue"] == longstr("q")
        assert headers["x-first-death-exchange"] == longstr("x")
        assert keys == ("key", "copy")
        assert (dead.exchange, dead.routing_key, dead.persistent, dead.priority) == (
            "dlx", "key", True, 3
        )  # fmt: skip

    def test_deaths_stand_newest_first_and_the_same_one_is_counted(self) -> None:
        dead, _, _ = died(envelope(), queue="a")
        dead, _, _ = died(dead, queue="b", reason="rejected")
        dead, _, headers = died(dead, queue="a")
        assert deaths(headers) == [("a", "expired", 2), ("b", "rejected", 1)]
        assert list(headers["x-death"].value[0].value) == sorted(headers["x-death"].value[0].value)
        assert headers["x-first-death-queue"] == longstr("a")
        assert CODEC.headers(dead.header) == headers

    def test_copies_are_remembered_from_death_to_death(self) -> None:
        dead, _, _ = died(envelope({"CC": Field("A", [longstr("copy")])}), queue="a")
        _, keys, _ = died(dead, queue="b")
        assert keys == ("key", "copy")

    def test_a_key_of_its_own_replaces_all_others(self) -> None:
        dead, keys, headers = died(
            envelope({"CC": Field("A", [longstr("copy")])}), dead_letter_routing_key="new"
        )
        assert (dead.routing_key, keys) == ("new", ("new",))
        assert "CC" not in headers

    def test_a_key_longer_than_the_wire_takes_is_cut(self) -> None:
        dead, _, _ = died(envelope(), dead_letter_routing_key="é" * 200)
        assert dead.routing_key == "é" * 127

    def test_a_count_at_the_end_of_its_range_stays_there(self) -> None:
        death = {"queue": longstr("q"), "reason": longstr("expired"), "count": long(LONG_MAX)}
        _, _, headers = died(envelope({"x-death": Field("A", [Field("F", death)])}))
        assert deaths(headers) == [("q", "expired", LONG_MAX)]

    @pytest.mark.parametrize("count", [longstr("5"), Field("d", 5.0), Field("V", None)])
    def test_a_count_that_is_no_integer_begins_anew(self, count: Field) -> None:
        death = {"queue": longstr("q"), "reason": longstr("expired"), "count": count}
        _, _, headers = died(envelope({"x-death": Field("A", [Field("F", death)])}))
        assert deaths(headers) == [("q", "expired", 1)]

    def test_several_of_a_kind_become_one(self) -> None:
        death = Field("F", {"queue": longstr("q"), "reason": longstr("expired")})
        other = Field("F", {"queue": longstr("o"), "reason": longstr("expired")})
        _, _, headers = died(envelope({"x-death": Field("A", [death, other, death])}))
        assert deaths(headers) == [("q", "expired", 3), ("o", "expired", 1)]
        assert "x-first-death-queue" not in headers

    @pytest.mark.parametrize("field", [longstr("x"), long(1), Field("F", {}), Field("V", None)])
    def test_a_header_of_another_type_counts_as_no_death(self, field: Field) -> None:
        _, _, headers = died(envelope({"x-death": field}))
        assert deaths(headers) == [("q", "expired", 1)]

    def test_copies_that_are_no_strings_are_passed_over(self) -> None:
        field = Field("A", [long(1), longstr("a"), Field("V", None), longstr("b")])
        assert carbon_copies({"CC": field}, "CC") == ("a", "b")
        assert carbon_copies({"CC": longstr("a")}, "CC") == ()
        assert carbon_copies({}, "CC") == ()


class TestCircles:
    @pytest.mark.parametrize(
        ("history", "reason", "circles"),
        [
            ([], "expired", False),
            ([("q", "expired")], "expired", True),
            ([("q", "expired")], "rejected", False),
            ([("other", "expired")], "expired", False),
            ([("other", "expired"), ("q", "maxlen")], "expired", True),
            ([("other", "rejected"), ("q", "maxlen")], "expired", False),
            ([("q", "rejected")], "expired", False),
            ([("q", "expired"), ("other", "rejected")], "expired", True),
        ],
    )
    def test_a_queue_it_died_in_since_the_last_rejection_is_left_out(
        self, history: list[tuple[str, str]], reason: str, circles: bool
    ) -> None:
        entries = [
            Field("F", {"queue": longstr(queue), "reason": longstr(why)}) for queue, why in history
        ]
        assert ("q" in circle({"x-death": Field("A", entries)}, reason)) is circles


def add_queue(vhost: VirtualHost, name: str, **arguments: Field) -> LocalQueue:
    vhost.declare_queue(
        name,
        durable=False,
        exclusive_owner=None,
        auto_delete=False,
        arguments={f"x-{key.replace('_', '-')}": value for key, value in arguments.items()},
    )
    return vhost.queues[name]


def dying(to: str, **arguments: Field) -> dict[str, Field]:
    """Arguments of a queue whose dead letters go to the queue of that name."""
    return {
        "dead_letter_exchange": longstr(""), "dead_letter_routing_key": longstr(to), **arguments
    }  # fmt: skip


def publish(vhost: VirtualHost, queue: str, body: bytes = b"x") -> None:
    header = struct.pack(">HHQH", 60, 0, len(body), 0)
    run(
        vhost.publish(Envelope("", queue, header, False, 0, None), body, (queue,)),
        lambda result: result(),
    )


class TestInAVirtualHost:
    def test_a_message_that_expires_in_its_own_circle_is_gone(
        self, vhost: VirtualHost, clock: ManualClock
    ) -> None:
        queue = add_queue(vhost, "q", **dying("q", message_ttl=long(10)))
        publish(vhost, "q")
        clock.advance(1)
        assert len(queue) == 0
        assert not clock.timers

    def test_full_queues_in_a_circle_come_to_rest(
        self, vhost: VirtualHost, clock: ManualClock
    ) -> None:
        for name, to in (("a", "b"), ("b", "c"), ("c", "a")):
            add_queue(vhost, name, **dying(to, max_length=long(1)))
        for number in range(5):
            publish(vhost, "a", b"%d" % number)
            clock.settle()
        heads = [vhost.queues[name].get(True, SOMEBODY) for name in "abc"]
        assert [message.body for message in heads if message] == [b"4", b"3", b"2"]

    def test_a_chain_of_deaths_may_be_longer_than_the_stack(
        self, vhost: VirtualHost, clock: ManualClock
    ) -> None:
        depth = sys.getrecursionlimit() // 3
        for number in range(depth):
            add_queue(vhost, f"q{number}", **dying(f"q{number + 1}", max_length=long(0)))
        last = add_queue(vhost, f"q{depth}")
        publish(vhost, "q0")
        clock.settle()
        message = last.get(True, SOMEBODY)
        assert message is not None
        assert len(deaths(CODEC.headers(message.envelope.header))) == depth

    def test_without_an_exchange_there_they_are_dropped(self, vhost: VirtualHost) -> None:
        queue = add_queue(vhost, "q", dead_letter_exchange=longstr("nowhere"), max_length=long(0))
        publish(vhost, "q")
        assert len(queue) == 0

    def test_rejected_messages_die_in_the_order_in_which_they_are_given(
        self, vhost: VirtualHost, clock: ManualClock
    ) -> None:
        graves = add_queue(vhost, "graves")
        queue = add_queue(vhost, "q", **dying("graves"))
        for number in range(4):
            publish(vhost, "q", b"%d" % number)
        got: list[Message] = []
        while (message := queue.get(False, SOMEBODY)) is not None:
            got.append(message)
        queue.reject(got[::-1])
        clock.settle()
        bodies = [message.body for message in iter(lambda: graves.get(True, SOMEBODY), None)]
        assert bodies == [b"3", b"2", b"1", b"0"]
        assert queue.unacked == 0

    def test_nothing_dies_of_a_purge_or_a_deletion(self, vhost: VirtualHost) -> None:
        graves = add_queue(vhost, "graves")
        queue = add_queue(vhost, "q", **dying("graves"))
        publish(vhost, "q")
        queue.purge()
        publish(vhost, "q")
        vhost.delete(queues=[queue])
        assert len(graves) == 0

    def test_what_a_queue_drops_when_it_comes_back_finds_bindings_and_queues(
        self,
        vhost: VirtualHost,
        restarted: Callable[..., VirtualHost],
        clock: ManualClock,
    ) -> None:
        for name, arguments in (("a", {**dying("z"), "max_length": long(1)}), ("z", {})):
            vhost.declare_queue(
                name,
                durable=True,
                exclusive_owner=None,
                auto_delete=False,
                arguments={f"x-{key.replace('_', '-')}": of for key, of in arguments.items()},
            )
        again = restarted(with_three_messages)
        clock.settle()
        assert {name: len(queue) for name, queue in again.queues.items()} == {"a": 1, "z": 3 + 2}


def with_three_messages(spec: BackingSpec) -> MemoryQueue:
    """What a queue finds when it comes back."""
    backing = MemoryQueue()
    for _ in range(3):
        header = struct.pack(">HHQH", 60, 0, 1, 0)
        backing.publish(Envelope("", "a", header, True, 0, None), b"x", None, None, 0)
    return backing
