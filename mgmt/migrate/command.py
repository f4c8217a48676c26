"""The command `warren migrate`.

Exit codes: 0 when everything was moved, 1 when something was not, 2 for wrong usage.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Sequence

import click

from warren.mgmt.ctl.errors import CtlError
from warren.mgmt.migrate.definitions import ItemOutcome, move_definitions
from warren.mgmt.migrate.errors import MigrateError, WrongAddress
from warren.mgmt.migrate.report import (
    all_taken,
    as_json,
    definitions_text,
    messages_text,
    plan_text,
    progress_text,
)
from warren.mgmt.migrate.run import (
    MigrationProgress,
    MoveAudience,
    MoveOptions,
    QueueResult,
    SourceQueue,
    list_queues,
    move_messages,
)
from warren.mgmt.migrate.side import Side, refuse_one_broker, side

TELL_EVERY_S = 1.0

NOT_ALL = 1


@click.command()
@click.argument("source_url", metavar="SOURCE")
@click.argument("target_url", metavar="TARGET")
@click.option("--source-amqp", metavar="URL", help="amqp[s]://host:port. [as SOURCE tells]")
@click.option("--target-amqp", metavar="URL", help="amqp[s]://host:port. [as TARGET tells]")
@click.option("--vhost", help="Only this virtual host, without users and permissions.")
@click.option(
    "--queue",
    "pattern",
    metavar="PATTERN",
    default="*",
    help="Only messages of queues of such names; * and ? as in a shell.",
)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Messages a second.")
@click.option("--follow", is_flag=True, help="Go on with what still arrives, until Ctrl-C.")
@click.option(
    "--quiet-for",
    "quiet_s",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="With --follow: say so when all queues were empty for so many seconds.",
)
@click.option(
    "--definitions-only", "--keep-definitions-only", is_flag=True, help="Move no messages."
)
@click.option("--messages-only", is_flag=True, help="Move no definitions.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--ca-file", type=click.Path(exists=True, dir_okay=False), help="Whom to trust.")
@click.option("--insecure", is_flag=True, help="Trust any certificate.")
@click.option(
    "--progress/--no-progress",
    default=None,
    help="A line per second on stderr. [default: if it is a terminal]",
)
@click.option("--json", "json_wanted", is_flag=True, help="Print one JSON object.")
def migrate(
    source_url: str,
    target_url: str,
    source_amqp: str | None,
    target_amqp: str | None,
    vhost: str | None,
    pattern: str,
    rate: float | None,
    follow: bool,
    quiet_s: float,
    definitions_only: bool,
    messages_only: bool,
    dry_run: bool,
    ca_file: str | None,
    insecure: bool,
    progress: bool | None,
    json_wanted: bool,
) -> None:
    """Move definitions and messages from the broker SOURCE to the broker TARGET while both run.

    Both are management URLs of RabbitMQ 3.x or Warren, http://user:password@host:15672, of users
    with the tag administrator. Run it again to go on where it ended.
    """
    if definitions_only and (messages_only or follow):
        raise click.UsageError("--definitions-only goes with neither --messages-only nor --follow")
    try:
        source = side("source", source_url, source_amqp, ca_file=ca_file, insecure=insecure)
        target = side("target", target_url, target_amqp, ca_file=ca_file, insecure=insecure)
    except WrongAddress as wrong:
        raise click.UsageError(str(wrong)) from wrong
    say = _say_nothing if json_wanted else _say
    outcomes: list[ItemOutcome] | None = None
    planned: list[SourceQueue] | None = None
    results: list[QueueResult] | None = None
    error: str | None = None
    try:
        refuse_one_broker(source, target)
        options = MoveOptions(vhost, pattern, rate, follow, quiet_s)
        if not messages_only:
            outcomes = move_definitions(source, target, vhost=vhost, dry_run=dry_run)
            say(definitions_text(outcomes, dry_run=dry_run))
        if dry_run and not definitions_only:
            planned = list_queues(source, options, first=True)
            say(plan_text(planned))
        elif not definitions_only:
            shown = sys.stderr.isatty() if progress is None else progress
            began = time.monotonic()
            results = asyncio.run(_move(source, target, options, shown))
            say(messages_text(results, time.monotonic() - began))
    except (CtlError, MigrateError) as failure:
        error = str(failure)
        click.echo(f"Error: {error}", err=True)
    done = all_taken(outcomes or ()) and _all_moved(planned or (), results or ())
    complete = done and error is None
    if json_wanted:
        click.echo(json.dumps(as_json(outcomes, planned, results, complete=complete, error=error)))
    elif not complete:
        click.echo("not everything can be moved" if dry_run else "not everything was moved")
    sys.exit(0 if complete else NOT_ALL)


def _all_moved(planned: Sequence[SourceQueue], results: Sequence[QueueResult]) -> bool:
    could = not any(queue.unacked or (queue.left_because and queue.ready) for queue in planned)
    return could and all(result.all_moved for result in results)


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(line)


def _say_nothing(_lines: Sequence[str]) -> None:
    """Prints nothing, as the JSON at the end has everything."""


async def _move(source: Side, target: Side, options: MoveOptions, shown: bool) -> list[QueueResult]:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return await move_messages(source, target, options, stop, Teller(options, shown))


class Teller(MoveAudience):
    """Shows the progress on standard error."""

    def __init__(self, options: MoveOptions, shown: bool) -> None:
        self._options = options
        self._shown = shown
        self._began = time.monotonic()
        self._told_at = self._began
        self._trouble = ""

    def progress(self, progress: MigrationProgress) -> None:
        self._trouble = ""
        now = time.monotonic()
        if self._shown and now >= self._told_at + TELL_EVERY_S:
            self._told_at = now
            click.echo(progress_text(progress, now - self._began), err=True)

    def quiet(self, delayed: int) -> None:
        said = f"all queues were empty for {self._options.quiet_s:g} s"
        if delayed:
            said += f"; {delayed:,} delayed messages are moved when they are due"
        click.echo(said, err=True)

    def trouble(self, text: str) -> None:
        if text != self._trouble:
            self._trouble = text
            click.echo(f"{text}; trying again", err=True)
