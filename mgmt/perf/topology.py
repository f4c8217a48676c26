"""The queues and the exchange of a run: declared before it, deleted after it.

Only queues and exchanges that the run has created are deleted. Existing ones are used, and the
broker refuses the declaration if its arguments differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pamqp import commands

from warren.amqp.methods import Method, make
from warren.mgmt.perf.client import PerfLink, connect
from warren.mgmt.perf.errors import ClosedByBroker
from warren.mgmt.perf.scenario import Scenario

_NOT_FOUND = 404


@dataclass(slots=True)
class Declared:
    """The queues and exchanges that a run has created and has to delete."""

    queues: list[str] = field(default_factory=list)
    exchanges: list[str] = field(default_factory=list)


async def declare(scenario: Scenario, declared: Declared) -> None:
    """Declare and bind.

    Each new object is added to `declared` once it exists, so that this is right even after an
    error.
    """
    link = await connect(scenario.address)
    try:
        if scenario.predeclared:
            return
        if scenario.exchange:
            await _declare_exchange(link, scenario, declared)
        for name in scenario.queue_names:
            await _declare_queue(link, scenario, name, declared)
    finally:
        await link.close()


async def delete(scenario: Scenario, declared: Declared) -> None:
    """Delete what the run has created; objects that no longer exist are no error."""
    if not declared.queues and not declared.exchanges:
        return
    link = await connect(scenario.address)
    try:
        for name in declared.queues:
            await _delete(link, make(commands.Queue.Delete, queue=name), commands.Queue.DeleteOk)
        for name in declared.exchanges:
            await _delete(
                link, make(commands.Exchange.Delete, exchange=name), commands.Exchange.DeleteOk
            )
    finally:
        await link.close()


async def _declare_exchange(link: PerfLink, scenario: Scenario, declared: Declared) -> None:
    passive = make(commands.Exchange.Declare, exchange=scenario.exchange, passive=True)
    exists = await _exists(link, passive, commands.Exchange.DeclareOk)
    if exists and scenario.exchange_type is None:
        return
    await link.call(
        make(
            commands.Exchange.Declare,
            exchange=scenario.exchange,
            exchange_type=scenario.exchange_type or "direct",
            durable=True,
        ),
        commands.Exchange.DeclareOk,
    )
    if not exists:
        declared.exchanges.append(scenario.exchange)


async def _declare_queue(link: PerfLink, scenario: Scenario, name: str, declared: Declared) -> None:
    exists = not scenario.fresh_names and await _exists(
        link, make(commands.Queue.Declare, queue=name, passive=True), commands.Queue.DeclareOk
    )
    await link.call(
        make(
            commands.Queue.Declare,
            queue=name,
            durable=scenario.durable,
            auto_delete=scenario.auto_delete,
            arguments=scenario.queue_arguments,
        ),
        commands.Queue.DeclareOk,
    )
    if not exists:
        declared.queues.append(name)
    if scenario.exchange:
        await link.call(
            make(
                commands.Queue.Bind,
                queue=name,
                exchange=scenario.exchange,
                routing_key=scenario.binding_key_of(name),
            ),
            commands.Queue.BindOk,
        )


async def _exists(link: PerfLink, passive: Method, answer: type[Method]) -> bool:
    try:
        await link.call(passive, answer)
    except ClosedByBroker as error:
        if error.code != _NOT_FOUND:
            raise
        await link.open_channel()
        return False
    return True


async def _delete(link: PerfLink, deletion: Method, answer: type[Method]) -> None:
    try:
        await link.call(deletion, answer)
    except ClosedByBroker as error:
        if error.code != _NOT_FOUND:
            raise
        await link.open_channel()
