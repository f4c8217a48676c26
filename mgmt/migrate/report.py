"""The results of a run, as text for people and as JSON for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from warren.mgmt.migrate.definitions import Fate, ItemOutcome
from warren.mgmt.migrate.run import MigrationProgress, QueueResult, SourceQueue

IDS_SHOWN = 10


def all_taken(outcomes: Iterable[ItemOutcome]) -> bool:
    return all(one.fate is not Fate.REFUSED for one in outcomes)


def definitions_text(outcomes: Sequence[ItemOutcome], *, dry_run: bool) -> list[str]:
    """A line of counts for each section, and a line for each item that has a reason."""
    lines = []
    for section in dict.fromkeys(one.section for one in outcomes):
        fates = Counter(one.fate for one in outcomes if one.section == section)
        said = [
            f"{fates[Fate.TAKEN]} {'to be taken' if dry_run else 'taken'}",
            f"{fates[Fate.SAME]} there already",
        ]
        said += [f"{fates[fate]} {fate.value}" for fate in (Fate.LEFT, Fate.REFUSED) if fates[fate]]
        lines.append(f"{section.replace('_', ' ')}: {', '.join(said)}")
    for one in outcomes:
        if one.reason:
            lines.append(f"{one.fate.value}: {one.section} {one.shown}: {one.reason}")
    return lines


def plan_text(queues: Sequence[SourceQueue]) -> list[str]:
    """Lines for `--dry-run`: the queues, and what a run would do with each."""
    moved = [queue for queue in queues if not queue.left_because]
    lines = [
        f"messages: {sum(queue.ready for queue in moved):,} in {len(moved):,} queues to be moved"
    ]
    lines += [_plan_line(queue) for queue in moved if queue.ready]
    for queue in queues:
        if queue.left_because:
            text = f"{queue.ready:,} messages, {queue.left_because}"
            lines.append(f"left: queue '{queue.vhost}' '{queue.name}': {text}")
        elif queue.unacked:
            text = f"{queue.unacked:,} messages that clients have not acknowledged"
            lines.append(f"left: queue '{queue.vhost}' '{queue.name}': {text}")
    return lines


def _plan_line(queue: SourceQueue) -> str:
    text = f"  {queue.vhost} {queue.name}: {queue.ready:,}"
    return f"{text}, copied if the target has no copies: it is a stream" if queue.stream else text


def messages_text(results: Sequence[QueueResult], elapsed_s: float) -> list[str]:
    """A line for each queue that had messages, or about which something is to be said."""
    moved = sum(result.moved for result in results)
    lines = [f"messages: {moved:,} moved in {elapsed_s:.1f} s, from {len(results):,} queues"]
    for result in results:
        if result.source_before or result.moved or result.reason or not result.all_moved:
            lines.append(_queue_text(result))
    return lines


def progress_text(progress: MigrationProgress, elapsed_s: float) -> str:
    per_s = progress.moved / elapsed_s if elapsed_s else 0.0
    left = f"{progress.left / per_s:.0f} s left" if per_s else "no time known"
    return (
        f"{progress.moved:,} messages moved, {per_s:,.0f}/s, {progress.left:,} to go, {left}:"
        f" {progress.queue}"
    )


def as_json(
    outcomes: Sequence[ItemOutcome] | None,
    planned: Sequence[SourceQueue] | None,
    results: Sequence[QueueResult] | None,
    *,
    complete: bool,
    error: str | None = None,
) -> dict[str, Any]:
    """The results as JSON. An argument is None if that part was not run."""
    document: dict[str, Any] = {"complete": complete}
    if error is not None:
        document["error"] = error
    if outcomes is not None:
        document["definitions"] = [
            {
                "section": one.section,
                "identity": list(one.identity),
                "fate": one.fate.value,
                "reason": one.reason,
            }
            for one in outcomes
        ]
    if planned is not None:
        document["planned"] = [_planned(queue) for queue in planned]
    if results is not None:
        document["queues"] = [{**vars(result), "all_moved": result.all_moved} for result in results]
    return document


def _planned(queue: SourceQueue) -> dict[str, Any]:
    row = queue._asdict()
    del row["kept"]
    return row


def _queue_text(result: QueueResult) -> str:
    done = "copied" if result.stream else "moved"
    text = (
        f"  {result.vhost} {result.name}: {result.moved:,} {done};"
        f" source {_count(result.source_before)} -> {_count(result.source_after)}"
    )
    if not result.left_as_rule:
        text += f", target {_count(result.target_before)} -> {_count(result.target_after)}"
    if result.unacked:
        text += f"; {result.unacked:,} with clients of the source, not acknowledged"
    if result.reason:
        text += f"; left: {result.reason}"
    if result.doubtful:
        text += f"; {result.doubtful:,} may be at both brokers"
        ids = result.doubtful_ids
        if ids:
            more = ", ..." if len(ids) > IDS_SHOWN or len(ids) < result.doubtful else ""
            text += f" (ids {', '.join(ids[:IDS_SHOWN])}{more})"
    return text


def _count(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"
