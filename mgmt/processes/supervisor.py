"""Runs the processes of a broker: starts them, restarts those that end, and stops all.

SIGTERM, SIGINT and `warren ctl stop` at any process stop the broker; SIGHUP goes to all processes.
When all are ready the supervisor prints one line: that of the first process with the number of
processes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from warren.config import Config, Processes
from warren.core.log_line import log_event
from warren.faults import Faults, NodeFailed
from warren.log_console import console_of, print_line
from warren.log_output import LogOutput
from warren.mgmt.exit_codes import EXIT_DOWN, EXIT_NOT_STARTED, EXIT_UNWRITTEN
from warren.mgmt.processes.child import Child, ending
from warren.mgmt.processes.deaths import DEATHS_MAX, WITHIN_S, Deaths
from warren.mgmt.processes.directory import STORE, ProcessesDirectory, largest_first
from warren.mgmt.processes.plan import (
    ProcessPlan,
    data_directory,
    data_lost,
    name_of,
    supervisor_socket,
    too_few,
)
from warren.mgmt.processes.reserved_ports import ReservedPorts
from warren.mgmt.processes.states import ProcessState, ProcessStatus
from warren.node_refused import NodeRefused
from warren.persist.disk.cluster_file import KnownCluster, expect_no_cluster, read_known_cluster
from warren.service_manager import ServiceManager

if TYPE_CHECKING:
    from warren.mgmt.processes.shared_store import SharedStore
    from warren.mgmt.processes.supervisor_socket import SupervisorSocket

log = logging.getLogger("warren.node")

STOP_S = 90.0
"""How long processes may take to stop before they are killed; systemd gives services as long."""


async def supervise(config: Config, output: LogOutput) -> int:
    """Run a broker of several processes until it is told to stop; returns the exit code.

    Raises the errors of a node's start.
    """
    supervisor = Supervisor(config, output)
    try:
        return await supervisor.run()
    finally:
        await supervisor.close()


class Supervised:
    """One process, over all its starts. `status` is what other processes are told; what the process
    prints goes to `pass_on`."""

    def __init__(self, number: int, config: Config, pass_on: Callable[[bytes], None]) -> None:
        assert config.node_name is not None
        self.config = config
        self.status = ProcessStatus(number, config.node_name, ProcessState.STARTING)
        self.deaths = Deaths()
        self.child: Child | None = None
        self._pass_on = pass_on

    async def start(self) -> Child:
        """Start the process. Raises OSError."""
        child = await Child.start(self.config, os.environ, self._pass_on)
        self.child = child
        self.status.state = ProcessState.STARTING
        self.status.pid = child.pid
        log_event(
            log,
            logging.INFO,
            "process_started",
            number=self.status.number,
            node=self.status.node,
            pid=child.pid,
        )
        return child

    async def ready(self, child: Child) -> bool:
        """Return when the process is ready; False if it has ended instead."""
        if not await child.ready():
            return False
        self.status.state = ProcessState.RUNNING
        return True

    def died(self, reason: str, now: float) -> float | None:
        """Note that the process has ended; returns the seconds to wait before its next start, None
        if it stays down."""
        self.child = None
        pause_s = self.deaths.note(now)
        status = self.status
        status.pid = 0
        status.deaths = self.deaths.count
        status.state = ProcessState.STARTING if pause_s is not None else ProcessState.DOWN
        status.reason = reason
        if pause_s is None:
            status.reason += f", {DEATHS_MAX} times within {WITHIN_S:g} seconds"
        log_event(
            log,
            logging.WARNING if pause_s is not None else logging.ERROR,
            "process_ended" if pause_s is not None else "process_stays_down",
            number=status.number,
            node=status.node,
            reason=status.reason,
        )
        return pause_s


class Supervisor:
    """The supervisor, from `run` to `close`."""

    def __init__(self, config: Config, output: LogOutput) -> None:
        self._config = config
        self._output = output
        self._console = console_of(sys.stdout)
        self._loop = asyncio.get_running_loop()
        self._manager = ServiceManager.of(os.environ, os.getpid())
        self._faults = Faults(self._loop)
        self._directory: ProcessesDirectory | None = None
        self._ports: ReservedPorts | None = None
        self._store: SharedStore | None = None
        self._socket: SupervisorSocket | None = None
        self._processes: list[Supervised] = []
        self._watches: list[asyncio.Task[None]] = []
        self._stop_wanted = asyncio.Event()
        self._over = asyncio.Event()
        # The exit code, if the first start of a process failed. `_over` is set then, and when all
        # processes are down.
        self._failed: int | None = None
        # Whether a process has stopped without writing everything.
        self._left_unwritten = False

    async def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop_wanted.set)
        self._loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        self._faults.catch()
        self._manager.stay_alive(self._loop)
        plan = await self._prepare()
        if not self._stop_wanted.is_set():
            await self._start(plan)
        if self._failed is None:
            await self._wait(self._over)
        if self._stop_wanted.is_set():
            self._manager.stopping()
            log_event(log, logging.INFO, "processes_stopping")
        await self._stop()
        if self._faults.first is not None:
            raise NodeFailed(self._faults.first)
        if self._failed is not None:
            return self._failed
        if not self._stop_wanted.is_set():
            return EXIT_DOWN
        return EXIT_UNWRITTEN if self._left_unwritten else 0

    async def close(self) -> None:
        """Stop the processes and release everything; may be called in any state."""
        await self._stop()
        if self._socket is not None:
            await self._socket.close()
        if self._store is not None:
            self._store.close()
        if self._ports is not None:
            self._ports.release()
        if self._directory is not None:
            if not self._has_begun():
                self._directory.discard_new()
            self._directory.close()
        self._manager.close()
        self._faults.release()

    def _has_begun(self) -> bool:
        """Whether this broker already has definitions or messages."""
        return read_known_cluster(data_directory(self._config)) is not None

    # Start

    async def _prepare(self) -> ProcessPlan:
        """Prepare everything that the processes need before the first one is started."""
        data_dir = data_directory(self._config)
        self._directory = ProcessesDirectory.open(data_dir)
        known = read_known_cluster(data_dir)
        store_path = self._directory.path / STORE
        if self._config.cluster is None and not store_path.is_dir():
            self._directory.expect_definitions()
            expect_no_cluster(data_dir)
        first = _first_name(self._config, known)
        count = usable(self._config.processes)
        self._ports = await ReservedPorts.reserve(self._config)
        self._directory.create()
        if self._config.cluster is None:
            shared_store = import_module("warren.mgmt.processes.shared_store")
            store: SharedStore = shared_store.SharedStore(store_path, self._faults.report)
            self._store = store
            if known is not None and store.is_empty():
                seed = import_module("warren.mgmt.processes.seeding").seed
                seed(store.gateway, self._directory.first, known)
            self._expect_all_queues(store, first, count)
        module = import_module("warren.mgmt.processes.supervisor_socket")
        self._socket = await module.SupervisorSocket.open(
            supervisor_socket(self._config),
            self._store.gateway if self._store is not None else None,
            lambda: [process.status for process in self._processes],
        )
        secret = secrets.token_urlsafe(32).encode()
        return ProcessPlan(self._config, first, count, self._ports.addresses, secret)

    def _expect_all_queues(self, store: SharedStore, first: str, count: int) -> None:
        """Have the store forget the processes that are not started now, or that begin without data.

        Raises `NodeRefused` if one of them leads queues: these would be missing or empty.
        """
        assert self._directory is not None
        queues, members = store.queues(), store.members()
        new = self._directory.without_data(count)
        lost = [number for number in new if name_of(first, number) in members]
        largest = max([count, *largest_first(self._directory.path)])
        reason = too_few(first, count, queues, largest) or data_lost(
            data_directory(self._config), first, lost, queues, store.file
        )
        if reason is not None:
            raise NodeRefused(reason)
        going_on = {name_of(first, n) for n in range(1, count + 1) if n not in new}
        store.forget([name for name in members if name not in going_on])

    async def _start(self, plan: ProcessPlan) -> None:
        """Start all processes, and print a line when they are ready."""
        self._processes = [
            Supervised(number, plan.configuration(number), self._pass_on)
            for number in plan.numbers()
        ]
        first, *others = self._processes
        starts = [self._begin(first)]
        if self._starts_alone():
            await self._wait(*starts)
            starts = []
        if self._failed is None and not self._stop_wanted.is_set():
            starts += [self._begin(process) for process in others]
            await self._wait(*starts)
        if self._failed is None and not self._stop_wanted.is_set():
            self._say_ready()

    def _starts_alone(self) -> bool:
        """Whether the first process starts before the others, which then join it.

        It does so in a broker that has not begun, since it brings the definitions: those in its
        directory, or the defaults. In a new directory and with `load_definitions` it brings none,
        as the files take the place of the defaults: then all processes start together.
        """
        assert self._directory is not None
        has_none = self._directory.first.is_new and self._config.load_definitions is not None
        return not self._has_begun() and not has_none

    def _pass_on(self, line: bytes) -> None:
        if self._console is not None:
            self._console.write(line)

    def _begin(self, process: Supervised) -> asyncio.Event:
        """Watch over a process from now on; the event is set when it is ready."""
        settled = asyncio.Event()
        watch = self._loop.create_task(self._look_after(process, settled))
        watch.add_done_callback(self._watched)
        self._watches.append(watch)
        return settled

    def _watched(self, watch: asyncio.Task[None]) -> None:
        error = None if watch.cancelled() else watch.exception()
        if error is not None:
            self._faults.report(error)

    def _say_ready(self) -> None:
        first = self._processes[0].child
        line = first.ready_line if first is not None else None
        if line is None:
            # It has ended meanwhile, and is being started again.
            line = f"warren {self._processes[0].status.node} ready"
        count = len(self._processes)
        what = "process" if count == 1 else "processes"
        print_line(f"{line}, {count} {what}", sys.stdout)
        self._manager.ready(line.partition("ready: ")[2])
        log_event(log, logging.INFO, "processes_ready", processes=count)

    # While it runs

    async def _look_after(self, process: Supervised, settled: asyncio.Event) -> None:
        """Start a process, and restart it whenever it ends, until all are to stop."""
        while not self._stop_wanted.is_set():
            try:
                child = await process.start()
            except OSError as error:
                code, reason = EXIT_NOT_STARTED, f"not started: {error}"
            else:
                if await process.ready(child):
                    self._manager.status(self._described())
                    settled.set()
                code = await child.ended()
                reason = f"ended by {ending(code)}"
            if self._store is not None:
                self._store.end(process.status.node)
            self._left_unwritten |= code == EXIT_UNWRITTEN
            if self._stop_wanted.is_set():
                return
            if not settled.is_set():
                # A user waits for this start. The process may have printed the reason, too.
                status = process.status
                log_event(
                    log,
                    logging.ERROR,
                    "process_not_started",
                    number=status.number,
                    node=status.node,
                    reason=reason,
                )
                self._failed = code if code > 0 else 1
                self._over.set()
                return
            if code in (0, EXIT_UNWRITTEN):
                # The process was told to stop, so the others stop as well.
                self._stop_wanted.set()
                return
            pause_s = process.died(reason, self._loop.time())
            self._manager.status(self._described())
            if pause_s is None:
                if all(one.status.state is ProcessState.DOWN for one in self._processes):
                    self._over.set()
                return
            await asyncio.sleep(pause_s)

    def _described(self) -> str:
        running = sum([one.status.state is ProcessState.RUNNING for one in self._processes])
        return f"{running} of {len(self._processes)} processes are running"

    def _hang_up(self) -> None:
        self._output.reopen()
        for process in self._processes:
            if process.child is not None:
                process.child.signal(signal.SIGHUP)

    async def _wait(self, *events: asyncio.Event) -> None:
        """Return when all events are set, when the broker is to stop, or when it cannot go on."""
        waits = [
            self._loop.create_task(_all_set(*group))
            for group in (events, (self._stop_wanted,), (self._over,), (self._faults.happened,))
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _stop(self) -> None:
        """End all processes: by SIGTERM, after `STOP_S` by SIGKILL. Suspended ones are resumed."""
        for watch in self._watches:
            watch.cancel()
        self._watches.clear()
        children = [one.child for one in self._processes if one.child is not None]
        for child in children:
            child.signal(signal.SIGTERM, signal.SIGCONT)
        ends = [self._loop.create_task(child.ended()) for child in children]
        if ends:
            _, late = await asyncio.wait(ends, timeout=STOP_S)
            if late:
                log_event(log, logging.ERROR, "processes_killed", processes=len(late))
                for child in children:
                    child.signal(signal.SIGKILL)
                await asyncio.wait(late)
        self._left_unwritten |= EXIT_UNWRITTEN in [end.result() for end in ends]
        for process in self._processes:
            process.child = None


async def _all_set(*events: asyncio.Event) -> None:
    for event in events:
        await event.wait()


def usable(processes: Processes) -> int:
    """The number of processes: `auto` is one for each usable core."""
    return len(os.sched_getaffinity(0)) if processes == "auto" else processes


def _first_name(config: Config, known: KnownCluster | None) -> str:
    """The name of the first process. It must not change, as queues name their nodes.

    Raises `NodeRefused`.
    """
    named = config.node_name
    if known is not None and known.node and config.cluster is None:
        if named not in (None, known.node):
            raise NodeRefused(
                f"data directory {config.data_dir} is of node {known.node}; it cannot be"
                f" {named}: start it with --node-name {known.node}"
            )
        return known.node
    return named or f"warren@{socket.gethostname().split('.')[0]}"
