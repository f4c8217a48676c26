"""HTTP through the control socket of a node."""

from __future__ import annotations

import http.client
import os
import socket
from pathlib import Path

from warren.persist.disk.data_directory import CONTROL_SOCKET


class ControlConnection(http.client.HTTPConnection):
    """HTTP to the node that runs in a data directory."""

    def __init__(self, data_directory: Path, timeout_s: float | None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._data_directory = data_directory
        self._timeout_s = timeout_s

    def connect(self) -> None:
        # The path of a Unix socket has at most 107 octets; a directory's path may be longer.
        directory = os.open(self._data_directory, os.O_PATH | os.O_DIRECTORY)
        try:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(self._timeout_s)
            self.sock.connect(f"/proc/self/fd/{directory}/{CONTROL_SOCKET}")
        finally:
            os.close(directory)
