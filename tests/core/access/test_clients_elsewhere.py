"""Clients of the other processes of a broker, as limits count them."""

from __future__ import annotations

from warren.core.access.clients_elsewhere import ClientsElsewhere


def test_those_of_all_others_count_until_their_process_ends() -> None:
    clients = ClientsElsewhere()
    clients.told("b", ("v", "u"), 1)
    clients.told("b", ("v", "w"), 1)
    clients.begins("c", {("v", "u"): 5, ("x", "u"): 2})
    clients.told("c", ("v", "u"), -1)
    assert (clients.in_vhost("v"), clients.in_vhost("x"), clients.in_vhost("y")) == (6, 2, 0)
    assert (clients.of_user("u"), clients.of_user("w")) == (7, 1)
    clients.ended("c")
    assert (clients.in_vhost("v"), clients.of_user("u")) == (2, 1)


def test_the_others_hear_of_each_that_comes_and_goes() -> None:
    clients, told = ClientsElsewhere(), []
    clients.opened("not told of", "v", "u")
    clients.closed("not told of")
    clients.tell = lambda vhost, user, more: told.append((vhost, user, more))
    clients.opened("one", "v", "u")
    clients.opened("other", "v", "u")
    assert clients.here() == {("v", "u"): 2}
    clients.closed("one")
    clients.closed("one")
    assert told == [("v", "u", 1), ("v", "u", 1), ("v", "u", -1)]
