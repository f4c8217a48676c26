"""Clients of the other nodes of a cluster, as limits count them."""

from __future__ import annotations

from warren.core.access.clients_elsewhere import ClientsElsewhere, OpenCounts, Place


def test_those_of_all_others_count_until_their_node_ends() -> None:
    clients = ClientsElsewhere()
    clients.told("b", ("v", "u"), OpenCounts(1, 0))
    clients.told("b", ("v", "u"), OpenCounts(0, 2))
    clients.told("b", ("v", "w"), OpenCounts(1, 0))
    clients.begins("c", {("v", "u"): OpenCounts(5, 9), ("x", "u"): OpenCounts(2, 0)})
    clients.told("c", ("v", "u"), OpenCounts(-1, -3))
    assert clients.in_vhost("v") == (6, 8)
    assert clients.in_vhost("x") == (2, 0)
    assert clients.in_vhost("y") == (0, 0)
    assert clients.of_user("u") == (7, 8)
    assert clients.of_user("w") == (1, 0)
    clients.ended("c")
    assert clients.in_vhost("v") == (2, 2)
    assert clients.of_user("u") == (1, 2)


def test_connections_of_the_other_processes_of_a_broker_are_known() -> None:
    clients = ClientsElsewhere()
    clients.begins("b", {("v", "u"): OpenCounts(5, 9), ("x", "u"): OpenCounts(2, 0)})
    clients.begins("c", {("v", "u"): OpenCounts(1, 0)})
    assert clients.beside() == 0
    clients.is_beside = lambda node: node == "b"
    assert clients.beside() == 7
    clients.ended("b")
    assert clients.beside() == 0


def test_the_others_hear_of_all_that_comes_and_goes() -> None:
    clients = ClientsElsewhere()
    told: list[tuple[Place, OpenCounts]] = []
    clients.opened("not told of", "v", "u")
    clients.channels("not told of", 1)
    clients.closed("not told of")
    clients.tell = lambda place, more: told.append((place, more))
    clients.opened("one", "v", "u")
    clients.channels("one", 1)
    clients.channels("one", 1)
    clients.channels("one", -1)
    clients.opened("other", "v", "u")
    assert clients.here() == {("v", "u"): (2, 1)}
    clients.closed("one")
    clients.closed("one")
    clients.channels("one", -1)
    changes = [(1, 0), (0, 1), (0, 1), (0, -1), (1, 0), (-1, -1)]
    assert told == [(("v", "u"), change) for change in changes]
