"""Whose exclusive queues are, when connections end before, while and after they declare them."""

from __future__ import annotations

from warren.core.vhosts.exclusive_queues import NO_OWNER, ExclusiveQueues

ONE, OTHER = object(), object()


def test_a_queue_belongs_to_the_connection_that_declared_it() -> None:
    queues: ExclusiveQueues[str] = ExclusiveQueues()
    queues.declaring(7, ONE)
    assert queues.owner_of_new(7) is ONE
    queues.add(ONE, "q", "queue q")
    assert queues.owner_ends(OTHER) == []
    assert queues.owner_ends(ONE) == ["queue q"]
    queues.remove(ONE, "q")
    assert queues.owner_ends(ONE) == []


def test_a_queue_whose_connection_has_ended_meanwhile_is_nobodys() -> None:
    queues: ExclusiveQueues[str] = ExclusiveQueues()
    queues.declaring(7, ONE)
    queues.declaring(8, OTHER)
    queues.owner_ends(ONE)
    assert queues.owner_of_new(7) is NO_OWNER
    assert queues.owner_of_new(8) is OTHER


def test_a_queue_that_nobody_here_declares_is_nobodys() -> None:
    queues: ExclusiveQueues[str] = ExclusiveQueues()
    assert queues.owner_of_new(7) is NO_OWNER


def test_a_refused_declaration_leaves_nothing() -> None:
    queues: ExclusiveQueues[str] = ExclusiveQueues()
    queues.declaring(7, ONE)
    queues.decided(7)
    queues.decided(7)
    assert queues.owner_of_new(7) is NO_OWNER


def test_one_queue_of_many_goes_by_itself() -> None:
    queues: ExclusiveQueues[str] = ExclusiveQueues()
    for name in ("a", "b"):
        queues.add(ONE, name, name)
    queues.remove(ONE, "a")
    assert queues.owner_ends(ONE) == ["b"]
