"""Exports in processes of their own, which may be killed, or kill themselves.

The processes are forked off one that has imported what they need: to start Python and to import
pyarrow, deltalake and pyiceberg takes a second and a half of a core for each.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from exporting import export, wish
from lake_tables import choice_of, configure_catalog, configured_catalog

from warren.spark_export.export.lake_table import DELTA

IMPORTED = [
    "pyarrow.parquet",
    "pytest",
    "warren.spark_export.export.delta_table",
    "warren.spark_export.export.iceberg_table",
    "pyiceberg.catalog.rest",
    "pyiceberg.catalog.sql",
]


class ExportProcess:
    """Exports to a table; dies at the `count`-th (from 0) call of a step, if there is one. At the
    step `meet` it waits, when all files are written, until it is told to go on."""

    def __init__(
        self,
        kind: str,
        store: Path,
        place: Path,
        snapshot: Path,
        step: str = "none",
        count: int = 0,
        *,
        export: str = "full",
        since: str | None = None,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        # Of effect when the first process is started.
        context.set_forkserver_preload(IMPORTED)
        self._begins, begins = context.Pipe()
        # The process of the server that forks has another environment.
        catalog = configured_catalog()
        named = {"name": export, "since": since, "snapshot": snapshot, "catalog": catalog}
        arguments = (begins, kind, store, place, named, step, count)
        self._process = context.Process(target=_export, args=arguments)
        self._process.start()
        begins.close()

    def wait_until_it_begins(self) -> None:
        assert self._begins.recv()

    def wait_until_it_meets(self) -> None:
        assert self._begins.recv() and self._begins.recv()

    def go_on(self) -> None:
        self._begins.send(True)

    def kill_after(self, seconds: float) -> None:
        """Kill it, unless it has ended by then."""
        self._process.join(seconds)
        self._process.kill()
        self.wait()

    def wait(self) -> int | None:
        """Return how it ended, as `subprocess` does."""
        self._process.join()
        code = self._process.exitcode
        self._process.close()
        self._begins.close()
        return code


# In the process


def _export(
    begins: Connection,
    kind: str,
    store: Path,
    place: Path,
    named: dict[str, Any],
    step: str,
    count: int,
) -> None:
    configure_catalog(pytest.MonkeyPatch(), place.parent, **named.pop("catalog"))
    if step == "meet":
        _meet_before(*_call(kind, "manifest"), begins)
    elif step != "none":
        owner, name = _call(kind, step)
        _die_before(owner, name, count)
    begins.send(True)
    export(store, place, named.pop("name"), wish(**named, table=choice_of(kind)))


def _call(kind: str, step: str) -> tuple[Any, str]:
    """What is called in a step."""
    rooms = "warren.spark_export.export"
    if step == "file":
        return import_module(f"{rooms}.parquet").ParquetFile, "close"
    if step == "transaction":
        table = import_module(f"{rooms}.{kind}_table")
        return (table.DeltaLakeTable if kind == DELTA else table.IcebergTable), "append"
    return import_module(f"{rooms}.export"), {"manifest": "write_manifest", "settled": "settle"}[
        step
    ]


def _meet_before(owner: Any, name: str, begins: Connection) -> None:
    real = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        setattr(owner, name, real)
        begins.send(True)
        begins.recv()
        return real(*arguments, **named)

    setattr(owner, name, call)


def _die_before(owner: Any, name: str, count: int) -> None:
    real, calls = getattr(owner, name), []

    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(name)
        if len(calls) > count:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)

    setattr(owner, name, call)
