"""The process that makes snapshots for a node; other machines read them over HTTP.

    python -m warren.spark_export.snapshot.node_service DATA_DIRECTORY

A node does not import numpy, and making a snapshot takes longer than a turn of its loop may. So it
starts this process for the first snapshot (`warren/mgmt/snapshot_service.py`), and ends it some
time after the last, by closing its standard input. Questions are lines of JSON on the standard
input, answers lines of JSON on the standard output, in order:

    {"do": "create", ...}                   {"answer": ...}
                                            {"error": "QueueUnknown", "text": "..."}

The node has checked permissions already: `queues` of a question are those that the user may read. A
snapshot made here has two things that others lack: `access.json`, with the user it was made for and
the token that opens it, and the extents that may be sent (`served_extents.py`).

A cursor is held here for a stream on another machine. The stream reports every few seconds that it
still exists; a stream that is silent for `HOLD_S` has ended.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from warren.core.backing.backing_queue import LEVELS
from warren.core.ports import Key
from warren.persist.snapshots.cursors import cursor_path
from warren.spark_export.errors import CursorInUse, SparkExportError, StoreRefused
from warren.spark_export.snapshot.cursor import HeldCursor, take_cursor
from warren.spark_export.snapshot.plan import QueueSelector
from warren.spark_export.snapshot.served_extents import write_extents
from warren.spark_export.snapshot.snapshot import (
    create,
    load_snapshot,
    pins_directory,
    snapshot_path,
)
from warren.spark_export.snapshot.snapshot_file import Snapshot

ACCESS_FILE: Final = "access.json"
"""For a snapshot: the user it was made for, its token, and the cluster's ids of its queues, in
their order. For a cursor: the user only."""

HOLD_S: Final = 30.0

NICENESS: Final = 5
"""If processors are scarce, the node's clients have priority."""


@dataclass(frozen=True)
class ReadableQueues:
    """Queues that a user may read; this node leads those in `here`, and `selector` chooses some."""

    selector: QueueSelector
    readable: frozenset[Key]
    here: frozenset[Key]
    vhosts: tuple[str, ...]

    vhost = None
    """None: the virtual hosts are known, and need not be read from the store."""

    @property
    def retained(self) -> bool:
        return self.selector.retained

    def select(self, queues: Iterable[Key], vhosts: Iterable[str] = ()) -> list[Key]:
        """The chosen queues led here; messages of the others are at their leaders."""
        stored = set(queues)
        return [key for key in self.chosen() if key in self.here and key in stored]

    def chosen(self) -> list[Key]:
        """The chosen queues, wherever they are led. Raises `QueueUnknown`, `OptionRefused`."""
        return self.selector.select(self.readable, self.vhosts)


@dataclass
class _Hold:
    cursor: HeldCursor
    holder: str
    until: float


class NodeService:
    """Answers the questions of the node. `now` is a clock in seconds that never goes back."""

    def __init__(self, data_directory: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._data_directory = data_directory
        self._now = now
        self._holds: dict[str, _Hold] = {}
        self._questions: Mapping[str, Callable[[Any], Any]] = {
            "create": self._create,
            "extend": self._extend,
            "release": self._release,
            "take_cursor": self._take_cursor,
            "release_others": self._release_others,
            "why_gone": self._why_gone,
            "leave_cursor": self._leave_cursor,
        }

    def answer(self, question: Any) -> dict[str, Any]:
        try:
            answer = self._questions[question["do"]](question)
        except SparkExportError as error:
            return {"error": type(error).__name__, "text": str(error)}
        except OSError as error:
            return {"error": "StoreRefused", "text": str(error)}
        return {"answer": answer, "holding": bool(self._holds)}

    # Snapshots

    def _create(self, asked: Any) -> dict[str, Any]:
        cursor = asked["cursor"]
        if cursor is not None:
            self._held(cursor, asked["holder"])
        ids = {(vhost, name): queue_id for vhost, name, queue_id, _ in asked["queues"]}
        wanted = ReadableQueues(
            QueueSelector(
                asked["vhost"],
                _names(asked["names"]),
                asked["pattern"],
                asked["retained"],
                asked["missing_ok"],
            ),
            frozenset(ids),
            frozenset((vhost, name) for vhost, name, _, here in asked["queues"] if here),
            tuple(asked["vhosts"]),
        )
        snapshot = create(
            self._data_directory,
            wanted,
            lease_s=asked["lease_s"],
            needs_state=asked["needs_state"],
            cursor=cursor,
        )
        try:
            write_extents(snapshot)
            access = {
                "user": asked["user"],
                "token": asked["token"],
                "cluster_ids": [
                    ids[queue.vhost, queue.name] + queue.queue_id % LEVELS
                    for queue in snapshot.queues
                ],
            }
            _write_private(snapshot.directory / ACCESS_FILE, access)
        except BaseException:
            snapshot.release()
            raise
        chosen = wanted.chosen()
        return {
            "id": snapshot.id,
            "here": [key for key in chosen if key in wanted.here],
            "elsewhere": [key for key in chosen if key not in wanted.here],
        }

    def _extend(self, asked: Any) -> dict[str, Any]:
        return {"expires_us": self._snapshot(asked).extend(asked["lease_s"]).expires_us}

    def _release(self, asked: Any) -> None:
        self._snapshot(asked).release()

    def _snapshot(self, asked: Any) -> Snapshot:
        return load_snapshot(snapshot_path(self._data_directory, asked["id"]))

    # Cursors

    def _take_cursor(self, asked: Any) -> None:
        """Take a cursor, or go on holding it for the same holder."""
        name, holder = asked["name"], asked["holder"]
        self._forget_silent()
        hold = self._holds.get(name)
        if hold is None:
            path = cursor_path(pins_directory(self._data_directory), name)
            user = _user_of(path)
            if path.exists() and user != asked["user"] and not asked["administrator"]:
                whose = "made on the machine of the node" if user is None else "of another user"
                raise CursorInUse(f"cursor {name} is {whose}; choose another name")
            cursor = take_cursor(
                self._data_directory, name, asked["octets_max"], directory=None, wait_s=0.0
            )
            if user is None:
                _write_private(path / ACCESS_FILE, {"user": asked["user"]})
            hold = self._holds[name] = _Hold(cursor, holder, 0.0)
        elif hold.holder != holder:
            raise CursorInUse(
                f"another stream reads with cursor {name} through this node; stop it, or give this"
                " one a cursor of its own"
            )
        hold.until = self._now() + HOLD_S

    def _release_others(self, asked: Any) -> None:
        pins = pins_directory(self._data_directory)
        needed = [str(pins / snapshot) for snapshot in asked["needed"]]
        self._held(asked["name"], asked["holder"]).release_others(needed)

    def _why_gone(self, asked: Any) -> str | None:
        directory = snapshot_path(self._data_directory, asked["id"])
        return self._held(asked["name"], asked["holder"]).why_gone(str(directory))

    def _leave_cursor(self, asked: Any) -> None:
        hold = self._holds.get(asked["name"])
        if hold is not None and hold.holder == asked["holder"]:
            self._let_go(asked["name"])

    def _held(self, name: str, holder: str) -> HeldCursor:
        self._forget_silent()
        hold = self._holds.get(name)
        if hold is None or hold.holder != holder:
            raise CursorInUse(f"cursor {name} is not held by this stream any more; start it again")
        return hold.cursor

    def _forget_silent(self) -> None:
        now = self._now()
        for name in [name for name, hold in self._holds.items() if hold.until < now]:
            self._let_go(name)

    def _let_go(self, name: str) -> None:
        self._holds.pop(name).cursor.close()


def _names(names: list[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


def _user_of(cursor: Path) -> str | None:
    """The user for whom a cursor was made; None if it was not made over HTTP. Raises
    `StoreRefused`."""
    try:
        return str(json.loads((cursor / ACCESS_FILE).read_text("utf-8"))["user"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise StoreRefused(f"{cursor / ACCESS_FILE} cannot be read; end the cursor") from None


def _write_private(path: Path, fields: dict[str, Any]) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(fields, file)


def main() -> None:
    os.nice(NICENESS)
    service = NodeService(Path(sys.argv[1]))
    for line in sys.stdin:
        print(json.dumps(service.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
