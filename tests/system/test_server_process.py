"""`warren server` as a process: its ready line, its exit codes, how it stops."""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from server_process import PATIENCE_S, launch
from warren_command import run_warren

from warren.compat_tests.raw_client import RawClient

SHUTDOWN = "broker forced connection closure with reason 'shutdown'"


def run_server(directory: Path, *arguments: str) -> tuple[int, str, str]:
    """Run a server that is expected to end by itself: exit code, output, errors."""
    ended = run_warren("server", "--http", "none", *arguments, directory=directory)
    return ended.returncode, ended.stdout, ended.stderr


def start_python(directory: Path, *arguments: str) -> tuple[int, str, str]:
    """The same by a start of Python of its own, which takes ten times as long."""
    command = [sys.executable, "-P", "-m", "warren", "server", "--http", "none", *arguments]
    ended = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_and_tells_every_client(
    start_server: Callable[..., Any], connect: Callable[..., RawClient], number: signal.Signals
) -> None:
    server = start_server("--node-name", "warren@here", config="log.default.level = warning")
    assert re.fullmatch(r"warren warren@here ready: amqp \d+\n", server.ready_line)
    clients = [connect(server) for _ in range(3)]
    channel = clients[0].channel()
    channel.declare("q", durable=True)
    server.signal(number)
    for client in clients:
        client.expect_close(320, SHUTDOWN, (0, 0))
    assert server.wait() == 0
    assert server.rest_of_output() == "", "one line is all it prints"
    assert server.log == "", "quiet when all is well"


def test_it_stops_in_order_if_its_control_socket_cannot_be_removed(
    start_server: Callable[..., Any], connect: Callable[..., RawClient], tmp_path: Path
) -> None:
    """As on a file system that has become read-only; a directory cannot be unlinked either."""
    server = start_server(data_dir=tmp_path / "data")
    client = connect(server)
    (tmp_path / "data" / "control.sock").unlink()
    (tmp_path / "data" / "control.sock").mkdir()
    server.signal(signal.SIGTERM)
    client.expect_close(320, SHUTDOWN, (0, 0))
    assert server.wait() == 0
    assert "node_stopped" in server.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order_while_it_starts(tmp_path: Path, number: signal.Signals) -> None:
    """It waits for an etcd that takes the connection and says nothing."""
    secret = tmp_path / "secret"
    secret.write_text("a secret of the tests")
    secret.chmod(0o600)
    config = tmp_path / "warren.conf"
    with socket.create_server(("127.0.0.1", 0)) as etcd, (tmp_path / "log").open("w+b") as log:
        etcd.settimeout(PATIENCE_S)
        config.write_text(
            f"cluster_formation.etcd.endpoints.1 = http://127.0.0.1:{etcd.getsockname()[1]}\n"
            f"cluster.secret_file = {secret}\n"
        )
        arguments = ["--config", str(config), "--data-dir", "data", "--node-name", "a@127.0.0.1"]
        arguments += ["--amqp", "127.0.0.1:0"]
        process = launch(arguments, tmp_path, log)
        try:
            connection, _ = etcd.accept()
            with connection:
                process.send_signal(number)
                assert process.wait(PATIENCE_S) == 0
            assert process.stdout.read() == b""
        finally:
            process.kill()
            process.stdout.close()
        log.seek(0)
        assert b"Traceback" not in log.read()


def test_it_serves_and_stops_where_standard_input_is_closed(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "warren", "server", "--http", "none"]
    command += ["--amqp", "127.0.0.1:0", "--data-dir", "data"]
    with subprocess.Popen(
        ["sh", "-c", 'exec "$@" <&-', "sh", *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert "ready: amqp" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def test_a_data_directory_may_have_any_name(
    start_server: Callable[..., Any], connect: Callable[..., RawClient], tmp_path: Path
) -> None:
    """Also one that is no text in the encoding of the locale."""
    data = tmp_path / os.fsdecode(b"of a \xe4rger\n") / "data"
    server = start_server(data_dir=data)
    connect(server).channel().declare("q", durable=True)
    assert server.terminate() == 0
    again = start_server(data_dir=data)
    connect(again).channel().declare("q", passive=True)
    checked = run_warren("store", "check", str(data), directory=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_reader_of_the_log_that_stops_reading_does_not_stop_the_broker(
    connect: Callable[..., RawClient], tmp_path: Path
) -> None:
    config = tmp_path / "warren.conf"
    config.write_text("log.default.level = debug\n")
    arguments = ["--config", str(config), "--data-dir", "data", "--amqp", "127.0.0.1:0"]
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
    with open(write_end, "wb") as log:
        process = launch(arguments, tmp_path, log)
    try:
        found = re.search(rb"ready: amqp (\d+)", process.stdout.readline())
        assert found is not None
        # Each makes five lines, and the pipe has room for those of some ten.
        for _ in range(100):
            client = connect(f"amqp://guest:guest@127.0.0.1:{int(found[1])}/%2F")
            client.channel().declare("q", durable=True)
            client.close()
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.stdout.close()
        os.close(read_end)


def test_confirms_of_what_was_published_go_out_before_it_stops(
    start_server: Callable[..., Any], connect: Callable[..., RawClient]
) -> None:
    server = start_server()
    channel = connect(server).channel()
    channel.declare("q", durable=True)
    channel.call("confirm.select")
    for _ in range(500):
        channel.publish(b"x" * 100, "q", delivery_mode=2)
    other = connect(server)
    other.channel().becomes_ready("q", 500)
    other.close()
    server.signal(signal.SIGTERM)
    assert len(channel.confirms(500)) == 500
    channel.client.expect_close(320, SHUTDOWN)
    assert server.wait() == 0


def test_a_client_that_does_not_answer_cannot_keep_it_from_stopping(
    start_server: Callable[..., Any], connect: Callable[..., RawClient]
) -> None:
    server = start_server()
    deaf = connect(server)
    silent = connect(server, handshake=False)
    silent.start()
    assert server.terminate() == 0
    # Both sockets are cut in the end.
    deaf.expect("connection.close")
    deaf.expect_socket_closed()
    silent.expect_socket_closed()


def test_a_stopped_server_refuses_connections_and_can_start_again_at_its_port(
    start_server: Callable[..., Any], connect: Callable[..., RawClient], tmp_path: Path
) -> None:
    server = start_server(data_dir=tmp_path / "data")
    address = f"127.0.0.1:{server.port}"
    connect(server).close()
    assert server.terminate() == 0
    with pytest.raises(ConnectionRefusedError):
        connect(server)
    again = start_server(data_dir=tmp_path / "data", amqp=address)
    assert again.port == server.port
    connect(again).close()


def test_a_start_without_threads_is_a_failure_that_says_so(tmp_path: Path) -> None:
    """As with a limit of the user's processes. Here no thread has room for its stack."""
    none = (1 << 46, resource.RLIM_INFINITY)
    command = [sys.executable, "-P", "-m", "warren", "server", "--http", "none"]
    ended = subprocess.run(
        [*command, "--amqp", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, none),
    )
    assert (ended.returncode, ended.stdout) == (71, "")
    (line,) = ended.stderr.splitlines()
    assert line == "warren: the system starts no more threads for this user (ulimit -u)"


def test_an_unknown_flag_is_a_usage_error(tmp_path: Path) -> None:
    code, output, errors = start_python(tmp_path, "--amqq", "127.0.0.1:0")
    assert (code, output) == (2, "")
    assert "No such option" in errors and "--amqp" in errors
    assert list(tmp_path.iterdir()) == [], "nothing was touched"


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:99999", "127.0.0.1:", "::1"])
def test_an_address_that_is_none_is_a_usage_error(tmp_path: Path, address: str) -> None:
    code, output, errors = run_server(tmp_path, "--amqp", address)
    assert (code, output) == (2, "")
    assert "Traceback" not in errors and "port" in errors
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_in_the_configuration_names_line_and_nearest_key(tmp_path: Path) -> None:
    config = tmp_path / "rabbitmq.conf"
    config.write_text("# ours\nheartbeat = 10\nvm_memory_high_watermark.relativ = 0.5\n")
    code, output, errors = start_python(tmp_path, "--config", str(config), "--data-dir", "data")
    assert (code, output) == (2, "")
    assert (
        f"{config}, line 3: unknown key vm_memory_high_watermark.relativ; "
        "the nearest known key is vm_memory_high_watermark.relative\n"
    ) in errors
    assert "Traceback" not in errors and not (tmp_path / "data").exists()


def test_letters_that_the_terminal_lacks_are_printed_as_escapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    (tmp_path / "own.conf").write_text("\u00e4rger = 1\n", encoding="utf-8")
    code, output, errors = start_python(tmp_path, "--config", "own.conf", "--check-config")
    assert (code, errors) == (2, "")
    assert "unknown key \\xe4rger" in output


def test_a_configuration_that_is_not_there_is_named(tmp_path: Path) -> None:
    code, output, errors = run_server(tmp_path, "--config", "missing.conf")
    assert (code, output) == (2, "")
    assert "missing.conf" in errors and "Traceback" not in errors


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("heartbeat = 10\n", 0, "the configuration is fine\n"),
        (
            "log.journald = true\n",
            0,
            "warning: own.conf, line 1: log.journald has no effect in Warren: log lines go to"
            " log.file and to the standard error output, which systemd keeps\n"
            "the configuration is fine\n",
        ),
        (
            "hearbeat = 10\nframe_max = 1\n",
            2,
            "error: own.conf, line 1: unknown key hearbeat; the nearest known key is heartbeat\n"
            "error: own.conf, line 2: frame_max = 1: 0 or a number of bytes from 4096 on was "
            "wanted\n",
        ),
        (
            "load_definitions = gone.json\nlog.file = gone/warren.log\n",
            2,
            "error: load_definitions: gone.json does not exist\n"
            "error: log.file: the directory gone does not exist\n",
        ),
        (
            "listeners.tcp.1 = 127.0.0.1:5672\nlisteners.tcp.2 = 5672\n"
            "prometheus.tcp.port = 5672\nprometheus.tcp.ip = ::1\n",
            2,
            "error: listeners.tcp and listeners.tcp would both listen at port 5672\n"
            "error: listeners.tcp and prometheus.tcp would both listen at port 5672\n",
        ),
        (
            "listeners.tcp.1 = 0.0.0.0:5672\nlisteners.tcp.2 = ::1:5672\n"
            "prometheus.tcp.port = 0\nmanagement.tcp.port = 0\n",
            0,
            "the configuration is fine\n",
        ),
        (
            "cluster_formation.etcd.host = 127.0.0.1\n",
            2,
            "error: a cluster needs a secret that its nodes share: set cluster.secret_file,"
            " cluster.secret or WARREN_CLUSTER_SECRET\n",
        ),
        (
            "cluster_formation.etcd.host = 127.0.0.1\ncluster.secret_file = own.conf\n",
            0,
            "the configuration is fine\n",
        ),
    ],
)
def test_a_configuration_can_be_checked_without_a_start(
    tmp_path: Path, text: str, code: int, expected: str
) -> None:
    (tmp_path / "own.conf").write_text(text)
    found = run_server(tmp_path, "--check-config", "--config", "own.conf")
    assert found == (code, expected, "")
    assert [path.name for path in tmp_path.iterdir()] == ["own.conf"], "nothing was started"


@pytest.mark.parametrize("text", ["{bad", '{"queues": [{"name": "q", "vhost": "none"}]}'])
def test_definitions_that_cannot_be_loaded_are_told_in_a_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    (tmp_path / "own.conf").write_text("load_definitions = bad.json\n")
    code, _, errors = run_server(tmp_path, "--config", "own.conf")
    assert code == 1
    assert "definitions in bad.json not loaded" in errors and "Traceback" not in errors


@pytest.mark.parametrize("text", ["{bad", '{"queues": 7}', '{"queues": [7]}'])
def test_a_check_reads_definitions(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    (tmp_path / "own.conf").write_text("load_definitions = bad.json\n")
    code, output, _ = run_server(tmp_path, "--check-config", "--config", "own.conf")
    assert code == 2 and output.startswith("error: definitions in bad.json not loaded: ")


def test_a_check_tries_the_items_of_definitions(tmp_path: Path) -> None:
    queue = {"name": "q", "vhost": "mine", "durable": True, "auto_delete": False, "arguments": {}}
    bad = {"name": "x", "vhost": "/", "type": "no-such-type"}
    (tmp_path / "own.conf").write_text("load_definitions = files\n")
    (tmp_path / "files").mkdir()
    for name, definitions in (("1.json", {"queues": [queue]}), ("2.json", {"exchanges": [bad]})):
        (tmp_path / "files" / name).write_text(json.dumps(definitions))
    code, output, _ = run_server(tmp_path, "--check-config", "--config", "own.conf")
    first, second = output.splitlines()
    assert code == 2
    assert first.startswith("error: definitions in files/1.json not loaded: ") and "mine" in first
    assert second.startswith("error: definitions in files/2.json not loaded: ")
    assert "no-such-type" in second
    assert sorted(path.name for path in tmp_path.iterdir()) == ["files", "own.conf"]
    # A node that has run may have the virtual host.
    (tmp_path / "files" / "2.json").unlink()
    (tmp_path / "warren-data").mkdir()
    found = run_server(tmp_path, "--check-config", "--config", "own.conf")
    assert found == (0, "the configuration is fine\n", "")


def test_a_check_connects_nowhere(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.settimeout(0)
        uri = f"amqp://127.0.0.1:{elsewhere.getsockname()[1]}"
        value = {"src-uri": uri, "src-queue": "a", "dest-uri": uri, "dest-queue": "b"}
        shovel = {"component": "shovel", "name": "s", "vhost": "/", "value": value}
        (tmp_path / "own.conf").write_text("load_definitions = own.json\n")
        (tmp_path / "own.json").write_text(json.dumps({"parameters": [shovel]}))
        code, output, _ = run_server(tmp_path, "--check-config", "--config", "own.conf")
        assert (code, output) == (0, "the configuration is fine\n")
        with pytest.raises(BlockingIOError):
            elsewhere.accept()


@pytest.mark.parametrize(
    ("prefix", "listener"), [("ssl_options", "listeners.ssl.1"), ("management.ssl", "")]
)
def test_a_check_looks_at_certificates_too(tmp_path: Path, prefix: str, listener: str) -> None:
    listener = listener and f"{listener} = 5671\n"
    (tmp_path / "own.conf").write_text(
        f"{listener}{prefix}.certfile = c.pem\n{prefix}.keyfile = k.pem\n"
    )
    (tmp_path / "c.pem").write_text("no certificate")
    (tmp_path / "k.pem").write_text("no key")
    # The flag of the other tests would switch the listener off.
    code, output, errors = run_server(
        tmp_path, "--check-config", "--config", "own.conf", "--http", "127.0.0.1:0"
    )
    assert (code, errors) == (2, "")
    assert output.startswith(f"error: {prefix}: c.pem with the key k.pem cannot be used: ")


def test_a_check_names_what_is_wrong_with_flags_and_files(tmp_path: Path) -> None:
    code, output, _ = start_python(tmp_path, "--check-config", "--amqp", "nowhere")
    assert code == 2 and output.startswith(
        "error: --amqp nowhere: a port from 0 to 65535 was wanted"
    )
    code, output, _ = run_server(tmp_path, "--check-config", "--config", "missing.conf")
    assert code == 2 and "missing.conf" in output


def test_the_log_says_what_happened_and_is_opened_anew_on_sighup(
    start_server: Callable[..., Any],
    connect: Callable[..., RawClient],
    until: Callable[..., None],
    tmp_path: Path,
) -> None:
    file, rotated = tmp_path / "warren.log", tmp_path / "warren.log.1"
    server = start_server("--node-name", "n@1", config=f"log.file = {file}\nlog.console = false\n")
    connect(server).close()
    until(lambda: "connection_closed" in file.read_text())
    file.rename(rotated)
    server.signal(signal.SIGHUP)
    until(file.exists)
    assert server.terminate() == 0
    assert server.log == "", "the console is switched off"
    line = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO warren\.(\w+) (\w+) ")
    found = [line.match(one) for one in (rotated.read_text() + file.read_text()).splitlines()]
    assert [match and match.groups() for match in found] == [
        ("node", "node_started"),
        ("connection", "connection_accepted"),
        ("connection", "connection_opened"),
        ("connection", "connection_closed"),
        ("node", "node_stopping"),
        ("node", "node_stopped"),
    ]
    assert "node_stopping" in file.read_text()


def test_a_log_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.conf").write_text("log.file = gone/warren.log\n")
    code, output, errors = run_server(tmp_path, "--config", "own.conf", "--amqp", "127.0.0.1:0")
    assert (code, output) == (2, "")
    assert "gone/warren.log" in errors and "Traceback" not in errors


def test_a_key_without_effect_is_a_warning(start_server: Callable[..., Any]) -> None:
    server = start_server(config="hipe_compile = true\n")
    assert server.terminate() == 0
    assert "WARNING" in server.log and "hipe_compile" in server.log


def test_the_configuration_counts_and_flags_come_last(
    start_server: Callable[..., Any], connect: Callable[..., RawClient], tmp_path: Path
) -> None:
    config = "listeners.tcp.1 = 127.0.0.1:1\nheartbeat = 17\nchannel_max = 99\nnode_name = n@one\n"
    server = start_server("--node-name", "n@two", config=config)
    assert server.ready_line.startswith("warren n@two ready")
    client = connect(server, handshake=False)
    client.start()
    client.send_start_ok()
    offer = client.tune()
    assert (offer["heartbeat"], offer["channel_max"]) == (17, 99)


def test_a_port_in_use_is_a_failure_that_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, output, errors = start_python(tmp_path, "--amqp", f"127.0.0.1:{port}")
    assert (code, output) == (1, "")
    (line,) = errors.splitlines()
    assert line == (
        f"warren: port {port} of 127.0.0.1 cannot be used, address already in use: choose another"
        " with --amqp HOST:PORT, or listeners.tcp in rabbitmq.conf"
    )
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_a_data_directory_in_use_is_a_failure_that_says_so(
    start_server: Callable[..., Any], connect: Callable[..., RawClient], tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    server = start_server(data_dir=data_dir)
    code, output, errors = run_server(
        tmp_path, "--amqp", "127.0.0.1:0", "--data-dir", str(data_dir)
    )
    assert (code, output) == (1, "")
    (line,) = errors.splitlines()
    assert str(data_dir) in line and "in use by another process" in line
    connect(server).close()


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "letters.txt").write_text("dear")
    code, _, errors = run_server(tmp_path, "--amqp", "127.0.0.1:0", "--data-dir", str(home))
    assert code == 1 and "letters.txt" in errors
    assert [path.name for path in home.iterdir()] == ["letters.txt"]


def test_it_loads_neither_the_clients_nor_the_tools(tmp_path: Path) -> None:
    """Half a second to be ready leaves no room for imports that a server does not need."""
    command = [sys.executable, "-P", "-X", "importtime", "-m", "warren", "server", "--amqp", "x"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    loaded = set(re.findall(r"^import time:.*\| +(\S+)$", ended.stderr, re.MULTILINE))
    assert {"warren.node", "uvloop", "lmdb"} <= loaded
    assert loaded.isdisjoint({"pytest", "pika", "amqp", "aiohttp", "proxyprotocol"})
