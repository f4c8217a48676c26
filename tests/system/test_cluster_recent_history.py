"""An exchange of type x-recent-history in a cluster: each node sends what came through it."""

from __future__ import annotations

from running_cluster import RunningCluster, take


def test_a_new_queue_gets_what_came_through_every_node(running_cluster: RunningCluster) -> None:
    cluster = running_cluster
    channels = {name: cluster[name].connect().channel() for name in "abc"}
    for channel in channels.values():
        channel.confirm_delivery()
    for channel in channels.values():
        # Where it is declared, it is known.
        channel.exchange_declare(
            "h", "x-recent-history", durable=True, arguments={"x-recent-history-length": 2}
        )
    for name in "ab":
        for number in range(3):
            channels[name].basic_publish("h", "k", b"%s%d" % (name.encode(), number))
    channels["c"].queue_declare("q", durable=True)
    channels["c"].queue_bind("q", "h", "")
    found = take(channels["c"], "q", 4)
    assert [body for body in found if body.startswith(b"a")] == [b"a1", b"a2"]
    assert [body for body in found if body.startswith(b"b")] == [b"b1", b"b2"]
    channels["c"].exchange_delete("h")
