"""The files of the lives of messages."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from warren.core.tracing.trace_record import TraceEvent, TraceRecord
from warren.persist.disk.trace_files import TraceFiles


def test_only_the_owner_may_read_what_happened_to_messages(tmp_path: Path) -> None:
    """Also where the directory around it was made by an operator, and is open to all."""
    directory = tmp_path / "trace"
    before = os.umask(0)
    try:
        files = TraceFiles(directory, 1 << 20, lambda job: job(), lambda then: then())
        files.open()
        files.keep([TraceRecord(1, TraceEvent.PUBLISHED, "m1", "/", "warren@here")])
    finally:
        os.umask(before)
    (file,) = directory.iterdir()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
