"""`warren ctl`: finds the command, and turns its failures into texts and exit codes.

Exit codes are RabbitMQ's (`errors.py`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

import click

from warren.mgmt.ctl.declaration import CONTEXT, CtlCommand, common_options
from warren.mgmt.ctl.errors import CtlError, Exit, WrongUsage

FAMILIES = {
    "users": "Users and permissions",
    "vhosts": "Virtual hosts",
    "listing": "Lists",
    "policies": "Policies and parameters",
    "queues": "Queues and connections",
    "quorum": "Members of quorum queues",
    "streams": "Replicas of streams",
    "messages": "Messages",
    "delayed": "Delayed messages",
    "trace": "Lives of messages",
    "shovels": "Shovels",
    "federation": "Federation",
    "node": "The node",
    "cluster": "The cluster",
    "definitions": "Definitions and feature flags",
    "diagnostics": "Diagnostics",
    "report": "Support",
    "encoding": "Encrypted values of configurations",
    "shell": "Help and the shell",
}
"""The modules that define commands, with the title of each family."""

ARGUMENTS = "warren.ctl.arguments"
"""The key in click's context for the arguments, which error texts repeat."""


class CtlGroup(click.Group):
    """All commands; their modules are imported when one of them is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._all())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self._all().get(cmd_name)

    def _all(self) -> dict[str, CtlCommand]:
        if not self.commands:
            for family in FAMILIES:
                module = import_module(f"warren.mgmt.ctl.{family}")
                for one in vars(module).values():
                    if isinstance(one, CtlCommand) and one.family == family and one.name:
                        self.commands[one.name] = one
        return self.commands  # type: ignore[return-value]

    def make_context(
        self, info_name: str | None, args: list[str], *rest: Any, **extra: Any
    ) -> click.Context:
        given = list(args)
        with _exits(lambda: given, "ctl"):
            return super().make_context(info_name, args, *rest, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ARGUMENTS] = list(args)
        if not args and not ctx.resilient_parsing:
            raise CtlError(ctx.get_help(), Exit.USAGE, heading="")
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        command = self.get_command(ctx, name)
        if command is None:
            if ctx.resilient_parsing:
                return None, None, args
            near = get_close_matches(name, self._all(), n=3)
            hint = f"\nDid you mean {', '.join(near)}?" if near else ""
            raise CtlError(
                f"\nCommand '{name}' not found.{hint}\n\n{ctx.get_usage()}\n"
                "`warren ctl help` lists the commands.",
                Exit.USAGE,
                heading="",
            )
        return name, command, args[1:]

    def invoke(self, ctx: click.Context) -> Any:
        with _exits(lambda: ctx.meta.get(ARGUMENTS, []), ctx.command_path):
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for family, title in FAMILIES.items():
            rows = [
                (name, command.get_short_help_str(80))
                for name, command in sorted(self._all().items())
                if command.family == family
            ]
            with formatter.section(title):
                formatter.write_dl(rows)


@contextmanager
def _exits(given: Callable[[], list[str]], path: str) -> Iterator[None]:
    """Turns failures into texts on the standard error and exit codes."""
    try:
        yield
    except WrongUsage as error:
        _fail(f"{error.heading}{error.text}\n{_given(given(), error.usage)}", error.code)
    except CtlError as error:
        _fail(f"{error.heading}{error.text}", error.code)
    except click.UsageError as error:
        usage = error.ctx.get_usage() if error.ctx is not None else f"Usage: {path}"
        _fail(f"Error (argument validation): {_wrong(error)}\n{_given(given(), usage)}", Exit.USAGE)
    except BrokenPipeError:
        # The reader has gone; Python must not try to write the rest when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(Exit.SOFTWARE)
    except OSError as error:
        about = "" if error.filename is None else f"{error.filename}: "
        _fail(f"Error:\n{about}{error.strerror or error}", Exit.DATA)


def _fail(text: str, code: Exit) -> NoReturn:
    print(text, file=sys.stderr)
    sys.exit(code)


def _wrong(error: click.UsageError) -> str:
    match error:
        case click.MissingParameter() if isinstance(error.param, click.Argument):
            return "not enough arguments."
        case click.NoSuchOption():
            return f"Invalid options for this command:\n\n{error.option_name} : "
    message = error.format_message()
    return "too many arguments." if "unexpected extra argument" in message else message


def _given(arguments: list[str], usage: str) -> str:
    return f"Arguments given:\n\t{' '.join(_without_secrets(arguments))}\n\n{usage}"


def _without_secrets(arguments: list[str]) -> list[str]:
    shown, hide = [], False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if hide:
            argument = "***"
        elif equals and name in ("--password", "--erlang-cookie"):
            argument = f"{name}=***"
        hide = argument in ("--password", "--erlang-cookie")
        shown.append(argument)
    return shown


ctl = CtlGroup(
    "ctl",
    params=common_options(),
    context_settings=CONTEXT,
    help="Operate a node: RabbitMQ's commands, by their names.",
    subcommand_metavar="COMMAND [ARGS]...",
    no_args_is_help=False,
)
