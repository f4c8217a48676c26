"""What a node brings into the cluster that it begins, also when it ends while it does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from warren.core.definitions.records import QueueRecord, VirtualHostRecord
from warren.core.definitions.volatile_metadata import VolatileMetadataStore
from warren.core.ports import Stored, Write
from warren.first_definitions import FirstDefinitions
from warren.mirror.members.presence import ClusterIdentity, ClusterMember
from warren.node_refused import ClusterRefused
from warren.persist.disk.cluster_file import (
    KnownCluster,
    read_beginning,
    read_known_cluster,
    write_known_cluster,
)
from warren.persist.disk.data_directory import DataDirectory

NAME = "warren@a"
VHOST = Stored(("vhost", "/"), VirtualHostRecord(), 1)
QUEUE = Stored(("queue", "/", "q"), QueueRecord(False, {}, 7), 1)


class FakeMembership:
    """A cluster with these members."""

    def __init__(self, **members: ClusterMember) -> None:
        self.identity = ClusterIdentity("c1", 1, 1)
        self._members = {f"warren@{name}": member for name, member in members.items()}
        self.left = False

    def members(self) -> Mapping[str, ClusterMember]:
        return self._members

    async def leave(self, *, for_good: bool) -> None:
        self.left = for_good


def begin(directory: DataDirectory, membership: FakeMembership) -> FirstDefinitions:
    first = FirstDefinitions([VHOST, QUEUE], directory, NAME)
    first.begin(membership)  # type: ignore[arg-type]
    return first


def test_who_begins_a_cluster_may_go_on_after_a_crash(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path / "data") as directory:
        first = begin(directory, FakeMembership())
        asyncio.run(first.joined(FakeMembership(), first=True))  # type: ignore[arg-type]
        # It ends here. Another node, which had nothing, has joined when it is started again.
        now = FakeMembership(a=ClusterMember(directory.node_id, 0.0), b=ClusterMember("other", 0.0))
        again = begin(directory, now)
        asyncio.run(again.joined(now, first=False))  # type: ignore[arg-type]
        assert not now.left
        shared = VolatileMetadataStore()
        shared.transact([Write(VHOST.key, VHOST.record)])
        (write,) = again.writes(shared)
        assert write.key == QUEUE.key
        assert isinstance(write.record, QueueRecord)
        assert (write.record.queue_id, write.record.leader) == (7, NAME)
        write_known_cluster(directory.path, KnownCluster("c1", NAME))
        assert read_known_cluster(directory.path) == KnownCluster("c1", NAME)
        assert read_beginning(directory.path) is None


def test_a_cluster_that_others_have_begun_is_refused(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path / "data") as directory:
        with pytest.raises(ClusterRefused, match="has definitions of its own"):
            begin(directory, FakeMembership(b=ClusterMember("other", 0.0)))
        assert read_beginning(directory.path) is None
        begin(directory, FakeMembership())
        for members in (
            FakeMembership(a=ClusterMember("another of this name", 0.0)),
            FakeMembership(b=ClusterMember(directory.node_id, 0.0)),
        ):
            with pytest.raises(ClusterRefused, match="has definitions of its own"):
                begin(directory, members)


def test_of_two_that_begin_a_cluster_at_once_the_second_leaves(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path / "data") as directory:
        first = begin(directory, FakeMembership())
        now = FakeMembership(b=ClusterMember("other", 0.0))
        with pytest.raises(ClusterRefused, match="has definitions of its own"):
            asyncio.run(first.joined(now, first=False))  # type: ignore[arg-type]
        assert now.left
