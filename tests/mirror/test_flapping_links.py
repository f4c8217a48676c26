"""Consumers at another node than their queue, over a link that comes and goes, one after the other.

A consumer is given messages for the first time in the order of publishing, also when a link was
lost, or the consumer before has left, while messages were on their way. What is redelivered may
come at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from cluster import Cluster
from pamqp import commands
from pipe import Client, Content, Frame


class Taker:
    """A client of a node that consumes from `q` with acknowledgements, whatever it is told."""

    def __init__(self, cluster: Cluster, node: str, prefetch: int) -> None:
        self.first: list[int] = []
        """What was delivered for the first time, in order."""
        self.unacked: list[int] = []
        self._has_left = False
        self._cluster = cluster
        self._prefetch = prefetch
        self._client: Client = cluster[node].connects()
        self._client.sends(commands.Channel.Open)

    def listens(self) -> None:
        frames = iter(self._client.frames())
        for frame in frames:
            method = frame.method
            if self._has_left and method.name != "Basic.Deliver":
                continue
            if method.name == "Channel.OpenOk":
                self._client.sends(commands.Basic.Qos, prefetch_count=self._prefetch)
                self._client.sends(commands.Basic.Consume, queue="q", consumer_tag="c")
            elif method.name == "Basic.Cancel":
                self._client.sends(commands.Basic.Consume, queue="q", consumer_tag="c")
            elif method.name == "Channel.Close":
                # The node of the queue cannot be reached.
                self.unacked.clear()
                self._client.sends(commands.Channel.CloseOk)
                self._cluster.clock.call_later(0.1, self._opens_again)
            elif method.name == "Basic.Deliver":
                self._takes(_content(frame, next(frames), next(frames)))

    def _takes(self, delivery: Content) -> None:
        self.unacked.append(delivery.method.delivery_tag)
        if not delivery.method.redelivered:
            self.first.append(int(delivery.body))

    def acks(self, count: int) -> None:
        if self.unacked[:count]:
            self._client.acks(self.unacked[:count][-1], multiple=True)
            del self.unacked[:count]

    def leaves(self, how: str) -> None:
        self._has_left = True
        if how == "vanishes":
            self._client.pipe.lose()
        elif how == "closes its channel":
            self._client.sends(
                commands.Channel.Close, reply_code=200, reply_text="", class_id=0, method_id=0
            )
        else:
            self._client.sends(commands.Basic.Cancel, consumer_tag="c")

    def _opens_again(self) -> None:
        if not self._has_left:
            self._client.sends(commands.Channel.Open)


def _content(deliver: Frame, header: Frame, body: Frame) -> Content:
    return Content(deliver.method, header.payload, body.payload)


class Flapping:
    """Node a has the queue `q`, clients publish at a and b, and clients of c consume by turns."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        slowest_s = random.choice((0.001, 0.01, 0.05))
        delay: Callable[[], float] = lambda: random.uniform(0.0001, slowest_s)  # noqa: E731
        self.cluster = Cluster("a", "b", "c", seed=seed, delay=delay)
        self.prefetch = random.choice((1, 5, 20))
        self.takers: list[Taker] = []
        self._is_stalled = False
        self.published = 0
        self._publishers = {name: self.cluster[name].connects() for name in "ab"}
        for publisher in self._publishers.values():
            publisher.sends(commands.Channel.Open)
        self.cluster.clock.advance(1)
        self._publishers["a"].sends(commands.Queue.Declare, queue="q", durable=True, arguments={})
        self.cluster.clock.advance(1)
        self.takes_over()

    @property
    def taker(self) -> Taker:
        return self.takers[-1]

    def takes_over(self) -> None:
        self.takers.append(Taker(self.cluster, "c", self.prefetch))

    def publish(self, node: str) -> None:
        for _ in range(self.random.choice((1, 1, 5, 30))):
            self._publishers[node].publishes("q", b"%d" % self.published)
            self.published += 1

    def flap(self) -> None:
        cluster, random = self.cluster, self.random
        if cluster.are_connected("a", "c"):
            noticed_s = random.choice((0.0, 0.05))
            cluster.cut(
                "a",
                "c",
                lambda count: random.randint(0, count),
                lambda: random.uniform(0.0, noticed_s),
            )
            cluster.clock.call_later(random.choice((0.001, 0.06, 0.4)), self._link)

    def stall(self) -> None:
        """For a moment nothing passes one way, and all of it comes later."""
        one, other = self.random.choice(("ac", "ca"))
        self.cluster.stall(one, other)
        seconds = self.random.choice((0.01, 0.1, 0.5))
        self.cluster.clock.call_later(seconds, lambda: self.cluster.unstall(one, other))

    def _link(self) -> None:
        if self.cluster.may_connect("a", "c"):
            self.cluster.connect("a", "c")
        elif not self.cluster.are_connected("a", "c"):
            self.cluster.clock.call_later(0.05, self._link)

    def advance(self) -> None:
        self.cluster.clock.advance(self.random.choice((0.0, 0.001, 0.01, 0.05)))
        for taker in self.takers:
            taker.listens()

    def heal(self) -> None:
        """All that is left is delivered and acknowledged."""
        for one, other in ("ac", "ca"):
            self.cluster.unstall(one, other)
        queue = self.cluster["a"].queue("q")
        for _ in range(5_000):
            self.cluster.clock.advance(0.3)
            self.taker.listens()
            self.taker.acks(len(self.taker.unacked))
            if not (len(queue) or queue.unacked):
                return
        raise AssertionError(f"{len(queue)} messages are left, and {queue.unacked} are out")


@pytest.mark.parametrize("node", ["a", "b"])
@pytest.mark.parametrize("seed", range(12))
def test_first_deliveries_stay_in_order_while_a_link_comes_and_goes(seed: int, node: str) -> None:
    flapping = Flapping(seed)
    for _ in range(150):
        step = flapping.random.random()
        if step < 0.4:
            flapping.publish(node)
        elif step < 0.5:
            flapping.flap()
        elif step < 0.6:
            flapping.stall()
        elif step < 0.9:
            flapping.taker.acks(flapping.random.choice((1, 5, 100)))
        flapping.advance()
    flapping.heal()
    assert flapping.taker.first == sorted(set(flapping.taker.first))


@pytest.mark.parametrize("how", ["vanishes", "closes its channel", "cancels"])
@pytest.mark.parametrize("seed", range(12))
def test_what_was_on_its_way_to_a_consumer_that_left_is_no_first_delivery_to_the_next(
    seed: int, how: str
) -> None:
    flapping = Flapping(seed)
    for _ in range(150):
        step = flapping.random.random()
        if step < 0.4:
            flapping.publish("a")
        elif step < 0.45:
            flapping.flap()
        elif step < 0.6:
            flapping.stall()
        elif step < 0.65:
            flapping.taker.leaves(how)
            flapping.takes_over()
        elif step < 0.9:
            flapping.taker.acks(flapping.random.choice((1, 5, 100)))
        flapping.advance()
    for taker in flapping.takers:
        assert taker.first == sorted(set(taker.first))
