"""Metadata stores on disk, without threads: jobs run at once, and retries when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from warren.core.ports import Timer
from warren.persist.definitions.metadata import LmdbMetadataStore
from warren.persist.disk.data_directory import (
    DataDirectory,
)


class Timers:
    """`call_later` that calls when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        entry = (delay_s, callback)
        self.waiting.append(entry)
        waiting = self.waiting

        class Entry:
            def cancel(self) -> None:
                waiting.remove(entry)

        return Entry()

    def fire(self) -> float:
        delay_s, callback = self.waiting.pop(0)
        callback()
        return delay_s


def here(callback: Callable[[], None]) -> None:
    callback()


def open_store(path: Path, timers: Timers | None = None, **options: Any) -> LmdbMetadataStore:
    """A store without a thread, in a directory it closes with itself."""
    directory = DataDirectory.open(path)
    timers = timers or Timers()
    options = {"sync_thread": None, "call_on_loop": here, **options}
    try:
        store = LmdbMetadataStore(directory, call_later=timers.call_later, **options)
    except BaseException:
        directory.close()
        raise
    close = store.close

    def close_both() -> None:
        close()
        directory.close()

    store.close = close_both  # type: ignore[method-assign]
    return store
