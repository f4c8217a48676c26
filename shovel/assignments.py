"""Assigns each parameter of a component to a node: the parameter's record names the node.

At first this is the node on which the parameter was set. When that node is no longer up, another
node claims the parameter by writing its own name into the record. The store takes a claim only if
the record is unchanged since it was read, so one of several claimants succeeds.

A node carries out a parameter while the record names it, and only as long as the other nodes cannot
count it as down (`ClusterPlace.may_run`): so two nodes never carry out the same parameter.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple, Protocol

import msgspec

from warren.core.definitions.records import ParameterRecord
from warren.core.log_line import log_event
from warren.core.ports import Conflict, Key, MetadataStore, Precondition, Write

LOOK_S = 1.0
"""The time between a node's checks for parameters of nodes that are down."""


class ClusterPlace(Protocol):
    """The place of this node in the cluster."""

    def alive(self) -> Collection[str]:
        """The nodes that are up, this one included."""
        ...

    def may_run(self) -> bool:
        """Whether the others count this node as up."""
        ...


class OnlyNode(NamedTuple):
    """The place of a node without a cluster."""

    name: str

    def alive(self) -> Collection[str]:
        return (self.name,)

    def may_run(self) -> bool:
        return True


class Assignments:
    """The parameters of one component and the nodes that carry them out."""

    def __init__(
        self,
        component: str,
        node: str,
        store: MetadataStore,
        place: ClusterPlace,
        log: logging.Logger,
    ) -> None:
        self._component = component
        self._node = node
        self._store = store
        self._place = place
        self._log = log

    def records(self) -> Iterator[tuple[Key, ParameterRecord]]:
        for key, record, _ in self._store.records(("parameter", self._component)):
            assert isinstance(record, ParameterRecord)
            yield key, record

    def is_mine(self, record: ParameterRecord) -> bool:
        """Whether this node carries out the parameter now."""
        return record.node == self._node and self._place.may_run()

    def claim_left(self, key: Key, record: ParameterRecord) -> None:
        """Claim a parameter of a node that is down, unless another node is faster."""
        if not self._place.may_run() or record.node in self._place.alive():
            return
        stored = self._store.get(key)
        if stored is None or stored.record != record:
            return
        claimed = msgspec.structs.replace(record, node=self._node)
        with suppress(Conflict):
            commit = self._store.transact(
                [Write(key, claimed)], [Precondition(key, stored.version)]
            )
            commit.then(lambda: None if commit.refused else self._claimed(key, record))

    def _claimed(self, key: Key, record: ParameterRecord) -> None:
        log_event(
            self._log,
            logging.INFO,
            "parameter_claimed",
            component=self._component,
            vhost=key[2],
            name=key[3],
            former_node=record.node,
        )
