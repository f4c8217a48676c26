"""Which resources run short, and on which nodes: while any does, publishers wait.

Answerable for amqp_semantics.md section 1.7 and storage_internals.md section d.4 as far as the
set of alarms goes: who raises them is the monitors', blocking is the connections'. An alarm of any
node counts on every node. While a resource is only a little short, publishers to queues that grow
wait (`core/resources/growth.py`), and the others go on. When it gets worse all of them wait, as in
RabbitMQ."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from warren.core.log_line import log_event

log = logging.getLogger("warren.alarm")


class Resource(StrEnum):
    """Why publishers may have to wait, in the order in which reasons are given."""

    MEMORY = "memory"
    DISK = "disk"
    FAULT = "internal_error"
    """The node met an unexpected exception, and stops."""


REASONS = {
    Resource.MEMORY: "low on memory",
    Resource.DISK: "low on disk",
    Resource.FAULT: "internal error",
}


class Alarm(NamedTuple):
    """A resource that runs short on a node."""

    resource: Resource
    node: str


class Alarms:
    """The alarms in effect, as known to `node`.

    `raised` says whether publishers may have to wait, because there are any or for `flow`, and
    `all_wait` whether every publisher has to, whatever its queue. Both are plain attributes: every
    publish looks at the first.
    """

    def __init__(self, node: str) -> None:
        self.raised = False
        self.all_wait = False
        self.flow = False
        self._node = node
        self._slow: set[str] = set()
        # By alarm: whether only publishers to queues that grow wait.
        self._in_effect: dict[Alarm, bool] = {}
        self._subscribers: dict[object, Callable[[], None]] = {}

    def report(
        self,
        resource: Resource,
        short: bool,
        node: str | None = None,
        *,
        growing_only: bool = False,
    ) -> None:
        """Note that a node, our own unless given, runs short of the resource, or does not any more.

        `growing_only`: only publishers to queues that grow have to wait for it.
        """
        alarm = Alarm(resource, node if node is not None else self._node)
        others = {other: only for other, only in self._in_effect.items() if other != alarm}
        self._become({**others, alarm: growing_only} if short else others)

    def set_flow(self, flow: bool, of: str = "disk") -> None:
        """Have publishers wait for the disk, or for what `of` names, or not any more.

        Clients are not told why.
        """
        if flow:
            self._slow.add(of)
        else:
            self._slow.discard(of)
        flow = bool(self._slow)
        if flow is not self.flow:
            self.flow = flow
            self._changed()

    def node_down(self, node: str) -> None:
        """Drop the alarms of a node that is gone."""
        self._become({alarm: only for alarm, only in self._in_effect.items() if alarm.node != node})

    def in_effect(self) -> list[Alarm]:
        """All alarms, by node and resource."""
        return sorted(
            self._in_effect, key=lambda alarm: (alarm.node, list(Resource).index(alarm[0]))
        )

    def local(self) -> list[Alarm]:
        """The alarms of our own node."""
        return [alarm for alarm in self.in_effect() if alarm.node == self._node]

    def growing_only(self, alarm: Alarm) -> bool:
        """Whether only publishers to queues that grow have to wait for this alarm."""
        return self._in_effect.get(alarm, False)

    def reason(self) -> str:
        """The reason that blocked publishers are told; empty without an alarm."""
        short = {alarm.resource for alarm in self._in_effect}
        return " & ".join(REASONS[resource] for resource in Resource if resource in short)

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after each change; call the result to stop."""
        token = object()
        self._subscribers[token] = callback

        def stop() -> None:
            self._subscribers.pop(token, None)

        return stop

    def _become(self, alarms: dict[Alarm, bool]) -> None:
        before = self._in_effect
        if alarms == before:
            return
        for alarm in sorted(alarms):
            if before.get(alarm) is not alarms[alarm]:
                log_event(
                    log,
                    logging.WARNING,
                    "alarm_raised",
                    resource=alarm.resource,
                    node=alarm.node,
                    blocks="growing" if alarms[alarm] else "all",
                )
        for alarm in sorted(before.keys() - alarms.keys()):
            log_event(
                log, logging.WARNING, "alarm_cleared", resource=alarm.resource, node=alarm.node
            )
        self._in_effect = alarms
        self._changed()

    def _changed(self) -> None:
        self.raised = bool(self._in_effect) or self.flow
        self.all_wait = self.flow or not all(self._in_effect.values())
        for token, callback in list(self._subscribers.items()):
            if token in self._subscribers:
                callback()
