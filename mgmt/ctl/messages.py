"""Messages in queues: look for them, export them, have them moved, copied, replayed or deleted."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from warren.mgmt.ctl.call import CommandCall
from warren.mgmt.ctl.declaration import Number, argument, command, flag, option
from warren.mgmt.ctl.errors import CtlError, Exit, RequestRefused
from warren.mgmt.ctl.formats import PRINTED, Answer, Document, Table, as_json
from warren.shovel.redrive import Back, DecidingDeath

COLUMNS = (
    "position",
    "state",
    "redelivered",
    "exchange",
    "routing_key",
    "payload_bytes",
    "payload",
)
JOB_COLUMNS = ("name", "queue", "action", "node", "state", "done", "left", "reason")

SHOWN_BYTES = 200
"""Limit of a payload's octets in a table."""

PROGRESS_WIDTH = 60
"""Characters of a line of progress: the next one hides the one before."""

PAGE = 1000
WHOLE_BODY = 1 << 40

POLL_S = 0.1
"""Seconds between two requests for the state of a job."""

RATE = Number(min=0, min_open=True, max=1_000_000_000)

FILTER = option("--filter", metavar="FILTER", default="", help="Which messages, see messages.md.")
LIMIT = option("--limit", type=click.IntRange(min=1), metavar="N", help="So many at most.")
CHOICE = (
    FILTER,
    option("--position", "positions", multiple=True, metavar="P", help="One message; repeatable."),
    LIMIT,
    option("--rate", type=RATE, metavar="N", help="So many a second at most."),
    flag("--wait", help="Return when it is over."),
)
TARGET = (
    option("--to-queue", metavar="QUEUE"),
    option("--to-exchange", metavar="EXCHANGE"),
    option("--routing-key", metavar="KEY", help="With --to-exchange; else that of the message."),
)
WHERE = (
    FILTER,
    option("--from", "start", default="", metavar="P", help="The position to begin at."),
    flag("--newest", help="The newest first."),
    flag("--retained", help="What was acknowledged and is retained, instead."),
)


@command(
    "list_messages",
    "Show messages of a queue, which stay as they are.",
    argument("queue"),
    *WHERE,
    LIMIT,
)
def list_messages(call: CommandCall, queue: str, limit: int | None, **where: Any) -> Answer:
    call.announce(f"Listing messages of queue {queue} of vhost {call.vhost} ...")
    left = limit or 50
    found: list[dict[str, Any]] = []
    for page in _pages(call, queue, left, SHOWN_BYTES, **where):
        found += page
    rows = [[row[column] for column in COLUMNS] for row in found]
    return Table(COLUMNS, rows, json=found)


@command(
    "export_messages",
    "Write messages of a queue as lines of JSON.",
    argument("queue"),
    *WHERE,
    LIMIT,
)
def export_messages(call: CommandCall, queue: str, limit: int | None, **where: Any) -> Answer:
    for page in _pages(call, queue, limit, WHOLE_BODY, **where):
        _end_progress()
        sys.stdout.write("".join([as_json(row) + "\n" for row in page]))
        sys.stdout.flush()
    return PRINTED


def _pages(
    call: CommandCall,
    queue: str,
    limit: int | None,
    truncate: int,
    *,
    filter: str,
    start: str,
    newest: bool,
    retained: bool,
) -> Any:
    _expect_queue(call, queue)
    left = limit
    looked_at = found = 0
    order = "newest" if newest else "oldest"
    next_start: str | None = start
    while next_start is not None and left != 0:
        query = {
            "filter": filter,
            "from": next_start,
            "order": order,
            "limit": str(PAGE if left is None else min(left, PAGE)),
            "truncate": str(truncate),
            "retained": "true" if retained else "false",
        }
        page = call.client.get("queues", call.vhost, queue, "messages", **query)
        looked_at += page["looked_at"]
        found += len(page["messages"])
        _show_progress(looked_at, f"{found:,} found")
        yield page["messages"]
        if left is not None:
            left -= len(page["messages"])
        next_start = page["next"]
    _end_progress()


def is_watched() -> bool:
    """Whether progress is shown: on terminals, and not in files and pipes."""
    return sys.stderr.isatty()


def _show_progress(looked_at: int, more: str) -> None:
    if is_watched():
        text = f"{looked_at:,} messages looked at, {more}"
        click.echo(f"\r{text:{PROGRESS_WIDTH}}\r", nl=False, err=True)


def _end_progress() -> None:
    if is_watched():
        click.echo(f"\r{'':{PROGRESS_WIDTH}}\r", nl=False, err=True)


@command(
    "move_messages",
    "Move messages of a queue to another queue or an exchange.",
    argument("queue"),
    *TARGET,
    *CHOICE,
)
def move_messages(call: CommandCall, queue: str, **given: Any) -> Answer:
    return _job(call, "move", queue, **given)


@command(
    "copy_messages",
    "Copy messages of a queue to another queue or an exchange.",
    argument("queue"),
    *TARGET,
    *CHOICE,
)
def copy_messages(call: CommandCall, queue: str, **given: Any) -> Answer:
    return _job(call, "copy", queue, **given)


@command("delete_messages", "Delete messages of a queue.", argument("queue"), *CHOICE)
def delete_messages(call: CommandCall, queue: str, **given: Any) -> Answer:
    if not (given["filter"] or given["positions"] or given["limit"]):
        raise CtlError("say which: --filter, --position or --limit", Exit.USAGE)
    return _job(call, "delete", queue, **given)


@command("requeue_messages", "Put messages of a queue at its end.", argument("queue"), *CHOICE)
def requeue_messages(call: CommandCall, queue: str, **given: Any) -> Answer:
    return _job(call, "requeue", queue, **given)


@command(
    "redrive",
    "Send the dead letters in a queue back to where they came from.",
    argument("queue"),
    option("--to", "back_to", type=click.Choice([back.value for back in Back]), default="exchange"),
    option("--death", type=click.Choice([death.value for death in DecidingDeath]), default="last"),
    *CHOICE,
)
def redrive(call: CommandCall, queue: str, **given: Any) -> Answer:
    return _job(call, "redrive", queue, **given)


@command(
    "replay",
    "Send messages of a stream, or what a queue has retained, once more.",
    argument("queue"),
    option("--first", type=click.IntRange(min=0), metavar="OFFSET", help="From this one on."),
    option("--last", type=click.IntRange(min=0), metavar="OFFSET", help="Up to this one."),
    option("--since", metavar="TIME", help="What arrived, or was acknowledged, then or later."),
    option("--until", metavar="TIME", help="The same, before this time (ISO 8601, in UTC)."),
    *TARGET,
    *CHOICE,
)
def replay(call: CommandCall, queue: str, **given: Any) -> Answer:
    return _job(call, "replay", queue, **given)


def _job(call: CommandCall, action: str, queue: str, *, wait: bool, **given: Any) -> Answer:
    dry_run = call.options.dry_run
    plan: dict[str, Any] = {
        name: list(value) if name == "positions" else value
        for name, value in given.items()
        if value not in (None, ())
    }
    if dry_run:
        plan["dry_run"] = True
    else:
        call.announce(f"Beginning to {action} messages of queue {queue} of vhost {call.vhost} ...")
    _expect_queue(call, queue)
    path = ("queues", call.vhost, queue, "messages", "jobs")
    begun = call.client.request("POST", *path, body={"action": action, **plan})
    name = begun["job"]
    if not (wait or dry_run):
        return f"Job '{name}' does it: see message_jobs"
    job = call.client.get("message-jobs", call.vhost, name)
    while job["state"] in ("running", "stopping"):
        _show_progress(job.get("looked_at", 0), f"{job.get('done', 0):,} done")
        time.sleep(POLL_S)
        job = call.client.get("message-jobs", call.vhost, name)
    _end_progress()
    if job["state"] == "failed":
        raise CtlError(f"job '{name}' has failed: {job['reason']}")
    return Document(_result(job), job)


def _result(job: dict[str, Any]) -> str:
    lines = [f"{'Would ' if job['dry_run'] else ''}{job['action']}: {job['done']} messages"]
    lines += [f"Left: {left['messages']}, {left['reason']}" for left in job["left"]]
    for sample in job["samples"]:
        shown = sample["payload"][:SHOWN_BYTES]
        lines.append("\t".join([sample["position"], sample["routing_key"], as_json(shown)]))
    if job["state"] != "completed":
        lines.append(f"The job was {job['state']}")
    return "\n".join(lines)


@command("message_jobs", "Show the jobs on messages of all nodes.")
def message_jobs(call: CommandCall) -> Answer:
    call.announce("Listing jobs on messages ...")
    jobs = call.client.get("message-jobs", call.vhost)
    rows = [
        [
            sum([left["messages"] for left in job.get("left", ())])
            if column == "left"
            else job.get(column, "")
            for column in JOB_COLUMNS
        ]
        for job in jobs
    ]
    return Table(JOB_COLUMNS, rows, json=jobs)


@command(
    "stop_message_job", "Stop a job on messages, or forget one that is over.", argument("name")
)
def stop_message_job(call: CommandCall, name: str) -> Answer:
    call.announce(f"Stopping job {name} in vhost {call.vhost} ...")
    _of_job(call, "DELETE", name)
    return None


@command("restart_message_job", "Start an interrupted job again.", argument("name"))
def restart_message_job(call: CommandCall, name: str) -> Answer:
    call.announce(f"Starting job {name} in vhost {call.vhost} again ...")
    _of_job(call, "POST", name, "restart")
    return None


def _of_job(call: CommandCall, method: str, *path: str) -> None:
    try:
        call.client.request(method, "message-jobs", call.vhost, *path)
    except RequestRefused as refused:
        if refused.status == 404:
            raise CtlError("Job not found", Exit.USAGE) from refused
        raise


def _expect_queue(call: CommandCall, queue: str) -> None:
    if call.client.find("queues", call.vhost, queue, columns="name") is None:
        raise CtlError("Queue not found", Exit.USAGE)
