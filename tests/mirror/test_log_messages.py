"""The window of a log, and what its members tell each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.mirror.carriers.batch import HEAD
from warren.mirror.log.messages import (
    Bye,
    CarrierRefusal,
    Data,
    Hello,
    Message,
    Welcome,
    data_head,
    decode,
    encode,
)
from warren.mirror.log.window import BatchWindow
from warren.mirror.messages.post import Undeliverable

numbers = st.integers(0, 2**64 - 1)
positions = st.tuples(numbers, numbers)
messages = st.one_of(
    st.builds(Hello, numbers, positions, st.none() | positions),
    st.builds(Welcome, numbers),
    st.builds(Data, positions, st.binary(max_size=50)),
    st.builds(CarrierRefusal, numbers, numbers),
    st.builds(Bye, numbers),
)


@given(numbers, messages)
def test_what_is_written_is_read(queue_id: int, message: Message) -> None:
    assert decode(encode(queue_id, message)) == (queue_id, message)


@given(st.binary(max_size=80))
def test_any_octets_are_a_message_or_undeliverable(octets: bytes) -> None:
    try:
        queue_id, message = decode(octets)
    except Undeliverable:
        return
    assert decode(encode(queue_id, message)) == (queue_id, message)


def test_the_head_of_a_batch_is_what_goes_before_it() -> None:
    payload = HEAD.pack(3, 4) + b"instructions"
    assert decode(data_head(7, (2, 9)) + payload) == (7, Data((2, 9), payload))


@pytest.mark.parametrize(
    ("position", "place"),
    [
        pytest.param((1, 1), None, id="before the window"),
        pytest.param((1, 2), 2, id="all before it"),
        pytest.param((1, 3), 3, id="the first"),
        pytest.param((1, 4), 4, id="the last of an epoch"),
        pytest.param((1, 9), 4, id="more of an epoch than there was: it is sent the next one"),
        pytest.param((2, 1), 5, id="everything"),
        pytest.param((2, 7), None, id="more than there is"),
    ],
)
def test_a_mirror_is_sent_what_comes_after_what_it_has(
    position: tuple[int, int], place: int | None
) -> None:
    window = BatchWindow()
    for at in ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1)):
        window.append(at, b"%d %d" % at)
    window.trim((1, 2))
    assert window.place_after(position, 2) == place
    assert (window.first_place, window.end_place, window.last) == (2, 5, (2, 1))
    assert window.payload_at(4) == b"2 1"


def test_a_window_begins_where_another_carrier_ended() -> None:
    window = BatchWindow((4, 20))
    assert window.last == (4, 20)
    assert window.place_after((4, 20), 4) == window.end_place == 0
    assert window.place_after((4, 19), 4) is None


def test_a_window_that_begins_with_a_later_batch_is_for_those_who_have_the_ones_before() -> None:
    window = BatchWindow()
    window.append((1, 3), b"three")
    assert window.place_after((1, 2), 1) == 0
    assert window.place_after((1, 1), 1) is None
    # It may lack the first two of epoch 1.
    assert window.place_after((0, 7), 1) is None


def test_who_has_more_of_an_earlier_epoch_waits_for_the_present_one() -> None:
    """A new leader says nothing before its node knows that it leads."""
    window = BatchWindow((1, 6))
    assert window.place_after((1, 7), 2) == 0
    assert window.place_after((1, 7), 1) is None
