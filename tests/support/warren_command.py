"""The command `warren`, run to its end in a process of its own."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from fork_server import ForkedProcess


def run_warren(
    *arguments: object, directory: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """What `python -m warren` with these arguments does, prints and returns.

    The process is forked off the fork server, which is ten times cheaper than to start Python.
    """
    with tempfile.TemporaryFile() as errors:
        process = ForkedProcess(list(map(str, arguments)), directory or Path.cwd(), errors)
        with process.stdout:
            try:
                output = process.stdout.read()
                code = process.wait()
            except BaseException:
                # The test has taken too long, or was interrupted.
                process.kill()
                process.wait()
                raise
        errors.seek(os.SEEK_SET)
        return subprocess.CompletedProcess(
            process.args, code, output.decode("utf-8"), errors.read().decode("utf-8")
        )
