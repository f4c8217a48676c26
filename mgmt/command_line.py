"""`warren`: the verbs, each loaded when it is used, so that the server starts quickly.

Exit codes: 0 for success, 1 for failure, 2 for wrong usage or configuration.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from warren import __version__

COMMANDS = {
    "backup": "warren.mgmt.backup_command:backup",
    "conformance": "warren.mgmt.conformance_command:conformance",
    "ctl": "warren.mgmt.ctl.command:ctl",
    "dev-cluster": "warren.mgmt.dev_cluster_command:dev_cluster",
    "export": "warren.spark_export.cli:export",
    "migrate": "warren.mgmt.migrate.command:migrate",
    "perf": "warren.mgmt.perf.command:perf",
    "process": "warren.mgmt.processes.child_command:process",
    "restore": "warren.mgmt.backup_command:restore",
    "restore-queues": "warren.mgmt.restore_queues_command:restore_queues",
    "server": "warren.mgmt.server_command:server",
    "store": "warren.mgmt.store_command:store",
}
"""Where each verb is defined."""


class LazyCommands(click.Group):
    """Loads a verb's module when the verb is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name].split(":")
        command: Any = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=LazyCommands)
@click.version_option(__version__, prog_name="warren")
def warren() -> None:
    """An AMQP 0-9-1 broker that RabbitMQ clients use unchanged."""
