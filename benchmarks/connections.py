"""Opens many idle connections with one channel each, and says what one costs the broker.

    python benchmarks/connections.py --port 5672 --pid BROKER_PID -n 10000

Prints one JSON line: seconds and broker CPU milliseconds per connection to open, KiB of resident
memory each, and whether all of them still answer a round trip. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import struct
import time

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"


def short_string(text: str) -> bytes:
    return bytes((len(text),)) + text.encode()


def method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    payload = struct.pack(">HH", class_id, method_id) + arguments
    return struct.pack(">BHI", 1, channel, len(payload)) + payload + b"\xce"


def read_until(connection: socket.socket, class_id: int, method_id: int) -> None:
    """Read frames until this method has come."""
    buffer = b""
    while True:
        while len(buffer) >= 7:
            size = struct.unpack_from(">I", buffer, 3)[0] + 8
            if len(buffer) < size:
                break
            if buffer[0] == 1 and struct.unpack_from(">HH", buffer, 7) == (class_id, method_id):
                return
            buffer = buffer[size:]
        octets = connection.recv(65536)
        if not octets:
            raise SystemExit("the broker closed a connection")
        buffer += octets


def open_connection(host: str, port: int) -> socket.socket:
    connection = socket.create_connection((host, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(PROTOCOL_HEADER)
    read_until(connection, 10, 10)
    login = b"\0guest\0guest"
    connection.sendall(
        method(
            0,
            10,
            11,
            struct.pack(">I", 0)
            + short_string("PLAIN")
            + struct.pack(">I", len(login))
            + login
            + short_string("en_US"),
        )
    )
    read_until(connection, 10, 30)
    connection.sendall(
        method(0, 10, 31, struct.pack(">HIH", 2047, 131072, 0))
        + method(0, 10, 40, short_string("/") + b"\0\0")
        + method(1, 20, 10, b"\0")
    )
    read_until(connection, 20, 11)
    return connection


def usage(pid: int) -> tuple[float, float]:
    """CPU seconds and resident KiB of a process and its descendants."""
    parents: dict[int, list[int]] = {}
    numbers: dict[int, list[str]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            numbers[int(name)] = fields
            parents.setdefault(int(fields[1]), []).append(int(name))
    todo, cpu, pages = [pid], 0, 0
    while todo:
        one = todo.pop()
        cpu += int(numbers[one][11]) + int(numbers[one][12])
        pages += int(numbers[one][21])
        todo += parents.get(one, [])
    return cpu / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE") / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5672)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("-n", "--connections", type=int, default=10000)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    open_connection(options.host, options.port).close()
    cpu_before, kib_before = usage(options.pid)
    started = time.perf_counter()
    connections = [open_connection(options.host, options.port) for _ in range(options.connections)]
    opened_s = time.perf_counter() - started
    cpu_after, kib_after = usage(options.pid)
    for connection in connections:
        connection.sendall(method(1, 20, 20, b"\1"))
    for connection in connections:
        read_until(connection, 20, 21)
    count = options.connections
    print(
        json.dumps(
            {
                "connections": count,
                "opened_per_s": round(count / opened_s),
                "cpu_ms_each": round((cpu_after - cpu_before) / count * 1000, 3),
                "kib_each": round((kib_after - kib_before) / count, 1),
                "all_answer": True,
            }
        )
    )
    for connection in connections:
        connection.close()


if __name__ == "__main__":
    main()
