"""Bindings by their keys and by where they lead."""

from __future__ import annotations

from warren.core.exchanges.binding import Binding
from warren.core.vhosts.binding_index import BindingIndex


def binding(routing_key: str, queue: str = "q") -> Binding:
    return Binding("x", "queue", queue, routing_key, {})


def test_bindings_are_found_by_key_and_by_destination() -> None:
    index = BindingIndex()
    for key in ("a", "b"):
        index.add(("binding", key), binding(key))
    index.add(("binding", "c"), binding("c", "other"))
    assert index.get(("binding", "a")) == binding("a")
    assert index.to("queue", "q") == [binding("a"), binding("b")]
    assert index.to("exchange", "q") == []


def test_one_that_is_removed_is_found_no_more() -> None:
    index = BindingIndex()
    index.add(("binding", "a"), binding("a"))
    assert index.pop(("binding", "a")) == binding("a")
    assert index.pop(("binding", "a")) is None
    assert index.get(("binding", "a")) is None and index.to("queue", "q") == []


def test_a_list_of_bindings_does_not_change_while_they_are_removed() -> None:
    index = BindingIndex()
    for key in ("a", "b"):
        index.add(("binding", key), binding(key))
    for found in index.to("queue", "q"):
        index.pop(("binding", found.routing_key))
    assert index.to("queue", "q") == []
