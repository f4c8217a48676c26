"""What queues at other nodes hold counts, a second later at most."""

from __future__ import annotations

import pytest
from cluster import Cluster

from warren.mirror.members.quota_news import QuotaNews
from warren.mirror.messages.post import PostKind, Undeliverable


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster("a", "b")
    for name in "ab":
        QuotaNews(cluster[name].node, cluster[name].post)
    return cluster


@pytest.mark.parametrize(
    ("limit", "whose"),
    [("max-messages", "of vhost '/'"), ("max-queue-messages", "of queues in vhost '/'")],
)
def test_a_publisher_at_another_node_is_refused(cluster: Cluster, limit: str, whose: str) -> None:
    a, b = cluster["a"].connects(), cluster["b"].connects()
    for client in (a, b):
        client.opens_channel(1)
    a.declares("queue")
    cluster["a"].node.vhost_limits.replace("/", {limit: 5})
    cluster.settle()
    for _ in range(5):
        a.publishes("queue", b"x")
    cluster.clock.advance(2.0)
    b.publishes("queue", b"too much")
    text = b.receives_close(406).reply_text
    assert text.endswith(f"queue 'queue' in vhost '/': message limit (5) {whose} is reached")

    # When the node is gone, so is what it told.
    cluster.kill("a")
    cluster.clock.advance(2.0)
    b.opens_channel(1)
    b.declares("other")
    b.publishes("other", b"x")
    assert b.counts("other") == (1, 0)


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x90", b"\x81\xa1q\x01"])
def test_what_is_no_table_of_stocks_is_refused(cluster: Cluster, payload: bytes) -> None:
    with pytest.raises(Undeliverable):
        cluster["a"].links.user.on_frames("b", [(PostKind.QUOTAS, payload)])
