"""What the service manager is told."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from warren.service_manager import ServiceManager

WATCHDOG_US = 300_000


@pytest.fixture
def manager(tmp_path: Path):  # type: ignore[no-untyped-def]
    """The manager's end of the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(30)
        yield listening


def heard(manager: socket.socket) -> list[str]:
    return manager.recv(4096).decode().splitlines()


def test_it_is_told_of_readiness_and_of_the_end(manager: socket.socket) -> None:
    service = ServiceManager.of({"NOTIFY_SOCKET": manager.getsockname()}, 5)
    service.ready("amqp 5672")
    assert heard(manager) == ["READY=1", "STATUS=amqp 5672"]
    service.status("paused")
    assert heard(manager) == ["STATUS=paused"]
    service.stopping()
    assert heard(manager)[0] == "STOPPING=1"
    assert service.watchdog_s is None


def test_an_abstract_socket_is_found() -> None:
    name = f"warren-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(30)
        ServiceManager.of({"NOTIFY_SOCKET": f"@{name}"}, 5).status("x")
        assert heard(listening) == ["STATUS=x"]


def test_there_are_signs_of_life_while_the_loop_turns(manager: socket.socket) -> None:
    variables = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "30000"}

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        service = ServiceManager.of({**variables, "WATCHDOG_PID": "5"}, 5)
        assert service.watchdog_s == 0.03
        service.stay_alive(loop)
        for _ in range(3):
            assert await loop.run_in_executor(None, heard, manager) == ["WATCHDOG=1"]
        service.close()

    asyncio.run(scenario())
    assert ServiceManager.of({**variables, "WATCHDOG_PID": "6"}, 5).watchdog_s is None


def test_without_a_manager_nothing_is_said() -> None:
    service = ServiceManager.of({"WATCHDOG_USEC": "1"}, 5)
    service.ready("x")
    service.stopping()
    ServiceManager.of({"NOTIFY_SOCKET": "/nowhere"}, 5).ready("x")


def test_a_server_tells_all_that(manager: socket.socket, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "warren", "server", "--amqp", "127.0.0.1:0"]
    server = subprocess.Popen(
        [*command, "--http", "none", "--data-dir", str(tmp_path / "data")],
        env={
            **os.environ,
            "NOTIFY_SOCKET": manager.getsockname(),
            "WATCHDOG_USEC": str(WATCHDOG_US),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        said = [heard(manager)[0] for _ in range(6)]
        assert "READY=1" in said and said.count("WATCHDOG=1") >= 2
        server.send_signal(signal.SIGTERM)
        while "STOPPING=1" not in heard(manager):
            pass
        assert server.wait(30) == 0
    finally:
        server.kill()
        server.wait()
