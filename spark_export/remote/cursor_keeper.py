"""Leaves the cursor of a stream at the nodes as soon as the stream's process has ended.

    python -m warren.spark_export.remote.cursor_keeper

Spark kills the process of a stream's reader when the query ends, so the reader cannot leave its
cursor itself, and the nodes would hold it for the stream for 30 seconds more. This process reads
which cursor to leave, and then waits for the end of its input: only the reader has the other end,
so it comes when the reader ends, however it does. The login passes through the pipe, and is in no
file.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress

from warren.spark_export.errors import SparkExportError
from warren.spark_export.remote.remote_node import NodeClient


class CursorKeeper:
    """The process for one cursor. It is in a session of its own, so that it outlives a reader whose
    group of processes is killed."""

    def __init__(self, name: str, holder: str, nodes: Iterable[NodeClient]) -> None:
        """Start the process. Raises OSError."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "warren.spark_export.remote.cursor_keeper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        # If the process has ended already, the nodes release the cursor by themselves.
        with suppress(BrokenPipeError):
            self._process.stdin.write(pickle.dumps((name, holder, list(nodes))))
            self._process.stdin.flush()

    def dismiss(self) -> None:
        """End the process: the cursor was left."""
        self._process.kill()
        self._process.communicate()


def leave(client: NodeClient, name: str, holder: str) -> None:
    """Leave a cursor at a node, if the holder has it. Raises `SparkExportError`."""
    client.ask("POST", "cursors", name, body={"action": "leave_cursor", "holder": holder})


def keep() -> None:
    """Read a cursor and its nodes from the input, wait for its end, and leave the cursor."""
    name, holder, nodes = pickle.load(sys.stdin.buffer)
    sys.stdin.buffer.read()
    for client in nodes:
        # A node that does not answer releases the cursor by itself.
        with suppress(SparkExportError):
            leave(client, name, holder)


if __name__ == "__main__":
    keep()
