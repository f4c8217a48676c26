"""How commands are declared: each has a name, a summary, parameters, and a function to run."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import click

from warren.mgmt.ctl.call import CommandCall, DryRun, Options
from warren.mgmt.ctl.errors import CheckFailed, CtlError, Exit, WrongUsage
from warren.mgmt.ctl.formats import FORMATTERS, Answer, as_json, render

CONTEXT = {"help_option_names": ["-h", "-?", "--help"]}


class Number(click.FloatRange):
    """A number in a range, and not NaN: `float` reads `nan`, and click finds it in every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if math.isnan(number := super().convert(value, param, ctx)):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


class _Seconds(Number):
    """A number of seconds that a socket can wait."""

    def _describe_range(self) -> str:
        return "x>=0"


SECONDS = _Seconds(min=0, max=1_000_000_000)


def common_options() -> list[click.Parameter]:
    """The options that are accepted before the command and after it."""
    return [
        click.Option(["-n", "--node"], metavar="NODE", help="The node's name."),
        click.Option(["-p", "--vhost"], metavar="VHOST", help="The virtual host [/]."),
        click.Option(["-t", "--timeout"], type=SECONDS, metavar="SECONDS"),
        click.Option(["-q", "--quiet"], is_flag=True, help="Do not say what is being done."),
        click.Option(["-s", "--silent"], is_flag=True, help="--quiet, and no headers of tables."),
        click.Option(["--formatter"], type=click.Choice(FORMATTERS), metavar="|".join(FORMATTERS)),
        click.Option(["--no-table-headers"], is_flag=True, help="No headers of tables."),
        click.Option(["--dry-run"], is_flag=True, help="Only say what would be done."),
        click.Option(["--data-dir"], metavar="DIR", help="The node's data directory."),
        click.Option(["--url"], metavar="URL", help="Reach the node over http or https."),
        click.Option(["--username"], metavar="NAME", help="Who logs in at --url [guest]."),
        click.Option(["--password"], metavar="TEXT", help="Or WARREN_CTL_PASSWORD, or a prompt."),
        click.Option(["--cacert"], metavar="FILE", help="Whom to trust at an https --url."),
        click.Option(["--insecure"], is_flag=True, help="Check no certificate at an https --url."),
        click.Option(["-l", "--longnames"], is_flag=True, hidden=True),
        click.Option(["--print-stacktrace"], is_flag=True, hidden=True),
        click.Option(["--erlang-cookie"], hidden=True),
    ]


class CtlCommand(click.Command):
    """A command: its parameters besides the common options, and its function."""

    def __init__(
        self,
        name: str,
        summary: str,
        run: Callable[..., Answer],
        own: list[click.Parameter],
    ) -> None:
        super().__init__(
            name, params=[*own, *common_options()], help=summary, context_settings=CONTEXT
        )
        self.family = run.__module__.rpartition(".")[2]
        self._own = own
        self._run = run

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The usage, without the options that every command has."""
        pieces = []
        for parameter in self._own:
            if isinstance(parameter, click.Option):
                value = "" if parameter.is_flag else f" {parameter.make_metavar(ctx)}"
                pieces.append(f"[{parameter.opts[-1]}{value}]")
            else:
                pieces += parameter.get_usage_pieces(ctx)
        return [*pieces, "[OPTIONS]"]

    def invoke(self, ctx: click.Context) -> None:
        call = CommandCall(chosen_options(ctx))
        own = {name: ctx.params[name] for one in self._own if (name := one.name) is not None}
        try:
            text = self.answer(call, own)
        except DryRun:
            return
        except CheckFailed as failed:
            if call.options.formatter != "json":
                raise
            raise CtlError(as_json(failed.json), failed.code, heading="") from failed
        except WrongUsage as error:
            error.usage = ctx.get_usage()
            raise
        except UnicodeEncodeError as error:
            raise CtlError("an argument is no text in UTF-8", Exit.DATA) from error
        finally:
            call.close()
        sys.stdout.write(text)
        sys.stdout.flush()

    def answer(self, call: CommandCall, own: Mapping[str, Any]) -> str:
        """Run the command; returns the text to print. Raises `CtlError` or `DryRun`."""
        answer = self._run(call, **own)
        options = call.options
        names_node = options.formatter == "json" and _names_node(answer)
        return render(answer, options.style, call.node if names_node else "")


def chosen_options(ctx: click.Context) -> Options:
    """Options after the command override those before it."""
    before = ctx.parent.params if ctx.parent is not None else {}
    chosen: dict[str, Any] = {}
    for option in fields(Options):
        for params in (before, ctx.params):
            value = params.get(option.name)
            if value is not None and value is not False:
                chosen[option.name] = value
    return Options(**chosen)


def _names_node(answer: Answer) -> bool:
    """Whether the answer in JSON has the node's name; to find that takes a request."""
    return answer is None or isinstance(answer, str) or not getattr(answer, "alone", True)


def command(
    name: str, summary: str, *takes: click.Parameter
) -> Callable[[Callable[..., Answer]], CtlCommand]:
    """Make a function a command. Its arguments are the call, and the parameters by name."""

    def declare(run: Callable[..., Answer]) -> CtlCommand:
        return CtlCommand(name, summary, run, list(takes))

    return declare


def argument(name: str, **how: Any) -> click.Argument:
    return click.Argument([name], **how)


def optional(name: str) -> click.Argument:
    return click.Argument([name], required=False)


def several(name: str) -> click.Argument:
    """An argument that may be given any number of times, or not at all."""
    return click.Argument([name], nargs=-1)


def option(*names: str, **how: Any) -> click.Option:
    return click.Option(list(names), **how)


def flag(*names: str, help: str = "") -> click.Option:
    return click.Option(list(names), is_flag=True, help=help)
