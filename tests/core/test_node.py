"""A node: what happens to all of its connections at once."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from manual_clock import ManualClock

from warren.amqp.content_codec import AmqpContentCodec
from warren.core.access.access_control import AccessControl, User, create_defaults
from warren.core.backing.memory_queue import MemoryQueue
from warren.core.definitions.records import GlobalParameterRecord
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.errors import NotAllowed
from warren.core.exchanges.binding import Binding
from warren.core.field import longstr
from warren.core.node import ClientChannel, Node, default_server_properties
from warren.core.ports import Commit, Precondition, Write
from warren.core.resources.alarms import Alarms, Resource
from warren.core.scheduling.waiting import run
from warren.core.vhosts.ending import BINDINGS_AT_ONCE
from warren.core.vhosts.vhost import VirtualHost


class FakeClient:
    """A connection, as the node sees it."""

    def __init__(self, user: User, channels: int = 0) -> None:
        self.user: User | None = user
        self.vhost: VirtualHost | None = None
        self.channel_count = channels
        self.closed_for: list[str] = []
        self.alarms_heard = 0

    def holdings(self) -> list[ClientChannel]:
        return []

    def force_close(self, reason: str) -> None:
        self.closed_for.append(reason)

    def alarms_changed(self) -> None:
        self.alarms_heard += 1

    def growth_changed(self) -> None:
        pass


@pytest.fixture
def metadata() -> VolatileMetadataStore:
    store = VolatileMetadataStore()
    create_defaults(store, random_bytes=Random(1).randbytes)
    return store


@pytest.fixture
def node(metadata: VolatileMetadataStore, clock: ManualClock) -> Node:
    return Node(
        "warren@test",
        clock=clock,
        codec=AmqpContentCodec(),
        metadata=metadata,
        access=AccessControl(metadata, random_bytes=Random(1).randbytes),
        alarms=Alarms("warren@test"),
        random=Random(1),
        new_token=lambda: "token",
        new_backing_queue=lambda spec: MemoryQueue(),
        server_properties=default_server_properties("0", "test"),
    )


def enters(node: Node, name: str = "/", user: str = "guest", channels: int = 0) -> FakeClient:
    client = FakeClient(User(user, frozenset()), channels)
    assert client.user is not None
    client.vhost = node.open_vhost(client, client.user, name)
    return client


def test_a_virtual_host_begins_and_ends_with_its_definition(node: Node, clock: ManualClock) -> None:
    node.add_vhost("v")
    node.access.set_permissions("guest", "v", ".*", ".*", ".*")
    client, bystander = enters(node, "v"), enters(node)
    node.vhosts["v"].declare_queue(
        "q", durable=True, exclusive_owner=None, auto_delete=False, arguments={}
    )
    node.delete_vhost("v")
    assert "v" not in node.vhosts
    assert client.closed_for == [], "cancels of consumers are to go out first"
    clock.settle()
    assert client.closed_for == ["vhost 'v' is deleted"]
    assert bystander.closed_for == []
    assert not list(node.metadata.records(("queue", "v")))
    assert not node.access.vhost_allowed(User("guest", frozenset()), "v")
    node.add_vhost("v")
    assert node.vhosts["v"].queues == {}


def test_a_large_virtual_host_goes_a_few_definitions_at_a_time(
    node: Node, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add_vhost("v")
    vhost = node.vhosts["v"]
    for number in range(500):
        vhost.declare_exchange(
            f"x{number}",
            "fanout",
            durable=True,
            auto_delete=False,
            internal=False,
            arguments={},
        )
        vhost.bind(Binding("amq.fanout", "exchange", f"x{number}", "", {}), None)
    transact = node.metadata.transact
    sizes: list[int] = []

    def noted(writes: Sequence[Write], preconditions: Sequence[Precondition] = ()) -> Commit:
        sizes.append(len(writes))
        return transact(writes, preconditions)

    monkeypatch.setattr(node.metadata, "transact", noted)
    run(node.end_vhost("v"), lambda result: result())
    clock.settle()
    assert "v" not in node.vhosts
    assert max(sizes) <= BINDINGS_AT_ONCE + 1


@pytest.mark.parametrize(
    ("name", "text"),
    [("none", "vhost none not found"), ("closed", "access to vhost 'closed' refused for user")],
)
def test_not_everybody_gets_in_everywhere(node: Node, name: str, text: str) -> None:
    node.add_vhost("closed")
    with pytest.raises(NotAllowed, match=text):
        enters(node, name)
    assert not node.clients


def test_connections_to_a_virtual_host_are_counted(node: Node) -> None:
    node.vhost_limits.put("/", "max-connections", 2)
    first = enters(node)
    enters(node)
    with pytest.raises(NotAllowed, match=r"connection limit \(2\) is reached"):
        enters(node)
    node.connection_ended(first)
    enters(node)


def test_connections_and_channels_of_a_user_are_counted(node: Node) -> None:
    node.access.set_user_limits("guest", {"max-connections": 2, "max-channels": 3})
    first = enters(node, channels=2)
    assert first.user is not None
    node.check_channel_limit(first.user)
    second = enters(node, channels=1)
    with pytest.raises(NotAllowed, match=r"maximum allowed user limit of \(3\)"):
        node.check_channel_limit(first.user)
    with pytest.raises(NotAllowed, match=r"user connection limit \(2\) is reached"):
        enters(node)
    node.connection_ended(second)
    node.check_channel_limit(first.user)


def test_a_deleted_user_is_out_and_the_others_stay(node: Node) -> None:
    node.access.add_user("other", "secret")
    node.access.set_permissions("other", "/", ".*", ".*", ".*")
    gone, stays = enters(node, user="other"), enters(node)
    node.access.delete_user("other")
    assert gone.closed_for == ["user 'other' is deleted"]
    assert stays.closed_for == []


def test_a_change_of_permissions_empties_the_caches_of_publishers(node: Node) -> None:
    before = node.vhosts["/"].topology.generation
    node.access.set_permissions("guest", "/", "", "", "")
    assert node.vhosts["/"].topology.generation != before


def test_a_policy_reaches_the_queues_there_are(node: Node) -> None:
    node.vhosts["/"].declare_queue(
        "q", durable=False, exclusive_owner=None, auto_delete=False, arguments={}
    )
    queue = node.vhosts["/"].queues["q"]
    node.policies.set("/", "p", "^q", {"max-length": 7}, 0, "queues")
    assert queue.settings.max_length == 7
    node.policies.clear("/", "p")
    assert queue.settings.max_length is None


def test_everybody_hears_of_alarms(node: Node) -> None:
    clients = [enters(node), enters(node)]
    node.alarms.report(Resource.DISK, True)
    node.alarms.report(Resource.DISK, True)
    node.alarms.report(Resource.DISK, False)
    assert [client.alarms_heard for client in clients] == [2, 2]


def test_an_operator_may_close_all_connections(node: Node) -> None:
    client = enters(node)
    node.close_all("maintenance")
    assert client.closed_for == ["maintenance"]


def test_the_cluster_is_named_as_set_or_as_the_node(
    node: Node, metadata: VolatileMetadataStore
) -> None:
    assert node.server_properties()["cluster_name"] == longstr("warren@test")
    key = ("global_parameter", "cluster_name")
    metadata.transact([Write(key, GlobalParameterRecord("home"))])
    assert node.server_properties()["cluster_name"] == longstr("home")
