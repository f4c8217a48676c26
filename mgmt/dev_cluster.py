"""A cluster on one machine, to try things: an etcd and several nodes, each a process of its own.

All their files are below one directory: `etcd/`, and for each node its data directory, its
configuration and its log. Each process has a session of its own, so that Ctrl-C in a terminal does
not end the etcd before the nodes have left the cluster. When this process is killed, the kernel
stops them all.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from warren.mgmt.ctl.control_client import ControlClient, LocalTarget
from warren.mgmt.ctl.errors import CtlError
from warren.mirror.definitions.etcd import EtcdClient, EtcdError
from warren.mirror.definitions.etcd_messages import Txn, delete, end_of

HOST = "127.0.0.1"
START_S = 60.0
"""Time for the nodes to become ready and linked; the machine may be busy."""
STOP_S = 20.0
"""Time for a process to stop before it is killed."""
POLL_S = 0.05
ETCD_TRIES = 3
"""Attempts to start etcd, as another program may take a free port before etcd has it."""

NO_ETCD = (
    "there is no etcd on this machine, and a cluster needs one. Install it (Debian, Ubuntu:"
    " apt-get install etcd-server; others: https://etcd.io/docs/latest/install), or say where one"
    " is: --etcd http://HOST:2379"
)
PR_SET_PDEATHSIG = 1
"""The option of prctl(2) that sets the signal a process gets when the thread that made it ends."""
# Looked up at import, because a child between fork and exec should do as little as it can.
_prctl = ctypes.CDLL(None).prctl

READY = re.compile(rb"ready: amqp (\d+).*http (\d+)")


class ClusterNotStarted(Exception):
    """The cluster cannot be started; the text says why and what to do."""


class ChildProcess:
    """A process of the cluster. Its standard error goes to `log`, `read_line` reads its output."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.log = log
        self.wanted = True
        self._process = process
        self._ending: asyncio.Task[int] | None = None

    @classmethod
    async def start(cls, name: str, command: list[str], log: Path) -> ChildProcess:
        with log.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=file,
                start_new_session=True,
                preexec_fn=functools.partial(_end_with, os.getpid()),
            )
        return cls(name, process, log)

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    async def read_line(self) -> bytes:
        """The next line of its standard output; empty when the process has ended."""
        assert self._process.stdout is not None
        return await self._process.stdout.readline()

    async def end(self) -> int:
        """Wait until the process has ended; returns its exit code. Its output is dropped."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._read_to_end())
        return await asyncio.shield(self._ending)

    async def _read_to_end(self) -> int:
        assert self._process.stdout is not None
        while await self._process.stdout.read(1 << 16):
            pass
        return await self._process.wait()

    def last_line(self) -> str:
        lines = self.log.read_text("utf-8", "replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")

    async def stop(self) -> None:
        """End the process: by SIGTERM, or by SIGKILL if it has not ended after `STOP_S`."""
        self.wanted = False
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.ended:
                return
            self._process.send_signal(number)
            try:
                await asyncio.wait_for(self.end(), STOP_S)
            except TimeoutError:
                continue


class DevNode:
    """One node: how it is started and, once it is ready, its ports."""

    def __init__(self, number: int, directory: Path, amqp_port: int, http_port: int) -> None:
        self.name = f"warren{number}@{HOST}"
        self.data_directory = directory / f"warren{number}"
        self.config_file = directory / f"warren{number}.conf"
        self.log = directory / f"warren{number}.log"
        self.amqp_port = amqp_port
        self.http_port = http_port
        self.process: ChildProcess | None = None

    async def start(self) -> None:
        """Start the node's process; `ready` waits until it serves."""
        command = [sys.executable, "-P", "-m", "warren", "server"]
        command += ["--config", str(self.config_file), "--data-dir", str(self.data_directory)]
        command += ["--node-name", self.name]
        command += ["--amqp", f"{HOST}:{self.amqp_port}", "--http", f"{HOST}:{self.http_port}"]
        self.process = await ChildProcess.start(self.name, command, self.log)

    async def ready(self) -> None:
        """Return when the node is ready. Raises `ClusterNotStarted` if its process ends instead."""
        assert self.process is not None
        while line := await self.process.read_line():
            ports = READY.search(line)
            if ports is not None:
                self.amqp_port, self.http_port = int(ports[1]), int(ports[2])
                return
        await self.process.end()
        raise ClusterNotStarted(f"{self.name} has not started: {self.process.last_line()}")

    def linked(self) -> set[str]:
        """The nodes that this node has links to."""
        client = ControlClient(LocalTarget(self.data_directory), START_S)
        try:
            return set(client.get("control", "members")["linked"])
        except CtlError:
            return set()
        finally:
            client.close()


class DevCluster:
    """The cluster from `start` to `stop`. `say` is called with each line for the user."""

    def __init__(
        self,
        count: int,
        directory: Path,
        *,
        amqp_port: int,
        http_port: int,
        etcd_url: str | None,
        say: Callable[[str], None],
    ) -> None:
        self.nodes = [
            DevNode(
                number + 1,
                directory,
                amqp_port + number if amqp_port else 0,
                http_port + number if http_port else 0,
            )
            for number in range(count)
        ]
        self._directory = directory
        self._etcd_url = etcd_url
        self._etcd: ChildProcess | None = None
        self._say = say
        self._watches: list[asyncio.Task[None]] = []
        self.all_ended = asyncio.Event()

    async def start(self) -> None:
        """Return when all nodes are ready and linked. Raises `ClusterNotStarted`, OSError."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        url = self._etcd_url or await self._start_etcd()
        secret = self._kept("secret", secrets.token_urlsafe(32))
        for node in self.nodes:
            node.config_file.write_text(self._configuration(url, secret), encoding="utf-8")
            await node.start()
        try:
            async with asyncio.timeout(START_S):
                async with asyncio.TaskGroup() as group:
                    for node in self.nodes:
                        group.create_task(node.ready())
                await self._all_linked()
        except TimeoutError:
            raise ClusterNotStarted(
                f"not all nodes were ready and linked in {START_S:g} seconds;"
                f" their logs are in {self._directory}"
            ) from None
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        for process in self._processes():
            self._watches.append(asyncio.create_task(self._watch(process)))

    async def stop(self) -> None:
        """End all processes, etcd last."""
        nodes = [node.process for node in self.nodes if node.process is not None]
        await asyncio.gather(*(process.stop() for process in nodes))
        if self._etcd is not None:
            await self._etcd.stop()
        for watch in self._watches:
            watch.cancel()

    async def forget(self) -> None:
        """Delete the cluster's keys from an etcd that it does not own."""
        if self._etcd_url is None:
            return
        prefix = f"/warren/{self._kept('name', '')}/".encode()
        etcd = EtcdClient([self._etcd_url])
        try:
            await etcd.txn(Txn(success=[delete(prefix, end_of(prefix))]))
        except EtcdError as error:
            self._say(f"what is below {prefix.decode()} in etcd could not be deleted: {error}")
        finally:
            await etcd.close()

    def _processes(self) -> list[ChildProcess]:
        found = [self._etcd, *(node.process for node in self.nodes)]
        return [process for process in found if process is not None]

    async def _all_linked(self) -> None:
        names = {node.name for node in self.nodes}
        for node in self.nodes:
            while not names <= await asyncio.to_thread(node.linked):
                await asyncio.sleep(POLL_S)

    async def _watch(self, process: ChildProcess) -> None:
        """Tell the user when a process has ended by itself."""
        code = await process.end()
        if not process.wanted:
            return
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self._say(f"{process.name} {how}; its log is {process.log}")
        if all(node.process is None or node.process.ended for node in self.nodes):
            self.all_ended.set()

    def _configuration(self, etcd_url: str, secret: str) -> str:
        name = self._kept("name", f"dev-{secrets.token_hex(8)}")
        return (
            f"cluster_formation.etcd.endpoints.1 = {etcd_url}\n"
            f"cluster_formation.etcd.cluster_name = {name}\n"
            f"cluster.secret = {secret}\n"
            f"distribution.listener.interface = {HOST}\n"
            "distribution.listener.port_range.min = 0\n"
        )

    def _kept(self, name: str, new: str) -> str:
        """The line in the file `name`; `new` is written to it if there is none."""
        path = self._directory / name
        if not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(new + "\n")
        return path.read_text("utf-8").strip()

    # etcd

    async def _start_etcd(self) -> str:
        """Start an etcd on free ports; returns its URL. Raises `ClusterNotStarted`."""
        program = shutil.which("etcd")
        if program is None:
            raise ClusterNotStarted(NO_ETCD)
        log = self._directory / "etcd.log"
        for _ in range(ETCD_TRIES):
            client, peer = (f"http://{HOST}:{port}" for port in _free_ports(2))
            command = [program, "--data-dir", str(self._directory / "etcd")]
            command += ["--listen-client-urls", client, "--advertise-client-urls", client]
            command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
            command += ["--initial-cluster", f"default={peer}"]
            etcd = self._etcd = await ChildProcess.start("etcd", command, log)
            if await self._etcd_answers(etcd, client):
                return client
            await etcd.stop()
        raise ClusterNotStarted(f"etcd has not started; its log is {log}")

    async def _etcd_answers(self, process: ChildProcess, url: str) -> bool:
        deadline = asyncio.get_running_loop().time() + START_S
        ended = asyncio.create_task(process.end())
        try:
            while not ended.done() and asyncio.get_running_loop().time() < deadline:
                if await asyncio.to_thread(_is_healthy, url):
                    return True
                await asyncio.wait((ended,), timeout=POLL_S)
            return False
        finally:
            ended.cancel()


def _end_with(parent: int) -> None:
    """Run in a child before exec: have the child stop when its parent has ended."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        # The parent has ended before the call.
        os._exit(1)


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1) as answer:
            return b'"true"' in answer.read()
    except (urllib.error.URLError, OSError):
        return False


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in sockets]
