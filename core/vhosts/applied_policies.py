"""Applies policies to the queues and exchanges of a virtual host."""

from __future__ import annotations

from warren.core.exchanges.exchange import ALTERNATE_EXCHANGE, Exchange
from warren.core.field import Table, to_text
from warren.core.policies.policy import Policies
from warren.core.queues import queue_arguments
from warren.core.queues.queue_arguments import QueueSettings
from warren.core.scheduling.turns import Turns
from warren.core.vhosts.contents import Contents


class AppliedPolicies:
    """The policies of one virtual host, applied to its queues and exchanges."""

    def __init__(self, contents: Contents, policies: Policies, turns: Turns) -> None:
        self._contents = contents
        self._policies = policies
        self._turns = turns
        # Counts the changes of policies that all have to follow.
        self._round = 0

    def settings(self, queue: str, arguments: Table) -> QueueSettings:
        """Return the settings of a queue with these arguments. Raises `PreconditionFailed` for
        arguments that cannot be."""
        vhost = self._contents.vhost
        declared = queue_arguments.parse(queue, vhost, arguments)
        self._turns.spend(self._policies.cost_us(vhost))
        return self._policies.queue_settings(vhost, queue, declared)

    def alternate(self, exchange: Exchange) -> str | None:
        """Return the name of the alternate exchange; None without one."""
        argument = exchange.arguments.get(ALTERNATE_EXCHANGE)
        if argument is not None:
            return to_text(argument.value)
        vhost = self._contents.vhost
        self._turns.spend(self._policies.cost_us(vhost))
        return self._policies.alternate_exchange(vhost, exchange.name)

    async def have_changed(self) -> None:
        """A policy has changed: apply the policies to every queue and exchange, in turns."""
        self._round += 1
        this_round, contents = self._round, self._contents
        exchanges, queues = list(contents.exchanges.values()), list(contents.queues.values())
        for exchange in exchanges:
            await self._turns.pause()
            if this_round != self._round:
                # Another change was made meanwhile, and all follow that.
                return
            exchange.alternate = self.alternate(exchange)
        contents.topology.generation += 1
        for queue in queues:
            await self._turns.pause()
            if this_round != self._round:
                return
            if not queue.deleted:
                queue.apply_settings(self.settings(queue.name, queue.arguments))
        contents.topology.generation += 1

    def end(self) -> None:
        """The virtual host was deleted: stop applying policies."""
        self._round += 1
