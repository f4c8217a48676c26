"""Answers of a node that were cut off on the way."""

from __future__ import annotations

import socket
import threading
from zlib import crc32

import pytest

from warren.spark_export.node_urls import NodeAddress
from warren.spark_export.remote import remote_node

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nWarren-Crc32: %08x\r\n\r\n[]" % crc32(b"[]")


def test_an_answer_that_is_cut_off_anywhere_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_node, "WAITS_S", (0.0,))

    def serve(listener: socket.socket) -> None:
        for end in range(len(ANSWER)):
            for octets in (ANSWER[:end], ANSWER):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(octets)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        client = remote_node.NodeClient(NodeAddress(*listener.getsockname()), "Basic eA==")
        for end in range(len(ANSWER)):
            assert client.ask("GET", "nodes") == [], ANSWER[:end]
            remote_node.close_connections()
