"""The node itself: status, limits, log level, starting, stopping."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from warren.core.resources.information_unit import parse_bytes
from warren.mgmt.ctl.call import CommandCall
from warren.mgmt.ctl.declaration import argument, command, option, optional, several
from warren.mgmt.ctl.errors import (
    BadArgument,
    CtlError,
    Exit,
    NeedsLocal,
    NodeUnreachable,
    WrongUsage,
)
from warren.mgmt.ctl.formats import (
    DEFAULT_UNIT,
    UNITS,
    Answer,
    Document,
    amount,
    as_json,
    cell,
    sections,
)

NONE = ["(none)"]
POLL_S = 0.1
WAIT_S = 10.0
STARTUP_S = 300.0
STOP_S = 600.0
"""How long a stopping node may take: it writes the messages that it has in memory."""

UNIT = option(
    "--unit",
    type=click.Choice(list(UNITS), case_sensitive=False),
    default=DEFAULT_UNIT,
    metavar="UNIT",
    help="Of amounts of bytes [gb].",
)


# Status


@command("status", "Show the status of the node.", UNIT)
def status(call: CommandCall, unit: str) -> Answer:
    call.announce(f"Status of node {call.node} ...")
    said = call.client.get("control", "status")
    return Document(sections(_status_sections(said, unit)), said)


def _status_sections(said: dict[str, Any], unit: str) -> dict[str, list[str]]:
    files, totals, memory = said["file_descriptors"], said["totals"], said["memory"]
    processes = said["processes"]
    shown = {
        "Runtime": [
            f"OS PID: {said['pid']}",
            f"OS: {said['os']}",
            f"Uptime (seconds): {said['uptime']}",
            f"Is under maintenance?: {cell(said['is_under_maintenance'])}",
            f"RabbitMQ version: {said['rabbitmq_version']}",
            f"{said['product_name']} version: {said['product_version']}",
            f"Node name: {said['node']}",
            f"Runtime: {said['erlang_version']}",
            f"Crypto library: {said['crypto_lib_version']}",
            f"Threads: {processes['used']} used, {processes['limit']} limit",
        ],
        "Plugins": [f"Enabled plugins: {cell(said['active_plugins']) or '(none)'}"],
        "Data directory": [f"Node data directory: {said['data_directory'] or '(none)'}"],
        "Config files": [f" * {path}" for path in said["config_files"]] or NONE,
        "Log file(s)": [f" * {path}" for path in said["log_files"]] or NONE,
        "Alarms": alarm_lines(said["alarms"]) or NONE,
        "Memory": [
            f"Total memory used: {amount(memory['total']['rss'], unit)}",
            f"Calculation strategy: {said['vm_memory_calculation_strategy']}",
            "Memory high watermark setting: "
            + _watermark(said["vm_memory_high_watermark_setting"], unit)
            + f", computed to: {amount(said['vm_memory_high_watermark_limit'], unit)}",
            "",
            *memory_lines(memory, unit, " %"),
        ],
        "File Descriptors": [
            f"Total: {files['total_used']}, limit: {files['total_limit']}",
            f"Sockets: {files['sockets_used']}, limit: {files['sockets_limit']}",
        ],
        "Free Disk Space": [
            f"Low free disk space watermark: {amount(said['disk_free_limit'], unit)}",
            "Free disk space: "
            + ("(unknown)" if said["disk_free"] is None else amount(said["disk_free"], unit)),
        ],
        "Storage": _storage_lines(said["storage"]),
        "Totals": [
            f"Connection count: {totals['connection_count']}",
            f"Queue count: {totals['queue_count']}",
            f"Virtual host count: {totals['virtual_host_count']}",
        ],
        "Listeners": listener_lines(said["listeners"]),
    }
    return shown


def alarm_lines(alarms: list[dict[str, Any]]) -> list[str]:
    names = {"memory": "Memory", "disk": "Free disk space", "internal_error": "Internal error"}
    return [f"{names[one['resource']]} alarm on node {one['node']}" for one in alarms]


def listener_lines(listeners: list[dict[str, Any]], *, with_node: bool = False) -> list[str]:
    return [
        (f"Node: {one['node']}, interface" if with_node else "Interface")
        + f": {one['interface']}, port: {one['port']}, protocol: {one['protocol']},"
        f" purpose: {one['purpose']}"
        for one in listeners
    ]


def _watermark(setting: dict[str, float], unit: str) -> str:
    if "relative" in setting:
        return f"{setting['relative']} of available memory"
    return amount(setting["absolute"], unit)


def memory_shares(memory: dict[str, Any]) -> list[tuple[str, int, float]]:
    """The parts of the memory, their bytes and their share in percent; the largest first."""
    parts = {name: size for name, size in memory.items() if isinstance(size, int)}
    total = memory["total"]["rss"] or 1
    ordered = sorted(parts.items(), key=lambda part: (-part[1], part[0]))
    return [(name, size, round(100 * size / total, 2)) for name, size in ordered]


def memory_lines(memory: dict[str, Any], unit: str, percent: str) -> list[str]:
    return [
        f"{name}: {amount(size, unit)} ({share}{percent})"
        for name, size, share in memory_shares(memory)
    ]


def _storage_lines(storage: dict[str, Any] | None) -> list[str]:
    if storage is None:
        return ["Messages are kept in memory only"]
    lost, damaged = storage["lost_messages"], storage["damaged_records"]
    lines = [f"Messages lost to damage: {lost}", f"Damaged records found at start: {damaged}"]
    unclaimed = storage["unclaimed_messages"]
    if unclaimed:
        lines.append(f"Unclaimed messages: {unclaimed}; `list_unclaimed_messages` shows them")
    unreadable = storage["unreadable_definitions"]
    if unreadable:
        lines.append(
            f"Unreadable definitions: {unreadable}; `list_unreadable_definitions` shows them"
        )
    if lost or damaged:
        lines.append("The log says which; `warren store check` looks at the whole data directory.")
    return lines


@command("environment", "Show the configuration the node runs with.")
def environment(call: CommandCall) -> Answer:
    call.announce(f"Application environment of node {call.node} ...")
    said = call.client.get("control", "environment")
    lines = [f"{name} = {as_json(value)}" for name, value in said.items()]
    return Document("\n".join(lines), said)


# Settings of the running node


@command(
    "set_vm_memory_high_watermark",
    "Set the memory above which publishers wait: a fraction, or `absolute` and an amount.",
    several("watermark"),
)
def set_vm_memory_high_watermark(call: CommandCall, watermark: tuple[str, ...]) -> Answer:
    body, shown = _limit(watermark, "absolute", fraction_first=True)
    call.announce(f"Setting memory threshold on {call.node} to {shown} ...")
    call.client.put("control", "memory-watermark", body=body)
    return None


@command(
    "set_disk_free_limit",
    "Set the free space below which publishers wait: an amount, or `mem_relative` and a factor.",
    several("limit"),
)
def set_disk_free_limit(call: CommandCall, limit: tuple[str, ...]) -> Answer:
    body, shown = _limit(limit, "mem_relative", fraction_first=False)
    call.announce(f"Setting disk free limit on {call.node} to {shown} ...")
    call.client.put("control", "disk-free-limit", body=body)
    return None


def _limit(
    given: tuple[str, ...], word: str, *, fraction_first: bool
) -> tuple[dict[str, float], str]:
    """The body of the request, and the limit in words. Raises `CtlError`."""
    if not given or (given[0] == word and len(given) < 2):
        raise WrongUsage("not enough arguments.")
    if len(given) > 1 + (given[0] == word):
        raise WrongUsage("too many arguments.")
    if (given[0] == word) == fraction_first:
        try:
            return {"absolute": parse_bytes(given[-1])}, f"{given[-1]} bytes"
        except ValueError as error:
            raise BadArgument() from error
    share = _fraction(given[-1])
    if not fraction_first:
        return {"relative": share}, f"{share} times the total RAM"
    if share > 1:
        raise BadArgument("The threshold should be a fraction between 0.0 and 1.0")
    return {"relative": share}, str(share)


def _fraction(text: str) -> float:
    try:
        share = float(text)
    except ValueError as error:
        raise BadArgument() from error
    if not 0 <= share < float("inf"):
        raise BadArgument()
    return share


@command("set_log_level", "Log less or more until the next start.", argument("level"))
def set_log_level(call: CommandCall, level: str) -> Answer:
    call.announce(f'Setting log level to "{level}" ...')
    call.client.put("control", "log-level", body={"level": level})
    return None


@command("rotate_logs", "Open the log file anew, after it was moved away.")
def rotate_logs(call: CommandCall) -> Answer:
    call.announce(f"Opening the log file of node {call.node} anew ...")
    call.client.post("control", "rotate-logs")
    return None


@command("force_gc", "Does nothing: there is nothing to collect by hand.")
def force_gc(call: CommandCall) -> Answer:
    call.announce(f"Will ask all processes on node {call.node} to schedule a full sweep GC")
    return None


def _refuse(name: str) -> NoReturn:
    raise CtlError(
        f"{name} runs Erlang or Elixir inside a RabbitMQ node; this node is written in Python",
        Exit.USAGE,
    )


@command("eval", "Refused: the node runs no Erlang.", several("expression"))
def eval_erlang(call: CommandCall, expression: tuple[str, ...]) -> Answer:
    _refuse("eval")


@command("eval_file", "Refused: the node runs no Erlang.", several("path"))
def eval_file(call: CommandCall, path: tuple[str, ...]) -> Answer:
    _refuse("eval_file")


@command("exec", "Refused: there is no Elixir.", several("expression"))
def exec_elixir(call: CommandCall, expression: tuple[str, ...]) -> Answer:
    _refuse("exec")


# Start and stop


@command("stop", "Stop the node, and wait until it has.", optional("pidfile"))
def stop(call: CommandCall, pidfile: str | None) -> Answer:
    """Wait for the process in the pid file, or without one for the one behind the socket."""
    call.announce(f"Stopping and halting node {call.node} ...")
    _stop(call, None if pidfile is None else _pid_in(Path(pidfile)))
    return None


@command(
    "shutdown",
    "Stop the node, and wait until it has.",
    option("--wait/--no-wait", is_flag=True, default=True, help="Return at the end, or at once."),
)
def shutdown(call: CommandCall, wait: bool) -> Answer:
    client = call.client
    pid = client.peer_pid()
    which = f"node {call.node} running at PID {pid}"
    call.announce(f"Shutting down {which}")
    if not wait:
        client.post("control", "stop")
        return None
    call.announce(f"Waiting for PID {pid} to terminate")
    _stop(call, pid)
    return f"Node {call.node} running at PID {pid} successfully shut down"


def _stop(call: CommandCall, pid: int | None) -> None:
    """Ask the node to stop and return when its process has ended. Raises `CtlError`."""
    client = call.client
    if not client.target.local:
        raise NeedsLocal("Stopping a node")
    # Open the process before it ends: later another process may have its number.
    process = _open_process(pid or client.peer_pid())
    try:
        client.post("control", "stop")
        client.close()
        ended = _wait_for_end(process, call.options.timeout or STOP_S)
    finally:
        if process is not None:
            os.close(process)
    if not ended:
        raise CtlError("the node has not stopped in time", Exit.TIMEOUT)


def _open_process(pid: int | None) -> int | None:
    """A descriptor of the process; None if it has ended."""
    if pid is None:
        return None
    with suppress(ProcessLookupError, PermissionError):
        return os.pidfd_open(pid)
    return None


def _wait_for_end(process: int | None, patience_s: float) -> bool:
    if process is None:
        return True
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(1000 * patience_s))


def _pid_in(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError) as error:
        raise CtlError(f"no process id in the pid file {path}: {error}") from error


@command(
    "wait",
    "Wait until a node has started, as its pid file or --pid says.",
    optional("pidfile"),
    option("-P", "--pid", type=int, metavar="PID"),
)
def wait(call: CommandCall, pidfile: str | None, pid: int | None) -> Answer:
    if (pidfile is None) == (pid is None):
        raise WrongUsage("either a pid file or --pid is wanted.")
    until = Polling(call, WAIT_S, Exit.TIMEOUT)
    if pidfile is not None:
        path = Path(pidfile)
        call.announce(f"Waiting for pid file '{pidfile}' to appear")
        until.true(path.exists)
        pid = _pid_in(path)
        call.announce(f"pid is {pid}")
    assert pid is not None
    call.announce(f"Waiting for the node while OS process '{pid}' is running")
    until.true(lambda: _answers(call), while_process=pid)
    call.announce(f"Node '{call.node}' is running")
    return None


@command("await_startup", "Wait until the node has started.")
def await_startup(call: CommandCall) -> Answer:
    until = Polling(call, STARTUP_S, Exit.SOFTWARE)
    until.true(lambda: _answers(call))
    return None


def _answers(call: CommandCall) -> bool:
    try:
        return bool(call.node) and is_running(call)
    except NodeUnreachable:
        call.close()
        return False


def is_running(call: CommandCall) -> bool:
    """Whether a node that answers runs, or was stopped by `stop_app`."""
    client = call.client
    return not client.target.local or client.get("control", "app")["state"] == "running"


class Polling:
    """Polls a condition until it is true. Raises `CtlError` when that takes too long."""

    def __init__(self, call: CommandCall, default_s: float, code: Exit) -> None:
        chosen = call.options.timeout
        self.patience_s = default_s if chosen is None else chosen
        self._code = code
        self._end = time.monotonic() + self.patience_s

    def true(self, condition: Callable[[], bool], *, while_process: int | None = None) -> None:
        while True:
            if while_process is not None and not Path(f"/proc/{while_process}").exists():
                raise CtlError("process_not_running")
            if condition():
                return
            if time.monotonic() >= self._end:
                raise CtlError(
                    f"operation timed out. Timeout value used: {self.patience_s:g} s",
                    self._code,
                    heading="Error: ",
                )
            time.sleep(POLL_S)


@command("ping", "Check that the node answers.")
def ping(call: CommandCall) -> Answer:
    name = call.options.node or "the node"
    timeout_s = call.options.timeout or 60
    call.announce(f"Will ping {name}. Timeout: {1000 * timeout_s:.0f} ms.")
    _ = call.node
    return Document("Ping succeeded", {"message": "Ping succeeded"})
