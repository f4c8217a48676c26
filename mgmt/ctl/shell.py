"""Help, completion, version, and the plugins of RabbitMQ that Warren has built in."""

from __future__ import annotations

import os
from typing import Any

import click
from click.shell_completion import get_completion_class

from warren import __version__
from warren.mgmt.ctl.call import CommandCall
from warren.mgmt.ctl.declaration import argument, command, flag, optional, several
from warren.mgmt.ctl.errors import CtlError, Exit, WrongUsage
from warren.mgmt.ctl.formats import Answer, Document

SHELLS = ("bash", "fish", "zsh")
PROGRAM = "warren"
COMPLETE_VARIABLE = "_WARREN_COMPLETE"


@command("help", "List the commands, or say what one takes.", optional("command"))
def show_help(call: CommandCall, command: str | None) -> Answer:
    group = click.get_current_context().parent
    assert group is not None and isinstance(group.command, click.Group)
    if command is None:
        return group.get_help()
    found = group.command.get_command(group, command)
    if found is None:
        raise CtlError(f"Command '{command}' not found.", Exit.USAGE, heading="")
    return found.get_help(click.Context(found, group, command))


@command("version", "Show the version of this command line.")
def version(call: CommandCall) -> Answer:
    return Document(__version__, {"version": __version__})


@command(
    "autocomplete",
    "Print a script that makes a shell complete commands.",
    argument("shell", required=False, type=click.Choice(SHELLS)),
)
def autocomplete(call: CommandCall, shell: str | None) -> Answer:
    """For bash: `eval "$(warren ctl autocomplete bash)"`."""
    name = shell or os.path.basename(call.variables.get("SHELL", ""))
    if name not in SHELLS:
        raise CtlError(f"one of {', '.join(SHELLS)} was wanted", Exit.USAGE)
    kind = get_completion_class(name)
    assert kind is not None
    root = click.get_current_context().find_root().command
    script = kind(root, {}, PROGRAM, COMPLETE_VARIABLE)
    return script.source_template % script.source_vars()


# Plugins


def _plugins(call: CommandCall) -> tuple[list[str], str]:
    said: dict[str, Any] = call.client.get("control", "status")
    return said["active_plugins"], said["rabbitmq_version"]


@command(
    "list",
    "List plugins of RabbitMQ that are built in: they cannot be turned off.",
    optional("pattern"),
    flag("-e", "--enabled"),
    flag("-E", "--implicitly_enabled"),
    flag("-m", "--minimal", help="Names only."),
    flag("-v", "--verbose"),
)
def list_plugins(call: CommandCall, pattern: str | None, minimal: bool, **_how: bool) -> Answer:
    call.announce(f'Listing plugins with pattern "{pattern or ".*"}" ...')
    names, version = _plugins(call)
    found = [name for name in names if pattern is None or pattern in name]
    rows = [{"name": name, "version": version, "enabled": "enabled"} for name in found]
    if minimal or call.options.quiet or call.options.silent:
        return Document("\n".join(found), {"status": "running", "plugins": rows}, alone=True)
    width = max(map(len, found), default=0)
    lines = [
        " Configured: E = explicitly enabled; e = implicitly enabled",
        f" | Status: * = running on {call.node}",
        " |/",
        *[f"[E*] {name:<{width}} {version}" for name in found],
    ]
    return Document("\n".join(lines), {"status": "running", "plugins": rows}, alone=True)


@command("is_enabled", "Check that plugins of RabbitMQ are built in.", several("plugins"))
def is_enabled(call: CommandCall, plugins: tuple[str, ...]) -> Answer:
    if not plugins:
        raise WrongUsage("not enough arguments.")
    which = f"plugin {plugins[0]} is" if len(plugins) == 1 else f"plugins {', '.join(plugins)} are"
    call.announce(f"Asking node {call.node} if {which} enabled...")
    names, _ = _plugins(call)
    missing = [plugin for plugin in plugins if plugin not in names]
    if missing:
        raise CtlError(
            f"Plugin {', '.join(missing)} is not enabled on node {call.node}."
            f" Enabled plugins and dependencies: {', '.join(names)}"
        )
    return "\n".join(f"Plugin {plugin} is enabled on node {call.node}" for plugin in plugins)
