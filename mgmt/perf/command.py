"""The command `warren perf`: from options to a scenario, from a result to texts and an exit code.

Exit codes: 0 the run ended as planned or was interrupted, 1 it failed, 2 the options are wrong.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from warren.mgmt.perf.errors import PerfError
from warren.mgmt.perf.report import progress_line, summary, to_json
from warren.mgmt.perf.run import RunOutcome, RunResult, Second, run
from warren.mgmt.perf.scenario import (
    DEFAULT_TIME_S,
    DEFAULT_URL,
    Scenario,
    ScenarioError,
    parse_pairs,
    parse_sizes,
    parse_url,
)

FAILED = 1

PUBLISHED = "published"


def _read_with(
    read: Callable[[str], Any],
) -> Callable[[click.Context, click.Parameter, str], Any]:
    """The callback of an option, for a function that reads its value."""

    def callback(context: click.Context, parameter: click.Parameter, value: str) -> Any:
        try:
            return read(value)
        except ScenarioError as error:
            raise click.BadParameter(str(error), context, parameter) from error

    return callback


def _read_moment(text: str) -> float | str:
    """Seconds, or the word for the end of publishing."""
    if text == PUBLISHED:
        return text
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ScenarioError(f"expected seconds or {PUBLISHED!r}, not {text!r}")
    return seconds


_COUNT = click.IntRange(min=0)
_POSITIVE = click.IntRange(min=1)
_SHORT = click.IntRange(min=0, max=65535)
_AMOUNT = click.FloatRange(min=0, max=1e9)


@click.command("perf")
@click.argument("url", default=DEFAULT_URL)
@click.option("-p", "--producers", type=_COUNT, default=1, show_default=True)
@click.option("-c", "--consumers", type=_COUNT, default=1, show_default=True)
@click.option(
    "-q",
    "--queue",
    help="Name of the queue; with --queues the start of their names, before -1, -2, ... "
    "[default: a new name]",
)
@click.option("--queues", type=_POSITIVE, default=1, show_default=True)
@click.option("-n", "--messages", type=_POSITIVE, help="Messages to send, over all producers.")
@click.option(
    "-t",
    "--time",
    "time_s",
    type=_AMOUNT,
    help="Seconds to run; 0 is until Ctrl-C. "
    f"[default: {DEFAULT_TIME_S:.0f}, with --messages no limit]",
)
@click.option(
    "-s",
    "--size",
    "sizes",
    metavar="BYTES",
    callback=_read_with(parse_sizes),
    default="100",
    show_default=True,
    help="Size of the body; several, as in 100,5000, are sent in turn.",
)
@click.option(
    "-r", "--rate", type=_AMOUNT, default=0.0, help="Messages per second and producer. [no limit]"
)
@click.option("--persistent", is_flag=True, help="Send persistent messages.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header of each message."
)
@click.option("--mandatory", is_flag=True, help="Have unroutable messages returned.")
@click.option(
    "--confirm",
    "confirm_window",
    type=_COUNT,
    default=0,
    metavar="N",
    help="Publisher confirms, at most N messages unconfirmed per connection.",
)
@click.option(
    "--producer-connections",
    type=_POSITIVE,
    default=1,
    show_default=True,
    help="Connections each producer spreads its messages over.",
)
@click.option("--exchange", default="", help="Exchange to publish to. [default: the queue itself]")
@click.option("--exchange-type", help="Type of the exchange. [default: direct, if it is new]")
@click.option("--routing-key", help="Routing key of all messages. [default: each queue's name]")
@click.option("--binding-key", help="Key that binds the queues. [default: the routing key]")
@click.option(
    "--durable/--transient", default=True, show_default=True, help="Kind of the queues declared."
)
@click.option("--auto-delete", is_flag=True, help="Declare auto-delete queues.")
@click.option(
    "--queue-arg",
    "queue_arguments",
    multiple=True,
    metavar="NAME=VALUE",
    help="Argument of the queues declared.",
)
@click.option("--predeclared", is_flag=True, help="Declare nothing, delete nothing.")
@click.option("--keep", is_flag=True, help="Leave what was declared on the broker.")
@click.option("--auto-ack", is_flag=True, help="Consume without acks.")
@click.option(
    "--ack-every",
    type=_POSITIVE,
    default=1,
    show_default=True,
    metavar="N",
    help="One ack for N messages.",
)
@click.option(
    "--prefetch", type=_SHORT, default=0, help="Unacked messages per consumer. [no limit]"
)
@click.option(
    "--requeue-every", type=_COUNT, default=0, metavar="N", help="Requeue each Nth message."
)
@click.option(
    "--consumer-delay",
    "consumer_delay_ms",
    type=_AMOUNT,
    default=0.0,
    metavar="MS",
    help="Milliseconds a consumer works on each message.",
)
@click.option(
    "--consume-after",
    callback=_read_with(_read_moment),
    default="0",
    metavar="S|published",
    help="Start consumers after so many seconds, or when all is published.",
)
@click.option(
    "--processes",
    type=_POSITIVE,
    default=1,
    show_default=True,
    help="Processes for producers, and as many for consumers.",
)
@click.option(
    "--ca-file",
    type=click.Path(exists=True, dir_okay=False),
    help="Certificates to trust with amqps.",
)
@click.option("--insecure", is_flag=True, help="Trust any certificate with amqps.")
@click.option(
    "--progress/--no-progress",
    default=None,
    help="A line per second on stderr. [default: if it is a terminal]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, no summary.")
@click.option(
    "--json-file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Also write the JSON object to a file.",
)
def perf(
    url: str,
    progress: bool | None,
    as_json: bool,
    json_file: Path | None,
    **options: Any,
) -> None:
    """Put load on the AMQP 0-9-1 broker at URL and measure rates and latencies.

    URL is amqp://user:password@host:port/vhost or amqps://...; without it, guest on this host.
    Latencies mean something only if producers and consumers run on the same host.
    Queues and exchanges that did not exist before are deleted at the end.
    """
    try:
        scenario = scenario_from(url, **options)
    except ScenarioError as error:
        raise click.UsageError(str(error)) from error
    if progress is None:
        progress = sys.stderr.isatty()
    on_second = _print_progress(scenario) if progress else _print_nothing
    try:
        result = run(scenario, on_second)
    except PerfError as error:
        result = RunResult(scenario, outcome=RunOutcome.FAILED, error=str(error))
    _print_result(result, as_json, json_file)
    if result.outcome is RunOutcome.FAILED:
        click.echo(f"error: {result.error}", err=True)
        sys.exit(FAILED)


def scenario_from(
    url: str,
    *,
    queue: str | None,
    time_s: float | None,
    messages: int | None,
    headers: tuple[str, ...],
    queue_arguments: tuple[str, ...],
    consume_after: float | str,
    ca_file: str | None,
    insecure: bool,
    **options: Any,
) -> Scenario:
    """The scenario of the command's options. Raises `ScenarioError`."""
    if (
        options["predeclared"]
        and queue is None
        and (options["consumers"] or not options["exchange"])
    ):
        raise ScenarioError("--predeclared needs the name of the queue: give --queue")
    if time_s is None and messages is None:
        time_s = DEFAULT_TIME_S
    return Scenario(
        address=parse_url(url, ca_file=ca_file, insecure=insecure),
        queue=queue if queue is not None else f"warren-perf-{secrets.token_hex(4)}",
        fresh_names=queue is None,
        time_s=time_s or None,
        messages=messages,
        headers=parse_pairs(headers),
        queue_arguments=parse_pairs(queue_arguments),
        consume_after_s=0.0 if isinstance(consume_after, str) else consume_after,
        consume_after_publishing=consume_after == PUBLISHED,
        **options,
    )


def _print_progress(scenario: Scenario) -> Callable[[Second], None]:
    return lambda second: click.echo(progress_line(second, scenario), err=True)


def _print_nothing(second: Second) -> None:
    pass


def _print_result(result: RunResult, as_json: bool, json_file: Path | None) -> None:
    text = json.dumps(to_json(result))
    if as_json:
        click.echo(text)
    elif result.outcome is not RunOutcome.FAILED or result.totals.sent or result.totals.received:
        click.echo(summary(result))
    if json_file is not None:
        try:
            json_file.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise click.FileError(str(json_file), error.strerror) from error
