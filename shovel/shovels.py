"""The shovels of a node: each is run by the node that its parameter names.

`assignments.py` chooses that node. A changed parameter restarts its shovel; a parameter that is set
again without a change does not. A shovel that has moved all its messages deletes its parameter,
unless the parameter was changed meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from warren.client.connection import BrokerTarget
from warren.core.access.access_control import AccessControl, User
from warren.core.definitions.records import ParameterRecord
from warren.core.log_line import log_event
from warren.core.ports import Clock, Conflict, Key, MetadataStore, Precondition, Write
from warren.core.scheduling.periodic import Periodic
from warren.shovel import definition as definitions
from warren.shovel.assignments import LOOK_S, Assignments, ClusterPlace
from warren.shovel.definition import Definition
from warren.shovel.reach import ConnectWithin, Reach
from warren.shovel.status import ShovelState, ShovelStatus, row
from warren.shovel.uri import Uri
from warren.shovel.worker import ShovelWorker

log = logging.getLogger("warren.shovel")

COMPONENT = "shovel"


@dataclass
class _Running:
    record: ParameterRecord
    worker: ShovelWorker


class Shovels:
    """The shovels that this node runs, from `start` to `stop`."""

    def __init__(
        self,
        node: str,
        *,
        store: MetadataStore,
        access: AccessControl,
        place: ClusterPlace,
        connect_within: ConnectWithin,
        cluster_name: Callable[[], str],
        clock: Clock,
        random: Random,
    ) -> None:
        self._node = node
        self._store = store
        self._assignments = Assignments(COMPONENT, node, store, place, log)
        self._reach = Reach(access, connect_within)
        self._cluster_name = cluster_name
        self._clock = clock
        self._random = random
        self._running: dict[Key, _Running] = {}
        # Workers that are stopping, by key of their shovel: its next worker waits for them.
        self._stopping: dict[Key, asyncio.Task[None]] = {}
        self._periodic = Periodic(clock, self._look)
        self._unwatch: Callable[[], None] | None = None
        self.moved = 0
        """Messages moved by workers of this node that have ended."""

    def start(self) -> None:
        self._unwatch = self._store.watch(("parameter", COMPONENT), self._changed)
        self._periodic.start()

    async def stop(self) -> None:
        """Stop all shovels and close their connections; unacked messages stay at their source."""
        if self._unwatch is None:
            return
        self._unwatch()
        self._unwatch = None
        self._periodic.stop()
        for key in list(self._running):
            self._end(key)
        if self._stopping:
            await asyncio.wait(self._stopping.values())

    def look_again(self) -> None:
        """Check all shovels again: nodes have come or gone, or this node no longer counts as up."""
        if self._unwatch is not None:
            self._periodic.start()

    # Checks of parameters

    def check(self, _vhost: str, name: str, value: Any, user: User | None) -> None:
        """Raises `ValidationFailed` with every problem of a parameter that the user sets."""
        definitions.check(name, value)
        for uri in definitions.uris(value):
            self._reach.check(uri, user)

    # Views and commands

    def rows(self) -> list[dict[str, Any]]:
        """The shovels assigned to this node, as the HTTP API shows them."""
        return [
            self._row(key, one)
            for key, one in self._assignments.records()
            if one.node == self._node
        ]

    def all_rows(self) -> list[dict[str, Any]]:
        """The shovels of all nodes; the state of those of other nodes is unknown."""
        return [self._row(key, record) for key, record in self._assignments.records()]

    def node_of(self, vhost: str, name: str) -> str | None:
        """The node that runs the shovel; None if there is no such shovel."""
        stored = self._store.get(_key(vhost, name))
        if stored is None:
            return None
        assert isinstance(stored.record, ParameterRecord)
        return stored.record.node

    def restart(self, vhost: str, name: str) -> bool:
        """Restart a shovel of this node; False if the node has no shovel of this name."""
        if self.node_of(vhost, name) != self._node:
            return False
        key = _key(vhost, name)
        if key in self._running:
            # The next worker begins when this one has ended.
            self._end(key)
        return True

    def counts(self) -> dict[str, int]:
        """The numbers of shovels of this node by state."""
        counts = {state.value: 0 for state in ShovelState}
        for running in self._running.values():
            counts[running.worker.status.state.value] += 1
        return counts

    def messages_moved(self) -> int:
        """Messages that shovels of this node have moved since it started."""
        return self.moved + sum(one.worker.status.moved for one in self._running.values())

    def _row(self, key: Key, record: ParameterRecord) -> dict[str, Any]:
        running = self._running.get(key)
        if running is not None:
            worker = running.worker
            return row(key[3], key[2], record.node, worker.status, worker.definition)
        status = ShovelStatus(ShovelState.STARTING, self._clock.wall_time())
        if record.node != self._node:
            status.reason = f"node {record.node} has not answered"
        return row(key[3], key[2], record.node, status, None)

    # Following the parameters

    def _changed(self, key: Key, record: object | None) -> None:
        self._follow(key, record)

    def _look(self, _now: float) -> float:
        """See that each shovel runs where it has to. Returns the seconds until the next check."""
        for key in [key for key in self._running if self._store.get(key) is None]:
            self._end(key)
        for key, record in list(self._assignments.records()):
            self._follow(key, record)
        return LOOK_S

    def _follow(self, key: Key, record: object | None) -> None:
        running = self._running.get(key)
        mine = isinstance(record, ParameterRecord) and self._assignments.is_mine(record)
        if running is not None and not (mine and _same(running.record, record)):
            self._end(key)
            running = None
        if not isinstance(record, ParameterRecord):
            return
        if mine:
            if running is None and key not in self._stopping:
                self._begin(key, record)
        else:
            self._assignments.claim_left(key, record)

    def _begin(self, key: Key, record: ParameterRecord) -> None:
        try:
            definition = _parsed(record)
        except (ValueError, LookupError, TypeError, AttributeError):
            # The parameter was checked by a node of another version. The error is not logged, as it
            # may name a URI with its password.
            log_event(log, logging.ERROR, "shovel_not_understood", shovel=key[3], vhost=key[2])
            return
        for uri in (*definition.source.uris, *definition.destination.uris):
            if uri.tls is not None and not uri.tls.verify:
                log_event(
                    log, logging.WARNING, "shovel_peer_not_verified", shovel=key[3], uri=uri.shown
                )
        worker = ShovelWorker(
            key[3],
            key[2],
            definition,
            target=lambda uri: self._target(uri, key[3], record.user, definition),
            cluster_name=self._cluster_name,
            clock=self._clock,
            random=self._random,
            finished=lambda: self._finished(key, record),
        )
        self._running[key] = _Running(record, worker)
        worker.start()

    def _end(self, key: Key) -> None:
        worker = self._running.pop(key).worker
        stopping = asyncio.get_running_loop().create_task(self._stop_worker(key, worker))
        self._stopping[key] = stopping

    async def _stop_worker(self, key: Key, worker: ShovelWorker) -> None:
        await worker.stop()
        self.moved += worker.status.moved
        del self._stopping[key]
        stored = self._store.get(key)
        if stored is not None and self._unwatch is not None:
            self._follow(key, stored.record)

    def _finished(self, key: Key, record: ParameterRecord) -> None:
        """All messages are moved: delete the parameter, and with it the shovel."""
        stored = self._store.get(key)
        if stored is None or not _same(record, stored.record):
            return
        with suppress(Conflict):
            commit = self._store.transact([Write(key, None)], [Precondition(key, stored.version)])
            # Another node has changed the parameter: check whether it is still the same shovel.
            commit.then(lambda: self._finished(key, record) if commit.refused else None)

    def _target(self, uri: Uri, name: str, user: str, definition: Definition) -> BrokerTarget:
        """How to reach a broker. Messages from this cluster keep their `user_id`: it was checked
        when they were published."""
        within = all(source.host is None for source in definition.source.uris)
        keeps_user = within and "user_id" not in definition.destination.properties
        return self._reach.target(uri, f"Shovel {name}", user, impersonates=keeps_user)


def _key(vhost: str, name: str) -> Key:
    return ("parameter", COMPONENT, vhost, name)


def _same(one: ParameterRecord, other: object) -> bool:
    """Whether both ask for the same shovel with the same rights."""
    return (
        isinstance(other, ParameterRecord)
        and one.value == other.value
        and one.user == other.user
        and one.node == other.node
    )


def _parsed(record: ParameterRecord) -> Definition:
    return definitions.parse(record.value)
