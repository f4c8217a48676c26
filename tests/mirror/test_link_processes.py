"""Links between processes, one of which is killed, stopped or started anew."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

from link_nodes import QUICK, LinkNode, on_loop, until
from link_pipe import SECRET

from warren.mirror.links.ports import EndReason

PROGRAM = Path(__file__).parents[1] / "support" / "link_program.py"


class Process:
    """The node bob in a process of its own; all it printed is in `lines`."""

    def __init__(self, incarnation: int = 1, port: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", PROGRAM, "bob", str(incarnation), str(port), SECRET.decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def ends(self) -> list[str]:
        """Let it end by itself; what it reported."""
        output, _ = self.process.communicate(timeout=20)
        assert self.process.returncode == 0
        return output.splitlines()


@on_loop
async def test_two_processes_exchange_frames_in_order() -> None:
    async with LinkNode("ann") as ann:
        with Process() as bob:
            ann.links.connect("bob", "127.0.0.1", bob.port)
            await until(lambda: ann.is_up("bob"))
            sent = [(number % 7, b"%d" % number * (number % 100)) for number in range(20_000)]
            for at in range(0, len(sent), 500):
                for kind, payload in sent[at : at + 500]:
                    assert ann.links.send("bob", kind, payload)
                await asyncio.sleep(0)
            await until(lambda: sum(len(report[2]) for report in ann.reports[1:]) == len(sent))
            assert ann.frames("bob") == sent
            reported = await asyncio.to_thread(bob.ends)
            await until(lambda: ann.reasons() == [EndReason.PEER_STOPPED])
            assert reported == ["up ann 1", "down ann stopped"]


@on_loop
async def test_a_killed_process_is_down_at_once_and_its_next_incarnation_comes_up() -> None:
    async with LinkNode("ann", settings=QUICK._replace(timeout_s=60)) as ann:
        with Process() as bob:
            ann.links.connect("bob", "127.0.0.1", bob.port)
            await until(lambda: ann.is_up("bob"))
            bob.process.kill()
            await until(lambda: ann.reasons() == [EndReason.CONNECTION_LOST])
        with Process(incarnation=2, port=bob.port):
            await until(lambda: ann.is_up("bob"))
            assert ann.links.peers()["bob"].incarnation == 2


@on_loop
async def test_a_stopped_process_is_down_after_the_timeout_and_comes_back_when_it_goes_on() -> None:
    async with LinkNode("ann") as ann:
        with Process() as bob:
            ann.links.connect("bob", "127.0.0.1", bob.port)
            await until(lambda: ann.is_up("bob"))
            bob.process.send_signal(signal.SIGSTOP)
            # There is something to write all the time, so that it is not the write that fails.
            while not ann.count("down"):
                ann.links.send("bob", 1, bytes(1000))
                await asyncio.sleep(0)
            assert ann.reasons() == [EndReason.SILENT]
            bob.process.send_signal(signal.SIGCONT)
            await until(lambda: ann.is_up("bob"))
            ann.links.send("bob", 2, b"again")
            await until(lambda: (2, b"again") in ann.frames("bob"))
