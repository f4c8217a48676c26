"""`warren store`: looks into a data directory, while its node runs or is stopped.

Only `repair` writes to it. Exit codes: 0 when all is well, 1 when `check` found damage or `repair`
could not bring everything back, 2 when there is nothing that can be read.
"""

from __future__ import annotations

import difflib
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import click

from warren.core.ports import Key
from warren.persist.definitions.repair import repair as repair_definitions
from warren.persist.disk.data_directory import DataDirectoryRefused
from warren.persist.disk.filesystem import RealFileSystem
from warren.persist.inspection.check import (
    Finding,
    QueueTotals,
    Report,
    open_store,
    queue_names,
)
from warren.persist.inspection.check import check as check_directory
from warren.persist.inspection.dump import Dumped
from warren.persist.inspection.dump import dump as dump_queue
from warren.persist.inspection.queue_levels import definition_id, read_levels
from warren.persist.layout.format import NewerStorage
from warren.persist.storage.missing_store import make_empty

DAMAGED = 1
UNREADABLE = 2

NEAR_NAMES_MAX = 3
DAMAGE_SHOWN_MAX = 20
BODY_SHOWN_BYTES = 256
"""The most that is shown of a body; `--json` gives all of it."""

DIRECTORY = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class StoreUnreadable(click.ClickException):
    """There is no such store or queue, or a later version wrote it."""

    exit_code = UNREADABLE


@click.group()
def store() -> None:
    """Look into a data directory; only `repair` changes anything in it."""


@store.command()
@DIRECTORY
@AS_JSON
def check(directory: Path, as_json: bool) -> None:
    """Look for damage in the data directory DIR, also while its node runs."""
    with _readable():
        report = check_directory(RealFileSystem(), directory, pause=time.sleep)
    if as_json:
        click.echo(json.dumps(_report_as_json(report), indent=2))
    else:
        for line in _report_as_text(report):
            click.echo(line)
    sys.exit(DAMAGED if report.damage else 0)


@store.command()
@DIRECTORY
@click.option("--queue", required=True, metavar="NAME", help="The queue.")
@click.option("--vhost", default="/", show_default=True, help="Its virtual host.")
@click.option("--limit", type=click.IntRange(min=0), help="Only the first so many.")
@click.option("--bodies/--no-bodies", default=False, help="Print bodies too.")
@AS_JSON
def dump(
    directory: Path, queue: str, vhost: str, limit: int | None, bodies: bool, as_json: bool
) -> None:
    """List the messages that queue NAME has on disk in the data directory DIR."""
    with _readable():
        open_store(directory)
        queue_id = _find_queue(queue_names(directory, time.sleep), vhost, queue)
        levels = read_levels(directory, pause=time.sleep)
        entries = islice(dump_queue(RealFileSystem(), directory, queue_id, levels), limit)
        for entry in entries:
            if as_json:
                click.echo(json.dumps(_entry_as_json(entry, bodies)))
            else:
                for line in _entry_as_text(entry, bodies):
                    click.echo(line)


@store.command()
@DIRECTORY
@click.option(
    "--without-messages",
    is_flag=True,
    help="Only make an empty message storage, where it is missing: the messages are lost.",
)
def repair(directory: Path, without_messages: bool) -> None:
    """Rebuild lost or damaged definitions in DIR, of a node that is stopped.

    From what can be read of them, and from the copy that the node keeps beside them. The old file
    is put aside. Messages are not touched.
    """
    if without_messages:
        with _readable():
            made = make_empty(directory)
        click.echo(f"the message storage {'is empty now' if made else 'is there'}")
        return
    with _readable():
        repaired = repair_definitions(directory)
    if repaired is None:
        click.echo("the definitions are whole; nothing was done")
        return
    for damage in repaired.damage[:DAMAGE_SHOWN_MAX]:
        click.echo(f"damaged: {damage}")
    if len(repaired.damage) > DAMAGE_SHOWN_MAX:
        click.echo(f"damaged: {len(repaired.damage) - DAMAGE_SHOWN_MAX} more places")
    click.echo(f"{repaired.kept} definitions kept, {len(repaired.taken)} taken from the copy")
    for key in repaired.lost:
        click.echo(f"LOST {key}: neither can be read")
    if not repaired.complete:
        click.echo(
            "definitions on damaged pages are lost, as there is no whole copy; messages of their"
            " queues are kept (warren ctl list_unclaimed_messages)"
        )
    if repaired.aside is not None:
        click.echo(f"the old file is {repaired.aside}")
    sys.exit(0 if repaired.complete and not repaired.lost else DAMAGED)


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except (DataDirectoryRefused, NewerStorage, OSError) as error:
        raise StoreUnreadable(str(error)) from error


def _find_queue(names: dict[int, Key], vhost: str, name: str) -> int:
    for queue_id, key in names.items():
        if key == (vhost, name):
            return queue_id
    inside = [other for where, other in names.values() if where == vhost]
    near = difflib.get_close_matches(name, inside, NEAR_NAMES_MAX, cutoff=0.5)
    elsewhere = sorted(where for where, other in names.values() if other == name)
    if elsewhere:
        hint = f"; there is one in virtual host {elsewhere[0]!r}"
    elif near:
        hint = f"; near names: {', '.join(map(repr, near))}"
    else:
        hint = f", which has {len(inside)} durable queues"
    raise StoreUnreadable(f"no durable queue {name!r} in virtual host {vhost!r}{hint}")


# A report


def _report_as_json(report: Report) -> dict[str, object]:
    checkpoint = report.checkpoint
    names = _names(report)
    return {
        "clean": not report.damage,
        "node_id": report.node_id,
        "checkpoint": None if checkpoint is None else _place(checkpoint.place),
        "stopped_clean": report.stopped_clean,
        "log_files": report.log_files,
        "log_bytes": report.octets,
        "records": report.records,
        "segments": report.segments,
        "unfinished_bytes": report.unfinished,
        "quarantined": report.quarantined,
        "queues": [_totals_as_json(totals) for totals in report.queues],
        "damage": [_finding_as_json(finding, names) for finding in report.damage],
    }


def _totals_as_json(totals: QueueTotals) -> dict[str, object]:
    return {**totals._asdict(), "queue": f"{totals.queue:016x}"}


def _finding_as_json(finding: Finding, names: dict[int, str]) -> dict[str, object]:
    fields = finding._asdict()
    if finding.queue is not None:
        fields["queue"] = f"{finding.queue:016x}"
        fields["queue_name"] = names.get(definition_id(finding.queue))
    return fields


def _names(report: Report) -> dict[int, str]:
    return {
        totals.queue: f"{totals.vhost}:{totals.name}"
        for totals in report.queues
        if totals.name is not None
    }


def _report_as_text(report: Report) -> Iterator[str]:
    checkpoint = report.checkpoint
    where = "none" if checkpoint is None else _place(checkpoint.place)
    stopped = "stopped in order" if report.stopped_clean else "running, or ended by force"
    yield f"node {report.node_id}, {stopped}; checkpoint {where}"
    yield (
        f"{report.log_files} log files with {report.records} records in {report.octets} bytes;"
        f" {report.segments} index segments"
    )
    yield from _queues_as_text(report.queues)
    if report.unfinished:
        yield f"{report.unfinished} bytes at the end of the log were never finished; no damage"
    if report.quarantined:
        yield f"{report.quarantined} files of damage found before, in quarantine"
    names = _names(report)
    for finding in report.damage:
        yield _finding_as_text(finding, names)
    yield f"{len(report.damage)} places are damaged" if report.damage else "no damage"


def _queues_as_text(queues: list[QueueTotals]) -> Iterator[str]:
    known = sorted((at.vhost, at.name or "", at) for at in queues if at.vhost is not None)
    if known:
        yield f"{'messages':>12} {'body bytes':>15}  virtual host, queue"
    for vhost, name, totals in known:
        kept = f", and {totals.retained} retained" if totals.retained else ""
        yield f"{totals.messages:>12} {totals.body_bytes:>15}  {vhost} {name}{kept}"
    for totals in queues:
        if totals.vhost is None:
            yield (
                f"{totals.messages:>12} {totals.body_bytes:>15}  queue {totals.queue:016x}"
                f" {_without_definition(totals)}"
            )


def _without_definition(totals: QueueTotals) -> str:
    if totals.deleted:
        return "was deleted; the next start removes the messages"
    return "has no definition; its messages are kept (warren ctl list_unclaimed_messages)"


def _finding_as_text(finding: Finding, names: dict[int, str]) -> str:
    text = f"DAMAGED {finding.file} at {finding.offset}: {finding.reason}"
    if finding.queue is not None:
        name = names.get(definition_id(finding.queue), f"{finding.queue:016x}")
        text += f" (queue {name}, position {finding.position}"
        text += f" and {finding.messages - 1} more)" if finding.messages > 1 else ")"
    return text


def _place(place: int) -> str:
    return f"{place >> 32:08x}:{place & 0xFFFFFFFF}"


# Entries


def _entry_as_json(entry: Dumped, bodies: bool) -> dict[str, object]:
    fields: dict[str, object] = entry._asdict()
    del fields["body"]
    if bodies:
        fields["body"] = entry.body.decode("utf-8", "backslashreplace")
    return fields


def _entry_as_text(entry: Dumped, bodies: bool) -> Iterator[str]:
    where = f"{entry.position} at {entry.file:08x}:{entry.offset} length {entry.length}"
    if entry.damage:
        yield f"{where} UNREADABLE: {entry.damage}"
        return
    flags = [
        word for word, on in (("persistent", entry.persistent), ("shared", entry.shared)) if on
    ]
    text = (
        f"{where} body {entry.body_bytes} exchange {entry.exchange!r}"
        f" key {entry.routing_key!r} {','.join(flags) or '-'} enqueued {_time(entry.enqueued_us)}"
    )
    if entry.level:
        text += f" level {entry.level}"
    if entry.expires_us:
        text += f" expires {_time(entry.expires_us)}"
    if entry.acknowledged_us:
        text += f" acknowledged {_time(entry.acknowledged_us)}"
    yield text
    if bodies:
        cut = " ..." if len(entry.body) > BODY_SHOWN_BYTES else ""
        yield f"    {entry.body[:BODY_SHOWN_BYTES]!r}{cut}"


def _time(wall_us: int) -> str:
    return datetime.fromtimestamp(wall_us / 1e6, UTC).isoformat(timespec="microseconds")
