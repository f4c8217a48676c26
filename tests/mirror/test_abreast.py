"""What is defined at one node is done when the other nodes know it, or do not answer."""

from __future__ import annotations

from cluster import Cluster
from mirrored import ha_cluster
from pamqp import commands
from pipe import Client

from warren.mirror.members.abreast import PATIENCE_S


def declares(cluster: Cluster, node: str, queue: str) -> Client:
    """Send a declaration; its answer is in the inbox when it has come."""
    client = cluster[node].connects()
    client.opens_channel(1)
    client.sends(commands.Queue.Declare, queue=queue, durable=True, arguments={})
    cluster.settle()
    return client


def is_told(client: Client) -> bool:
    frames = client.frames()
    assert all(isinstance(frame.method, commands.Queue.DeclareOk) for frame in frames), frames
    return bool(frames)


def test_declaration_is_answered_when_every_node_has_it() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.cut_store("b")
    client = declares(cluster, "a", "q")
    assert cluster["c"].node.vhosts["/"].queues.keys() == {"q"}
    assert not is_told(client)
    cluster.restore_store("b")
    cluster.settle()
    assert is_told(client)
    assert cluster["b"].node.vhosts["/"].queues.keys() == {"q"}


def test_node_that_does_not_answer_is_waited_for_once() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.cut_store("b")
    first = declares(cluster, "a", "first")
    cluster.clock.advance(PATIENCE_S - 0.1)
    assert not is_told(first)
    cluster.clock.advance(0.1)
    assert is_told(first)
    assert is_told(declares(cluster, "a", "second"))
    # The other node finds out for itself.
    third = declares(cluster, "c", "third")
    assert not is_told(third)
    cluster.clock.advance(PATIENCE_S)
    assert is_told(third)
    # When it answers again it is waited for again.
    cluster.restore_store("b")
    cluster.settle()
    cluster.cut_store("b")
    assert not is_told(declares(cluster, "a", "fourth"))


def test_node_that_is_lost_is_not_waited_for() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.cut_store("b")
    client = declares(cluster, "a", "q")
    assert not is_told(client)
    cluster.kill("b")
    cluster.settle()
    assert is_told(client)
    assert is_told(declares(cluster, "a", "another"))
    cluster.comes_back("b")
    cluster.cut_store("b")
    assert not is_told(declares(cluster, "a", "third"))


def test_what_one_client_waits_for_does_not_keep_the_next_from_being_sent() -> None:
    """Transactions are decided one batch after the other, and wait for the others together."""
    cluster = Cluster("a", "b", "c")
    cluster.cut_store("b")
    clients = [declares(cluster, "a", f"q{number}") for number in range(5)]
    assert not any(map(is_told, clients))
    assert len(cluster["c"].node.vhosts["/"].queues) == 5
    cluster.restore_store("b")
    cluster.settle()
    assert all(map(is_told, clients))


def test_node_that_is_behind_for_long_is_asked_for_the_newest() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.cut_store("b")
    first = declares(cluster, "a", "first")
    cluster.clock.advance(PATIENCE_S)
    assert is_told(first)
    # What b is told of as it catches up is not all that a has written meanwhile.
    assert is_told(declares(cluster, "a", "second"))
    cluster.restore_store("b")
    cluster.settle()
    assert cluster["b"].node.vhosts["/"].queues.keys() == {"first", "second"}
    assert is_told(declares(cluster, "a", "third"))


def test_mirrors_at_a_node_that_does_not_answer_are_not_waited_for() -> None:
    cluster = ha_cluster()
    cluster.cut_store("b")
    first = declares(cluster, "a", "ha 1")
    cluster.clock.advance(PATIENCE_S + 0.2)
    assert is_told(first)
    second = declares(cluster, "a", "ha 2")
    cluster.clock.advance(0.2)
    assert is_told(second)
